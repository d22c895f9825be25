"""What a reload leaves as it was: the form, and what is known of a job."""

from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser

from tests.page.conftest import open_page
from tests.page.driver import GeneratePage
from tests.page.server import Server

FORM = {
    "prompt": "a fox,\nwith <b>marks</b>", "negative": "blurry", "width": "48", "height": "64", "steps": "7",
    "guidance": "2.5", "batch": "2", "seed": "9007199254740993",
}  # fmt: skip


def form_of(page: GeneratePage) -> dict[str, str]:
    return {name: page.value(name) for name in FORM}


def wait_for_form(page: GeneratePage, expected: dict[str, str]) -> None:
    page._wait(lambda: form_of(page) == expected, 20)


def kept(page: GeneratePage) -> str:
    return page.tab.evaluate("localStorage.getItem('tpu_ui.form') || ''")


def test_the_form_is_there_after_a_reload(page: GeneratePage, browser: Browser, server: Server, tmp_path: Path):
    page.fill(**FORM)
    page.tab.locator("#mode input").click()
    page.tab.get_by_role("option", name="Strict eager").click()
    page.tab.locator("#placement input").click()
    page.tab.get_by_role("option", name="One chip").click()
    page.tab.click("#from-picture button")
    Image.new("RGB", (96, 64), "red").save(tmp_path / "start.png")
    page.tab.set_input_files("#image input[type=file]", tmp_path / "start.png")
    page._wait(lambda: "start.png" in kept(page) and "single" in kept(page), 20)
    page.tab.reload()
    wait_for_form(page, FORM)
    assert page.tab.input_value("#mode input") == "Strict eager"
    assert page.tab.input_value("#placement input") == "One chip"
    page.tab.click("#from-picture button")
    page.tab.locator("#image img").wait_for()
    page._wait(lambda: "from 96×64 to 48×64" in page.verdict, 20)
    # A new tab of this browser begins with what was used last; another browser with the page's own.
    other = open_page(page.tab.context, server)
    wait_for_form(other, FORM)
    other.fill(prompt="of the second tab")
    other._wait(lambda: "of the second tab" in kept(other), 20)
    page.tab.reload()
    wait_for_form(page, FORM)
    other.tab.close()
    stranger = browser.new_context(locale="en-US")
    assert form_of(open_page(stranger, server))["prompt"] == ""
    stranger.close()
    assert page.faults == []


@pytest.mark.slow
def test_a_lost_connection_leaves_the_form(page: GeneratePage):
    page.fill(**FORM)
    page._wait(lambda: FORM["seed"] in kept(page), 20)
    page.tab.context.set_offline(True)
    page.tab.wait_for_timeout(8000)
    page.tab.context.set_offline(False)
    page.tab.wait_for_timeout(6000)
    wait_for_form(page, FORM)


@pytest.mark.parametrize("stored", ["{", '{"page": 5, "form": {"width": "x", "model": ["y"], "image": "/etc/passwd"}}'])
def test_what_is_stored_may_be_anything(page: GeneratePage, stored: str):
    page.tab.evaluate(
        "text => { for (const kept of [localStorage, sessionStorage]) kept.setItem('tpu_ui.form', text) }", stored
    )
    page.tab.reload()
    page.wait_for_verdict()
    page._wait(lambda: page.value("width") == "64", 20)
    page.generate(prompt="still usable", steps=2)
    assert page.wait_for_end().splitlines()[-1].startswith("Done")
    assert page.faults == []


@pytest.mark.slow
def test_a_picture_that_was_deleted_in_another_tab(page: GeneratePage, server: Server):
    """Chosen, used or deleted again: it is told, and nothing of it stays chosen."""
    for prompt in ("the first", "the second", "the third"):
        page.generate(prompt=prompt, width=64, height=64, steps=1)
        page.wait_for_end()
    other = open_page(page.tab.context, server)
    for tab in (page.tab, other.tab):
        tab.get_by_role("tab", name="History").click()
        tab.locator("#history").get_by_text("the first").wait_for()

    def choose(tab, prompt: str) -> None:
        tab.locator("#history .thumbnail-item, #history button").filter(has_text=prompt).first.click()

    def delete_elsewhere(prompt: str) -> None:
        choose(other.tab, prompt)
        other.tab.locator("#history-details").get_by_text(prompt).wait_for()
        other.tab.click("#history-delete")
        other._wait(lambda: prompt not in other.tab.inner_text("#history"), 20)

    def is_told_and_cleared(prompt: str) -> None:
        page.tab.locator(".toast-body").get_by_text("This picture is gone").last.wait_for()
        page._wait(lambda: prompt not in page.tab.inner_text("#history"), 20)
        page._wait(lambda: page.tab.inner_text("#history-details").startswith("Choose a picture"), 20)
        assert page.tab.locator("#history-delete").is_disabled()
        assert page.tab.locator("#history-restore").is_disabled()
        for close in page.tab.locator(".toast-close").all():
            close.click()

    delete_elsewhere("the first")
    choose(page.tab, "the first")
    is_told_and_cleared("the first")
    choose(page.tab, "the second")
    page.tab.locator("#history-details").get_by_text("the second").wait_for()
    delete_elsewhere("the second")
    page.tab.click("#history-delete")
    is_told_and_cleared("the second")
    choose(page.tab, "the third")
    page.tab.locator("#history-details").get_by_text("the third").wait_for()
    delete_elsewhere("the third")
    page.tab.click("#history-restore")
    page._wait(lambda: page.value("prompt") == "the third", 20)
    assert page.faults == []


@pytest.mark.slow
def test_a_job_that_was_lost_with_the_program_is_told(tiny_model: Path, tmp_path: Path, browser: Browser):
    """Killed in a job and started anew: the page says so until it has a new job, and the form is as it was."""
    arguments = ("--device", "cpu", "--model", str(tiny_model))
    server = Server(tmp_path / "cache", *arguments)
    context = browser.new_context(locale="en-US")
    context.set_default_timeout(20_000)
    try:
        server.wait_until_ready()
        page = open_page(context, server)
        page.generate(prompt="to be lost", width=192, height=192, batch=4, steps=200)
        page.wait_for_panel("Denoising")
        page._wait(lambda: page.tab.evaluate("localStorage.getItem('tpu_ui.job') || ''"), 20)
        server.process.kill()
        server.process.wait()
        server.stop()
        server = Server(tmp_path / "cache", *arguments, port=server.port)
        server.wait_until_ready()
        page.tab.goto(server.url)
        said = page.wait_for_panel("The program was restarted, and the job was lost", seconds=40)
        assert "the settings are still in the form" in said
        page._wait(lambda: (page.value("prompt"), page.value("steps")) == ("to be lost", "200"), 20)
        page.tab.reload()
        page.wait_for_panel("The program was restarted, and the job was lost")
        page.generate(width=64, height=64, steps=1, batch=1)
        assert page.wait_for_end().splitlines()[-1].startswith("Done")
        page._wait(lambda: page.tab.evaluate("localStorage.getItem('tpu_ui.job') === null"), 20)
        page.tab.reload()
        page.wait_for_panel("Done")
    finally:
        server.stop()
        context.close()
