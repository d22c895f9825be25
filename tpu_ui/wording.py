"""States, forecasts, progress, memory and errors as text for people. Pure functions; no markup."""

from tpu_ui.errors import TpuUiError
from tpu_ui.events import Phase, Progress
from tpu_ui.forecast import Forecast
from tpu_ui.graphs import WarmupState
from tpu_ui.report import Report

NOT_KNOWN = "not known yet"

_STATE_WORDS = {
    WarmupState.WARM: "Warm",
    WarmupState.ON_DISK: "On disk",
    WarmupState.COMPILING: "Compiling now",
    WarmupState.COLD: "Cold",
    WarmupState.FAILED: "Failed the last time",
}

_PHASE_WORDS = {
    Phase.QUEUED: "Waiting in the queue",
    Phase.DOWNLOADING: "Downloading the model",
    Phase.LOADING: "Loading the model",
    Phase.PLACING: "Placing the model on the device",
    Phase.COMPILING: "Compiling",
    Phase.ENCODING: "Reading the prompt",
    Phase.DENOISING: "Denoising",
    Phase.DECODING: "Decoding the picture",
    Phase.VERIFYING: "Checking that nothing is left to compile",
    Phase.DONE: "Finishing",
}


def duration(seconds: float | None) -> str:
    """Seconds as a person says them: "0.8 s", "12 s", "1 min 30 s", "2 h 5 min"."""
    if seconds is None:
        return NOT_KNOWN
    if seconds < 0.095:
        return f"{max(seconds, 0.01):.2f} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 >= 60 else "")


