"""What a picture shows: frozen descriptions of one or two objects, drawn at random from a seed.

Positions are fractions of the canvas's width and height, diameters fractions of its shorter side. Middles and
diameters lie on a grid of a few pixels, so that an outline meets the latents in few different ways, which a small model
can learn.
"""

from dataclasses import dataclass

import numpy as np

from tpu_ui.demo.vocabulary import COLOURS, OPPOSITE, PLACES, PROMISED_SHAPES, RELATIONS, SHAPES, SIZES

ONE_OBJECT_DIAMETER = {"small": (0.19, 0.23), "medium": (0.31, 0.36), "large": (0.46, 0.53)}
TWO_OBJECT_DIAMETER = {"small": 0.219, "medium": 0.297, "large": 0.375}
"""One each: a pair has less room, and sizes that lay closer together were mixed up in every eighth pair."""
PLACE_X = {"left": 0.25, "right": 0.75}
PLACE_Y = {"top": 0.25, "bottom": 0.75}
FINE_GRID, COARSE_GRID = 16, 32  # pixels; 16 is one latent, 32 one token of the transformer
ONE_OBJECT_DIAMETER_GRID, TWO_OBJECT_DIAMETER_GRID = 8, 4
NARROW = 7 * COARSE_GRID
"""On a shorter side than this, two large objects do not stand clear of each other on the coarse grid."""


@dataclass(frozen=True)
class Lesson:
    """Which scenes are drawn: from these shapes, their middles on lines so many pixels apart across and down."""

    shapes: tuple[str, ...]
    grid: tuple[int, int]


FIRST_LESSON = Lesson(SHAPES, (FINE_GRID, FINE_GRID))
LAST_LESSON = Lesson(PROMISED_SHAPES, (FINE_GRID, COARSE_GRID))
"""What training ends with: fewer ways in which an outline meets the tokens, which so small a model can draw surely."""


@dataclass(frozen=True)
class SceneObject:
    """One shape. `tint` shifts red, green and blue by that many units of 255."""

    colour: str
    shape: str
    size: str
    x: float
    y: float
    diameter: float
    tint: tuple[float, float, float]


@dataclass(frozen=True)
class Scene:
    """A whole picture. `place` is set for one object, `relation` (of the first object to the second) for two."""

    background: str
    background_tint: tuple[float, float, float]
    slope: tuple[float, float]
    objects: tuple[SceneObject, ...]
    place: str | None = None
    relation: str | None = None


def is_held_out_pair(colour: str, shape: str) -> bool:
    """Whether this colour was never shown on this shape in training: one shape in ten for each colour, and back."""
    return (3 * COLOURS.index(colour) + 1) % len(SHAPES) == SHAPES.index(shape)


def is_held_out(scene: Scene) -> bool:
    """Whether any object of the scene has a colour and shape that training never showed together."""
    return any(is_held_out_pair(item.colour, item.shape) for item in scene.objects)


def _tint(rng: np.random.Generator) -> tuple[float, float, float]:
    light = rng.uniform(-9, 9)
    return tuple(float(light + rng.uniform(-4, 4)) for _ in range(3))


def _pick(rng: np.random.Generator, options, weights=None):
    return options[int(rng.choice(len(options), p=weights))]


def _one_object_diameter(rng: np.random.Generator, size: str, short: int) -> int:
    """A diameter in pixels of an object that stands alone: on the grid, within the limits or nearest their middle."""
    low, high = (limit * short / ONE_OBJECT_DIAMETER_GRID for limit in ONE_OBJECT_DIAMETER[size])
    steps = range(int(np.ceil(low)), int(np.floor(high)) + 1) or (round((low + high) / 2),)
    return ONE_OBJECT_DIAMETER_GRID * _pick(rng, steps)


def _two_object_diameter(size: str, short: int) -> int:
    """The diameter in pixels, on the grid, of one of a pair."""
    return TWO_OBJECT_DIAMETER_GRID * round(TWO_OBJECT_DIAMETER[size] * short / TWO_OBJECT_DIAMETER_GRID)


def _snapped_centre(value: float, side: int, diameter: int, grid: int) -> float:
    """The nearest grid line, or the fine one that keeps the object clear of the edges, as a fraction of the side."""
    grid = grid if side >= NARROW else FINE_GRID
    margin = FINE_GRID * np.ceil((diameter / 2 + 0.035 * side) / FINE_GRID)
    return float(np.clip(grid * round(value * side / grid), margin, side - margin) / side)


def _placed(
    rng,
    item: tuple[str, str, str],
    centre: tuple[float, float],
    diameter: int,
    size: tuple[int, int],
    grid: tuple[int, int],
):
    """The object with its jitter, moved as far inwards as it needs to keep clear of the edges."""
    x, y = (
        _snapped_centre(value + rng.uniform(-0.04, 0.04), side, diameter, spacing)
        for value, side, spacing in zip(centre, size, grid, strict=True)
    )
    return SceneObject(*item, x=x, y=y, diameter=diameter / min(size), tint=_tint(rng))


def sample_scene(
    rng: np.random.Generator, size: tuple[int, int], objects: int | None = None, lesson: Lesson = LAST_LESSON
) -> Scene:
    """A random scene for a canvas of (width, height) pixels; `objects` is 1 or 2 (default: either)."""
    count = objects or (1 if rng.random() < 0.35 else 2)
    kinds = [(_pick(rng, COLOURS), _pick(rng, lesson.shapes), _pick(rng, SIZES)) for _ in range(count)]
    if count == 2 and rng.random() < 0.1:
        kinds[1] = kinds[0]
    free = [name for name in COLOURS if name not in {colour for colour, _, _ in kinds}]
    weights = np.array([3.0 if name == "white" else 1.0 for name in free])
    background = _pick(rng, free, weights / weights.sum())
    slope = tuple(float(value) for value in rng.uniform(-1, 1, size=2))
    if count == 1:
        place = "centre" if rng.random() < 0.4 else _pick(rng, PLACES)
        centre = (
            next((PLACE_X[w] for w in place.split() if w in PLACE_X), 0.5),
            next((PLACE_Y[w] for w in place.split() if w in PLACE_Y), 0.5),
        )
        diameter = _one_object_diameter(rng, kinds[0][2], min(size))
        item = _placed(rng, kinds[0], centre, diameter, size, lesson.grid)
        return Scene(background, _tint(rng), slope, (item,), place=place)
    relation = _pick(rng, RELATIONS)
    along = 0.27 if relation in ("left of", "above") else 0.73
    across = [float(0.5 + rng.uniform(-0.07, 0.07)) for _ in range(2)]
    first, second = (along, across[0]), (1 - along, across[1])
    if relation in ("above", "below"):
        first, second = first[::-1], second[::-1]
    pair = tuple(
        _placed(rng, kind, centre, _two_object_diameter(kind[2], min(size)), size, lesson.grid)
        for kind, centre in zip(kinds, (first, second), strict=True)
    )
    return Scene(background, _tint(rng), slope, pair, relation=relation)


def sample_training_scene(rng: np.random.Generator, size: tuple[int, int], lesson: Lesson = LAST_LESSON) -> Scene:
    """A random scene that shows no held-out pair."""
    while is_held_out(scene := sample_scene(rng, size, lesson=lesson)):
        pass
    return scene


def swapped(scene: Scene) -> Scene:
    """The same picture told from the other object."""
    return Scene(
        scene.background,
        scene.background_tint,
        scene.slope,
        scene.objects[::-1],
        relation=OPPOSITE[scene.relation],
    )
