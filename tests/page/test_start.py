"""app.py as a process: how it starts, who may use it, how it ends."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from PIL import Image
from playwright.sync_api import Browser

from tests.page.conftest import open_page
from tests.page.driver import GeneratePage
from tests.page.hurried_app import GRACE_SECONDS
from tests.page.server import Server

LOGIN = "qa:pw-TESTONLY"
SECRETS = ("pw-TESTONLY", "hf_TESTONLY123")
HOME = "home-of-qa"


@pytest.fixture(scope="module")
def guarded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A login from a file, a share link that cannot be opened, a token, debug logging, a model in the home folder."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "logins").write_text(LOGIN + "\n")
    model = folder / HOME / "models" / "sd3"
    shutil.copytree(tiny_model, model)
    server = Server(
        folder / "cache", "--device", "cpu", "--share", "--auth", str(folder / "logins"), "--log-level", "debug",
        "--model", str(model), HOME=str(folder / HOME), HF_TOKEN="hf_TESTONLY123",
        HTTPS_PROXY="http://127.0.0.1:9", HTTP_PROXY="http://127.0.0.1:9", NO_PROXY="127.0.0.1,localhost",
    )  # fmt: skip
    try:
        server.wait_until_up()
        yield server
    finally:
        server.stop()


def test_login_is_asked_for_everywhere(guarded: Server):
    for path in ("/config", "/gradio_api/info", "/gradio_api/file=/etc/passwd", "/metrics"):
        assert guarded.get(path)[0] == 401, path
    assert guarded.get("/metrics", {"Authorization": "Basic cWE6cHctVEVTVE9OTFk="})[0] == 200
    client = Client(guarded.url, auth=tuple(LOGIN.split(":")), verbose=False)
    assert client.predict(api_name="/status")["device"] == "cpu"


def test_failed_share_link_leaves_the_page_up(guarded: Server):
    guarded.wait_for_line("No public link", seconds=40)
    assert f"tpu_ui is at {guarded.url}" in guarded.log
    assert guarded.process.poll() is None


def test_secrets_are_nowhere(guarded: Server):
    """After a picture, a refusal, a model that cannot be loaded and one picture that cannot be saved."""
    client = Client(guarded.url, auth=tuple(LOGIN.split(":")), verbose=False)
    pictures, report = client.predict(steps=1, api_name="/generate")
    assert report["model"] == "sd3"
    with Image.open(pictures[0]) as picture:
        told = [str(report), str(picture.text), str(client.predict(api_name="/models"))]
    outputs = guarded.cache / "outputs"
    kept = [path.read_bytes().decode(errors="replace") for path in outputs.iterdir() if path.is_file()]
    assert len(kept) >= 2  # the picture and the history
    outputs.rename(guarded.cache / "moved")
    outputs.write_text("a file where the folder was")
    for wrong in ({"width": 63}, {"model": "sdxl"}, {"model": "/nowhere"}, {"steps": 1}):
        with pytest.raises(AppError) as refusal:
            client.predict(**wrong, api_name="/generate")
        told.append(str(refusal.value))
    outputs.unlink()
    (guarded.cache / "moved").rename(outputs)
    cookie = {"Cookie": "; ".join(f"{name}={value}" for name, value in client.cookies.items())}
    for address in ("/", "/config", "/gradio_api/info", "/metrics"):
        told.append(guarded.get(address, cookie)[1].decode())
    assert "tpu_ui" in told[-3]
    told += kept
    told.append(str(client.predict(api_name="/status")))
    for secret in (*SECRETS, HOME):
        assert [text[:300] for text in told if secret in text] == []
    command = Path(f"/proc/{guarded.process.pid}/cmdline").read_bytes().decode()
    for secret in SECRETS:
        assert secret not in guarded.log
        assert secret not in command
    assert "Traceback" not in "".join(told)


def test_starts_as_a_space_and_ends_quietly(tmp_path: Path, browser: Browser):
    """No argument, SPACE_ID set: the page is up for everyone, whatever the device does, and home stays empty."""
    home, cache = tmp_path / "home", tmp_path / "data"
    home.mkdir()
    server = Server(cache, SPACE_ID="me/space", HOME=str(home), XDG_CACHE_HOME=str(home / "xdg"), SPACE_HOST="x")
    try:
        server.wait_until_up()
        tab = browser.new_page()
        tab.goto(server.url)
        tab.wait_for_selector("#generate")
        tab.close()
        listening = Path("/proc/net/tcp").read_text()
        assert f"00000000:{server.port:04X}" in listening
        server.wait_until_ready()
        assert [path for path in home.rglob("*") if path.is_file() and "matplotlib" not in str(path)] == []
    finally:
        code = server.stop()
    assert code == 0, server.log[-2000:]
    assert list((cache / "served").iterdir()) == []
    assert "Traceback" not in server.log


def test_missing_device_ends_at_once(tmp_path: Path):
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has the device")
    server = Server(tmp_path / "cache", "--device", "cuda")
    assert server.process.wait(30) == 2
    assert "no NVIDIA driver" in server.log
    assert "Traceback" not in server.log
    server.stop()


def test_a_mode_that_the_device_lacks_ends_at_once(tmp_path: Path):
    server = Server(tmp_path / "cache", "--device", "cpu", "--mode", "fused")
    assert server.process.wait(30) == 2
    assert "exists only on a TPU, not on cpu. Choose strict or compile." in server.log
    server.stop()


def test_a_tunnel_that_cannot_be_executed_leaves_the_page_up(tmp_path: Path):
    tunnel = tmp_path / "hub" / "gradio" / "frpc" / "frpc_linux_amd64_v0.3"
    tunnel.parent.mkdir(parents=True)
    tunnel.write_bytes(b"no program")
    server = Server(
        tmp_path / "cache", "--device", "cpu", "--share", HF_HOME=str(tmp_path / "hub"),
        GRADIO_SHARE_SERVER_ADDRESS="127.0.0.1:9",
    )  # fmt: skip
    try:
        server.wait_until_up()
        server.wait_for_line("No public link", seconds=40)
        assert "WARNING: anyone who can reach this page may use it" in server.log
        assert server.get("/")[0] == 200
    finally:
        server.stop()


@pytest.mark.slow
def test_what_was_warm_last_is_warmed_again(tiny_model: Path, tmp_path: Path):
    """After a restart with --warm last the sizes that were used before are warm, and read from disk."""
    arguments = ("--device", "tpu-emulated", "--model", str(tiny_model))
    server = Server(tmp_path / "cache", *arguments)
    try:
        server.wait_until_ready()
        client = Client(server.url, verbose=False)
        assert client.predict(width=48, height=80, steps=2, mode="fused", api_name="/generate")[1]["new_compiles"] > 0
    finally:
        server.stop()
    again = Server(tmp_path / "cache", *arguments, "--warm", "last")
    try:
        again.wait_until_ready()
        client = Client(again.url, verbose=False)
        limit = time.monotonic() + 60
        while (word := client.predict(width=48, height=80, mode="fused", api_name="/verdict"))["state"] != "warm":
            assert time.monotonic() < limit, word
            time.sleep(0.3)
        assert again.metric('tpu_ui_requests_total{kind="warm_up",state="done"}') == 1
        assert again.metric("tpu_ui_graphs_compiled_total") == 0
        report = client.predict(width=48, height=80, steps=3, mode="fused", api_name="/generate")[1]
        assert (report["was_warm"], report["new_compiles"]) == (True, 0)
    finally:
        again.stop()


@pytest.mark.slow
def test_a_closed_page(tiny_model: Path, tmp_path: Path, browser: Browser):
    """Its queued jobs are dropped; the one that runs ends, and is in the history when the browser comes back."""
    server = Server(
        tmp_path / "cache", "--device", "cpu", "--model", str(tiny_model), program=("-m", "tests.page.hurried_app")
    )
    ended = 'tpu_ui_requests_total{{kind="generate",state="{}"}}'.format
    try:
        server.wait_until_ready()
        context = browser.new_context(locale="en-US")
        context.set_default_timeout(20_000)
        page = open_page(context, server)
        page.generate(prompt="the one that ran", width=192, height=192, batch=2, steps=80)
        page.wait_for_panel("Denoising")
        page.generate(prompt="the one that waited", steps=1)
        page.tab.locator("#panel").get_by_text("1 more job of yours in the queue").wait_for()
        page.tab.reload()
        page = GeneratePage(page.tab)
        page.wait_for_panel("Denoising")
        time.sleep(GRACE_SECONDS + 1)
        assert server.metric("tpu_ui_queue_jobs") == 1  # a page that was only reloaded keeps its jobs
        page.tab.close()
        server.wait_for_metric(ended("cancelled"), 1, seconds=GRACE_SECONDS + 15)
        assert server.metric("tpu_ui_queue_jobs") == 0
        server.wait_for_metric(ended("done"), 1, seconds=300)
        page = open_page(context, server)
        page.tab.get_by_role("tab", name="History").click()
        page.tab.locator("#history").get_by_text("the one that ran").first.wait_for()
        assert page.tab.locator("#history").get_by_text("the one that waited").count() == 0
        context.close()
    finally:
        server.stop()


def test_the_end_is_heard_while_the_device_waits_for_others(tmp_path: Path):
    server = Server(tmp_path / "cache", "--device", "cpu", program=("-m", "tests.page.waiting_app"))
    try:
        server.wait_for_line("tpu_ui is at", seconds=60)
    finally:
        code = server.stop()
    assert code == 0, server.log[-2000:]
    assert "nobody waits any more" in server.log
    assert "Traceback" not in server.log


def test_the_warm_up_tab_follows_the_start_of_the_device(tiny_model: Path, tmp_path: Path, browser: Browser):
    server = Server(tmp_path / "cache", "--device", "cpu", "--model", str(tiny_model))
    try:
        server.wait_until_up()
        context = browser.new_context(locale="en-US")
        page = open_page(context, server)
        page.tab.get_by_role("tab", name="Warm-up").click()
        page.tab.locator("#warm-panel").get_by_text("cpu is ready").wait_for(timeout=60_000)
        context.close()
    finally:
        server.stop()
