"""The managers of the ranks: the one of rank 0, which decides, and the followers, which do what it does."""

import logging
from collections.abc import Callable

from tpu_ui.compile_cache import CompileCache
from tpu_ui.dynamo import are_recompiles_forbidden
from tpu_ui.errors import JobCancelled, LoadFailed, TpuUiError
from tpu_ui.events import ProgressListener
from tpu_ui.loaded_pipeline import LoadedPipeline
from tpu_ui.manager import PipelineManager
from tpu_ui.parallel.group import Group, Together
from tpu_ui.parallel.messages import Acquire, Command, DropGraphs, End, EvictAll, RunPass
from tpu_ui.passes import PassObserver
from tpu_ui.residency import Residency
from tpu_ui.resolution import ResolvedRequest
from tpu_ui.resolver import Resolver
from tpu_ui.runs import Pictures
from tpu_ui.runtime import Runtime
from tpu_ui.settings import Settings
from tpu_ui.sharding import Sharding
from tpu_ui.sources import Fetching, ModelSource

log = logging.getLogger(__name__)


class OnePipeline(Residency):
    """Keeps one pipeline, so that all ranks drop the others at the same moment, whatever memory each has free."""

    def _make_room(self, needed_bytes: int, label: str, budget_bytes: int) -> None:
        super()._make_room(needed_bytes, label, budget_bytes)
        self._evict(*self._pipelines)


class LeadingResidency(OnePipeline):
    """Rank 0's: the others drop what it drops."""

    group: Group

    def evict_all(self) -> None:
        self.group.send(EvictAll())
        super().evict_all()

    def keep_graphs_within(self, most: int) -> None:
        if self.holds_more_graphs_than(most):
            self.group.send(DropGraphs())
        super().keep_graphs_within(most)


class LeadingManager(PipelineManager):
    """Rank 0's: what it does with the pipeline, all ranks do."""

    def __init__(self, runtime: Runtime, settings: Settings, default_model: str, group: Group) -> None:
        self._group = group
        super().__init__(runtime, settings, default_model, group.size)

    def _new_residency(self) -> Residency:
        sharding = Sharding(self._group.mesh())
        residency = LeadingResidency(self.runtime, self.settings, self.ledger.graphs_dropped, sharding)
        residency.group = self._group
        return residency

    def close(self) -> None:
        super().close()
        self._group.send(End())

    def _acquire(
        self, resolved: ResolvedRequest, source: ModelSource, emit: ProgressListener, cancelled: Callable[[], bool]
    ) -> LoadedPipeline:
        self._group.send(Acquire(resolved))
        together = Together(self._group, cancelled)
        return together.run(lambda: _acquire_together(self._residency, lambda: source, resolved, emit, together, True))

    def _run_pipeline(self, loaded: LoadedPipeline, resolved: ResolvedRequest, observer: PassObserver) -> Pictures:
        forbids = are_recompiles_forbidden()
        self._group.send(RunPass(resolved, observer.may_recall_text, forbids))
        return _run_together(self._group, loaded, resolved, observer, forbids)


class Follower:
    """Every other rank's: no ledger, no decisions."""

    def __init__(self, runtime: Runtime, settings: Settings, default_model: str, group: Group) -> None:
        self._runtime = runtime
        self._settings = settings
        self._group = group
        self._resolver = Resolver(runtime.kind, settings, default_model, group_devices=group.size)
        self._cache = CompileCache(settings.compile_cache_dir)
        self._residency = OnePipeline(runtime, settings, lambda: None, Sharding(group.mesh()))
        self._loaded: LoadedPipeline | None = None

    def serve(self) -> None:
        """Do what rank 0 says until it says the end."""
        while not isinstance(command := self._group.receive(), End):
            try:
                self._obey(command)
            except JobCancelled:
                log.info("rank %d: cancelled", self._group.rank)
            except Exception as error:  # the rank's border: all ranks know of it, and wait for the next command
                log.log(
                    logging.INFO if isinstance(error, TpuUiError) else logging.ERROR,
                    "rank %d: %s", self._group.rank, error, exc_info=error,
                )  # fmt: skip

    def _obey(self, command: Command) -> None:
        match command:
            case Acquire():
                self._acquire(command.resolved)
            case RunPass():
                self._run_pass(command)
            case EvictAll():
                self._residency.evict_all()
            case DropGraphs():
                self._residency.drop_graphs()

    def _acquire(self, resolved: ResolvedRequest) -> None:
        together = Together(self._group)
        is_first_here = self._group.local_rank == 0

        def find() -> ModelSource:
            source = self._resolver.find(resolved.request.model, Fetching())
            if source.revision != resolved.revision:
                raise LoadFailed(
                    f"{resolved.card.label} is at {source.revision} here, and at {resolved.revision} on rank 0.",
                    "Fetch the same commit on every host.",
                )
            return source

        quiet: ProgressListener = lambda _: None  # noqa: E731
        self._loaded = None
        self._loaded = together.run(
            lambda: _acquire_together(self._residency, find, resolved, quiet, together, is_first_here)
        )

    def _run_pass(self, command: RunPass) -> None:
        recall = command.may_recall_text
        with PassObserver(self._runtime, self._cache, lambda _: None, lambda: False, None, recall) as observer:
            if command.forbids_recompiles:
                with self._runtime.forbid_recompiles():
                    self._run(command, observer)
            else:
                self._run(command, observer)
            observer.finish()
        if observer.compiles:
            self._runtime.trim()
            self._cache.prune(self._settings.cache_budget_bytes // self._group.size, {})

    def _run(self, command: RunPass, observer: PassObserver) -> None:
        _run_together(self._group, self._loaded, command.resolved, observer, command.forbids_recompiles)


def _acquire_together(
    residency: Residency,
    find: Callable[[], ModelSource],
    resolved: ResolvedRequest,
    emit: ProgressListener,
    together: Together,
    is_first_here: bool,
) -> LoadedPipeline:
    """Load on all ranks. The first of each host fetches what is missing before the others look for it."""
    source = find() if is_first_here else None
    if together.cancelled():
        raise JobCancelled
    return residency.acquire(source or find(), resolved, emit, together.cancelled)


def _run_together(
    group: Group, loaded: LoadedPipeline, resolved: ResolvedRequest, observer: PassObserver, is_warm: bool
) -> Pictures:
    """Run on all ranks; they ask one another between the steps."""
    group.go_on(group.limits.warm_stall if is_warm else group.limits.stall)
    wants_cancel = observer.cancelled
    together = Together(group, wants_cancel)
    observer.cancelled = together.cancelled
    is_whole = False
    try:
        pictures = together.run(lambda: loaded.run(resolved, observer))
        is_whole = True
        return pictures
    finally:
        observer.cancelled = wants_cancel
        group.go_on(group.limits.stall)
        if not is_whole:  # the ranks must recall the same texts, and may have been cut short on either side of one
            loaded.kept_text.clear()
