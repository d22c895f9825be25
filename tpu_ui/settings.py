"""The only reader of environment variables; what it finds is one frozen record."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tpu_ui.errors import InvalidRequest

GIB = 2**30

# Sizes of the compile cache on real chips: an executable of a large transformer takes 50 to 300 MB, so this keeps
# about a hundred of them.
DEFAULT_CACHE_BUDGET_BYTES = 20 * GIB

_COMPILER_FLAGS = ("LIBTPU_INIT_ARGS", "TORCH_TPU_INTERNAL_XLA_OPTIONS", "XLA_FLAGS")

# A shape takes some 10 graphs, in strict eager some 100 small ones; XLA:CPU needs about 0.2 MB of memory for each.
DEFAULT_MAX_GRAPHS_IN_MEMORY = 5000


@dataclass(frozen=True)
class Settings:
    """Settings of the process.

    Attributes:
        cache_dir: everything that is kept between runs: compiled graphs, the ledger, what previews learnt.
        cache_budget_bytes: compiled graphs above this are dropped from disk, least recently used first.
        memory_fraction: share of the memory that was free at start which loaded pipelines may take.
        defer_and_fuse: TORCH_TPU_DEFER_AND_FUSE=1 was set: fused eager is the default mode.
        max_graphs_in_memory: above this all compiled graphs are dropped from memory; the disk still has them.
        world_size: processes that a launcher says belong together (WORLD_SIZE).
        compiler_flags: variables that change what the compiler makes, as (name, value) pairs.
        offline: no request may go to the Hub.
        hub_cache_dir: where downloaded models are kept; None is huggingface_hub's own choice.
        lora_dir: the folder whose LoRAs are named without a path; None is `loras` in the cache folder.
    """

    cache_dir: Path
    cache_budget_bytes: int = DEFAULT_CACHE_BUDGET_BYTES
    memory_fraction: float = 0.8
    defer_and_fuse: bool = False
    max_graphs_in_memory: int = DEFAULT_MAX_GRAPHS_IN_MEMORY
    world_size: int = 1
    compiler_flags: tuple[tuple[str, str], ...] = ()
    offline: bool = False
    hub_cache_dir: Path | None = None
    lora_dir: Path | None = None

    @property
    def compile_cache_dir(self) -> Path:
        return self.cache_dir / "compiled"

    @property
    def ledger_path(self) -> Path:
        return self.cache_dir / "ledger.sqlite3"

    @property
    def previews_dir(self) -> Path:
        return self.cache_dir / "previews"

    @property
    def lora_folder(self) -> Path:
        return self.lora_dir or self.cache_dir / "loras"


def default_cache_dir(environ: Mapping[str, str], home: Path | None, space_storage: Path = Path("/data")) -> Path:
    """Where things are kept: TPU_UI_CACHE_DIR, a Space's persistent storage, or the XDG cache folder, in this order.

    Raises:
        InvalidRequest: there is no home folder to which this leads.
    """
    if chosen := environ.get("TPU_UI_CACHE_DIR"):
        return folder_of("TPU_UI_CACHE_DIR", chosen)
    if environ.get("SPACE_ID") and space_storage.is_dir() and os.access(space_storage, os.W_OK):
        return space_storage / "tpu_ui"
    xdg = Path(environ.get("XDG_CACHE_HOME", ""))
    if xdg.is_absolute():  # the XDG specification: a relative one is to be ignored
        return xdg / "tpu_ui"
    if home is None:
        raise InvalidRequest("TPU_UI_CACHE_DIR", "is not set, and this user has no home folder.", "Set it to a folder.")
    return home / ".cache" / "tpu_ui"


def folder_of(field: str, text: str) -> Path:
    """A folder as a user writes it, `~` at the beginning allowed.

    Raises:
        InvalidRequest: it begins with the home of a user who is not known.
    """
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise InvalidRequest(
            field, f"{text!r:.80} begins with an unknown user's home.", "Give the whole path."
        ) from None


def hub_cache_dir(environ: Mapping[str, str], space_storage: Path = Path("/data")) -> Path | None:
    """Where downloaded models are kept: TPU_UI_HUB_CACHE, or on a Space its persistent storage.

    None leaves it to huggingface_hub: HF_HUB_CACHE, HF_HOME, or its folder in the home folder.
    """
    if chosen := environ.get("TPU_UI_HUB_CACHE"):
        return folder_of("TPU_UI_HUB_CACHE", chosen)
    is_told = any(environ.get(name) for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"))
    if not is_told and environ.get("SPACE_ID") and space_storage.is_dir() and os.access(space_storage, os.W_OK):
        return space_storage / ".huggingface" / "hub"
    return None


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings of this process from its environment.

    Raises:
        InvalidRequest: a variable holds something that is not a size, or leads to no folder.
    """
    environ = os.environ if environ is None else environ
    return Settings(
        cache_dir=default_cache_dir(environ, _home()).absolute(),
        cache_budget_bytes=parse_bytes(
            "TPU_UI_CACHE_BUDGET", environ.get("TPU_UI_CACHE_BUDGET") or str(DEFAULT_CACHE_BUDGET_BYTES)
        ),
        max_graphs_in_memory=_whole_number(
            "TPU_UI_MAX_GRAPHS", environ.get("TPU_UI_MAX_GRAPHS", str(DEFAULT_MAX_GRAPHS_IN_MEMORY)), 1
        ),
        world_size=_whole_number("WORLD_SIZE", environ.get("WORLD_SIZE", "1"), 1),
        compiler_flags=tuple((name, environ[name]) for name in _COMPILER_FLAGS if environ.get(name)),
        defer_and_fuse=environ.get("TORCH_TPU_DEFER_AND_FUSE", "").lower() in ("1", "true"),
        offline=environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"),
        hub_cache_dir=hub_cache_dir(environ),
        lora_dir=folder_of("TPU_UI_LORAS", environ["TPU_UI_LORAS"]) if environ.get("TPU_UI_LORAS") else None,
    )


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # a container's user without an entry in /etc/passwd
        return None


_UNITS = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "m": 10**6,
    "mb": 10**6,
    "g": 10**9,
    "gb": 10**9,
    "t": 10**12,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_bytes(field: str, text: str) -> int:
    """Read a size such as `20GB`, `512 MiB` or `1000000`.

    Raises:
        InvalidRequest: `text` is not a size.
    """
    stripped = text.strip().lower()
    number = stripped.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = stripped[len(number) :].strip()
    try:
        value = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        value = -1.0
    if not 0 <= value < 2**62:
        raise InvalidRequest(field, f"{text!r:.40} is not a size in bytes.", "Write for example 20GB or 512MiB.")
    return int(value)


def _whole_number(field: str, text: str, low: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if value < low:
        raise InvalidRequest(field, f"{text!r:.40} is not a whole number of at least {low}.")
    return value
