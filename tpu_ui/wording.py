"""States, forecasts, progress, memory and errors as text for people. Pure functions; no markup.

`say` is the language. Errors, and the notices that stand in a report, are English in all of them.
"""

from tpu_ui.errors import TpuUiError
from tpu_ui.events import Phase, Progress
from tpu_ui.forecast import Forecast
from tpu_ui.graphs import WarmupState
from tpu_ui.report import Report
from tpu_ui.translations import ENGLISH, Language, marked

NOT_KNOWN = marked("not known yet")

_STATE_WORDS = {
    WarmupState.WARM: marked("Warm"),
    WarmupState.ON_DISK: marked("On disk"),
    WarmupState.COMPILING: marked("Compiling now"),
    WarmupState.COLD: marked("Cold"),
    WarmupState.FAILED: marked("Failed the last time"),
}

_SHORT_STATE_WORDS = {
    "warm": marked("warm"),
    "on_disk": marked("on disk"),
    "compiling": marked("compiling"),
    "cold": marked("cold"),
    "failed": marked("failed"),
}

_PHASE_WORDS = {
    Phase.QUEUED: marked("Waiting in the queue"),
    Phase.DOWNLOADING: marked("Downloading the model"),
    Phase.LOADING: marked("Loading the model"),
    Phase.PLACING: marked("Placing the model on the device"),
    Phase.COMPILING: marked("Compiling"),
    Phase.ENCODING: marked("Reading the prompt"),
    Phase.DENOISING: marked("Denoising"),
    Phase.DECODING: marked("Decoding the picture"),
    Phase.VERIFYING: marked("Checking that nothing is left to compile"),
    Phase.DONE: marked("Finishing"),
}


def duration(seconds: float | None, say: Language = ENGLISH) -> str:
    """Seconds as a person says them: "0.8 s", "12 s", "1 min 30 s", "2 h 5 min"."""
    if seconds is None:
        return say(NOT_KNOWN)
    if seconds < 0.095:
        return f"{say.number(max(seconds, 0.01), 2)} s"
    if seconds < 9.95:
        return f"{say.number(seconds, 1)} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 >= 60 else "")


def size_in_bytes(count: int | float | None, say: Language = ENGLISH, in_unit: str | None = None) -> str:
    """Bytes with a decimal unit, if none is given that which suits: "512 B", "1.2 MB", "22.5 GB"."""
    if count is None:
        return say(NOT_KNOWN)
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if unit == in_unit or (in_unit is None and value < 999.5):
            return f"{say.number(value, 0 if unit == 'B' or value >= 99.5 else 1)} {unit}"
        value /= 1000
    return f"{say.number(value, 1)} TB"


def graphs(number: int, say: Language = ENGLISH) -> str:
    return say.counted(number, "{number} graph", "{number} graphs")


def state(word: str | WarmupState, say: Language = ENGLISH) -> str:
    """A warm-up state by its word in reports."""
    try:
        return say(_STATE_WORDS[WarmupState(word)])
    except ValueError:
        return str(word)


def short_state(word: str | WarmupState, say: Language = ENGLISH) -> str:
    """The same for a crowded place: a list of sizes, a table."""
    return say(_SHORT_STATE_WORDS.get(str(word), str(word)))


