"""Pictures that do not fit at once: several runs, and the same pictures, promises and progress."""

from dataclasses import replace

import numpy
import pytest

from tests.emulated.conftest import TOLERANCE_8_BIT
from tpu_ui.errors import JobCancelled
from tpu_ui.planner.parts import parts_of_folder
from tpu_ui.request import GenerationRequest
from tpu_ui.resolver import Resolver


@pytest.fixture
def room_for(manager, tiny_models, monkeypatch):
    """Let the planner believe that just so many pictures of 64x64 of the tiny SD3 fit the device at once."""

    def resolver(device_bytes: int) -> Resolver:
        return Resolver(manager.runtime.kind, manager.settings, str(tiny_models / "sd3"), lambda: device_bytes)

    def limit(most: int) -> None:
        resolved, source = resolver(2**60).resolve(GenerationRequest(width=64, height=64, batch=most))
        plan = resolver(2**60)._plan(resolved, parts_of_folder(source.folder, resolved.dtype))
        monkeypatch.setattr(manager, "resolver", resolver(plan.single_bytes))

    return limit


@pytest.mark.parametrize("mode", ["strict", "fused", "compile"])
def test_four_pictures_in_two_runs_are_the_four_alone(generate, room_for, mode):
    room_for(3)
    asked = {"mode": mode, "batch": 4, "seed": 20, "steps": 2}
    result = generate(**asked)
    assert result.report.seeds == (20, 21, 22, 23)
    assert len(result.images) == 4
    assert "2 runs of 2 pictures: 4 do not fit at once." in result.report.notices
    again = generate(**asked).report
    assert (again.state_before, again.was_warm, again.new_compiles) == ("warm", True, 0)
    pair = generate(**asked | {"batch": 2, "seed": 22}).report
    assert (pair.state_before, pair.new_compiles) == ("warm", 0), "the graphs are those of a run of two"
    for image, seed in zip(result.images, result.report.seeds, strict=True):
        alone = numpy.asarray(generate(**asked | {"batch": 1, "seed": seed}).images[0]).astype(int)
        assert abs(alone - numpy.asarray(image).astype(int)).max() <= TOLERANCE_8_BIT


def test_progress_counts_all_steps_and_the_forecast_all_runs(manager, room_for):
    room_for(1)
    request = GenerationRequest(prompt="x", width=64, height=64, steps=2, seed=0, batch=3, mode="fused")
    events = []
    manager.generate(request, events.append, lambda: False)
    steps = [(event.step, event.steps) for event in events if event.step and event.phase == "denoising"]
    assert steps == [(i, 6) for i in range(1, 7)]
    (_, one), (resolved, three) = manager.foresee(replace(request, batch=1)), manager.foresee(request)
    assert resolved.runs == 3
    assert three.run_seconds == pytest.approx(3 * one.run_seconds)


def test_cancel_ends_between_runs(manager, room_for):
    room_for(1)
    request = GenerationRequest(prompt="x", width=64, height=64, steps=2, seed=0, batch=3, mode="fused")
    manager.generate(request, lambda _: None, lambda: False)
    steps, phases = [], []

    def emit(event):
        phases.append(event.phase)
        if event.step and event.phase == "denoising":
            steps.append(event.step)

    with pytest.raises(JobCancelled):
        manager.generate(request, emit, lambda: "decoding" in phases)
    assert steps == [1, 2], "the first run came to its decoder; the second did not begin"
    assert manager.generate(request, lambda _: None, lambda: False).report.was_warm


def test_a_spoilt_run_costs_only_its_own_pictures(manager, room_for, monkeypatch):
    room_for(1)
    request = GenerationRequest(prompt="x", width=64, height=64, steps=2, seed=5, batch=3, mode="strict")
    manager.generate(request, lambda _: None, lambda: False)
    (loaded,) = [p for (model, _), p in manager._residency._pipelines.items() if model == "sd3"]
    decode, calls = loaded.pipeline.vae.decode, []

    def spoil_the_second(latents, *args, **kwargs):
        calls.append(1)
        return decode(latents * float("nan") if len(calls) == 2 else latents, *args, **kwargs)

    monkeypatch.setattr(loaded.pipeline.vae, "decode", spoil_the_second)
    result = manager.generate(request, lambda _: None, lambda: False)
    assert result.report.seeds == (5, 7)
    assert any("picture 2: not-a-number in the VAE" in notice for notice in result.report.notices)


def test_a_warm_up_takes_one_run(manager, room_for):
    room_for(1)
    request = GenerationRequest(prompt="x", width=64, height=64, seed=0, batch=3, mode="fused")
    result = manager.warm_up(request, lambda _: None, lambda: False)
    assert len(result.images) == 1
    assert manager.foresee(request)[1].state == "warm"
