"""Finds out what a picture shows by plain image analysis, and whether that is what was asked for.

Knows nothing of the model. Of the renderer it knows only the palette's names and the sizes that words stand for.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from tpu_ui.demo.prompts import Wanted, read_prompt
from tpu_ui.demo.segmentation import connected_regions, difference, smooth_background, srgb_to_lab
from tpu_ui.demo.vocabulary import BACKGROUND_RGB, OBJECT_RGB, SHAPES

SMALLEST_AREA = 0.005
"""Share of the squared shorter side under which a spot is no object."""
GRID = 56
HALF_SPAN = 1.35  # of the square root of the area
ONE_OBJECT_LIMITS, TWO_OBJECT_LIMITS = (0.27, 0.41), (0.254, 0.335)
"""Diameters between small and medium and between medium and large, as shares of the shorter side."""


@dataclass(frozen=True)
class Found:
    """An object in a picture. Position in fractions of width and height; diameter in shares of the shorter side."""

    colour: str
    shape: str
    x: float
    y: float
    diameter: float
    shape_overlap: float


@dataclass(frozen=True)
class Seen:
    """All that was found in a picture; objects from the largest to the smallest."""

    background: str
    objects: tuple[Found, ...]


@dataclass(frozen=True)
class Verdict:
    """Whether a picture shows what was wanted; `faults` says in words what is wrong."""

    faults: tuple[str, ...]
    seen: Seen

    @property
    def ok(self) -> bool:
        return not self.faults


def _nearest(lab: np.ndarray, palette: dict[str, tuple[int, int, int]]) -> str:
    names = list(palette)
    return names[int(np.argmin(np.linalg.norm(srgb_to_lab([palette[n] for n in names]) - lab, axis=1)))]


def _inside(shape: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The ideal shape as a test on coordinates, y downwards, in its own rough unit."""
    radius, angle = np.hypot(x, y), np.arctan2(y, x)

    if shape == "circle":
        return radius <= 0.94
    if shape == "square":
        return np.maximum(abs(x), abs(y)) <= 0.82
    if shape == "triangle":
        return (y <= 0.59) & (y >= -1.18 + np.sqrt(3) * abs(x))
    if shape == "star":
        fold = abs((angle + np.pi / 2 + np.pi / 5) % (2 * np.pi / 5) - np.pi / 5)
        px, py = radius * np.cos(fold), radius * np.sin(fold)
        tip, dent = np.array([1.12, 0.0]), 0.508 * np.array([np.cos(np.pi / 5), np.sin(np.pi / 5)])
        return (dent[0] - tip[0]) * (py - tip[1]) - (dent[1] - tip[1]) * (px - tip[0]) >= 0
    if shape == "heart":
        u, v = x * 1.195, -y * 1.195 + 0.15
        return (u**2 + v**2 - 0.9) ** 3 - 1.2 * u**2 * v**3 <= 0
    if shape == "ring":
        return (radius <= 1) & (radius >= 0.55)
    if shape == "cross":
        return (np.maximum(abs(x), abs(y)) <= 0.95) & (np.minimum(abs(x), abs(y)) <= 0.31)
    if shape == "diamond":
        return abs(x) / 0.8 + abs(y) / 1.15 <= 1
    if shape == "moon":
        return (radius <= 1) & (np.hypot(x - 0.5, y + 0.2) >= 0.82)
    if shape == "hexagon":
        u, v = abs(x), abs(y)
        return (v <= np.sqrt(3) / 2) & (np.sqrt(3) * u + v <= np.sqrt(3))
    raise ValueError(f"no shape is called {shape!r}; known are {', '.join(SHAPES)}")


def _normalised(points: np.ndarray, area: float) -> np.ndarray:
    """A region on a small grid, centred on its middle and scaled so that its area is always the same."""
    centred = (points - points.mean(axis=0)) / np.sqrt(area)
    cells = np.floor((centred + HALF_SPAN) / (2 * HALF_SPAN) * GRID).astype(int)
    grid = np.zeros((GRID, GRID))
    keep = ((cells >= 0) & (cells < GRID)).all(axis=1)
    np.add.at(grid, tuple(cells[keep].T), 1.0)
    per_cell = area * (2 * HALF_SPAN / GRID) ** 2
    return np.minimum(grid / per_cell, 1.0)


@cache
def _templates() -> tuple[np.ndarray, tuple[str, ...], dict[str, float]]:
    """Ideal shapes at slight turns on the small grid, their names, and each shape's sqrt(area) in its own unit."""
    grids, names, scale = [], [], {}
    axis = np.linspace(-1.4, 1.4, 257)
    y, x = np.meshgrid(axis, axis, indexing="ij")
    for shape in SHAPES:
        for degrees in range(-12, 13, 4):
            turn = np.radians(degrees)
            mask = _inside(shape, x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn))
            points = np.argwhere(mask).astype(float)
            grids.append(_normalised(points, len(points)))
            names.append(shape)
            scale[shape] = np.sqrt(len(points)) * (axis[1] - axis[0])
    return np.stack(grids), tuple(names), scale