def forecast_sentence(forecast: Forecast, say: Language = ENGLISH) -> str:
    """What will happen on a click, with what that is known from."""
    run = duration(forecast.run_seconds, say)
    match forecast.state:
        case WarmupState.WARM if forecast.run_seconds is None:
            return say("Nothing is left to compile. How long it takes is not known yet.")
        case WarmupState.WARM:
            source = say(" (from like sizes)")
            if forecast.runs:
                source = say.counted(forecast.runs, " (from {number} run)", " (from {number} runs)")
            return say("About {run}{source}.", run=run, source=source)
        case WarmupState.ON_DISK if forecast.warmup_seconds is None and forecast.run_seconds is None:
            return say("Its graphs are read from disk first. How long that takes is not known yet.")
        case WarmupState.ON_DISK if forecast.warmup_seconds is None:
            return say(
                "Its graphs are read from disk first, then about {run}. How long that takes is not known yet.", run=run
            )
        case WarmupState.ON_DISK:
            reading = duration(forecast.warmup_seconds, say)
            if forecast.run_seconds is None:
                return say("About {reading} to read its graphs.", reading=reading)
            return say("About {reading} to read its graphs, then {run}.", reading=reading, run=run)
        case WarmupState.FAILED:
            return " ".join(filter(None, (say("The last try to compile this failed."), forecast.reason)))
        case WarmupState.COMPILING:
            return say("It is being compiled now{expected}.", expected=_expected(forecast, say))
    if forecast.warmup_seconds is None:
        return say("Compiles first. How long that takes is not known yet.")
    return say("Compiles first{expected}.", expected=_expected(forecast, say))


def _expected(forecast: Forecast, say: Language) -> str:
    if forecast.warmup_seconds is None:
        return ""
    run = forecast.run_seconds
    return say(
        ": about {warmup}{graphs}{source}{then}",
        warmup=duration(forecast.warmup_seconds, say),
        graphs="" if not forecast.compiles_expected else f", {graphs(forecast.compiles_expected, say)}",
        source=say(" (from like sizes)") if forecast.compared_with else "",
        then="" if run is None else say(", then {run}", run=duration(run, say)),
    )


def phase(word: Phase, say: Language = ENGLISH) -> str:
    return say(_PHASE_WORDS[word])


def progress_line(progress: Progress, elapsed_seconds: float | None = None, say: Language = ENGLISH) -> str:
    """One line on a running job.

    Args:
        elapsed_seconds: since the phase began, where the reader knows it better than the event.
    """
    seconds = progress.elapsed_seconds if elapsed_seconds is None else elapsed_seconds
    elapsed = duration(seconds, say)
    match progress.phase:
        case Phase.QUEUED:
            return waiting_line(progress.position or 0, None, say)
        case Phase.DOWNLOADING:
            return _download_line(progress, say) if progress.bytes_total else progress.detail
        case Phase.LOADING if progress.bytes_total:
            done, total = (size_in_bytes(count, say) for count in (progress.bytes_done, progress.bytes_total))
            return " · ".join(filter(None, (say("{done} of {total}", done=done, total=total), progress.detail)))
        case Phase.COMPILING | Phase.VERIFYING if progress.graphs is not None:
            made, expected = progress.graphs, progress.graphs_expected
            if expected and made <= expected:
                part = say("{done} of {total}", done=made, total=expected)
                return say("{graphs} graphs · {elapsed} so far", graphs=part, elapsed=elapsed)
            if made == 1:
                return say("{graphs} graph · {elapsed} so far", graphs=made, elapsed=elapsed)
            return say("{graphs} graphs · {elapsed} so far", graphs=made, elapsed=elapsed)
        case Phase.DENOISING | Phase.VERIFYING if progress.step is not None and progress.steps:
            parts = [say("step {step} of {steps}", step=progress.step, steps=progress.steps)]
            if progress.seconds_per_step is not None:
                parts.append(say("{seconds} a step", seconds=duration(progress.seconds_per_step, say)))
                if progress.step < progress.steps:
                    left = progress.seconds_per_step * (progress.steps - progress.step)
                    parts.append(say("{seconds} left", seconds=duration(left, say)))
            return " · ".join(parts)
    return say("{elapsed} so far", elapsed=elapsed) if seconds >= 1 else ""


