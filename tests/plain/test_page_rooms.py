"""The rooms of the page that need no browser: sessions, the form, the ledger's shapes, options, ports, HTML."""

import base64
import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from tpu_ui.catalogue import find_card
from tpu_ui.errors import DeviceUnavailable, InvalidRequest
from tpu_ui.events import Phase, Progress
from tpu_ui.graphs import GraphKey, Stage, WarmupState
from tpu_ui.ledger import GraphRecord
from tpu_ui.page import form, render, serve, system_tab
from tpu_ui.page.known_shapes import OTHER_VERSIONS, known_shapes
from tpu_ui.page.options import AppOptions, parse_options
from tpu_ui.page.routes import _FETCHING, _is_known, _names_an_address
from tpu_ui.page.serve import HideSecrets, Served, announce, find_port
from tpu_ui.page.sessions import Presence, is_token, new_token
from tpu_ui.page.uploads import uploaded
from tpu_ui.page.verdict import Verdict, _distance
from tpu_ui.request import GenerationRequest
from tpu_ui.settings import Settings
from tpu_ui.translations import ENGLISH

ROOT = Path(__file__).resolve().parents[2]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_tokens():
    assert is_token(new_token())
    assert new_token() != new_token()
    for other in ("", "x" * 32, "A" * 32, "a" * 31, "a" * 33, "a" * 32 + "\n", None, 5, ["a" * 32]):
        assert not is_token(other)


def test_a_closed_page_is_gone_after_its_grace_unless_it_comes_back():
    clock = Clock()
    presence = Presence(60, clock)
    presence.seen("page 1", "ann")
    presence.seen("page 2", "ann")
    presence.seen("page 3", "bob")
    presence.closed("page 1")
    clock.now = 100
    assert presence.gone() == []  # her other page is open
    presence.closed("page 2")
    presence.closed("page 3")
    presence.closed("page 3")
    presence.closed(None)
    clock.now = 150
    assert presence.gone() == []
    presence.seen("page 4", "ann")  # reloaded
    clock.now = 161
    assert presence.gone() == ["bob"]
    assert presence.gone() == []
    assert presence.pages == 1


def values(**changes: object) -> dict:
    given = dict.fromkeys(form.FIELDS) | {"prompt": "a cat", "placement": "auto", "batch": 1} | changes
    return form.values(*given.values())


def test_form_values():
    assert values() == {"prompt": "a cat", "negative_prompt": "", "placement": "auto", "batch": 1}
    assert values(width=64.0, steps=4.0)["width"] == 64
    assert values(width=64.5)["width"] == 64.5  # refused by the request, not rounded
    with pytest.raises(InvalidRequest, match="not a whole number"):
        GenerationRequest.from_mapping(values(width=64.5))
    assert values(seed=" 9007199254740993 ")["seed"] == 9007199254740993
    assert values(seed="-1")["seed"] == -1
    assert "seed" not in values(seed="  ")
    for wrong in ("1.9", "seven", "1e3", "0x10"):
        with pytest.raises(InvalidRequest, match="seed"):
            values(seed=wrong)


def test_form_round_trip():
    request = GenerationRequest(prompt="x", model="m", mode="compile", width=64, height=32, steps=4, seed=2**60)
    restored = form.from_request(request, "m")
    assert restored["seed"] == str(2**60)
    assert form.values(*[restored[name] for name in form.FIELDS])["seed"] == 2**60


def test_size_choices_tell_the_state():
    card = find_card("sdxl")
    choices = form.size_choices(card, {(1024, 1024): "warm"}, {"warm": "● warm"})
    assert choices[0] == ("1:1 · 1024×1024\n● warm", "1024x1024")
    assert len(choices) == len(card.ladder.sizes)


TOOLCHAIN = (("torch", "2"),)


