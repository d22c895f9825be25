"""What one run of a pipeline gives, and what the runs of a request give together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy
from PIL import Image

from tpu_ui.errors import NotANumber
from tpu_ui.events import ProgressListener
from tpu_ui.graphs import Stage
from tpu_ui.ledger import StageOutcome


@dataclass(frozen=True)
class Pictures:
    """The pictures of a run, or of several.

    Attributes:
        pixels: float32, shape (pictures, height, width, 3), 0 to 1; those with NaN are left out.
        indices: which of those asked for they are.
        lost: the others, each with the stage whose result was not-a-number.
        dtype: name of the data type they were made in.
    """

    pixels: numpy.ndarray
    indices: tuple[int, ...]
    lost: Mapping[int, str]
    dtype: str

    @classmethod
    def of_runs(cls, runs: Sequence["Pictures"]) -> "Pictures":
        """Those of runs of equal size, in order."""
        size = len(runs[0].indices) + len(runs[0].lost)
        return cls(
            numpy.concatenate([run.pixels for run in runs]),
            tuple(number * size + i for number, run in enumerate(runs) for i in run.indices),
            {number * size + i: stage for number, run in enumerate(runs) for i, stage in run.lost.items()},
            runs[0].dtype,
        )

    @property
    def images(self) -> tuple[Image.Image, ...]:
        return tuple(Image.fromarray((pixels * 255).round().clip(0, 255).astype("uint8")) for pixels in self.pixels)

    @property
    def spoilt(self) -> tuple[str, ...]:
        """A sentence about each that is lost."""
        return tuple(f"picture {i + 1}: {self._fault(stage)}; it was left out." for i, stage in self.lost.items())

    def check(self) -> None:
        """Refuse a result without any picture.

        Raises:
            NotANumber: it names the stage.
        """
        if not self.indices:
            stage = next(iter(self.lost.values()))
            raise NotANumber(
                stage,
                f"{self._fault(stage)}: no picture can be made of it.",
                "Check the model's weights; with a 16-bit data type try the model in float32 or bfloat16.",
            )

    def _fault(self, stage: str) -> str:
        return f"not-a-number in the {stage} (data type {self.dtype})"


@dataclass(frozen=True)
class Run:
    """A run that came to its end. `is_whole`: it went through every stage, and through more than one step."""

    outcomes: dict[Stage, StageOutcome]
    pictures: Pictures
    is_whole: bool

    @property
    def compiled(self) -> bool:
        return any(outcome.compiles for outcome in self.outcomes.values())

    @property
    def proves_warm(self) -> bool:
        return self.is_whole and not self.compiled


def outcomes_of_all(runs: Sequence[Run]) -> dict[Stage, StageOutcome]:
    """What each stage cost in all runs together."""
    total: dict[Stage, StageOutcome] = {}
    for run in runs:
        for stage, outcome in run.outcomes.items():
            total[stage] = total[stage] + outcome if stage in total else outcome
    return total


def over_all_runs(emit: ProgressListener, number: int, runs: int) -> ProgressListener:
    """A listener for run `number`, counted from 0, that tells its steps as those of the whole request."""
    return lambda progress: emit(
        replace(progress, step=progress.step + number * progress.steps, steps=progress.steps * runs)
        if progress.step is not None and progress.steps is not None
        else progress
    )