def _download_line(progress: Progress, say: Language) -> str:
    done, total = progress.bytes_done or 0, size_in_bytes(progress.bytes_total, say)
    unit = total.split()[1]
    arrived = size_in_bytes(done, say, unit).removesuffix(f" {unit}")
    parts = [say("{done} of {total}", done=arrived, total=total)]
    speed = progress.bytes_per_second
    if speed:
        parts.append(f"{size_in_bytes(speed, say)}/s")
    parts.append(say("file {file} of {files}", file=progress.file, files=progress.files))
    line = ", ".join(parts)
    if speed and done < progress.bytes_total:
        line += " · " + say("{seconds} left", seconds=duration((progress.bytes_total - done) / speed, say))
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


def waiting_line(jobs_ahead: int, wait_seconds: float | None, say: Language = ENGLISH) -> str:
    """A place in the queue, and the wait if everything before it is known."""
    if jobs_ahead <= 0:
        return say("next in the queue")
    wait = say("wait not known yet")
    if wait_seconds is not None:
        wait = say("about {wait} to wait", wait=duration(wait_seconds, say))
    return f"{say.counted(jobs_ahead, '{number} job before this one', '{number} jobs before this one')} · {wait}"


def starting(device: str, elapsed_seconds: float, say: Language = ENGLISH) -> str:
    return say(
        "The device ({device}) is starting: torch is loading, {elapsed} so far.",
        device=device,
        elapsed=duration(elapsed_seconds, say),
    )


def cancelling(is_compiling: bool, say: Language = ENGLISH) -> str:
    if is_compiling:
        return say("A running compile cannot be stopped; the job ends when this compile ends.")
    return say("The job ends after the step that is running.")


def failure(error: TpuUiError | None) -> str:
    return str(error) if error is not None else "The request failed."


def outcome(report: Report, say: Language = ENGLISH) -> str:
    """One sentence on a finished request."""
    pictures = say.counted(len(report.seeds), "{number} picture", "{number} pictures")
    made = {"pictures": pictures, "total": duration(report.timings.total, say)}
    if report.new_compiles:
        compiled = {"graphs": graphs(report.new_compiles, say), "compile": duration(report.timings.compile, say)}
        return say("{pictures} in {total}; {graphs} compiled in {compile}.", **made, **compiled)
    if report.was_warm:
        return say("{pictures} in {total}, warm as promised: nothing was compiled.", **made)
    if report.state_before == WarmupState.ON_DISK:
        return say("{pictures} in {total}; graphs came from disk, nothing was compiled.", **made)
    return say("{pictures} in {total}; nothing was compiled.", **made)


def report_rows(report: Report, say: Language = ENGLISH) -> list[tuple[str, str]]:
    """The report as names and values, for a table."""
    timings = report.timings
    phases = {
        say("load"): timings.load,
        say("compile"): timings.compile,
        say("encode"): timings.encode,
        say("denoise"): timings.denoise,
        say("decode"): timings.decode,
    }
    spent = ", ".join(f"{name} {duration(seconds, say)}" for name, seconds in phases.items() if seconds >= 0.005)
    rows = [
        (say("Before the run"), state(report.state_before or "", say)),
        (say("Graphs compiled"), say.number(report.new_compiles)),
    ]
    if report.why_compiled:
        rows.append((say("Why it compiled"), "; ".join(report.why_compiled)))
    rows.append((say("Time"), duration(timings.total, say) + (f" ({spent})" if spent else "")))
    if report.seconds_per_step is not None:
        rows.append((say("A step"), duration(report.seconds_per_step, say)))
    if report.peak_memory_bytes:
        rows.append((say("Most memory in use"), size_in_bytes(report.peak_memory_bytes, say)))
    ran = say("{mode}, {placement}, on {device}", mode=report.mode, placement=report.placement, device=report.device)
    rows.append((say("Ran as"), ran))
    if report.image_sha256 is not None:
        told = {"strength": say.number(report.strength, 2), "digest": report.image_sha256[:12]}
        rows.append((say("From a picture"), say("strength {strength}, SHA-256 {digest}…", **told)))
    rows += [(say("Note"), notice) for notice in report.notices]
    return rows
