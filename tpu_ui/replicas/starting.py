"""From --replicas to a pool: how many, and what stands against it. No Ray and no torch yet."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from tpu_ui import hardware
from tpu_ui.errors import DeviceUnavailable, InvalidRequest
from tpu_ui.hardware import DeviceChoice
from tpu_ui.job import EngineStarter, Pool
from tpu_ui.settings import Settings

RAY_REQUIREMENT = "ray==2.60.0"

_MOST = 256
_ALLOWED = f"Give auto, or 1 to {_MOST}."


def parse_replicas(text: str) -> int | None:
    """How many replicas a user asks for; None for `auto`.

    Raises:
        InvalidRequest: it is neither.
    """
    text = text.strip().lower()
    if text == "auto":
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or not 1 <= int(text) <= _MOST:
        raise InvalidRequest("replicas", f"{text!r:.20} is no number of replicas.", _ALLOWED)
    return int(text)


def replica_starter(
    choice: DeviceChoice, settings: Settings, model: str, wanted: str, address: str | None = None
) -> EngineStarter:
    """What starts the replicas later, on the thread that will own Ray.

    Args:
        wanted: as a user writes it: `auto`, or a number.
        address: of a Ray cluster that runs; None starts Ray on this host.

    Raises:
        InvalidRequest: there are not so many chips, or Ray's address cannot be used.
        DeviceUnavailable: Ray is not installed.
    """
    number = parse_replicas(wanted)
    if address is not None and "://" in address:
        raise InvalidRequest(
            "ray-address", f"{address!r:.80} is not the address of a cluster.", "Give HOST:6379, or auto."
        )
    if not hardware.is_installed("ray"):
        raise DeviceUnavailable(
            "replicas: they run on Ray, which is not installed.", f'Install it with: pip install "{RAY_REQUIREMENT}"'
        )
    if number is None and choice.tpu is None:
        raise InvalidRequest(
            "replicas",
            f"auto is one for each TPU chip, and the device is {choice.kind}.",
            "Give a number, such as --replicas 2.",
        )
    if address is None and number is not None and choice.tpu is not None and number > choice.tpu.chips:
        raise InvalidRequest(
            "replicas",
            f"{number} were asked for, and there are {choice.tpu.chips} chips here.",
            f"Give auto, or at most {choice.tpu.chips}; over several hosts give --ray-address too.",
        )

    def start(cancelled: Callable[[], bool] = lambda: False) -> Pool:
        _set_token(address)
        from tpu_ui.replicas.pool import ReplicaPool  # imports Ray

        return ReplicaPool(choice, settings, model, number, address, cancelled)

    return start


def _set_token(address: str | None) -> None:
    """Before Ray is imported: a Ray of this program's own answers to nobody else; one that is joined, with its token.

    What the user has set himself stays.
    """
    if "RAY_AUTH_MODE" in os.environ:
        return
    if address is None:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray would keep one in the home folder
    has_token = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    if has_token or os.path.exists(Path.home() / ".ray" / "auth_token"):
        os.environ["RAY_AUTH_MODE"] = "token"