def record(stage: Stage, width: int = 0, height: int = 0, tokens: int = 0, **changes: object) -> GraphRecord:
    key = {"model": "m", "revision": "r", "mode": "compile", "placement": "single", "batch": 1, "text_tokens": 77,
           "guidance_on": stage is not Stage.DECODER, "dtype": "float32", "toolchain": TOOLCHAIN}  # fmt: skip
    key |= {name: changes.pop(name) for name in list(changes) if name in key}
    made = GraphKey(stage=stage.value, width=width, height=height, tokens=tokens, **key)
    known = {"graphs": 2, "compile_seconds": 3.0, "disk_seconds": None, "proven": True, "runs": 1, "run_seconds": 1.0,
             "step_seconds": 0.5 if stage is Stage.DENOISER else None, "last_used": 10.0, "error": None,
             "disk_bytes": 100, "depends": ()}  # fmt: skip
    return GraphRecord(made, **(known | changes))


def of_shape(width: int, height: int, **changes: object) -> list[GraphRecord]:
    return [record(stage, width, height, **changes) for stage in (Stage.LATENTS, Stage.DENOISER, Stage.DECODER)]


def test_shapes_are_gathered_from_their_stages():
    records = [record(Stage.TEXT), *of_shape(64, 64), *of_shape(96, 64, last_used=20.0)]
    shapes = known_shapes(records, lambda key: WarmupState.WARM, TOOLCHAIN)  # noqa: ARG005
    assert [(shape.width, shape.height) for shape in shapes] == [(96, 64), (64, 64)]
    assert (shapes[1].graphs, shapes[1].compile_seconds, shapes[1].disk_bytes) == (6, 9.0, 300)
    assert shapes[1].step_seconds == 0.5
    assert shapes[1].state == "warm"


def test_a_shape_is_as_cold_as_its_coldest_stage():
    records = [record(Stage.TEXT), *of_shape(64, 64)]
    text_is_cold = known_shapes(
        records, lambda key: WarmupState.COLD if key.stage == Stage.TEXT else WarmupState.WARM, TOOLCHAIN
    )
    assert text_is_cold[0].state == "cold"


def test_a_denoiser_that_sees_tokens_belongs_to_each_shape_with_as_many():
    records = [
        record(Stage.LATENTS, 64, 32), record(Stage.DECODER, 64, 32), record(Stage.LATENTS, 32, 64),
        record(Stage.DECODER, 32, 64), record(Stage.DENOISER, tokens=8, graphs=7),
        record(Stage.DENOISER, tokens=6, graphs=100),
    ]  # fmt: skip
    shapes = known_shapes(records, lambda key: WarmupState.WARM, TOOLCHAIN)  # noqa: ARG005
    assert [shape.graphs for shape in shapes] == [11, 11]


def test_graphs_of_other_versions_are_called_so():
    shapes = known_shapes(of_shape(64, 64), lambda key: WarmupState.ON_DISK, (("torch", "3"),))  # noqa: ARG005
    assert shapes[0].state == OTHER_VERSIONS


def test_nearest_is_judged_by_shape_and_area():
    sizes = [(1024, 1024), (768, 1344), (1344, 768), (512, 512)]
    assert min(sizes, key=lambda size: _distance(size, (1280, 720))) == (1344, 768)
    assert min(sizes, key=lambda size: _distance(size, (960, 960))) == (1024, 1024)


def test_html_is_escaped():
    nasty = "<img src=x onerror=alert(1)>\"'&"
    pages = [
        render.verdict(Verdict("refused", nasty)), render.running(nasty, nasty, 0.5, nasty), render.sentence(nasty),
        render.ended("failed", nasty, nasty), render.rows([(nasty, nasty)]), render.table([nasty], [[nasty]], ""),
        render.verdict(Verdict(nasty, "x")), render.link("/x", nasty),
    ]  # fmt: skip
    assert not any("<img" in page or "\"'" in page for page in pages)


def test_a_preview_is_a_small_picture_in_the_page_itself():
    html = render.preview(Image.new("RGB", (1600, 800), "red"))
    coded = re.fullmatch(r'<img src="data:image/jpeg;base64,([A-Za-z0-9+/=]+)" alt="[^"]+" decoding="sync">', html)[1]
    shown = Image.open(io.BytesIO(base64.b64decode(coded)))
    assert shown.size == (640, 320)
    assert shown.getpixel((300, 100))[0] > 250
    assert len(html) < 20_000


