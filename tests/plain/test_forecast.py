"""What a request will cost before it runs, and why it compiled after it ran."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plain.graph_examples import KEY, compiled, key, stages, steady, with_version
from tpu_ui.compile_cache import CompileCache
from tpu_ui.forecast import Forecast, explain, forecast
from tpu_ui.graphs import GraphKey, WarmupState
from tpu_ui.ledger import GraphLedger, StageOutcome

FLUX = {"height": 0, "width": 0, "stage": "denoiser"}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[GraphLedger]:
    opened = GraphLedger(tmp_path / "ledger.sqlite3", CompileCache(tmp_path))
    yield opened
    opened.close()


def learn(
    ledger: GraphLedger,
    keys: list[GraphKey],
    graphs: int = 3,
    seconds: float = 30.0,
    run: float = 0.5,
    step: float = 0.1,
) -> None:
    """A warm-up of these keys: each compiled `graphs` in `seconds`, then ran."""
    with ledger.compiling(keys):
        ledger.record_pass({each: compiled(graphs, seconds) for each in keys}, whole=False)
        steps = {each: step if each.stage == "denoiser" else None for each in keys}
        ledger.record_pass({each: steady(run, steps[each]) for each in keys}, whole=True)


# -- forecasts --------------------------------------------------------------------------------------------------------


def test_without_history_nothing_is_claimed(ledger: GraphLedger):
    foreseen = forecast(ledger, stages(), steps=20)
    assert foreseen == Forecast(WarmupState.COLD, None, None, None, 0, 0)
    assert foreseen.seconds is None


def test_without_keys_nothing_is_left_to_compile_and_no_time_is_claimed(ledger: GraphLedger):
    assert forecast(ledger, [], steps=20) == Forecast(WarmupState.WARM, 0, 0.0, None, 0, 0)


def test_warm_costs_its_own_medians(ledger: GraphLedger):
    learn(ledger, stages())
    foreseen = forecast(ledger, stages(), steps=20)
    assert (foreseen.state, foreseen.compiles_expected, foreseen.warmup_seconds) == (WarmupState.WARM, 0, 0.0)
    assert foreseen.run_seconds == pytest.approx(3 * 0.5 + 20 * 0.1)
    assert foreseen.seconds == foreseen.run_seconds
    assert (foreseen.runs, foreseen.compared_with) == (1, 0)
    assert forecast(ledger, stages(), steps=40).run_seconds == pytest.approx(3 * 0.5 + 40 * 0.1)


def test_a_request_of_several_runs_takes_their_sum_and_compiles_once(ledger: GraphLedger):
    learn(ledger, stages(height=512))
    once, thrice = (forecast(ledger, stages(height=768), steps=20, repeats=repeats) for repeats in (1, 3))
    assert thrice.run_seconds == pytest.approx(3 * once.run_seconds)
    assert (thrice.warmup_seconds, thrice.compiles_expected) == (once.warmup_seconds, once.compiles_expected)
    assert forecast(ledger, [key(model="other")], steps=20, repeats=3).run_seconds is None


def test_the_fewest_runs_of_its_stages_stand_behind_a_forecast(ledger: GraphLedger):
    learn(ledger, stages())
    ledger.record_pass({stages()[0]: steady()}, whole=True)
    assert forecast(ledger, stages(), steps=20).runs == 1


def test_on_disk_costs_reading_it_where_that_has_been_seen(ledger: GraphLedger):
    keys = stages()
    learn(ledger, keys)
    ledger.graphs_dropped()
    foreseen = forecast(ledger, keys, steps=20)
    assert (foreseen.state, foreseen.compiles_expected, foreseen.warmup_seconds) == (WarmupState.ON_DISK, 0, None)
    assert foreseen.run_seconds == pytest.approx(3.5)
    ledger.record_pass({each: StageOutcome(0, 2, 1.0, 0.75) for each in keys}, whole=True)
    ledger.graphs_dropped()
    foreseen = forecast(ledger, keys, steps=20)
    assert foreseen.warmup_seconds == pytest.approx(4 * 1.25)
    assert foreseen.seconds == pytest.approx(4 * 1.25 + 3.5)


def test_cold_is_estimated_from_the_nearest_size(ledger: GraphLedger):
    learn(ledger, stages(height=256, width=256), graphs=7, seconds=70.0, step=0.02)
    learn(ledger, stages(height=1024, width=1024), graphs=5, seconds=50.0, step=0.1)
    foreseen = forecast(ledger, stages(height=1024, width=512), steps=10)
    assert foreseen.state is WarmupState.COLD
    assert foreseen.compiles_expected == 3 * 5  # the text encoder is warm already
    assert foreseen.warmup_seconds == pytest.approx(3 * 50.0)
    # Half the pixels of the nearest: latents and decoder take half as long, and so do the steps.
    assert foreseen.run_seconds == pytest.approx(0.5 + 2 * 0.25 + 10 * 0.05)
    assert (foreseen.runs, foreseen.compared_with) == (0, 3)


def test_a_batch_is_scaled_too(ledger: GraphLedger):
    learn(ledger, stages(), step=0.1)
    assert forecast(ledger, [key(batch=4)], steps=10).run_seconds == pytest.approx(4.0)


def test_tokens_scale_a_denoiser_that_sees_only_them(ledger: GraphLedger):
    learn(ledger, [key(tokens=4096, **FLUX)], step=0.4)
    assert forecast(ledger, [key(tokens=1024, **FLUX)], steps=10).run_seconds == pytest.approx(1.0)
    assert forecast(ledger, [key(tokens=1024, batch=2, **FLUX)], steps=10).run_seconds == pytest.approx(2.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "fused"},
        {"placement": "cpu_offload"},
        {"model": "sdxl"},
        {"toolchain": with_version("torch_tpu", "0.3.0")},
        {"stage": "decoder"},
    ],
    ids=str,
)
def test_other_modes_models_and_versions_tell_nothing(ledger: GraphLedger, changes: dict):
    learn(ledger, [KEY])
    assert forecast(ledger, [key(**changes)], steps=10) == Forecast(WarmupState.COLD, None, None, None, 0, 0)


def test_what_was_never_proven_tells_nothing_about_others(ledger: GraphLedger):
    ledger.record_pass({KEY: compiled()}, whole=False)
    assert forecast(ledger, [key(batch=2)], steps=10).compiles_expected is None


def test_what_was_compiled_before_tells_about_itself(ledger: GraphLedger, tmp_path: Path):
    """Its files were pruned: its own figures count, and it is not said to come from like sizes."""
    (tmp_path / "graph").write_bytes(b"x" * 9)
    with ledger.compiling([KEY]):
        ledger.record_pass({KEY: compiled(11, 44.0, {"graph": 9})}, whole=False)
        ledger.record_pass({KEY: steady(step=0.1)}, whole=True)
    learn(ledger, [key(batch=2)], graphs=99, seconds=999.0)
    ledger.graphs_dropped()
    (tmp_path / "graph").unlink()
    foreseen = forecast(ledger, [KEY], steps=10)
    assert foreseen == Forecast(WarmupState.COLD, 11, 44.0, pytest.approx(1.0), 1, 0)


def test_while_it_compiles(ledger: GraphLedger):
    learn(ledger, [key(batch=2)], graphs=6, seconds=60.0)
    with ledger.compiling([KEY]):
        foreseen = forecast(ledger, [KEY], steps=10)
    assert (foreseen.state, foreseen.compiles_expected, foreseen.warmup_seconds) == (WarmupState.COMPILING, 6, 60.0)


def test_a_failure_is_told_with_its_reason(ledger: GraphLedger):
    learn(ledger, [key(batch=2)])
    ledger.record_failure([KEY], "No room for it.")
    foreseen = forecast(ledger, [key(batch=2), KEY], steps=10)
    assert (foreseen.state, foreseen.reason) == (WarmupState.FAILED, "No room for it.")
    assert forecast(ledger, [key(batch=2)], steps=10).reason is None


def test_one_unknown_stage_makes_the_sum_unknown(ledger: GraphLedger):
    learn(ledger, stages()[:3])
    foreseen = forecast(ledger, stages(), steps=10)
    assert (foreseen.compiles_expected, foreseen.warmup_seconds, foreseen.run_seconds) == (None, None, None)


# -- why it compiled --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({"height": 768}, ("height 1024→768",)),
        ({"batch": 2}, ("batch 1→2",)),
        ({"height": 768, "batch": 2}, ("batch 1→2", "height 1024→768")),
        ({"toolchain": with_version("torch_tpu", "0.3.0")}, ("torch_tpu 0.2.0→0.3.0",)),
        ({"mode": "fused"}, ("mode compile→fused",)),
        ({"guidance_on": False}, ("guidance on yes→no",)),
        ({"revision": "new"}, ("model revision abc123→new",)),
        ({"model": "sdxl"}, ("first run of sdxl on this machine",)),
        ({}, ()),
    ],
    ids=str,
)
def test_reasons(ledger: GraphLedger, changes: dict, reasons: tuple[str, ...]):
    """Each reason is named once, although three or four stages have it."""
    learn(ledger, stages(height=1024))
    assert explain(ledger, stages(**({"height": 1024} | changes))) == reasons


def test_the_nearest_known_key_is_compared(ledger: GraphLedger):
    learn(ledger, [key(height=512, batch=4), key(height=768), key(height=768, mode="fused")])
    assert explain(ledger, [key(height=1024)]) == ("height 768→1024",)


def test_a_first_run_is_called_one(ledger: GraphLedger):
    assert explain(ledger, stages()) == ("first run of demo on this machine",)
    assert explain(ledger, []) == ()


def test_lost_files_unfinished_warm_ups_and_failures(ledger: GraphLedger, tmp_path: Path):
    (tmp_path / "graph").write_bytes(b"x")
    with ledger.compiling([KEY]):
        ledger.record_pass({KEY: compiled(files={"graph": 1})}, whole=False)
    assert explain(ledger, [KEY]) == ("its last warm-up did not finish",)
    ledger.record_pass({KEY: steady()}, whole=True)
    ledger.graphs_dropped()
    assert explain(ledger, [KEY]) == ()
    (tmp_path / "graph").unlink()
    assert explain(ledger, [KEY]) == ("its compiled graphs are no longer on disk",)
    ledger.record_failure([KEY], "no")
    assert explain(ledger, [KEY]) == ("its last compile failed",)
