"""What the manager asks of a device, and the choice of the one that answers."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import psutil

from tpu_ui import environment
from tpu_ui.modes import ExecutionMode
from tpu_ui.settings import Settings

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class CompileCounters:
    """Readings of the device's own counters since the process began; subtract two readings.

    Attributes:
        compiles: graphs that the compiler made.
        requested: graphs that were not in memory: compiled, being compiled, or read from disk.
        compile_seconds: wall time in Dynamo's tracing and in the compiler.
    """

    compiles: int = 0
    requested: int = 0
    compile_seconds: float = 0.0

    def __sub__(self, other: "CompileCounters") -> "CompileCounters":
        return CompileCounters(
            self.compiles - other.compiles,
            self.requested - other.requested,
            self.compile_seconds - other.compile_seconds,
        )


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of device memory; on a device that shares the host's memory, of the process and the host."""

    used_bytes: int
    total_bytes: int


def host_memory() -> DeviceMemory:
    """Resident bytes of this process, and of the host: device memory where the device is the host."""
    return DeviceMemory(psutil.Process().memory_info().rss, psutil.virtual_memory().total)


class Runtime(Protocol):
    """One device of this process. All calls but `counters` and `memory` belong to the device thread."""

    kind: str
    torch_device: "torch.device"
    one_file_a_graph: bool  # the compile cache on disk gets one file for each compiled graph

    def set_mode(self, mode: ExecutionMode) -> None: ...

    def compile(self, function: Callable) -> Callable:
        """`function` under torch.compile with full graphs and static shapes."""
        ...

    def counters(self) -> CompileCounters: ...

    def forbid_recompiles(self) -> AbstractContextManager[None]:
        """Inside, Dynamo raises UnexpectedCompile's cause instead of tracing a new graph."""
        ...

    def synchronize(self) -> None: ...

    def mark(self) -> Callable[[], None]:
        """Note the end of all that the device was given so far, without waiting; the answer waits for it."""
        ...

    def memory(self) -> DeviceMemory: ...

    def drop_graphs(self) -> None:
        """Forget every compiled graph that is held in memory; those on disk stay."""
        ...

    def trim(self) -> None:
        """After compiling: give back host memory that only a further compile of the same graphs would use."""
        ...

    def toolchain(self) -> dict[str, str]:
        """What decides whether a compiled graph can be used again: versions and the chip's kind."""
        ...


def start_runtime(
    device_kind: str, settings: Settings, before_opening: Callable[[], None] | None = None, may_fuse: bool = True
) -> Runtime:
    """Import torch for the device and open it. Once in a process.

    Args:
        before_opening: called when torch is there, and the device is not open yet.
        may_fuse: see `TpuRuntime`.

    Raises:
        DeviceUnavailable: the device cannot be opened; the sentence says why.
    """
    environment.prepare(device_kind, settings)
    if before_opening is not None:
        before_opening()
    if device_kind.startswith("tpu"):
        from tpu_ui.tpu_runtime import TpuRuntime

        return TpuRuntime(device_kind, may_fuse)
    from tpu_ui.torch_runtime import TorchRuntime

    return TorchRuntime(device_kind)