def test_a_download_is_shown():
    page = render.progress(Progress(Phase.DOWNLOADING, bytes_done=10**9, bytes_total=4 * 10**9, file=3, files=14), 1.0)
    assert "1.0 of 4.0 GB, file 3 of 14" in page
    assert 'aria-valuenow="25"' in page


def options(*arguments: str, **environ: str) -> AppOptions:
    return parse_options(arguments, environ)


def test_options_from_line_and_environment(tmp_path: Path):
    plain = options()
    assert (plain.host, plain.port, plain.device, plain.is_public) == ("127.0.0.1", 7860, "auto", False)
    assert options(TPU_UI_PORT="9000", TPU_UI_SHARE="1", TPU_UI_MODE="fused").port == 9000
    assert options("--port", "9001", TPU_UI_PORT="9000").port == 9001
    assert options("--share").share
    assert not options(TPU_UI_SHARE="0").share
    assert options("--warm", "1024x1024, 768x1344").warm == ((1024, 1024), (768, 1344))
    assert options("--warm", "last").warm == "last"
    assert options("--auth", "ann:pw:with:colons").auth == (("ann", "pw:with:colons"),)
    (tmp_path / "logins").write_text("# who\nann:a\n\nbob:b\n")
    assert options("--auth", str(tmp_path / "logins")).auth == (("ann", "a"), ("bob", "b"))


@pytest.mark.parametrize(
    "wrong",
    [
        ("--port", "x"), ("--port", "70000"), ("--mode", "quick"), ("--warm", "big"), ("--auth", "nocolon"),
        ("--log-level", "loud"), ("--outputs", "~nobody-of-this-name/x"), ("--hub-cache", "~nobody-of-this-name/x"),
        ("--auth", "secret" * 1000), ("--auth", "~nobody-of-this-name"), ("--auth", "/usr/bin/env"),
    ],
)  # fmt: skip
def test_wrong_options_are_sentences(wrong: tuple[str, str]):
    with pytest.raises(InvalidRequest) as caught:
        options(*wrong)
    assert caught.value.field == wrong[0][2:].replace("warm", "size")
    assert "secret" not in str(caught.value)


def test_a_password_of_any_length_is_one():
    assert options("--auth", "~ann:" + "x" * 1000).auth == (("~ann", "x" * 1000),)


def test_a_space_listens_for_everyone_on_its_port():
    space = options(SPACE_ID="me/space", TPU_UI_SHARE="1")
    assert (space.host, space.port, space.port_is_fixed, space.share) == ("0.0.0.0", 7860, True, False)
    assert announce(space, Served("http://0.0.0.0:7860/", None)) == ["tpu_ui is at http://0.0.0.0:7860/"]


def test_what_is_told_at_the_start():
    told = "\n".join(announce(options(), Served("http://127.0.0.1:7861/", None)))
    assert "Port 7860 is taken, so it listens on 7861" in told
    assert "ssh -L 7861:127.0.0.1:7861" in told
    assert "WARNING" in "\n".join(announce(options("--host", "0.0.0.0"), Served("http://0.0.0.0:7860/", None)))
    with_login = options("--host", "0.0.0.0", "--auth", "a:b")
    assert "WARNING" not in "\n".join(announce(with_login, Served("http://0.0.0.0:7860/", None)))
    assert "No public link" in "\n".join(announce(options("--share"), Served("http://127.0.0.1:7860/", None)))


def test_a_taken_port_gives_way_to_the_next_or_is_named():
    with closing(socket.socket()) as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        assert find_port("127.0.0.1", taken, is_fixed=False) > taken
        with pytest.raises(DeviceUnavailable, match=rf"port: {taken} is taken by process {os.getpid()} .*--port"):
            find_port("127.0.0.1", taken, is_fixed=True)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "x" * 300, "256.1.1.1", "::ffff:zz"])
def test_a_host_that_is_not_this_machine_is_no_taken_port(host: str):
    with pytest.raises(InvalidRequest, match=r"^host: .* no address of this machine"):
        find_port(host, 7860, is_fixed=False)


