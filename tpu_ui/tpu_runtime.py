"""A TPU of this process, real or emulated: the one home of TorchTPU's private calls.

| private call                    | used for                      | the public API that should replace it              |
|---------------------------------|-------------------------------|----------------------------------------------------|
| torch.tpu._get_cache_stats      | counting compiles             | counters in torch.tpu.compiler                     |
| torch.tpu._clear_cache          | dropping executables          | torch.accelerator.empty_cache                      |
| torch._dynamo.callback          | Dynamo's tracing time         | torch.compiler events                              |
| torch_tpu._loader._init_device  | emulation (environment.py)    | autoload with a PJRT plugin named by the user      |
| hardware.get_tpu_device_count   | emulation (emulation.py)      | the plugin's own device count                      |
"""

import importlib.metadata
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from tpu_ui import dynamo, environment, hardware
from tpu_ui.errors import DeviceUnavailable
from tpu_ui.modes import ExecutionMode
from tpu_ui.runtime import CompileCounters, DeviceMemory, host_memory

_EAGER_MODE_NAMES = {
    ExecutionMode.STRICT_EAGER: "DEFER_NEVER",
    ExecutionMode.FUSED_EAGER: "DEFER_AND_FUSE",
    # What a pipeline runs outside its compiled modules (text encoders, guidance, the way to the picture) is fused. Tiny
    # pipelines on XLA:CPU, graphs of a first picture with DEFER_NEVER and with DEFER_AND_FUSE: SD3 41 and 10, FLUX.1 66
    # and 6, SDXL 38 and 9. Compiling the text encoders instead fails where hidden states are asked for.
    ExecutionMode.COMPILED: "DEFER_AND_FUSE",
}
_DURATIONS_SETTLE_SECONDS = 1.0
_VERSIONED_PACKAGES = ("torch", "torch_tpu", "libtpu", "diffusers", "transformers")


class TpuRuntime:
    """See `runtime.Runtime`. `kind` is "tpu" or "tpu-emulated".

    Args:
        may_fuse: False: nothing runs in fused eager, also outside the compiled modules. Processes that work together
            must start their collectives in one order, and fused eager decides by itself when a program is cut.
    """

    one_file_a_graph = True

    def __init__(self, kind: str, may_fuse: bool = True) -> None:
        self.kind = kind
        self._may_fuse = may_fuse
        self.torch_device = torch.device("tpu", 0)  # each process sees one chip, always index 0
        dynamo.allow_many_graphs()
        self._dropped_compile_seconds = 0.0
        # (compiles, when their durations are all entered, their sum): a long list is not added up at each step.
        self._summed = (-1, 0.0, 0.0)
        if not may_fuse:  # TORCH_TPU_DEFER_AND_FUSE may have set another
            torch.tpu.eager_mode = torch.tpu.EagerMode.DEFER_NEVER
        try:
            torch.ones(1).to(self.torch_device).cpu()
        except RuntimeError as error:
            raise DeviceUnavailable(
                f"device: {kind} could not be opened ({_first_line(error)}).",
                "Another process may hold the TPU: end it. If none does, /tmp/libtpu_lockfile is left over: delete it.",
            ) from error
        self._clock = dynamo.DynamoClock(self._backend_compile_seconds)

    def set_mode(self, mode: ExecutionMode) -> None:
        name = _EAGER_MODE_NAMES[mode if self._may_fuse else ExecutionMode.STRICT_EAGER]
        eager_mode = getattr(torch.tpu.EagerMode, name)
        if torch.tpu.eager_mode != eager_mode:
            self.synchronize()  # deferred operations of the old mode must not run in the new one
            torch.tpu.eager_mode = eager_mode

    def compile(self, function: Callable) -> Callable:
        return dynamo.compile_full_graph(function, backend="tpu")

    def counters(self) -> CompileCounters:
        stats = torch.tpu._get_cache_stats()
        return CompileCounters(
            compiles=stats.num_compilations,
            requested=stats.num_cache_reqs - stats.num_cache_hits,
            compile_seconds=self._backend_compile_seconds(stats) + self._clock.seconds,
        )

    def _backend_compile_seconds(self, stats: object = None) -> float:
        """Seconds in XLA's compiler. It has one compile thread, so the sum over the graphs is wall time."""
        stats = stats or torch.tpu._get_cache_stats()
        compiles, settled_at, seconds = self._summed
        if stats.num_compilations != compiles:
            # A graph is counted a moment before its duration is entered, so the sum is taken again until then.
            settled_at = time.monotonic() + _DURATIONS_SETTLE_SECONDS
        if time.monotonic() <= settled_at:
            seconds = sum(entry.compilation_duration.total_seconds() for entry in stats.per_entry_stats)
        self._summed = (stats.num_compilations, settled_at, seconds)
        return self._dropped_compile_seconds + seconds

    def forbid_recompiles(self) -> AbstractContextManager[None]:
        return dynamo.recompiles_forbidden()

    def synchronize(self) -> None:
        torch.accelerator.synchronize(self.torch_device)

    def mark(self) -> Callable[[], None]:
        event = torch.Event(self.torch_device)
        event.record()  # under DEFER_AND_FUSE this also gives the device what was deferred
        return event.synchronize

    def memory(self) -> DeviceMemory:
        if self.kind == "tpu-emulated":
            return host_memory()
        free, total = torch.accelerator.get_memory_info(self.torch_device)
        return DeviceMemory(total - free, total)

    def drop_graphs(self) -> None:
        self.synchronize()
        self._dropped_compile_seconds = self._backend_compile_seconds()
        torch._dynamo.reset()
        self._clock.register()
        torch.tpu._clear_cache()
        self._summed = (-1, 0.0, 0.0)
        environment.empty_shared_memory_cache()

    def trim(self) -> None:
        environment.empty_shared_memory_cache()

    def toolchain(self) -> dict[str, str]:
        versions = {name: importlib.metadata.version(name) for name in _VERSIONED_PACKAGES}
        host = hardware.find_tpus()
        versions["chip"] = "XLA:CPU" if self.kind == "tpu-emulated" or host is None else f"TPU {host.chip.name}"
        return versions


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
