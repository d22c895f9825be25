"""Two ranks make the picture that one process makes, and whatever happens to one of them, no job and no rank hangs."""

import time

import psutil
import pytest
from PIL import Image

from tests.parallel.conftest import pixels_of
from tpu_ui.errors import GenerationFailed, InvalidRequest, JobCancelled, ModeNotAllowed, WorkerLost
from tpu_ui.events import Phase

# The two halves of a sum are added in another order; the tiny random model multiplies that by its steps.
TOLERANCE_8_BIT = 2


def run(group, request, emit=lambda _: None, cancelled=lambda: False):
    return group.generate(request, emit, cancelled)


def test_two_ranks_make_the_picture_of_one_process(group, request_for, expected_pixels):
    events = []
    result = run(group, request_for(), events.append)
    assert (result.report.placement, result.report.device) == ("tensor_parallel", "cpu")
    assert [event.step for event in events if event.phase is Phase.DENOISING and event.step] == [1, 2, 3, 4]
    assert abs(pixels_of(result) - expected_pixels).max() <= TOLERANCE_8_BIT
    assert abs(pixels_of(run(group, request_for(seed=1))) - expected_pixels).max() > TOLERANCE_8_BIT


@pytest.mark.parametrize("model", ["flux2", "flux2-klein", "qwen-image"])
def test_text_encoders_are_split_too(group, request_for, alone, tiny_models, model):
    request = request_for(model=str(tiny_models / model))
    assert abs(pixels_of(run(group, request)) - alone(request)).max() <= TOLERANCE_8_BIT


def test_a_picture_to_start_from(group, request_for, alone, expected_pixels, tmp_path):
    Image.new("RGB", (64, 64), (200, 30, 30)).save(tmp_path / "red.png")
    request = request_for(image=str(tmp_path / "red.png"), strength=0.5)
    pixels = pixels_of(run(group, request))
    assert abs(pixels - alone(request)).max() <= TOLERANCE_8_BIT
    assert abs(pixels - expected_pixels).max() > TOLERANCE_8_BIT


def test_what_the_group_cannot_run_is_refused_and_it_stays(group, request_for, tiny_models):
    pids = group.pids
    with pytest.raises(ModeNotAllowed, match="single is for one device"):
        run(group, request_for(placement="single"))
    with pytest.raises(InvalidRequest, match="65"):
        run(group, request_for(width=65))
    with pytest.raises(InvalidRequest, match="loras: cannot be merged"):
        run(group, request_for(loras=["x"]))
    with pytest.raises(ModeNotAllowed, match=r"cannot be split.*Choose one of these"):
        run(group, request_for(model=str(tiny_models / "sd3")))
    assert group.pids == pids


def test_cancel_ends_all_ranks_at_one_step(group, request_for, expected_pixels):
    pids, steps = group.pids, []

    def emit(event):
        if event.step:
            steps.append(event.step)

    with pytest.raises(JobCancelled):
        run(group, request_for(steps=150), emit, lambda: len(steps) >= 2)
    assert len(steps) < 150
    assert abs(pixels_of(run(group, request_for())) - expected_pixels).max() <= TOLERANCE_8_BIT
    assert group.pids == pids


@pytest.mark.parametrize("rank", [0, 1])
def test_a_fault_between_two_steps_is_told_and_the_ranks_go_on(group, request_for, fault_file, expected_pixels, rank):
    pids = group.pids
    fault_file.write_text(f"{rank} 2 after raise")
    with pytest.raises(GenerationFailed, match="RuntimeError"):
        run(group, request_for())
    assert abs(pixels_of(run(group, request_for())) - expected_pixels).max() <= TOLERANCE_8_BIT
    assert group.pids == pids


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("1 2 before raise", r"Rank 1 \(process \d+\) failed where the others could not follow: .*: injected"),
        ("0 2 after kill", r"Rank 0 \(process \d+\) was killed by SIGKILL"),
        ("1 2 before hang", r"Rank 1 \(process \d+\) has not gone on for 6 s \(in _fail in cpu_rank\.py"),
    ],
)
def test_a_lost_rank_ends_the_job_and_the_group_starts_again(group, request_for, fault_file, fault, sentence):
    run(group, request_for(steps=1))
    pids = list(group.pids.values())
    fault_file.write_text(fault)
    started = time.monotonic()
    with pytest.raises(WorkerLost, match=f"(?i){sentence}.*start again with the next request"):
        run(group, request_for())
    assert time.monotonic() - started < 25
    assert not any(map(psutil.pid_exists, pids))
    assert group.ledger.in_this_process() == ((), ())
