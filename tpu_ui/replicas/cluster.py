"""Ray: started for this program on this host, or joined where it runs already. The only room that starts it."""

import contextlib
import ctypes
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray reads these when it is imported; nothing is sent to anybody
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a worker without a GPU keeps its variables

import ray
from ray.actor import ActorHandle

from tpu_ui.errors import DeviceUnavailable, InvalidRequest
from tpu_ui.hardware import DeviceChoice
from tpu_ui.replicas.actor import CONCURRENT_CALLS, Replica
from tpu_ui.settings import Settings

log = logging.getLogger(__name__)

# Ray puts Unix sockets there, whose paths may have 107 characters; TMPDIR may be longer than that alone.
_TEMPORARY_ROOT = Path("/tmp")
_FOLDER_PREFIX = "tpu_ui-ray-"
_OBJECT_STORE_BYTES = 256 * 2**20  # pictures on their way; Ray writes to disk what is above
_ANSWERING_SECONDS = 5.0
_SIGACTION_BYTES = 1024  # more than any system's struct sigaction has
_TPU = "TPU"  # Ray's own resource: a process that has one sees that chip alone

_ONE_CHIP = {"TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_BOUNDS": "1,1,1"}
"""libtpu's variables for a process with a single chip; Ray sets TPU_VISIBLE_CHIPS, and older names of these two."""


class Cluster:
    """Belongs to the thread that makes it, which must live as long: Ray's processes end with it.

    Args:
        replicas: how many there will be; None is one for each chip.
        address: of a Ray cluster that runs; None starts Ray on this host, for this program alone.

    Raises:
        DeviceUnavailable: no cluster answers there, or it has no chips.
        InvalidRequest: the cluster has fewer chips than that.
    """

    def __init__(
        self, choice: DeviceChoice, settings: Settings, model: str, replicas: int | None, address: str | None
    ) -> None:
        self._choice = choice
        self._arguments = (choice.kind, settings, model)
        self._folder: str | None = None
        chips = choice.tpu.chips if choice.tpu is not None else 0
        if address is None:
            self._start(replicas or chips)
        else:
            self._join(address)
        try:
            self.replicas = self._number(replicas)
        except BaseException:
            self.close()
            raise
        cores = os.cpu_count() or 1
        threads = max(1, cores // (self.replicas if address is None else max(1, chips)))
        self._environment = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": _python_path()}
        if choice.kind == "tpu":
            self._environment |= _ONE_CHIP

    def spawn(self, name: str) -> ActorHandle:
        """Start the process of a replica; it opens its device by itself. It waits where no chip is free."""
        kind = self._choice.kind
        return (
            ray.remote(Replica)
            .options(
                name=f"{name} of process {os.getpid()}",
                max_concurrency=CONCURRENT_CALLS,
                num_cpus=0,
                num_gpus=1 if kind == "cuda" else 0,
                resources={_TPU: 1} if kind == "tpu" else None,
                runtime_env={"env_vars": self._environment},
            )
            .remote(*self._arguments)
        )

    def close(self) -> None:
        """Leave the cluster, or end it if it was started here."""
        ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, processes: int) -> None:
        _remove_left_behind()
        self._folder = tempfile.mkdtemp(prefix=f"{_FOLDER_PREFIX}{os.getpid()}-", dir=_TEMPORARY_ROOT)
        with _own_ways():
            ray.init(
                address="local",  # whatever RAY_ADDRESS says
                num_cpus=max(1, processes),
                num_gpus=None if self._choice.kind == "cuda" else 0,
                resources={_TPU: self._choice.tpu.chips} if self._choice.tpu is not None else None,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                logging_level=logging.ERROR,
                _temp_dir=self._folder,
            )

    def _join(self, address: str) -> None:
        try:
            if address != "auto":  # Ray would try for minutes
                host, _, port = address.rpartition(":")
                socket.create_connection((host, int(port)), _ANSWERING_SECONDS).close()
            with _own_ways():
                ray.init(address=address, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            log.info("Ray: %s", error)
            raise DeviceUnavailable(
                f"ray-address: no Ray cluster of this version ({ray.__version__}) can be joined at {address!r:.80}.",
                "Start one with: ray start --head --port=6379; then give HOST:6379, or auto for one on this host. Its "
                "token, if it has one, must be here too (RAY_AUTH_TOKEN, or ~/.ray/auth_token).",
            ) from error

    def _number(self, replicas: int | None) -> int:
        if self._choice.kind != "tpu":
            return replicas or 1
        there = int(ray.cluster_resources().get(_TPU, 0))
        if there == 0:
            raise DeviceUnavailable("replicas: the Ray cluster has no TPU chips.", "Start Ray on hosts that have some.")
        if replicas is not None and replicas > there:
            raise InvalidRequest(
                "replicas", f"{replicas} were asked for, and Ray has {there} chips.", f"Give auto, or at most {there}."
            )
        return replicas or there


def _python_path() -> str:
    """Where the processes find this program: on other hosts it must lie at the same place."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))


@contextlib.contextmanager
def _own_ways() -> Iterator[None]:
    """While Ray starts: it tells of it, and that the thread is not the main one, which nobody can act on; and its core
    takes SIGTERM to print a stack and abort, so that this program could not close. Not Python's to undo: only the main
    thread may set handlers.
    """
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    libc = ctypes.CDLL(None)
    kept = ctypes.create_string_buffer(_SIGACTION_BYTES)
    libc.sigaction(signal.SIGTERM, None, kept)
    try:
        yield
    finally:
        libc.sigaction(signal.SIGTERM, kept, None)
        logger.setLevel(level)


def _remove_left_behind() -> None:
    """Folders of programs of this user that were killed."""
    for folder in _TEMPORARY_ROOT.glob(f"{_FOLDER_PREFIX}*-*"):
        pid = folder.name.removeprefix(_FOLDER_PREFIX).split("-")[0]
        is_own = folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid()
        if is_own and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)