def test_a_port_that_this_user_may_not_have_is_no_taken_port(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(DeviceUnavailable, match=r"port: 80 .*above 1023"):
        find_port("127.0.0.1", 80, is_fixed=False)


def test_secrets_are_masked_in_the_log():
    record = logging.LogRecord("x", logging.INFO, "", 0, "token %s and %s", ("hf_TESTONLY123", "pw-TESTONLY"), None)
    assert HideSecrets(["hf_TESTONLY123", "pw-TESTONLY", ""]).filter(record)
    assert record.getMessage() == "token *** and ***"


def test_secrets_are_masked_in_tracebacks():
    try:
        raise ValueError("sent with hf_TESTONLY123")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "it failed", (), sys.exc_info())
    HideSecrets(["hf_TESTONLY123"]).filter(record)
    told = logging.Formatter().format(record)
    assert "ValueError: sent with ***" in told
    assert "TESTONLY" not in told


def test_metrics_login():
    auth = (("ann", "pw"),)
    assert _is_known("Basic YW5uOnB3", auth)
    for header in ("", "Basic", "Basic x", "Basic YW5uOng=", "Bearer YW5uOnB3"):
        assert not _is_known(header, auth)


@pytest.mark.parametrize(
    ("path", "is_refused"),
    [
        ("/gradio_api/file=http://x/y", True), ("/gradio_api/file=https:/x/y", True),
        ("/gradio_api/file/http://x", True), ("/gradio_api/file= HTTP://x", True), ("/gradio_api/proxy=http://x", True),
        ("/root/gradio_api/file=ftp://x", True),
        ("/gradio_api/file=/cache/served/1/pictures/a/b.png", False), ("/gradio_api/upload", False), ("/", False),
    ],
)  # fmt: skip
def test_addresses_are_refused(path: str, is_refused: bool):
    assert bool(_FETCHING.match(path)) is is_refused


@pytest.mark.parametrize(
    ("path", "is_refused"),
    [
        ("http://93.184.215.14/a.png", True), ("https://example.org/a.png", True), (" HTTP://x/", True),
        ("file:///etc/passwd", True), ("ftp://x/y", True), ("/tmp/gradio/a/b.png", False), ("a: b", False), ("", False),
    ],
)  # fmt: skip
def test_files_that_are_addresses_are_refused(path: str, is_refused: bool):
    """Gradio fetches a public one for whoever posts it. In a prompt an address may stand."""
    file = {"path": path, "meta": {"_type": "gradio.FileData"}}
    for body in ({"data": [file]}, {"data": [1, [{"image": file}]]}, [file], {"event_data": {"value": file}}):
        assert _names_an_address(json.dumps(body).encode()) is is_refused
        assert _names_an_address(json.dumps(body).encode("utf-16")) is is_refused
    escaped = json.dumps({"data": [file]}).replace("path", "\\u0070ath").encode()
    assert _names_an_address(escaped) is is_refused
    assert not _names_an_address(json.dumps({"data": [path, {"text": path}]}).encode())
    assert _names_an_address(b"[" * 100_000)
    assert not _names_an_address(b"username=http://x")


