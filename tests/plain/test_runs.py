"""What the runs of a request give together."""

import numpy
import pytest

from tpu_ui.errors import NotANumber
from tpu_ui.events import Phase, Progress
from tpu_ui.graphs import Stage
from tpu_ui.ledger import StageOutcome
from tpu_ui.runs import Pictures, Run, outcomes_of_all, over_all_runs


def pictures(*greys: float, lost: dict[int, str] | None = None) -> Pictures:
    """One-pixel pictures at the places that are not lost."""
    lost = lost or {}
    indices = tuple(i for i in range(len(greys) + len(lost)) if i not in lost)
    pixels = numpy.array(greys, dtype=numpy.float32).reshape(len(greys), 1, 1, 1).repeat(3, axis=3)
    return Pictures(pixels, indices, lost, "bfloat16")


def test_pictures_of_several_runs_keep_their_places():
    runs = [pictures(0.2, 1.0), pictures(0.4, lost={0: "VAE"}), pictures(lost={0: "VAE", 1: "VAE"})]
    together = Pictures.of_runs(runs)
    assert together.indices == (0, 1, 3)
    assert [image.getpixel((0, 0))[0] for image in together.images] == [51, 255, 102]
    assert together.spoilt == tuple(
        f"picture {i}: not-a-number in the VAE (data type bfloat16); it was left out." for i in (3, 5, 6)
    )
    together.check()


def test_a_request_without_any_picture_is_a_failure():
    lost = Pictures.of_runs([pictures(lost={0: "denoiser"}), pictures(lost={0: "VAE"})])
    with pytest.raises(NotANumber, match=r"not-a-number in the denoiser \(data type bfloat16\): no picture") as caught:
        lost.check()
    assert caught.value.stage == "denoiser"


def test_steps_are_counted_over_all_runs():
    told: list[Progress] = []
    for number in range(2):
        listener = over_all_runs(told.append, number, 2)
        listener(Progress(Phase.ENCODING))
        for step in (1, 2, 3):
            listener(Progress(Phase.DENOISING, step=step, steps=3, seconds_per_step=0.5))
    assert [(event.step, event.steps) for event in told if event.step] == [(i, 6) for i in range(1, 7)]
    assert [event.phase for event in told][:2] == [Phase.ENCODING, Phase.DENOISING]


def test_seconds_are_summed_and_the_last_run_proves():
    first = {Stage.TEXT: StageOutcome(1, 0, 4.0, 0.5), Stage.DENOISER: StageOutcome(2, 0, 6.0, 3.0, 1.0)}
    second = {Stage.TEXT: StageOutcome(0, 0, 0.0, 0.25), Stage.DENOISER: StageOutcome(0, 0, 0.0, 2.0, 0.5)}
    runs = [Run(outcomes, pictures(0.5), is_whole=True) for outcomes in (first, second)]
    total = outcomes_of_all(runs)
    assert (total[Stage.TEXT].compile_seconds, total[Stage.TEXT].run_seconds) == (4.0, 0.75)
    assert (total[Stage.DENOISER].run_seconds, total[Stage.DENOISER].step_seconds) == (5.0, 0.5)
    assert [(run.compiled, run.proves_warm) for run in runs] == [(True, False), (False, True)]
