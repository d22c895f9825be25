"""The bench, on the device where it is quickest. What it measures of the TPU's graphs has tests of its own."""

import json
import statistics

import pytest


@pytest.mark.slow
def test_both_sides_are_measured_and_the_users_graphs_left_alone(command_line, tiny_models):
    done = command_line.run(
        "bench", "--device", "cpu", "--model", str(tiny_models / "sd3"), "--mode", "strict", "--rounds", "3",
        "--steps", "2", "--size", "64x64", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (row,) = told["modes"]
    assert (told["device"], row["mode"]) == ("cpu", "strict")
    for side in (row["plain"], row["tpu_ui"]):
        assert len(side["warm_seconds"]) == 3
        assert min(side["first_seconds"], *side["warm_seconds"]) > 0
        assert (side["first_graphs"], side["new_step_graphs"], side["passes_until_warm"]) == (0, 0, 1)
    pairs = zip(row["tpu_ui"]["warm_seconds"], row["plain"]["warm_seconds"], strict=True)
    ratios = [ours / plain for ours, plain in pairs]
    assert row["wall_ratio"] == pytest.approx(statistics.median(ratios))
    assert (row["wall_ratio_min"], row["wall_ratio_max"]) == pytest.approx((min(ratios), max(ratios)))
    assert row["restart"]["second_process_compiles"] == 0
    assert row["restart"]["second_process_seconds"] > 0
    assert not command_line.cache.exists()


@pytest.mark.parametrize("wrong", [("--rounds", "0"), ("--rounds", "x"), ("--steps", "0"), ("--size", "64")])
def test_wrong_options_of_the_bench_are_sentences(command_line, wrong):
    done = command_line.run("bench", "--device", "cpu", *wrong)
    assert done.returncode == 2
    assert done.stderr.startswith("tpu_ui: ")
    assert "Traceback" not in done.stderr
