"""One pass of a pipeline under observation: its stages, its steps, its compiles."""

import statistics
import threading
import time
from collections.abc import Callable

from tpu_ui.compile_cache import CompileCache
from tpu_ui.errors import JobCancelled
from tpu_ui.events import Phase, Progress, ProgressListener
from tpu_ui.graphs import Stage
from tpu_ui.ledger import StageOutcome
from tpu_ui.preview import LatentPreview
from tpu_ui.runtime import CompileCounters, Runtime

_POLL_SECONDS = 0.2
_FILES_SETTLE_SECONDS = 3.0
_FILE_CLOCK_LAG_SECONDS = 0.05  # the kernel stamps files with a clock that ticks every few milliseconds
_PHASES = {
    Stage.TEXT: Phase.ENCODING,
    Stage.LATENTS: Phase.ENCODING,
    Stage.PICTURE: Phase.ENCODING,
    Stage.DENOISER: Phase.DENOISING,
    Stage.DECODER: Phase.DECODING,
}


class PassObserver:
    """Told by the pipeline where it is; knows at the end what each stage cost. One for a pass.

    Args:
        emit: gets a Progress at each change, from the device thread, and from a watching thread during a compile.
        cancelled: asked between steps and stages; may be set anew before the pipeline runs.
        graphs_expected: from the ledger's history, if it has any.
        may_recall_text: the pipeline may use what its text encoders gave to the same prompt before.
    """

    def __init__(
        self,
        runtime: Runtime,
        cache: CompileCache,
        emit: ProgressListener,
        cancelled: Callable[[], bool],
        graphs_expected: int | None = None,
        may_recall_text: bool = False,
    ) -> None:
        self._runtime = runtime
        self._cache = cache
        self._emit = emit
        self.cancelled = cancelled
        self._graphs_expected = graphs_expected
        self.may_recall_text = may_recall_text
        self._recalled = False
        self._stage: Stage | None = None
        self._outcomes: dict[Stage, StageOutcome] = {}
        self._step_seconds: list[float] = []
        self._at_start = self._at_stage = self._at_step = (time.perf_counter(), runtime.counters())
        self._files_since = time.time()
        self._files_seen: set[str] = set()
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="compile-watch", daemon=True)

    def __enter__(self) -> "PassObserver":
        self.enter(Stage.TEXT)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._watcher.join()

    def enter(self, stage: Stage) -> None:
        """The pipeline has come to `stage`. Repeating the current stage does nothing.

        Raises:
            JobCancelled: the job's owner cancelled it.
        """
        if stage is self._stage:
            return
        self.raise_if_cancelled()
        self._close_stage()
        self._stage = stage
        self._at_stage = self._at_step = (time.perf_counter(), self._runtime.counters())
        self._emit(Progress(_PHASES[stage]))

    def on_step(self, step: int, steps: int, preview: LatentPreview) -> None:
        """A step has ended, and its result is on the host.

        Raises:
            JobCancelled: the job's owner cancelled it.
        """
        self.raise_if_cancelled()
        now = (time.perf_counter(), self._runtime.counters())
        self._step_seconds.append(_run_seconds(self._at_step, now))
        self._at_step = now
        self._emit(
            Progress(
                Phase.DENOISING,
                elapsed_seconds=now[0] - self._at_stage[0],
                step=step,
                steps=steps,
                seconds_per_step=statistics.median(self._step_seconds),
                preview=preview,
            )
        )

    def text_was_recalled(self) -> None:
        """The present stage did without its text encoders."""
        self._recalled = True

    def raise_if_cancelled(self) -> None:
        if self.cancelled():
            raise JobCancelled

    def finish(self) -> dict[Stage, StageOutcome]:
        """End the pass; the outcome of each stage that ran, in order."""
        self._close_stage()
        return self._outcomes

    @property
    def steps(self) -> int:
        """Denoising steps that ended."""
        return len(self._step_seconds)

    @property
    def compiles(self) -> int:
        """Graphs compiled since the pass began, by the device's counter."""
        return (self._runtime.counters() - self._at_start[1]).compiles

    def _close_stage(self) -> None:
        if self._stage is None:
            return
        self._runtime.synchronize()  # what this stage dispatched must not be counted in the next
        now = (time.perf_counter(), self._runtime.counters())
        spent = now[1] - self._at_stage[1]
        is_denoiser = self._stage is Stage.DENOISER
        new_files = self._new_files(spent.compiles) if spent.compiles else {}
        outcome = StageOutcome(
            compiles=spent.compiles,
            from_disk=max(0, spent.requested - spent.compiles),
            # Dynamo may trace while XLA still compiles the graph before; together they took no longer than the stage.
            compile_seconds=min(spent.compile_seconds, now[0] - self._at_stage[0]),
            run_seconds=_run_seconds(self._at_stage, now),
            step_seconds=statistics.median(self._step_seconds) if is_denoiser and self._step_seconds else None,
            new_files=new_files,
            unsaved=max(0, spent.compiles - len(new_files)) if self._runtime.one_file_a_graph else 0,
            recalled=self._recalled,
        )
        self._recalled = False
        earlier = self._outcomes.get(self._stage)
        self._outcomes[self._stage] = outcome if earlier is None else earlier + outcome
        self._stage = None

    def _new_files(self, compiles: int) -> dict[str, int]:
        """The files that this stage's graphs were written to. The backend writes them a moment after it compiled."""
        deadline = time.monotonic() + _FILES_SETTLE_SECONDS
        while True:
            written = self._cache.files_since(self._files_since - _FILE_CLOCK_LAG_SECONDS)
            found = {name: size for name, size in written.items() if name not in self._files_seen}
            if not self._runtime.one_file_a_graph or len(found) >= compiles or time.monotonic() > deadline:
                self._files_since = time.time()
                self._files_seen.update(found)
                return found
            time.sleep(0.05)

    def _watch(self) -> None:
        """Report compiles while the device thread is inside one; the counters may be read from any thread."""
        known, since = self._at_start[1], time.perf_counter()
        while not self._stop.wait(_POLL_SECONDS):
            now = self._runtime.counters()
            if now.compile_seconds > known.compile_seconds or now.compiles > known.compiles:
                self._emit(
                    Progress(
                        Phase.COMPILING,
                        elapsed_seconds=time.perf_counter() - since,
                        graphs=(now - self._at_start[1]).compiles,
                        graphs_expected=self._graphs_expected,
                    )
                )
            known = now


def _run_seconds(start: tuple[float, CompileCounters], end: tuple[float, CompileCounters]) -> float:
    """Wall seconds without those spent compiling."""
    return max(0.0, end[0] - start[0] - (end[1].compile_seconds - start[1].compile_seconds))
