"""States, forecasts, progress and errors as sentences."""

import pytest

from tpu_ui import wording
from tpu_ui.events import Phase, Progress
from tpu_ui.forecast import Forecast
from tpu_ui.graphs import WarmupState
from tpu_ui.report import Report, Timings


def forecast(state: WarmupState, **changes: object) -> Forecast:
    known = {"compiles_expected": 0, "warmup_seconds": 0.0, "run_seconds": 0.8, "runs": 12, "compared_with": 0}
    return Forecast(state, **(known | changes))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "not known yet"), (0, "0.01 s"), (0.004, "0.01 s"), (0.04, "0.04 s"), (0.8, "0.8 s"), (9.94, "9.9 s"),
        (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min"), (90, "1 min 30 s"), (3599.7, "1 h"), (7500, "2 h 5 min"),
        (86400, "24 h"),
    ],
)  # fmt: skip
def test_duration(seconds: float | None, text: str):
    assert wording.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "not known yet"), (0, "0 B"), (512, "512 B"), (999, "999 B"), (1000, "1.0 kB"), (1.25e6, "1.2 MB"),
        (99.6e6, "100 MB"), (999.6e6, "1.0 GB"), (22.5e9, "22.5 GB"), (3e12, "3.0 TB"),
    ],
)  # fmt: skip
def test_size_in_bytes(count: float | None, text: str):
    assert wording.size_in_bytes(count) == text


@pytest.mark.parametrize(
    ("foreseen", "sentence"),
    [
        (forecast(WarmupState.WARM), "About 0.8 s (from 12 runs)."),
        (forecast(WarmupState.WARM, runs=1), "About 0.8 s (from 1 run)."),
        (forecast(WarmupState.WARM, runs=0), "About 0.8 s (from like sizes)."),
        (
            forecast(WarmupState.WARM, run_seconds=None, runs=0),
            "Nothing is left to compile. How long it takes is not known yet.",
        ),
        (forecast(WarmupState.ON_DISK, warmup_seconds=4.0), "About 4.0 s to read its graphs, then 0.8 s."),
        (
            forecast(WarmupState.ON_DISK, warmup_seconds=None),
            "Its graphs are read from disk first, then about 0.8 s. How long that takes is not known yet.",
        ),
        (
            forecast(WarmupState.COLD, compiles_expected=42, warmup_seconds=90.0, compared_with=4),
            "Compiles first: about 1 min 30 s, 42 graphs (from like sizes), then 0.8 s.",
        ),
        (
            forecast(WarmupState.COLD, compiles_expected=1, warmup_seconds=90.0, run_seconds=None),
            "Compiles first: about 1 min 30 s, 1 graph.",
        ),
        (
            forecast(WarmupState.COLD, compiles_expected=None, warmup_seconds=None, run_seconds=None),
            "Compiles first. How long that takes is not known yet.",
        ),
        (forecast(WarmupState.COMPILING, warmup_seconds=None), "It is being compiled now."),
        (forecast(WarmupState.FAILED, reason="No room."), "The last try to compile this failed. No room."),
    ],
)
def test_forecast_sentence(foreseen: Forecast, sentence: str):
    assert wording.forecast_sentence(foreseen) == sentence


@pytest.mark.parametrize(
    ("progress", "line", "fraction"),
    [
        (Progress(Phase.LOADING, bytes_done=1_200_000_000, bytes_total=22_500_000_000, detail="vae"),
         "1.2 GB of 22.5 GB · vae", 1.2 / 22.5),
        (Progress(Phase.DOWNLOADING, 9, bytes_done=12_300_000_000, bytes_total=24_100_000_000, bytes_per_second=85e6,
                  file=3, files=14, detail="vae/config.json"),
         "12.3 of 24.1 GB, 85.0 MB/s, file 3 of 14 · 2 min 19 s left · vae/config.json", 12.3 / 24.1),
        (Progress(Phase.DOWNLOADING, 9, bytes_done=512, bytes_total=24_100_000_000, file=1, files=14),
         "0.0 of 24.1 GB, file 1 of 14", 512 / 24.1e9),
        (Progress(Phase.DOWNLOADING, 3, detail="asking the Hub"), "asking the Hub", None),
        (Progress(Phase.COMPILING, 12, graphs=3, graphs_expected=40), "3 of 40 graphs · 12 s so far", 3 / 40),
        (Progress(Phase.COMPILING, 12, graphs=41, graphs_expected=40), "41 graphs · 12 s so far", 1.0),
        (Progress(Phase.COMPILING, 2, graphs=1), "1 graph · 2.0 s so far", None),
        (Progress(Phase.DENOISING, 3, step=5, steps=20, seconds_per_step=0.5),
         "step 5 of 20 · 0.5 s a step · 7.5 s left", 0.25),
        (Progress(Phase.DENOISING, 3, step=20, steps=20, seconds_per_step=0.5), "step 20 of 20 · 0.5 s a step", 1.0),
        (Progress(Phase.ENCODING, 0.2), "", None),
        (Progress(Phase.DECODING, 4), "4.0 s so far", None),
        (Progress(Phase.QUEUED, position=2), "2 jobs before this one · wait not known yet", None),
    ],
)  # fmt: skip
def test_progress(progress: Progress, line: str, fraction: float | None):
    assert wording.progress_line(progress) == line
    assert wording.progress_fraction(progress) == (None if fraction is None else pytest.approx(fraction))


def test_every_phase_and_state_has_words():
    assert all(wording.phase(phase) for phase in Phase)
    assert all(wording.state(state) and wording.short_state(state) for state in WarmupState)
    assert wording.state("something new") == "something new"


def test_waiting():
    assert wording.waiting_line(0, None) == "next in the queue"
    assert wording.waiting_line(1, 95.2) == "1 job before this one · about 1 min 35 s to wait"


def test_outcome_tells_what_was_compiled():
    cold = Report(True, seeds=(1,), new_compiles=10, timings=Timings(compile=6.9, total=8.0), state_before="cold")
    warm = Report(True, seeds=(1, 2), was_warm=True, timings=Timings(total=0.8), state_before="warm")
    disk = Report(True, seeds=(1,), timings=Timings(total=4.0), state_before="on_disk")
    assert wording.outcome(cold) == "1 picture in 8.0 s; 10 graphs compiled in 6.9 s."
    assert wording.outcome(warm) == "2 pictures in 0.8 s, warm as promised: nothing was compiled."
    assert wording.outcome(disk) == "1 picture in 4.0 s; graphs came from disk, nothing was compiled."


def test_report_rows_hold_reasons_and_notices():
    report = Report(True, seeds=(1,), new_compiles=2, why_compiled=("height 64→72", "batch 1→2"),
                    notices=("a", "b"), timings=Timings(load=1, total=3), state_before="cold", mode="compile",
                    placement="single")  # fmt: skip
    rows = wording.report_rows(report)
    assert ("Why it compiled", "height 64→72; batch 1→2") in rows
    assert ("Time", "3.0 s (load 1.0 s)") in rows
    assert [value for name, value in rows if name == "Note"] == ["a", "b"]
