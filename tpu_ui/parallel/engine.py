"""The front's engine: a group of processes behind the interface of a PipelineManager."""

import logging
from collections.abc import Callable

from tpu_ui.compile_cache import CompileCache
from tpu_ui.errors import WorkerLost
from tpu_ui.events import ProgressListener
from tpu_ui.forecast import Forecast, forecast
from tpu_ui.job import JobKind
from tpu_ui.parallel import launch
from tpu_ui.parallel.messages import Ask, Cancel, Ended, Known, Told
from tpu_ui.parallel.mirror import MirroredLedger, MirroredRuntime
from tpu_ui.parallel.running import START_AGAIN, RunningGroup
from tpu_ui.parallel.setup import OuterLaunch, Setup
from tpu_ui.report import GenerationResult
from tpu_ui.request import GenerationRequest
from tpu_ui.resolution import ResolvedRequest
from tpu_ui.resolver import Resolver

log = logging.getLogger(__name__)


class GroupEngine:
    """See `jobs.Engine` and `page.verdict.ForeseeingEngine`. All but `foresee` belong to the device thread, which must
    live as long as the group: its processes end with it.

    A group that is lost is started again by the next request, unless an outer launcher has started it.

    Args:
        setup: see `RunningGroup`, and there for `outer`, `rank_module` and `cancelled`.

    Raises:
        JobCancelled: `cancelled` said so.
        TpuUiError: the group could not be started.
    """

    def __init__(
        self,
        setup: Setup,
        outer: OuterLaunch | None = None,
        rank_module: str = launch.RANK_MODULE,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._setup = setup
        self._outer = outer
        self._rank_module = rank_module
        launch.prepare(setup.device_kind, setup.devices, outer)
        self.runtime = MirroredRuntime(setup.device_kind)
        self.cache = CompileCache(setup.settings.compile_cache_dir)
        # Rank 0 opens the ledger first, and sets it right.
        self._running: RunningGroup | None = RunningGroup(setup, outer, rank_module, cancelled)
        self.toolchain = self._running.toolchain
        self.ledger = MirroredLedger(setup.settings.ledger_path, self.cache)
        self._mirror(self._running.known)
        device_bytes = self.runtime.known.total_bytes
        self.resolver = Resolver(
            setup.device_kind, setup.settings, setup.model, lambda: device_bytes, group_devices=setup.devices
        )

    @property
    def pids(self) -> dict[int, int]:
        """The processes on this host, by place; none while the group is lost."""
        return {} if self._running is None else self._running.pids

    def foresee(self, request: GenerationRequest) -> tuple[ResolvedRequest, Forecast]:
        """See `PipelineManager.foresee`. Any thread; rank 0 is not asked."""
        resolved, _ = self.resolver.resolve(request)
        keys = self.resolver.graph_keys(resolved, self.toolchain)
        return resolved, forecast(self.ledger, list(keys.values()), resolved.steps_run, resolved.runs)

    def generate(
        self, request: GenerationRequest, emit: ProgressListener, cancelled: Callable[[], bool]
    ) -> GenerationResult:
        """See `PipelineManager.generate`.

        Raises:
            WorkerLost: a rank is lost; none of the group's processes on this host is left.
        """
        return self._run(Ask(JobKind.GENERATE, request), emit, cancelled)

    def warm_up(
        self, request: GenerationRequest, emit: ProgressListener, cancelled: Callable[[], bool]
    ) -> GenerationResult:
        """See `PipelineManager.warm_up`; raises as `generate` does."""
        return self._run(Ask(JobKind.WARM_UP, request), emit, cancelled)

    def close(self) -> None:
        if self._running is not None:
            self._running.stop(ask_first=True)
        self.ledger.close()

    def _run(self, ask: Ask, emit: ProgressListener, cancelled: Callable[[], bool]) -> GenerationResult:
        running = self._group(cancelled)
        try:
            running.begin(ask)
            ended = self._follow(running, emit, cancelled)
        except WorkerLost:
            self._drop(running)
            raise
        return ended.unpacked()

    def _follow(self, running: RunningGroup, emit: ProgressListener, cancelled: Callable[[], bool]) -> Ended:
        told_cancel = False
        while True:
            if cancelled() and not told_cancel:
                running.send(Cancel())
                told_cancel = True
            match message := running.receive():
                case Told():
                    running.heard()
                    emit(message.progress)
                case Known():
                    self._mirror(message)
                case Ended():
                    return message

    def _mirror(self, known: Known) -> None:
        self.runtime.known = known.memory
        self.ledger.mirror(known.warm, known.compiling)

    def _group(self, cancelled: Callable[[], bool]) -> RunningGroup:
        """The group, started again if it is lost.

        Raises:
            TpuUiError: it cannot be started.
            JobCancelled: `cancelled` said so meanwhile.
        """
        if self._running is not None:
            try:
                self._running.check_processes()
            except WorkerLost as lost:
                log.warning("%s It was idle.", lost.message)
                self._drop(self._running)
        if self._running is None:
            if self._outer is not None:
                raise WorkerLost("The group of processes has ended.", START_AGAIN)
            self._running = RunningGroup(self._setup, self._outer, self._rank_module, cancelled)
        return self._running

    def _drop(self, running: RunningGroup) -> None:
        self._running = None
        self.ledger.mirror((), ())
        running.stop()
