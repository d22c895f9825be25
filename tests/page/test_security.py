"""What a stranger may try."""

import http.client
import http.server
import threading
import time
import urllib.error
from pathlib import Path

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from tests.page.driver import GeneratePage
from tests.page.posts import functions, post, send
from tests.page.server import ROOT, Server
from tpu_ui.page.form import FIELDS


@pytest.fixture
def listener():
    """A server on this machine that notes who calls."""
    calls: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            calls.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", calls
    server.shutdown()


def test_only_copies_of_own_pictures_are_served(page: GeneratePage, server: Server):
    page.generate(steps=2, prompt="secret prompt")
    page.wait_for_end()
    kept = sorted((server.cache / "outputs").glob("*.png"))
    assert kept
    link = server.cache / "outputs" / "link.png"
    link.unlink(missing_ok=True)
    link.symlink_to("/etc/passwd")
    secret = server.cache / ".env"
    secret.write_text("x")
    for path in (
        "/etc/passwd", kept[-1], link, secret, f"{server.cache}/outputs/../.env", f"{server.cache}/outputs/..%2f.env",
        server.cache / "ledger.sqlite3", server.cache / "outputs" / ".tpu_ui-history.sqlite3", ROOT / "app.py",
        ROOT / "tpu_ui" / "manager.py", Path.home() / ".cache" / "huggingface" / "token", ".env", "app.py",
    ):  # fmt: skip
        status, body = server.get(f"/gradio_api/file={path}")
        assert status in (403, 404), (path, body[:100])
    assert (server.cache / "served").resolve() in Path(page.picture_path()).resolve().parents
    for private in (server.cache, Path.home(), ROOT):
        assert not page.picture_path().startswith(f"{private}/")


def test_pictures_are_served_under_names_nobody_can_guess(page: GeneratePage, server: Server):
    page.generate(steps=2)
    page.wait_for_end()
    folder = Path(page.picture_path()).parent
    assert len(folder.name) == 32
    assert server.get(f"/gradio_api/file={folder}")[0] in (403, 404)
    assert server.get(f"/gradio_api/file={folder.parent}")[0] in (403, 404)
    assert server.get(f"/gradio_api/file={page.picture_path()}")[0] == 200


def test_no_address_is_fetched(server: Server, listener):
    address, calls = listener
    for path in (
        f"/gradio_api/file={address}/x", "/gradio_api/file=http://169.254.169.254/computeMetadata/v1/",
        f"/gradio_api/file/{address}/x", f"/gradio_api/proxy={address}/x", "/gradio_api/file=file:///etc/passwd",
        "/gradio_api/file=http%3A%2F%2F127.0.0.1/x",
    ):  # fmt: skip
        assert server.get(path)[0] in (403, 404), path
    reader = functions(server)["read_png"]
    addresses = (
        f"{address}/a.png", "http://169.254.169.254/computeMetadata/v1/", f"{server.url}/config", "http://[::1]/",
        "http://127.0.0.1:9/closed", "https://example.org/public.png", "file:///etc/passwd",
    )  # fmt: skip
    for target in addresses:
        body = {"fn_index": reader, "data": [{"path": target, "meta": {"_type": "gradio.FileData"}}]}
        for route in ("/gradio_api/queue/join", "/gradio_api/run/read_png", "/gradio_api/call/read_png"):
            with pytest.raises(urllib.error.HTTPError) as refusal:
                send(server, route, body | {"session_hash": "0123456789ab"})
            told = (refusal.value.code, refusal.value.read())
            assert told == (403, b"Addresses are not fetched."), (target, route)
    for target in ("/etc/passwd", str(server.cache / "ledger.sqlite3")):
        answer = post(server, reader, [{"path": target, "meta": {"_type": "gradio.FileData"}}])
        assert not answer["success"], target
        assert "root:" not in str(answer)
    client = Client(server.url, verbose=False)
    for model in (f"{address}/model", "http://169.254.169.254/x", "file:///etc"):
        with pytest.raises(AppError):
            client.predict(model=model, api_name="/generate")
    assert calls == []


def test_hidden_endpoints_check_the_caller(server: Server):
    """Posted to directly, they know a caller by his token alone, and a strange one opens nothing."""
    known = functions(server)
    given = {"prompt": "not for strangers", "placement": "auto", "width": 64, "height": 64, "steps": 2, "batch": 1}
    given["strength"] = 0.6
    form = [given.get(name) for name in FIELDS]
    owner = "a" * 32
    answer = post(server, known["press_generate"], [owner, None, *form], "sessionofowner")
    assert answer["success"], answer
    limit = time.monotonic() + 30
    while "not for strangers" not in (answer := str(post(server, known["show_history"], [owner, ""], "x1"))):
        assert time.monotonic() < limit, answer[:300]
        time.sleep(0.3)
    for token in ("f" * 32, "", None, "../..", {"a": 1}, 5, owner.upper(), [owner]):
        answer = str(post(server, known["show_history"], [token, ""], "x2"))
        assert "not for strangers" not in answer
        assert ".png" not in answer
        if token != "f" * 32:
            refused = post(server, known["press_generate"], [token, None, *form], "x3")
            assert not refused["success"], refused
            assert "Traceback" not in str(refused)


def test_config_and_log_hold_no_private_paths(page: GeneratePage, server: Server, tiny_model: Path):
    page.generate(steps=2, prompt="zebra in the log?")
    page.wait_for_end()
    for address in ("/config", "/gradio_api/info", "/"):
        text = server.get(address)[1].decode()
        assert str(tiny_model) not in text
        assert str(Path.home()) + "/" not in text
    assert "zebra in the log?" not in server.log


def test_a_body_larger_than_any_request_is_refused(server: Server):
    """Whether its length is told, or it comes in chunks."""
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    headers = {"content-type": "application/json"}
    filler = b'{"session_hash": "x", "data": ["' + b"x" * 1_000_000
    for body, is_chunked in ((filler * 3, False), (iter([filler] * 3), True)):
        client.request("POST", "/gradio_api/queue/join", body, headers, encode_chunked=is_chunked)
        answer = client.getresponse()
        assert (answer.status, b"too large" in answer.read()) == (413, True)
        client.close()