def size_in_bytes(count: int | float | None, in_unit: str | None = None) -> str:
    """Bytes with a decimal unit, if none is given that which suits: "512 B", "1.2 MB", "22.5 GB"."""
    if count is None:
        return NOT_KNOWN
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if unit == in_unit or (in_unit is None and value < 999.5):
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def counted(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def state(word: str | WarmupState) -> str:
    """A warm-up state by its word in reports."""
    try:
        return _STATE_WORDS[WarmupState(word)]
    except ValueError:
        return str(word)


def short_state(word: str | WarmupState) -> str:
    """The same for a crowded place: a list of sizes, a table."""
    return {"failed": "failed", "compiling": "compiling", "on_disk": "on disk"}.get(str(word), str(word))


def forecast_sentence(forecast: Forecast) -> str:
    """What will happen on a click, with what that is known from."""
    run = duration(forecast.run_seconds)
    match forecast.state:
        case WarmupState.WARM if forecast.run_seconds is None:
            return "Nothing is left to compile. How long it takes is not known yet."
        case WarmupState.WARM:
            known_from = f" (from {counted(forecast.runs, 'run')})" if forecast.runs else " (from like sizes)"
            return f"About {run}{known_from}."
        case WarmupState.ON_DISK if forecast.warmup_seconds is None:
            then = "" if forecast.run_seconds is None else f", then about {run}"
            return f"Its graphs are read from disk first{then}. How long that takes is not known yet."
        case WarmupState.ON_DISK:
            then = "" if forecast.run_seconds is None else f", then {run}"
            return f"About {duration(forecast.warmup_seconds)} to read its graphs{then}."
        case WarmupState.FAILED:
            why = f" {forecast.reason}" if forecast.reason else ""
            return f"The last try to compile this failed.{why}"
        case WarmupState.COMPILING:
            return f"It is being compiled now{_expected(forecast)}."
    if forecast.warmup_seconds is None:
        return "Compiles first. How long that takes is not known yet."
    return f"Compiles first{_expected(forecast)}."


def _expected(forecast: Forecast) -> str:
    if forecast.warmup_seconds is None:
        return ""
    graphs = "" if not forecast.compiles_expected else f", {counted(forecast.compiles_expected, 'graph')}"
    like = " (from like sizes)" if forecast.compared_with else ""
    then = "" if forecast.run_seconds is None else f", then {duration(forecast.run_seconds)}"
    return f": about {duration(forecast.warmup_seconds)}{graphs}{like}{then}"


def does_not_fit(needed_bytes: int, available_bytes: int) -> tuple[str, str]:
    """What is wrong, and what to do."""
    return (
        f"Does not fit: needs {size_in_bytes(needed_bytes)} of {size_in_bytes(available_bytes)}.",
        "Try CPU offload or a smaller model.",
    )


def why_offload(needed_bytes: int, available_bytes: int) -> str:
    return (
        f"Placed by CPU offload: {size_in_bytes(needed_bytes)} of weights leave too little of "
        f"{size_in_bytes(available_bytes)}."
    )


def phase(word: Phase) -> str:
    return _PHASE_WORDS[word]


def progress_line(progress: Progress, elapsed_seconds: float | None = None) -> str:
    """One line on a running job.

    Args:
        elapsed_seconds: since the phase began, where the reader knows it better than the event.
    """
    elapsed = progress.elapsed_seconds if elapsed_seconds is None else elapsed_seconds
    match progress.phase:
        case Phase.QUEUED:
            return waiting_line(progress.position or 0, None)
        case Phase.DOWNLOADING:
            return _download_line(progress) if progress.bytes_total else progress.detail
        case Phase.LOADING if progress.bytes_total:
            part = f" · {progress.detail}" if progress.detail else ""
            return f"{size_in_bytes(progress.bytes_done)} of {size_in_bytes(progress.bytes_total)}{part}"
        case Phase.COMPILING | Phase.VERIFYING if progress.graphs is not None:
            known = progress.graphs_expected is not None and progress.graphs <= progress.graphs_expected
            of = f" of {progress.graphs_expected}" if known and progress.graphs_expected else ""
            graphs = "graph" if progress.graphs == 1 and not of else "graphs"
            return f"{progress.graphs}{of} {graphs} · {duration(elapsed)} so far"
        case Phase.DENOISING | Phase.VERIFYING if progress.step is not None and progress.steps:
            line = f"step {progress.step} of {progress.steps}"
            if progress.seconds_per_step is not None:
                left = progress.seconds_per_step * (progress.steps - progress.step)
                line += f" · {duration(progress.seconds_per_step)} a step"
                line += f" · {duration(left)} left" if progress.step < progress.steps else ""
            return line
    return f"{duration(elapsed)} so far" if elapsed >= 1 else ""


def _download_line(progress: Progress) -> str:
    done, total = progress.bytes_done or 0, size_in_bytes(progress.bytes_total)
    unit = total.split()[1]
    parts = [f"{size_in_bytes(done, unit).removesuffix(f' {unit}')} of {total}"]
    if progress.bytes_per_second:
        speed, unit_of_speed = size_in_bytes(progress.bytes_per_second).split()
        parts.append(f"{float(speed):.{1 if float(speed) < 10 else 0}f} {unit_of_speed}/s")
    parts.append(f"file {progress.file} of {progress.files}")
    line = ", ".join(parts)
    if progress.bytes_per_second and done < progress.bytes_total:
        line += f" · {duration((progress.bytes_total - done) / progress.bytes_per_second)} left"
    return f"{line} · {progress.detail}" if progress.detail else line


def progress_fraction(progress: Progress) -> float | None:
    """How much of the phase is done, 0 to 1; None where nobody knows."""
    match progress.phase:
        case Phase.DOWNLOADING | Phase.LOADING if progress.bytes_total:
            return min(1.0, (progress.bytes_done or 0) / progress.bytes_total)
        case Phase.COMPILING if progress.graphs_expected and progress.graphs is not None:
            return min(1.0, progress.graphs / progress.graphs_expected)
        case Phase.DENOISING if progress.steps and progress.step is not None:
            return min(1.0, progress.step / progress.steps)
        case Phase.DONE:
            return 1.0
    return None


def waiting_line(jobs_ahead: int, wait_seconds: float | None) -> str:
    """A place in the queue, and the wait if everything before it is known."""
    if jobs_ahead <= 0:
        return "next in the queue"
    wait = f"about {duration(wait_seconds)} to wait" if wait_seconds is not None else f"wait {NOT_KNOWN}"
    return f"{counted(jobs_ahead, 'job')} before this one · {wait}"


def starting(device: str, elapsed_seconds: float) -> str:
    return f"The device ({device}) is starting: torch is loading, {duration(elapsed_seconds)} so far."


def cancelling(is_compiling: bool) -> str:
    if is_compiling:
        return "A running compile cannot be stopped; the job ends when this compile ends."
    return "The job ends after the step that is running."


def failure(error: TpuUiError | None) -> str:
    return str(error) if error is not None else "The request failed."


def outcome(report: Report) -> str:
    """One sentence on a finished request."""
    seconds = duration(report.timings.total)
    pictures = counted(len(report.seeds), "picture")
    if report.new_compiles:
        compiled = counted(report.new_compiles, "graph")
        return f"{pictures} in {seconds}; {compiled} compiled in {duration(report.timings.compile)}."
    if report.was_warm:
        return f"{pictures} in {seconds}, warm as promised: nothing was compiled."
    if report.state_before == WarmupState.ON_DISK:
        return f"{pictures} in {seconds}; graphs came from disk, nothing was compiled."
    return f"{pictures} in {seconds}; nothing was compiled."


def report_rows(report: Report) -> list[tuple[str, str]]:
    """The report as names and values, for a table."""
    timings = report.timings
    phases = {
        "load": timings.load,
        "compile": timings.compile,
        "encode": timings.encode,
        "denoise": timings.denoise,
        "decode": timings.decode,
    }
    spent = ", ".join(f"{name} {duration(seconds)}" for name, seconds in phases.items() if seconds >= 0.005)
    rows = [("Before the run", state(report.state_before or "")), ("Graphs compiled", f"{report.new_compiles:,}")]
    if report.why_compiled:
        rows.append(("Why it compiled", "; ".join(report.why_compiled)))
    rows.append(("Time", f"{duration(timings.total)}" + (f" ({spent})" if spent else "")))
    if report.seconds_per_step is not None:
        rows.append(("A step", duration(report.seconds_per_step)))
    if report.peak_memory_bytes:
        rows.append(("Most memory in use", size_in_bytes(report.peak_memory_bytes)))
    rows.append(("Ran as", f"{report.mode}, {report.placement}, on {report.device}"))
    rows += [("Note", notice) for notice in report.notices]
    return rows
