"""The picture as it forms, in a real browser."""

import base64
import io

import pytest
from PIL import Image
from playwright.sync_api import Browser, expect

from tests.page.conftest import open_page
from tests.page.server import Server

_PLACES = """() => ['generate', 'verdict', 'model', 'panel', 'gallery', 'after'].map(id => {
    const box = document.getElementById(id).getBoundingClientRect();
    return [box.top + scrollY, box.left, box.width, box.height].map(Math.round);
})"""
_VIEWS = {"wide": {"viewport": {"width": 1440, "height": 900}}, "phone": {"viewport": {"width": 390, "height": 844}}}


@pytest.mark.parametrize("view", ["wide", pytest.param("phone", marks=pytest.mark.slow)])
def test_seen_while_it_runs_and_gone_when_switched_off(browser: Browser, server: Server, view: str):
    context = browser.new_context(locale="en-US", **_VIEWS[view])
    page = open_page(context, server)
    tab = page.tab
    preview, switch = tab.locator("#preview img"), tab.get_by_label("Live preview")
    expect(preview).to_have_count(0)
    assert switch.is_checked()
    page.generate(width=64, height=64, steps=2, prompt="what is learnt from")
    page.wait_for_end()
    expect(preview).to_have_count(0)

    if view == "phone":
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        right_edge = "document.getElementById('use-settings').getBoundingClientRect().right"
        assert tab.evaluate(right_edge) <= 390
    places = tab.evaluate(_PLACES)
    page.fill(width=192, height=128, batch=4, steps=200)
    page.generate(prompt="what forms")
    expect(preview).to_be_visible(timeout=90_000)
    page.wait_for_panel("Denoising")
    assert tab.evaluate(_PLACES) == places
    over, under = (tab.locator(name).bounding_box() for name in ("#preview", "#gallery"))
    assert over == under
    middle = {"x": over["x"] + over["width"] / 2, "y": over["y"] + over["height"] / 2}
    is_on_top = """({x, y}) => {
        scrollTo(0, y - 300);
        return document.elementFromPoint(x, y - scrollY).closest('#preview') !== null;
    }"""
    assert tab.evaluate(is_on_top, middle), "the last picture must not hide it"
    first = preview.get_attribute("src")
    kind, coded = first.split(",", 1)
    assert kind == "data:image/jpeg;base64"
    picture = Image.open(io.BytesIO(base64.b64decode(coded)))
    assert picture.width * 128 == picture.height * 192
    expect(preview).not_to_have_attribute("src", first)

    other = open_page(browser.new_context(locale="en-US"), server)
    assert other.tab.locator("#preview img").count() == 0
    other.tab.context.close()

    switch.uncheck()
    expect(preview).to_have_count(0)
    assert page.panel.startswith("Denoising")
    assert tab.evaluate(_PLACES) == places
    tab.reload()
    page.wait_for_verdict()
    assert not tab.get_by_label("Live preview").is_checked()
    page.wait_for_panel("Denoising")
    expect(preview).to_have_count(0)
    tab.get_by_label("Live preview").check()
    expect(preview).to_be_visible()
    tab.click("#cancel")
    page.wait_for_panel("Cancelled")
    expect(preview).to_have_count(0)
    assert page.faults == []
    context.close()
