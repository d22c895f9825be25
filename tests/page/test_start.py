"""app.py as a process: how it starts, who may use it, how it ends."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gradio_client import Client
from playwright.sync_api import Browser

from tests.page.server import Server

LOGIN = "qa:pw-TESTONLY"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a login from a file, a share link that cannot be opened, a token in the environment, and debug logging."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "logins").write_text(LOGIN + "\n")
    server = Server(
        folder / "cache", "--device", "cpu", "--share", "--auth", str(folder / "logins"), "--log-level", "debug",
        HTTPS_PROXY="http://127.0.0.1:9", HTTP_PROXY="http://127.0.0.1:9", NO_PROXY="127.0.0.1,localhost",
        HF_TOKEN="hf_TESTONLY123",
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
    limit = time.monotonic() + 40
    while "No public link" not in guarded.log:
        assert time.monotonic() < limit, guarded.log[-2000:]
        time.sleep(0.5)
    assert f"tpu_ui is at {guarded.url}" in guarded.log
    assert guarded.process.poll() is None


def test_secrets_are_nowhere(guarded: Server):
    command = Path(f"/proc/{guarded.process.pid}/cmdline").read_bytes()
    for secret in ("pw-TESTONLY", "hf_TESTONLY123"):
        assert secret not in guarded.log
        assert secret.encode() not in command


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
