"""The heart: pipelines in memory, their graphs, and requests that run as the ledger said they would."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from tpu_ui import __version__
from tpu_ui.code_version import graph_code_version
from tpu_ui.compile_cache import CompileCache
from tpu_ui.device_errors import as_user_error
from tpu_ui.errors import CompileFailed, DoesNotFit, JobCancelled, TpuUiError, UnexpectedCompile
from tpu_ui.events import Phase, Progress, ProgressListener
from tpu_ui.forecast import Forecast, explain, forecast
from tpu_ui.graphs import GraphKey, Stage, WarmupState
from tpu_ui.ledger import GraphLedger, StageOutcome
from tpu_ui.loaded_pipeline import LoadedPipeline
from tpu_ui.passes import PassObserver
from tpu_ui.report import GenerationResult, Report, Timings
from tpu_ui.request import GenerationRequest
from tpu_ui.residency import Residency
from tpu_ui.resolution import ResolvedRequest
from tpu_ui.resolver import Resolver
from tpu_ui.runs import Pictures, Run, outcomes_of_all, over_all_runs
from tpu_ui.runtime import Runtime
from tpu_ui.settings import Settings
from tpu_ui.sources import Fetching, ModelSource
from tpu_ui.truncation import truncation_notices

log = logging.getLogger(__name__)

# A shape is warm once a whole pass compiled nothing. In fused mode the second pass may still compile. A pass of one
# step proves nothing about the following steps, whose graphs may begin elsewhere.
_MAX_PROVING_PASSES = 4
_PROVING_STEPS = 2

# What torch, XLA and the pipelines raise; all else is a fault of this program and ends at the worker's border.
_FOREIGN_ERRORS = (RuntimeError, MemoryError, ValueError, TypeError, IndexError)


class PipelineManager:
    """Runs requests on one device. `generate` and `warm_up` belong to the device thread; `foresee` to any thread.

    `toolchain` is the part of every key that a process cannot change: versions, chip, compiler flags, our own code.

    Args:
        group_devices: see `Resolver`.
    """

    def __init__(
        self, runtime: Runtime, settings: Settings, default_model: str, group_devices: int | None = None
    ) -> None:
        self.runtime = runtime
        self.settings = settings
        device_bytes = runtime.memory().total_bytes
        self.resolver = Resolver(runtime.kind, settings, default_model, lambda: device_bytes, group_devices)
        self.cache = CompileCache(settings.compile_cache_dir)
        self.ledger = GraphLedger(settings.ledger_path, self.cache)
        self.toolchain = runtime.toolchain() | dict(settings.compiler_flags) | {"tpu_ui code": graph_code_version()}
        self.ledger.forget_other_versions(tuple(sorted(self.toolchain.items())))
        self.cache.remove_damaged(self.ledger.expected_files())
        self._residency = self._new_residency()

    def _new_residency(self) -> Residency:
        return Residency(self.runtime, self.settings, on_graphs_dropped=self.ledger.graphs_dropped)

    def close(self) -> None:
        self._residency.evict_all()
        self.ledger.close()

    def leave_device(self) -> None:
        """See `Residency.leave_device`; belongs to the device thread."""
        self._residency.leave_device()

    # -- before a request ---------------------------------------------------------------------------------------------

    def foresee(self, request: GenerationRequest) -> tuple[ResolvedRequest, Forecast]:
        """What the ledger says of a request before it runs.

        Raises:
            TpuUiError: the request cannot run, and why.
        """
        resolved, _ = self.resolver.resolve(request)  # asked at each change of a control: no network
        keys = self._keys(resolved)
        return resolved, forecast(self.ledger, list(keys.values()), resolved.steps_run, resolved.runs)

    def _keys(self, resolved: ResolvedRequest) -> dict[Stage, GraphKey]:
        return self.resolver.graph_keys(resolved, self.toolchain)

    # -- a request ----------------------------------------------------------------------------------------------------

    def generate(
        self, request: GenerationRequest, emit: ProgressListener, cancelled: Callable[[], bool]
    ) -> GenerationResult:
        """Make the pictures of a request.

        Raises:
            TpuUiError: a mistake or a fault, as a sentence.
            JobCancelled: `cancelled` said so; the pipeline is ready for the next request.
        """
        started = time.perf_counter()
        # 1 resolve, 2 keys
        resolved, source = self.resolver.resolve(request, Fetching(emit, cancelled))
        keys = self._keys(resolved)
        key_list = list(keys.values())
        state = self.ledger.state_of_request(key_list)
        needs_compile = state not in (WarmupState.WARM, WarmupState.ON_DISK)
        why = explain(self.ledger, key_list) if needs_compile else (f"broken promise: it was called {state.value}",)
        expected = forecast(self.ledger, key_list, resolved.steps_run).compiles_expected if needs_compile else 0
        counted_from = self.runtime.counters()
        with _PeakMemory(self.runtime) as peak, self.ledger.compiling(key_list):
            try:
                # 3 acquire
                loaded = self._acquire(resolved, source, emit, cancelled)
                load_seconds = time.perf_counter() - started
                # 4 run
                notices = resolved.notices + truncation_notices(loaded.pipeline, resolved)
                moved_before, runs = loaded.bytes_to_device, []
                for number in range(resolved.runs):
                    listener = over_all_runs(emit, number, resolved.runs)
                    run = resolved.run(number)
                    runs.append(self._run_as_promised(loaded, run, keys, state, expected, listener, cancelled))
                pictures, outcomes = Pictures.of_runs([run.pictures for run in runs]), outcomes_of_all(runs)
                pictures.check()
                total_seconds = time.perf_counter() - started
                moved_bytes = loaded.bytes_to_device - moved_before
                images, last = pictures.images, runs[-1]
                loaded.learn_colours(last.pictures)
            except _FOREIGN_ERRORS as error:
                raise self._as_fault(error, resolved, key_list) from error
            if keys and not last.proves_warm and (any(r.compiled for r in runs) or state is not WarmupState.WARM):
                self._prove_warm(loaded, resolved.run(0), keys, emit, cancelled)
        compiles = (self.runtime.counters() - counted_from).compiles
        was_warm = self._settle_promise(state, compiles, resolved)
        if compiles:
            self._keep_within_budget()
        self._residency.keep_graphs_within(self.settings.max_graphs_in_memory)
        emit(Progress(Phase.DONE, elapsed_seconds=total_seconds))
        ran = resolved.request
        report = Report(
            ok=True,
            seeds=tuple(ran.seeds[i] for i in pictures.indices),
            model=resolved.card.id,
            revision=resolved.revision,
            device=self.runtime.kind,
            mode=ran.mode.value,
            placement=ran.placement.value,
            width=ran.width,
            height=ran.height,
            steps=ran.steps,
            guidance=ran.guidance,
            loras=tuple(map(str, ran.loras)),
            strength=ran.strength,
            image_sha256=ran.image_sha256,
            state_before=state.value,
            was_warm=was_warm,
            new_compiles=compiles,
            why_compiled=why if compiles else (),
            timings=_timings(load_seconds, total_seconds, outcomes),
            seconds_per_step=outcomes[Stage.DENOISER].step_seconds if Stage.DENOISER in outcomes else None,
            peak_memory_bytes=peak.bytes,
            moved_bytes=moved_bytes,
            versions=self.toolchain | {"tpu_ui": __version__},
            notices=notices + pictures.spoilt,
        )
        return GenerationResult(images, ran, report)

    def _acquire(
        self, resolved: ResolvedRequest, source: ModelSource, emit: ProgressListener, cancelled: Callable[[], bool]
    ) -> LoadedPipeline:
        return self._residency.acquire(source, resolved, emit, cancelled)

    def _run_as_promised(
        self,
        loaded: LoadedPipeline,
        resolved: ResolvedRequest,
        keys: dict[Stage, GraphKey],
        state: WarmupState,
        graphs_expected: int | None,
        emit: ProgressListener,
        cancelled: Callable[[], bool],
    ) -> Run:
        """Run a request; one that was called warm runs where Dynamo may trace nothing new."""
        if state is WarmupState.WARM:
            try:
                with self.runtime.forbid_recompiles():
                    return self._one_pass(loaded, resolved, keys, graphs_expected, emit, cancelled)
            except UnexpectedCompile:
                log.warning("A request that was called warm needs a new graph; it runs again and may compile.")
        return self._one_pass(loaded, resolved, keys, graphs_expected, emit, cancelled)

    def _one_pass(
        self,
        loaded: LoadedPipeline,
        resolved: ResolvedRequest,
        keys: dict[Stage, GraphKey],
        graphs_expected: int | None,
        emit: ProgressListener,
        cancelled: Callable[[], bool],
        proving: bool = False,
    ) -> Run:
        """Run a pass and write it into the ledger; of one that is cut short, what it compiled."""
        # Without its text encoders a pass says nothing about their graphs: they must be warm by a pass before.
        text_is_warm = Stage.TEXT not in keys or self.ledger.state(keys[Stage.TEXT]) is WarmupState.WARM
        may_recall = text_is_warm and not proving
        with PassObserver(self.runtime, self.cache, emit, cancelled, graphs_expected, may_recall) as observer:
            try:
                pictures = self._run_pipeline(loaded, resolved, observer)
            except BaseException:
                cut_short = {stage: outcome for stage, outcome in observer.finish().items() if outcome.compiles}
                self._enter(keys, cut_short, whole=False)
                raise
            outcomes = observer.finish()
        done = Run(outcomes, pictures, outcomes.keys() >= keys.keys() and observer.steps >= _PROVING_STEPS)
        self._enter(keys, outcomes, whole=done.proves_warm)
        return done

    def _run_pipeline(self, loaded: LoadedPipeline, resolved: ResolvedRequest, observer: PassObserver) -> Pictures:
        return loaded.run(resolved, observer)

    def _enter(self, keys: dict[Stage, GraphKey], outcomes: dict[Stage, StageOutcome], *, whole: bool) -> None:
        self.ledger.record_pass({keys[stage]: outcomes[stage] for stage in keys if stage in outcomes}, whole)

    def _prove_warm(
        self,
        loaded: LoadedPipeline,
        resolved: ResolvedRequest,
        keys: dict[Stage, GraphKey],
        emit: ProgressListener,
        cancelled: Callable[[], bool],
    ) -> None:
        """Repeat a short pass until nothing compiles: only then is the shape warm."""
        short = replace(resolved, request=_shortest(resolved.request))
        quiet: ProgressListener = lambda progress: emit(replace(progress, phase=Phase.VERIFYING, preview=None))  # noqa: E731
        for _ in range(_MAX_PROVING_PASSES):
            try:
                done = self._one_pass(loaded, short, keys, None, quiet, cancelled, proving=True)
            except JobCancelled:
                return  # the pictures are made; the shape just stays unproven
            except (TpuUiError, *_FOREIGN_ERRORS):
                log.exception("the pictures are made, but the pass that should prove their shape warm failed")
                return
            if done.proves_warm:
                return
        log.warning("%s still compiles after %d passes; it stays cold.", resolved.card.id, _MAX_PROVING_PASSES + 1)

    def _settle_promise(self, state: WarmupState, compiles: int, resolved: ResolvedRequest) -> bool:
        if state is not WarmupState.WARM:
            return False
        kept = compiles == 0
        self.ledger.record_promise(kept)
        if not kept:
            log.warning("Broken promise: %s was called warm, but %d graph(s) compiled.", resolved.card.id, compiles)
        return kept

    def _as_fault(self, error: Exception, resolved: ResolvedRequest, keys: list[GraphKey]) -> TpuUiError:
        fault = as_user_error(error, resolved)
        log.error("request failed: %s", fault, exc_info=error)
        if isinstance(fault, CompileFailed):
            self.ledger.record_failure(keys, str(fault))
        if isinstance(fault, DoesNotFit):
            self._residency.evict_all()
        return fault

    def _keep_within_budget(self) -> None:
        self.runtime.trim()
        self.cache.prune(self.settings.cache_budget_bytes, dict(self.ledger.files_by_last_use()))

    # -- warm-up ------------------------------------------------------------------------------------------------------

    def warm_up(
        self, request: GenerationRequest, emit: ProgressListener, cancelled: Callable[[], bool]
    ) -> GenerationResult:
        """Make a shape warm through the real path of a request, with as few steps and runs as that takes."""
        resolved, _ = self.resolver.resolve(request, Fetching(emit, cancelled))
        short = replace(_shortest(request), batch=resolved.run_batch)
        return self.generate(short, emit, cancelled)


def _shortest(request: GenerationRequest) -> GenerationRequest:
    """The same graphs in as few steps as can prove them warm."""
    return replace(request, steps=_PROVING_STEPS, strength=None if request.image is None else 1.0)


class _PeakMemory:
    """The most memory in use while inside, sampled: XLA:CPU and TPU have no resettable peak counter in public."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)
        self.bytes = 0

    def __enter__(self) -> "_PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.bytes = max(self.bytes, self._runtime.memory().used_bytes)

    def _sample(self) -> None:
        while not self._stop.wait(0.1):
            self.bytes = max(self.bytes, self._runtime.memory().used_bytes)


def _timings(load_seconds: float, total_seconds: float, outcomes: dict[Stage, StageOutcome]) -> Timings:
    def run(*stages: Stage) -> float:
        return sum(outcomes[stage].run_seconds for stage in stages if stage in outcomes)

    return Timings(
        load=load_seconds,
        compile=sum(outcome.compile_seconds for outcome in outcomes.values()),
        encode=run(Stage.TEXT, Stage.LATENTS, Stage.PICTURE),
        denoise=run(Stage.DENOISER),
        decode=run(Stage.DECODER),
        total=total_seconds,
    )
