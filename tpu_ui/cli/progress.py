"""Progress on standard error: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tpu_ui import events, wording
from tpu_ui.events import Phase

_SECONDS_BETWEEN_LINES = 5.0  # while one graph compiles, or one file arrives
_REPORTED_STEPS = 10  # on plain lines, about that many of all steps


def describe(event: events.Progress) -> str:
    """One event as one line."""
    match event.phase:
        case Phase.QUEUED:
            return "queued" if not event.position else f"queued, {event.position} before this one"
        case Phase.DOWNLOADING:
            return f"downloading: {wording.progress_line(event)}"
        case Phase.LOADING:
            size = f" {event.bytes_done / 1e6:.0f} of {event.bytes_total / 1e6:.0f} MB" if event.bytes_total else ""
            return f"loading{size} {event.detail}".rstrip()
        case Phase.COMPILING:
            expected = f" of about {event.graphs_expected}" if event.graphs_expected else ""
            return f"compiling: {event.graphs}{expected} graphs, {event.elapsed_seconds:.1f} s"
        case Phase.DENOISING if event.step:
            left = (event.steps - event.step) * event.seconds_per_step
            return f"step {event.step} of {event.steps}, {event.seconds_per_step:.2f} s a step, {left:.1f} s left"
        case Phase.VERIFYING:
            return "verifying that nothing is left to compile"
        case Phase.DONE:
            return f"done in {event.elapsed_seconds:.2f} s"
        case _:
            return f"{event.phase.value} {event.detail}".rstrip()


class ProgressPrinter:
    """Use as a context; call `show` with each event of one job."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr)
        self._bar = None
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("starting", total=None)
        self._last_line = ""
        self._last_graphs: int | None = None
        self._last_compile_line = 0.0
        self._last_download_line = 0.0

    def __enter__(self) -> "ProgressPrinter":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, event: events.Progress) -> None:
        line = describe(event)
        if self._bar is not None:
            done, total = _amount(event)
            self._bar.update(self._task, description=line, completed=done, total=total)
        elif line != self._last_line and self._is_worth_a_line(event):
            print(line, file=sys.stderr, flush=True)
            self._last_line = line

    def _is_worth_a_line(self, event: events.Progress) -> bool:
        if event.phase is Phase.COMPILING:
            new = (
                event.graphs != self._last_graphs or time.monotonic() - self._last_compile_line > _SECONDS_BETWEEN_LINES
            )
            if new:
                self._last_graphs, self._last_compile_line = event.graphs, time.monotonic()
            return new
        if event.phase is Phase.DOWNLOADING:
            is_due = time.monotonic() - self._last_download_line > _SECONDS_BETWEEN_LINES
            if new := is_due or event.bytes_done == event.bytes_total:
                self._last_download_line = time.monotonic()
            return new
        if event.phase is not Phase.DENOISING or not event.step:
            return True
        every = max(1, event.steps // _REPORTED_STEPS)
        return event.step % every == 0 or event.step == event.steps


def _amount(event: events.Progress) -> tuple[float, float | None]:
    if event.bytes_total:
        return event.bytes_done or 0, event.bytes_total
    if event.graphs_expected:
        return min(event.graphs or 0, event.graphs_expected), event.graphs_expected
    return event.step or 0, event.steps
