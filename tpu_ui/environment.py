"""What must be set before torch is imported, and the import itself. The only place that does either."""

import atexit
import contextlib
import fcntl
import logging
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import IO

from tpu_ui import emulation
from tpu_ui.errors import DeviceUnavailable
from tpu_ui.settings import Settings

log = logging.getLogger(__name__)

# TorchTPU keeps a second copy of every executable in shared memory, by name, for the processes of one host. It cannot
# be switched off without the cache on disk, so each process gets a name of its own and clears it when it ends.
SHARED_MEMORY_CACHE_ROOT = Path("/dev/shm/torch_tpu_cache")
_SHARED_MEMORY_PREFIX = "tpu_ui-"
_OWNER_LOCK = "owner.lock"
_held_locks: list[IO[str]] = []  # a lock is given back when its file is closed, that is, at the end of the process


def shared_memory_cache_dir(pid: int | None = None) -> Path:
    return SHARED_MEMORY_CACHE_ROOT / f"{_SHARED_MEMORY_PREFIX}{os.getpid() if pid is None else pid}"


def prepare(device_kind: str, settings: Settings) -> None:
    """Set the environment for a device and import torch with it. Must run before anything else imports torch.

    Raises:
        DeviceUnavailable: what the device needs is not installed.
        RuntimeError: torch was imported already, so that the settings would come too late (a fault of the caller).
    """
    if "torch" in sys.modules:
        raise RuntimeError("tpu_ui.environment.prepare() must run before torch is imported")
    # Without a TPU, autoloading torch_tpu asks a metadata server that does not exist, for minutes.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1" if device_kind == "tpu" else "0"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    _quieten()
    if device_kind.startswith("tpu"):
        _set_tpu_compile_cache(settings)
        if device_kind == "tpu-emulated":
            emulation.install_cpu_plugin()
        _import_torch_tpu(device_kind)
    else:
        cache = settings.compile_cache_dir / "inductor"
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)  # inductor writes its default there for child processes
        import torch  # noqa: F401


def prepare_launcher(device_kind: str) -> None:
    """Import torch for a process that starts others, each with a device, and opens none itself."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1" if device_kind == "tpu" else "0"
    _quieten()
    with open(os.devnull, "w") as quiet, contextlib.redirect_stderr(quiet):
        import torch  # noqa: F401


def _quieten() -> None:
    """Leave standard error to what a user can act on. Whatever the user has set himself stays."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA's and TorchTPU's log, all levels below fatal
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    warnings.filterwarnings("ignore", message="<TorchTpu/")  # each experimental call warns
    warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)  # torch about itself


def _set_tpu_compile_cache(settings: Settings) -> None:
    settings.compile_cache_dir.mkdir(parents=True, exist_ok=True)
    os.environ["TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT"] = str(settings.compile_cache_dir)
    os.environ["TORCH_TPU_TIER2_COMPILATION_CACHE"] = shared_memory_cache_dir().name
    # TorchTPU starts a compile beside each read of the disk, in case the read is slow. It wins now and then, and then a
    # graph that is on disk is compiled again.
    os.environ["TORCH_TPU_INTERNAL_TIER3_COMPILATION_CACHE_LOCAL_BACKUP_TASK"] = "0"
    remove_stale_shared_memory_caches()
    _claim_shared_memory_cache()


def _claim_shared_memory_cache() -> None:
    """Make this process's folder and hold a lock in it for as long as the process lives."""
    folder = shared_memory_cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / _OWNER_LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _held_locks.append(lock)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def remove_stale_shared_memory_caches() -> None:
    """Remove what processes that were killed left in shared memory. A living one holds its lock, in any container."""
    for folder in SHARED_MEMORY_CACHE_ROOT.glob(f"{_SHARED_MEMORY_PREFIX}*"):
        try:
            with (folder / _OWNER_LOCK).open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # held, or not ours to remove
        shutil.rmtree(folder, ignore_errors=True)


def empty_shared_memory_cache() -> None:
    """Free this process's copies; the disk has them too. The folders stay: TorchTPU aborts the process without them."""
    for file in shared_memory_cache_dir().rglob("*.bin"):
        file.unlink(missing_ok=True)


def _import_torch_tpu(device_kind: str) -> None:
    # TorchTPU prints its registration on standard error at each start; it belongs in the log.
    with open(os.devnull, "w") as quiet, contextlib.redirect_stderr(quiet):
        import torch  # noqa: F401

        try:
            import torch_tpu  # noqa: F401
            from torch_tpu import _loader
        except ImportError as error:
            raise DeviceUnavailable(
                f"device: {device_kind} needs the package torch_tpu, which could not be imported ({error}).",
                "Install it with: pip install torch_tpu",
            ) from error
        if device_kind == "tpu-emulated":
            _loader._init_device("tpu")  # public counterpart: autoload, which insists on a chip on the PCI bus
            emulation.pretend_one_chip()
