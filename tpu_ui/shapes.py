"""Picture sizes: which ones a model can make, and the named sizes that it is offered with.

All sizes are pixels, width before height. A wrong size is refused with its neighbours named, never rounded in silence.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tpu_ui.errors import InvalidRequest

MAX_SIDE_PX = 4096
"""No side is longer than this, whatever the model: no catalogued model was trained on pictures near it."""
MIN_SIDE_PX = 32
"""No side is shorter than this, rounded up to the model's grid: below it the autoencoder sees a handful of values."""
MAX_PIXELS = MAX_SIDE_PX * MAX_SIDE_PX
"""No picture has more pixels than this."""

ASPECT_RATIOS = ((1, 1), (4, 3), (3, 4), (3, 2), (2, 3), (16, 9), (9, 16))
# As a logarithm, the distance between the two nearest of these ratios, 4:3 and 3:2: beyond it the name would mislead.
_LARGEST_DISTORTION = math.log((3 / 2) / (4 / 3))

_SIZE = re.compile(r"\s*([+-]?[0-9]{1,9})\s*[xX×]\s*([+-]?[0-9]{1,9})\s*")


@dataclass(frozen=True)
class SizeRule:
    """The sizes that a model accepts.

    Attributes:
        multiple: each side is a multiple of this many pixels (autoencoder scale times patch size).
        min_side, max_side: shortest and longest side in pixels; both lie on the grid.
        max_pixels: largest width × height.
    """

    multiple: int
    min_side: int
    max_side: int
    max_pixels: int

    def __post_init__(self) -> None:
        if self.multiple < 1:
            raise ValueError(f"multiple must be at least 1, not {self.multiple}")
        if self.min_side < 1 or self.min_side % self.multiple or self.max_side % self.multiple:
            raise ValueError(f"sides {self.min_side} to {self.max_side} are not multiples of {self.multiple}")
        if self.max_side < self.min_side:
            raise ValueError(f"max_side {self.max_side} is below min_side {self.min_side}")
        if self.max_pixels < self.min_side**2:
            raise ValueError(f"max_pixels {self.max_pixels} is below the smallest picture, {self.min_side}²")

    @classmethod
    def with_multiple(cls, multiple: int, max_side: int = MAX_SIDE_PX, max_pixels: int = MAX_PIXELS) -> "SizeRule":
        """The rule for a grid, with the app's own limits; `max_side` is brought down to the grid."""
        min_side = math.ceil(MIN_SIDE_PX / multiple) * multiple
        max_side = max(min(max_side, MAX_SIDE_PX) // multiple * multiple, min_side)
        return cls(multiple, min_side, max_side, max(min(max_pixels, MAX_PIXELS), min_side**2))

    def neighbours(self, side: int) -> tuple[int, ...]:
        """The allowed sides nearest to `side` pixels: itself, or one below and one above it, or the nearer end."""
        below = min(side, self.max_side) // self.multiple * self.multiple
        above = -(-max(side, self.min_side) // self.multiple) * self.multiple
        return tuple(sorted({s for s in (below, above) if self.min_side <= s <= self.max_side}))

    def check(self, width: int, height: int) -> None:
        """Accept a size or refuse it.

        Raises:
            InvalidRequest: a side is no whole number, zero, negative, out of range or off the grid, or the picture
                has too many pixels. The sentence names the nearest allowed sides, of both sides when both are wrong.
        """
        problems = {
            name: problem
            for name, side in (("width", width), ("height", height))
            if (problem := self._problem_with_side(side)) is not None
        }
        if problems:
            (field, (message, remedy)), *others = problems.items()
            also = "".join(f" The {name} is wrong too: {text} {advice}" for name, (text, advice) in others)
            raise InvalidRequest(field, message, f"{remedy}{also}")
        if width * height > self.max_pixels:
            tallest = self.max_pixels // width // self.multiple * self.multiple
            widest = self.max_pixels // height // self.multiple * self.multiple
            choices = [f"{width}×{tallest}"] * (tallest >= self.min_side)
            choices += [f"{widest}×{height}"] * (widest >= self.min_side and widest != width)
            raise InvalidRequest(
                "width × height",
                f"{width} × {height} is {width * height:,} pixels, above this model's limit of {self.max_pixels:,}.",
                f"Use at most {' or '.join(choices)}." if choices else "Use a smaller size.",
            )

    def allows(self, width: int, height: int) -> bool:
        """Whether `check` would accept the size."""
        return (
            self._problem_with_side(width) is None
            and self._problem_with_side(height) is None
            and width * height <= self.max_pixels
        )

    def _problem_with_side(self, side: object) -> tuple[str, str] | None:
        span = f"{self.min_side} to {self.max_side} pixels in steps of {self.multiple}"
        if isinstance(side, bool) or not isinstance(side, int):
            return f"{side!r:.40} is not a whole number.", f"Give {span}."
        if side == 0:
            return "0 is not a size.", f"Give {span}."
        if side < 0:
            return f"{side} is negative.", f"Give {span}."
        if side > self.max_side:
            return f"{side} is above this model's limit of {self.max_side} pixels.", f"The largest is {self.max_side}."
        if side < self.min_side:
            return f"{side} is below this model's limit of {self.min_side} pixels.", f"The smallest is {self.min_side}."
        if side % self.multiple:
            nearest = " or ".join(str(neighbour) for neighbour in self.neighbours(side))
            return f"{side} is not a multiple of {self.multiple}, which this model needs.", f"Use {nearest}."
        return None


def parse_size(text: str) -> tuple[int, int]:
    """Read "WIDTHxHEIGHT" (also with X or ×) as (width, height) in pixels. Which sizes are allowed is SizeRule's part.

    Raises:
        InvalidRequest: the text is not two whole numbers with an x between them.
    """
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidRequest(
            "size", f"{text!r:.40} is not a size.", "Give WIDTHxHEIGHT in whole pixels, such as 1024x768."
        )
    return int(match[1]), int(match[2])


@dataclass(frozen=True)
class NamedSize:
    """One rung of a ladder. `aspect` is the name of the ratio, which the size meets as nearly as the grid allows."""

    aspect: str
    width: int
    height: int

    @property
    def label(self) -> str:
        return f"{self.aspect} · {self.width}×{self.height}"


@dataclass(frozen=True)
class ShapeLadder:
    """The sizes that a model is offered with, the first one being its usual size."""

    sizes: tuple[NamedSize, ...]

    def __post_init__(self) -> None:
        if not self.sizes:
            raise ValueError("a ladder needs at least one size")
        pairs = [(size.width, size.height) for size in self.sizes]
        if len(set(pairs)) < len(pairs):
            raise ValueError(f"a ladder holds each size once: {pairs}")

    @classmethod
    def for_pixels(cls, rule: SizeRule, *budgets: int) -> "ShapeLadder":
        """The usual aspect ratios at each budget of pixels, on the rule's grid and within its limits.

        A ratio that the limits would distort into another one, or that falls on a size already there, is left out.
        """
        found: dict[tuple[int, int], NamedSize] = {}
        for budget in budgets:
            for wide, high in ASPECT_RATIOS:
                width, height = _nearest_size(rule, min(budget, rule.max_pixels), wide / high)
                distortion = abs(math.log(width / height * high / wide))
                if distortion < _LARGEST_DISTORTION and rule.allows(width, height):
                    found.setdefault((width, height), NamedSize(f"{wide}:{high}", width, height))
        return cls(tuple(found.values()))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(size.label for size in self.sizes)

    def __iter__(self) -> Iterator[NamedSize]:
        return iter(self.sizes)

    def __contains__(self, size: object) -> bool:
        """Whether (width, height) is on the ladder."""
        return any((rung.width, rung.height) == size for rung in self.sizes)

    def find(self, label: str) -> NamedSize:
        """The size with this label.

        Raises:
            InvalidRequest: no size of the ladder has it.
        """
        for size in self.sizes:
            if size.label == label:
                return size
        raise InvalidRequest("size", f"{label!r:.40} is not on this model's list.", f"Choose {', '.join(self.labels)}.")


def _nearest_size(rule: SizeRule, pixels: int, ratio: float) -> tuple[int, int]:
    def on_grid(side: float) -> int:
        rounded = math.floor(side / rule.multiple + 0.5) * rule.multiple
        return min(max(rounded, rule.min_side), rule.max_side)

    width, height = on_grid(math.sqrt(pixels * ratio)), on_grid(math.sqrt(pixels / ratio))
    while width * height > rule.max_pixels and max(width, height) > rule.min_side:
        longer = max(width, height)
        width -= rule.multiple * (width == longer)
        height -= rule.multiple * (height == longer)
    return width, height
