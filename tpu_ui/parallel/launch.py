"""The processes of a group: started with PyTorch's elastic launcher, watched, and ended together.

In the process that starts them torch is imported without opening any device.
"""

import logging
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from tpu_ui import environment
from tpu_ui.errors import DeviceUnavailable, JobCancelled
from tpu_ui.parallel.orphans import parent_environment
from tpu_ui.parallel.setup import OuterLaunch

if TYPE_CHECKING:
    from torch.distributed import TCPStore

RANK_MODULE = "tpu_ui.parallel.rank"
POLL_SECONDS = 0.2


class Ranks:
    """The processes that this one has started. They must be started by a thread that outlives them.

    Args:
        environments: of each process, what it gets beside this one's.
        module: what they run.
    """

    def __init__(self, environments: list[Mapping[str, str]], module: str = RANK_MODULE) -> None:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes

        # It warns that it cannot handle signals on this thread, and of each process that it ends: both are done here.
        logging.getLogger("torch.distributed.elastic.multiprocessing").setLevel(logging.CRITICAL)
        self._folder = tempfile.mkdtemp(prefix="tpu_ui-ranks-")
        with _own_signal_handlers():
            self._context = start_processes(
                name="tpu_ui",
                entrypoint=sys.executable,
                args={number: ("-m", module) for number in range(len(environments))},
                envs={number: dict(values) | parent_environment() for number, values in enumerate(environments)},
                logs_specs=DefaultLogsSpecs(log_dir=self._folder),
            )

    @property
    def pids(self) -> dict[int, int]:
        """By place on this host."""
        return self._context.pids()

    def ended(self) -> tuple[int, str] | None:
        """The first process that ended, by place, and how; None while all run. One end ends the others."""
        result = self._context.wait(0)
        if result is None:
            return None
        if not result.failures:
            return 0, "ended"
        # A rank that sees another die may fail for that, so a signal is the likelier cause; but SIGTERM was sent to the
        # others when the first had ended.
        first = min(result.failures.values(), key=lambda f: (f.exitcode == -signal.SIGTERM, f.exitcode >= 0))
        return first.local_rank, _how(first.exitcode)

    def stop(self, seconds: float) -> None:
        """End them all: asked first, killed after so many seconds."""
        self._context.close(timeout=max(1, round(seconds)))
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Undo that the launcher, where it runs on the main thread, takes the program's signal handlers."""
    taken = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    kept = {number: signal.getsignal(number) for number in taken}
    yield
    if threading.current_thread() is threading.main_thread():
        for number, handler in kept.items():
            signal.signal(number, handler)


def _how(exit_code: int) -> str:
    if exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


def prepare(device_kind: str, devices: int, outer: OuterLaunch | None) -> None:
    """Import torch here, and set what TorchTPU wants the processes to agree on.

    Raises:
        DeviceUnavailable: torch_tpu is too old for it, or finds other devices than asked for.
    """
    environment.prepare_launcher(device_kind)
    if device_kind != "tpu" or outer is not None:  # an outer launcher has set it: python -m torch.tpu.distributed
        return
    import torch

    launch = getattr(getattr(torch, "tpu", None), "distributed", None)
    set_tpu_launch_env = getattr(launch, "set_tpu_launch_env", None)
    if set_tpu_launch_env is None:
        raise DeviceUnavailable(
            "tensor-parallel: this torch_tpu has no torch.tpu.distributed.set_tpu_launch_env; versions before 0.2 have "
            "only an internal launcher (singlehost_wrapper), which tpu_ui does not use.",
            "Install torch_tpu 0.2.0 or newer.",
        )
    try:
        set_tpu_launch_env(nproc_per_node=devices)
    except (ValueError, RuntimeError) as error:
        raise DeviceUnavailable(
            f"tensor-parallel: {devices} devices could not be set up ({str(error).splitlines()[0]:.300}).",
            "Choose another number with --tensor-parallel.",
        ) from error


def open_store(outer: OuterLaunch | None, seconds: float) -> "TCPStore":
    """The store in which the ranks meet. Served by this process, or by an outer launcher's agent.

    Raises:
        DeviceUnavailable: the port is taken, or nobody serves it.
    """
    from torch.distributed import DistError, TCPStore

    timeout = timedelta(seconds=seconds)
    try:
        if outer is None:
            return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timeout)
        is_master = outer.rank == 0 and not outer.has_agent
        return TCPStore(outer.address, outer.port, is_master=is_master, wait_for_workers=False, timeout=timeout)
    except DistError as error:
        address = f"{outer.address}:{outer.port}" if outer is not None else "a port of 127.0.0.1"
        what = "is taken" if "EADDRINUSE" in str(error) else f"was not to be reached within {seconds:.0f} s"
        raise DeviceUnavailable(
            f"tensor-parallel: {address}, where the processes meet, {what}.",
            "Set MASTER_ADDR and MASTER_PORT to a free port of the first host, or start it with torchrun.",
        ) from error


def meet(store: "TCPStore", outer: OuterLaunch, seconds: float, cancelled: Callable[[], bool] = lambda: False) -> None:
    """Wait until every process of an outer launcher has come.

    Raises:
        DeviceUnavailable: some have not.
        JobCancelled: `cancelled` said so meanwhile.
    """
    store.set(f"arrived/{outer.rank}", "")
    missing = {rank: f"arrived/{rank}" for rank in range(outer.world_size)}
    deadline = time.monotonic() + seconds
    while missing := {rank: key for rank, key in missing.items() if not store.check([key])}:
        if cancelled():
            raise JobCancelled
        if time.monotonic() > deadline:
            came = [str(rank) for rank in range(outer.world_size) if rank not in missing]
            raise DeviceUnavailable(
                f"tensor-parallel: WORLD_SIZE={outer.world_size} says that {outer.world_size} processes belong "
                f"together, but after {seconds:.0f} s only {len(came)} came (rank {', '.join(came)}).",
                "Start all of them, with torchrun for example, or unset RANK and WORLD_SIZE.",
            )
        time.sleep(POLL_SECONDS)
