"""Which pipelines are in memory: as many as fit, the least recently used dropped first, by bytes."""

import ctypes
import gc
import logging
import time
from collections.abc import Callable

import psutil
import torch

from tpu_ui.errors import DoesNotFit, JobCancelled
from tpu_ui.events import Phase, Progress, ProgressListener
from tpu_ui.loaded_pipeline import LoadedPipeline
from tpu_ui.loading import ArgumentsOf, load_pipeline, no_arguments
from tpu_ui.placement import Placement
from tpu_ui.preview import LatentColours, colours_path
from tpu_ui.resolution import ResolvedRequest
from tpu_ui.resolver import weight_bytes_on_device
from tpu_ui.runtime import Runtime
from tpu_ui.settings import Settings
from tpu_ui.sources import ModelSource

log = logging.getLogger(__name__)


class Residency:
    """Belongs to the device thread.

    Args:
        on_graphs_dropped: told when the compiled graphs in memory were dropped together with a pipeline.
        arguments_of: see `loading.load_pipeline`.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        on_graphs_dropped: Callable[[], None],
        arguments_of: ArgumentsOf = no_arguments,
    ) -> None:
        self._runtime = runtime
        self._arguments_of = arguments_of
        self._previews_dir = settings.previews_dir
        self._on_graphs_dropped = on_graphs_dropped
        self._requested_at_drop = runtime.counters().requested
        self._pipelines: dict[tuple[str, str], LoadedPipeline] = {}  # the last used at the end
        self._shares_host_memory = runtime.kind in ("cpu", "tpu-emulated")
        available = psutil.virtual_memory().available
        on_device = available if self._shares_host_memory else runtime.memory().total_bytes
        self.budget_bytes = int(settings.memory_fraction * min(available, on_device))
        self._host_budget_bytes = int(settings.memory_fraction * available)

    @property
    def loaded_bytes(self) -> int:
        return sum(pipeline.weight_bytes for pipeline in self._pipelines.values())

    def acquire(
        self,
        source: ModelSource,
        resolved: ResolvedRequest,
        emit: ProgressListener,
        cancelled: Callable[[], bool],
    ) -> LoadedPipeline:
        """The pipeline of a request: in memory, placed, with its LoRAs and in its mode. Raises as its parts do."""
        loaded = self.get(source, resolved, emit, cancelled)
        emit(Progress(Phase.PLACING, detail=resolved.request.placement.value))
        if loaded.placement is not resolved.request.placement:
            loaded.place(resolved.request.placement)
        loaded.apply_loras(resolved.loras)
        self.shrink_to_budget(resolved.request.placement)
        loaded.set_mode(resolved.request.mode)
        return loaded

    def get(
        self,
        source: ModelSource,
        resolved: ResolvedRequest,
        emit: ProgressListener,
        cancelled: Callable[[], bool],
    ) -> LoadedPipeline:
        """The pipeline of a model, loaded now if it is not in memory.

        Raises:
            DoesNotFit: its weights alone are above the budget; nothing was dropped.
            LoadFailed: see `loading.load_pipeline`; the pipelines that stayed are whole.
        """
        identity = (source.card.id, resolved.revision)
        self._leave_device_to(identity, resolved.request.placement)
        if identity in self._pipelines:
            self._pipelines[identity] = self._pipelines.pop(identity)
            return self._pipelines[identity]
        dtype = getattr(torch, resolved.dtype)
        needed = weight_bytes_on_device(source, self._runtime.kind, resolved.devices)
        self._make_room(needed, source.card.label, self._budget_bytes_under(resolved.request.placement))
        started = time.perf_counter()

        def progress(done: int, total: int, component: str) -> None:
            if cancelled():
                raise JobCancelled
            emit(
                Progress(
                    Phase.LOADING,
                    elapsed_seconds=time.perf_counter() - started,
                    bytes_done=done,
                    bytes_total=total,
                    detail=component,
                )
            )

        pipeline = load_pipeline(source.folder, dtype, progress, self._arguments_of)
        colours = LatentColours(colours_path(self._previews_dir, *identity))
        self._pipelines[identity] = LoadedPipeline(pipeline, self._runtime, dtype, colours)
        return self._pipelines[identity]

    def _leave_device_to(self, identity: tuple[str, str], placement: Placement) -> None:
        """See that the other pipelines leave a pipeline the room that its plan assumes: under CPU offload all of it."""
        for other, pipeline in list(self._pipelines.items()):
            if other == identity:
                continue
            if pipeline.offloaded is not None:
                pipeline.offloaded.leave_all()
            elif placement is Placement.CPU_OFFLOAD and not self._shares_host_memory:
                self._evict(other)

    def leave_device(self) -> None:
        """The weights of pipelines under CPU offload leave the device; they come again when they run."""
        for pipeline in self._pipelines.values():
            if pipeline.offloaded is not None:
                pipeline.offloaded.leave_all()

    def _make_room(self, needed_bytes: int, label: str, budget_bytes: int) -> None:
        if needed_bytes > budget_bytes:
            raise DoesNotFit(
                f"{label} needs {needed_bytes / 1e9:.1f} GB for its weights; "
                f"{budget_bytes / 1e9:.1f} GB may be used here.",
                "Choose a smaller model, or free memory and start again.",
            )
        while self._pipelines and self.loaded_bytes + needed_bytes > budget_bytes:
            self._evict(next(iter(self._pipelines)))

    def _budget_bytes_under(self, placement: Placement) -> int:
        if placement is Placement.CPU_OFFLOAD and not self._shares_host_memory:
            return self._host_budget_bytes  # the planner has looked at the device's memory
        return self.budget_bytes

    def shrink_to_budget(self, placement: Placement) -> None:
        """Drop pipelines until the rest is within the budget, after the one used last, which is placed so, has grown;
        that one stays.
        """
        while len(self._pipelines) > 1 and self.loaded_bytes > self._budget_bytes_under(placement):
            self._evict(next(iter(self._pipelines)))

    def evict_all(self) -> None:
        self._evict(*self._pipelines)

    def _evict(self, *identities: tuple[str, str]) -> None:
        for identity in identities:
            log.info("dropping %s from memory", identity[0])
            self._pipelines.pop(identity).unload()
        if identities:
            self.drop_graphs()

    def drop_graphs(self) -> None:
        """Executables cannot be dropped one by one. All go; the disk has them, and the ledger says so."""
        self._runtime.drop_graphs()
        self._on_graphs_dropped()
        self._requested_at_drop = self._runtime.counters().requested
        gc.collect()
        _return_memory_to_system()

    def holds_more_graphs_than(self, most: int) -> bool:
        return self._runtime.counters().requested - self._requested_at_drop > most

    def keep_graphs_within(self, most: int) -> None:
        """Drop the graphs in memory when there are more than `most`."""
        if self.holds_more_graphs_than(most):
            log.info("more than %d compiled graphs in memory: they are dropped, and read from disk when needed", most)
            self.drop_graphs()


def _return_memory_to_system() -> None:
    """glibc keeps freed memory for later; give it back, so that resident memory tells the truth."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
