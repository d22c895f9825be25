"""CUDA and CPU: plain eager, and torch.compile with inductor."""

import importlib.metadata
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch._dynamo.utils import counters as dynamo_counters

from tpu_ui import dynamo
from tpu_ui.errors import DeviceUnavailable
from tpu_ui.modes import ExecutionMode, check_mode_on_device
from tpu_ui.runtime import CompileCounters, DeviceMemory, host_memory

_VERSIONED_PACKAGES = ("torch", "diffusers", "transformers")


class TorchRuntime:
    """See `runtime.Runtime`. `kind` is "cuda" or "cpu"."""

    one_file_a_graph = False

    def __init__(self, kind: str) -> None:
        if kind == "cuda" and not torch.cuda.is_available():
            raise DeviceUnavailable(
                "device: this machine or this build of torch has no CUDA.",
                "Choose --device cpu or install a CUDA build.",
            )
        self.kind = kind
        self.torch_device = torch.device(kind)
        dynamo.allow_many_graphs()
        self._clock = dynamo.DynamoClock(lambda: 0.0)
        self._dropped = CompileCounters()

    def set_mode(self, mode: ExecutionMode) -> None:
        check_mode_on_device(mode, self.kind)

    def compile(self, function: Callable) -> Callable:
        return dynamo.compile_full_graph(function, backend="inductor")

    def counters(self) -> CompileCounters:
        """A compile is a graph that Dynamo traced and that inductor did not find in its cache on disk."""
        traced = dynamo_counters["stats"]["unique_graphs"]
        from_disk = dynamo_counters["inductor"]["fxgraph_cache_hit"]
        return CompileCounters(
            compiles=max(0, traced - from_disk) + self._dropped.compiles,
            requested=traced + self._dropped.requested,
            compile_seconds=self._clock.seconds,
        )

    def forbid_recompiles(self) -> AbstractContextManager[None]:
        return dynamo.recompiles_forbidden()

    def synchronize(self) -> None:
        if self.kind == "cuda":
            torch.cuda.synchronize(self.torch_device)

    def mark(self) -> Callable[[], None]:
        if self.torch_device.type == "cpu":
            return lambda: None
        event = torch.Event(self.torch_device)
        event.record()
        return event.synchronize

    def memory(self) -> DeviceMemory:
        if self.kind == "cpu":
            return host_memory()
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return DeviceMemory(total - free, total)

    def drop_graphs(self) -> None:
        before = self.counters()
        torch._dynamo.reset()
        self._clock.register()
        after = self.counters()
        self._dropped = CompileCounters(
            self._dropped.compiles + before.compiles - after.compiles,
            self._dropped.requested + before.requested - after.requested,
        )
        if self.kind == "cuda":
            torch.cuda.empty_cache()

    def trim(self) -> None:
        """Nothing is kept twice here."""

    def toolchain(self) -> dict[str, str]:
        versions = {name: importlib.metadata.version(name) for name in _VERSIONED_PACKAGES}
        versions["chip"] = torch.cuda.get_device_name(self.torch_device) if self.kind == "cuda" else "CPU"
        return versions
