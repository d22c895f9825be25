"""The command line of app.py, and the environment variables of the same names."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpu_ui import __version__
from tpu_ui.errors import InvalidRequest
from tpu_ui.modes import DEVICE_KINDS, ExecutionMode, parse_mode
from tpu_ui.replicas.starting import parse_replicas
from tpu_ui.settings import folder_of
from tpu_ui.shapes import parse_size
from tpu_ui.tensor_parallel import parse_devices

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_PORT = 7860
PREFIX = "TPU_UI_"
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class AppOptions:
    """What app.py was asked for.

    Attributes:
        port: where to listen; `port_is_fixed` says that no other will do.
        auth: (user, password) pairs; empty is no login.
        model, mode: None is the device's own default.
        outputs: folder of the pictures; None is `outputs` in the cache folder.
        hub_cache: folder of downloaded models; None is the settings' own.
        loras: folder whose LoRAs are named without a path; None is the settings' own.
        warm: "last", or sizes as (width, height).
        tensor_parallel: "auto", or a number of devices; None is one process with one device.
        replicas: "auto", or a number of processes with one device each; None is one, which is this one.
        ray_address: of the Ray cluster where the replicas run; None is this host.
    """

    host: str
    port: int
    port_is_fixed: bool
    share: bool
    auth: tuple[tuple[str, str], ...]
    shared_history: bool
    model: str | None
    device: str
    mode: ExecutionMode | None
    outputs: Path | None
    hub_cache: Path | None
    loras: Path | None
    warm: tuple[tuple[int, int], ...] | str
    tensor_parallel: str | None
    replicas: str | None
    ray_address: str | None
    log_level: str
    is_space: bool

    @property
    def is_public(self) -> bool:
        """Others than the user of this machine can reach the page."""
        return self.share or self.host not in LOOPBACK


def parse_options(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> AppOptions:
    """Read the command line; what it leaves open comes from the environment.

    Raises:
        InvalidRequest: a value is wrong.
    """
    environ = os.environ if environ is None else environ
    given = build_parser(environ).parse_args(arguments)
    is_space = bool(environ.get("SPACE_ID"))
    port = _port(given.port) if given.port else DEFAULT_PORT
    return AppOptions(
        host=given.host or ("0.0.0.0" if is_space else LOOPBACK[0]),
        port=port,
        port_is_fixed=is_space,
        share=_switch("share", given.share) and not is_space,
        auth=_read_auth(given.auth) if given.auth else (),
        shared_history=_switch("shared-history", given.shared_history),
        model=given.model or None,
        device=given.device,
        mode=parse_mode(given.mode) if given.mode else None,
        outputs=folder_of("outputs", given.outputs) if given.outputs else None,
        hub_cache=folder_of("hub-cache", given.hub_cache) if given.hub_cache else None,
        loras=folder_of("loras", given.loras) if given.loras else None,
        warm=_read_warm(given.warm) if given.warm else (),
        tensor_parallel=_number_or_auto(given.tensor_parallel, parse_devices),
        replicas=_number_or_auto(given.replicas, parse_replicas),
        ray_address=given.ray_address or None,
        log_level=_log_level(given.log_level),
        is_space=is_space,
    )


def build_parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python app.py",
        description="A page that makes pictures with diffusers pipelines on a TPU, and tells their warm-up beforehand.",
        epilog="Each option may also be set as an environment variable, for example TPU_UI_PORT=7861 for --port 7861.",
    )

    def add(group: argparse._ArgumentGroup, name: str, default: str | None, text: str, **more) -> None:
        variable = PREFIX + name.upper().replace("-", "_")
        group.add_argument(f"--{name}", default=environ.get(variable, default), help=text, **more)

    parser.add_argument("--version", action="version", version=f"tpu_ui {__version__}")
    where = parser.add_argument_group("where the page is")
    add(where, "host", None, "address to listen on (default 127.0.0.1: this machine only; on a Space 0.0.0.0)")
    add(where, "port", None, f"port to listen on (default {DEFAULT_PORT}); if it is taken, the next free one")
    add(where, "share", None, "also open a public link through Gradio", nargs="?", const="1", metavar="1")
    who = parser.add_argument_group("who may use it")
    add(
        who, "auth", None,
        "ask for a login: user:password, or a file of such lines. Other users of this machine can read a command line, "
        "so a file or TPU_UI_AUTH is safer",
    )  # fmt: skip
    text = "everybody sees all pictures in the history"
    add(who, "shared-history", None, text, nargs="?", const="1", metavar="1")
    what = parser.add_argument_group("what it runs")
    add(what, "model", None, "a name from `python -m tpu_ui models`, a folder in diffusers' format, or a Hub id")
    add(what, "device", "auto", f"auto or one of {', '.join(DEVICE_KINDS)}")
    add(what, "mode", None, "; ".join(f"{mode}: {mode.explanation}" for mode in ExecutionMode))
    text = "split FLUX.1, FLUX.2 or Qwen-Image over so many devices, one process each: auto or a number"
    add(what, "tensor-parallel", None, text, metavar="DEVICES")
    text = "so many processes with one chip and the whole model each, run by Ray: auto is one a chip, or a number"
    add(what, "replicas", None, text)
    text = "the Ray cluster where the replicas run, HOST:PORT or auto (default: Ray is started on this host)"
    add(what, "ray-address", None, text, metavar="ADDRESS")
    add(
        what, "warm", None,
        "sizes to warm up at the start, such as 1024x1024,768x1344, or last for those used last", metavar="SIZES",
    )  # fmt: skip
    keeps = parser.add_argument_group("what it keeps and tells")
    add(keeps, "outputs", None, "folder of the pictures (default: outputs in the cache folder)", metavar="FOLDER")
    text = "folder of downloaded models (default: HF_HUB_CACHE, or HF_HOME/hub)"
    add(keeps, "hub-cache", None, text, metavar="FOLDER")
    text = "folder of LoRAs that are named without a path (default: loras in the cache folder)"
    add(keeps, "loras", None, text, metavar="FOLDER")
    add(keeps, "log-level", "warning", f"one of {', '.join(LOG_LEVELS)}")
    return parser


def _switch(name: str, text: str | None) -> bool:
    word = (text or "").strip().lower()
    if word not in ("", *_ON, *_OFF):
        raise InvalidRequest(name, f"{text!r:.20} is neither yes nor no.", "Give 1 or 0.")
    return word in _ON


def _port(text: str) -> int:
    if not text.strip().isdigit() or not 1 <= int(text) <= 65535:
        raise InvalidRequest("port", f"{text!r:.20} is not a port.", "Give 1 to 65535.")
    return int(text)


def _log_level(text: str) -> str:
    if text.lower() not in LOG_LEVELS:
        raise InvalidRequest("log-level", f"{text!r:.20} is not a level.", f"Give {', '.join(LOG_LEVELS)}.")
    return text.lower()


def _read_auth(text: str) -> tuple[tuple[str, str], ...]:
    """Pairs from user:password, or from a file that holds one a line. What is wrong is told without the text."""
    file = os.path.expanduser(text)
    try:
        lines = Path(file).read_text().splitlines() if os.path.isfile(file) else [text]
    except (OSError, UnicodeDecodeError):
        raise InvalidRequest("auth", "the file of logins cannot be read.", "Make it a text file of yours.") from None
    pairs = [line.strip().partition(":") for line in lines if line.strip() and not line.startswith("#")]
    if not pairs or any(not user or not password for user, _, password in pairs):
        raise InvalidRequest("auth", "this is neither user:password nor a file of such lines.")
    return tuple((user, password) for user, _, password in pairs)


def _number_or_auto(text: str | None, parse: Callable[[str], int | None]) -> str | None:
    """The text as it is, which `parse` refuses if it is wrong; None where there is none."""
    if not text:
        return None
    parse(text)
    return text


def _read_warm(text: str) -> tuple[tuple[int, int], ...] | str:
    if text.strip().lower() == "last":
        return "last"
    return tuple(parse_size(size) for size in text.split(","))