def _describe(weight: np.ndarray, colour: np.ndarray, short: int) -> Found:
    height, width = weight.shape
    # Each pixel stands as four points, so that small shapes fill the grid evenly.
    points = np.argwhere(weight > 0.5).astype(float)
    fine = (points[:, None] + np.array([[a, b] for a in (-0.25, 0.25) for b in (-0.25, 0.25)])[None]).reshape(-1, 2)
    grid = _normalised(2 * fine, len(fine))
    grids, names, scale = _templates()
    overlap = np.minimum(grids, grid).sum(axis=(1, 2)) / np.maximum(grids, grid).sum(axis=(1, 2))
    best = int(np.argmax(overlap))
    top, left = points.min(axis=0)
    bottom, right = points.max(axis=0)
    return Found(
        colour=_nearest(colour, OBJECT_RGB),
        shape=names[best],
        x=float((left + right + 1) / 2 / width),
        y=float((top + bottom + 1) / 2 / height),
        diameter=float(2 * np.sqrt(len(points)) / scale[names[best]] / short),
        shape_overlap=float(overlap[best]),
    )


def look(picture) -> Seen:
    """What a picture shows. `picture` is a PIL image or an array (height, width, 3) of uint8."""
    rgb = np.asarray(picture)[..., :3]
    lab = srgb_to_lab(rgb)
    short = min(rgb.shape[:2])
    background = smooth_background(lab)
    objects = []
    for region in connected_regions(difference(lab, background) > 14):
        if len(region) < SMALLEST_AREA * short**2 * 0.6:
            break
        rows, columns = region.T
        # The colour is that of the pixels that stand out most; then an edge pixel belongs to the nearer of the two.
        apart = difference(lab, background)[rows, columns]
        core = apart >= np.quantile(apart, 0.4)
        colour = np.median(lab[rows, columns][core], axis=0)
        direction = colour - background[rows, columns]
        share = ((lab[rows, columns] - background[rows, columns]) * direction).sum(-1) / (direction**2).sum(-1)
        weight = np.zeros(rgb.shape[:2])
        weight[rows, columns] = share
        if (share > 0.5).sum() >= SMALLEST_AREA * short**2:
            objects.append(_describe(weight, colour, short))
    return Seen(_nearest(np.median(background.reshape(-1, 3), axis=0), BACKGROUND_RGB), tuple(objects))


def _size_word(diameter: float, count: int) -> str:
    small, large = ONE_OBJECT_LIMITS if count == 1 else TWO_OBJECT_LIMITS
    return "small" if diameter < small else "large" if diameter > large else "medium"


def _place_word(item: Found) -> str:
    across = "left" if item.x < 0.38 else "right" if item.x > 0.62 else ""
    down = "top" if item.y < 0.38 else "bottom" if item.y > 0.62 else ""
    return " ".join(part for part in (down, across) if part) or "centre"


def _related(first: Found, second: Found, relation: str) -> bool:
    dx, dy = second.x - first.x, second.y - first.y
    along, across = (dx, dy) if relation in ("left of", "right of") else (dy, dx)
    return (along if relation in ("left of", "above") else -along) > max(0.1, abs(across))


def _faults(wanted: Wanted, seen: Seen, order: tuple[int, ...]) -> list[str]:
    """What is wrong when the wanted objects are the seen ones in this order."""
    faults = []
    objects = [seen.objects[i] for i in order]
    for ask, item in zip(wanted.objects, objects, strict=True):
        for name, has in (
            ("colour", item.colour),
            ("shape", item.shape),
            ("size", _size_word(item.diameter, len(objects))),
        ):
            asked = getattr(ask, name)
            if asked and asked != has:
                faults.append(f"{name} is {has}, not {asked}")
    if wanted.place and _place_word(objects[0]) != wanted.place:
        faults.append(f"place is {_place_word(objects[0])}, not {wanted.place}")
    if wanted.relation and not _related(objects[0], objects[1], wanted.relation):
        faults.append(f"the first is not {wanted.relation} the second")
    return faults


def check(picture, wanted: Wanted) -> Verdict:
    """Compares a picture with what was wanted; what `wanted` leaves open may be anything."""
    seen = look(picture)
    faults = []
    if wanted.background and seen.background != wanted.background:
        faults.append(f"background is {seen.background}, not {wanted.background}")
    if len(seen.objects) != len(wanted.objects):
        faults.append(f"{len(seen.objects)} objects, not {len(wanted.objects)}")
    else:
        orders = [tuple(range(len(seen.objects)))]
        if len(seen.objects) == 2:
            orders.append((1, 0))
        faults += min((_faults(wanted, seen, order) for order in orders), key=len)
    return Verdict(tuple(faults), seen)


def check_prompt(picture, prompt: str) -> Verdict:
    """Whether a picture shows what a prompt of the demo language says, such as "a red star on a blue background"."""
    return check(picture, read_prompt(prompt))