def test_the_page_needs_no_torch():
    """Everything that is imported before the first paint, and no torch among it."""
    code = (
        "import sys, tpu_ui.page.build, tpu_ui.page.serve, tpu_ui.page.metrics, tpu_ui.outputs; "
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'diffusers', 'transformers', 'torch_tpu')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_help_names_the_groups():
    ran = subprocess.run(
        [sys.executable, "app.py", "--help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    for group in ("where the page is", "who may use it", "what it runs", "what it keeps and tells", "TPU_UI_PORT"):
        assert group in ran.stdout


def test_mistakes_end_with_code_2():
    ran = subprocess.run(
        [sys.executable, "app.py", "--mode", "quick"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 2
    assert "not an execution mode" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--outputs", "FILE"), "outputs: '.*FILE' cannot be used: File exists"),
        (("--outputs", "FILE/inside"), "outputs: '.*inside' cannot be used: Not a directory"),
        (("--outputs", "/proc/none"), "outputs: '/proc/none' cannot be used"),
        (("--outputs", "x" * 300), "outputs: .* cannot be used: File name too long"),
        (("--loras", "FILE"), "loras: '.*FILE' is no folder"),
        (("--loras", "absent"), "loras: '.*absent' is no folder"),
        (("--hub-cache", "FILE"), "hub-cache: '.*FILE' is no folder"),
        (("--auth", "absent"), "auth: this is neither"), (("--auth", "."), "auth: this is neither"),
        (("--warm", "nonsense"), "size: "), (("--warm", "1024x1024,,"), "size: "), (("--port", "abc"), "port: "),
        (("--port", "-1"), "port: "), (("--model", "nonsense"), "There is no model 'nonsense'"),
        (("--model", "/nowhere"), "there is no such folder"), (("--model", "FILE"), "FILE"),
        (("--device", "abacus"), "device: "), (("--mode", "quick"), "mode: "), (("--log-level", "loud"), "log-level: "),
        (("--host", "no such host"), "host: "), (("--share", "maybe"), "share: "),
        (("--shared-history", "perhaps"), "shared-history: "), (("TPU_UI_CACHE_DIR", "FILE"), "TPU_UI_CACHE_DIR: "),
        (("TPU_UI_CACHE_BUDGET", "much"), "TPU_UI_CACHE_BUDGET: "), (("TPU_UI_MAX_GRAPHS", "0"), "TPU_UI_MAX_GRAPHS: "),
    ],
)  # fmt: skip
def test_a_mistake_in_an_option_is_one_sentence(arguments: tuple[str, str], sentence: str, tmp_path: Path):
    """And exit code 2, before a port is opened."""
    (tmp_path / "FILE").write_text("")
    name, value = arguments
    environ = {key: kept for key, kept in os.environ.items() if not key.startswith("TPU_UI_")}
    environ |= {"TPU_UI_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT), "TPU_UI_DEVICE": "cpu"}
    line = [name, value] if name.startswith("--") else []
    environ |= {} if line else {name: value}
    ran = subprocess.run(
        [sys.executable, str(ROOT / "app.py"), *line], cwd=tmp_path, env=environ, capture_output=True, text=True,
        timeout=30,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, ""), ran.stderr
    assert re.search(f"^tpu_ui: .*{sentence}", ran.stderr), ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_what_is_served_has_a_name_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Addresses of pictures and of what was uploaded hold it; the files lie in the cache all the same."""
    monkeypatch.setattr(serve.tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    real = tmp_path / "home" / "cache" / "served" / "123"
    real.mkdir(parents=True)
    killed = tmp_path / "tmp" / "tpu_ui-killed"
    killed.mkdir()
    (killed / "served").symlink_to(real.with_name("122"))
    own, link = serve._neutral_name_of(real)
    assert not killed.exists()
    assert own.stat().st_mode & 0o77 == 0
    assert link.parent == own
    assert link.resolve() == real
    assert "home" not in str(link)
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(link))
    (real / "ab").mkdir()
    (real / "ab" / "x.png").write_bytes(b"x")
    for path in (link / "ab" / "x.png", real / "ab" / "x.png", f"{link}/../123/ab/x.png"):
        assert uploaded(str(path)) == str(link / "ab" / "x.png")
    for path in (real.parent / "124" / "x.png", link, own, "/etc/passwd", f"{link}/../x"):
        with pytest.raises(InvalidRequest, match="not a file that was uploaded"):
            uploaded(str(path))
    monkeypatch.setattr(serve.tempfile, "tempdir", "/proc/none")
    assert serve._neutral_name_of(real) == (None, real)


@pytest.mark.parametrize(("is_private", "has_login", "shows"), [(True, False, 1), (True, True, 0), (False, False, 0)])
def test_only_the_user_of_the_machine_sees_its_folders(is_private: bool, has_login: bool, shows: int, tmp_path: Path):
    options = SimpleNamespace(is_private=is_private, has_login=has_login)
    desk = SimpleNamespace(options=options, settings=Settings(tmp_path / "cache"))
    told = [value for _, value in system_tab._facts(desk, ENGLISH)]
    assert sum(str(tmp_path) in value for value in told) == shows
    assert shows or not any("/" in value for value in told)
