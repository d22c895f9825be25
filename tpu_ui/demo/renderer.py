"""Draws a scene: flat shapes with clean edges, a soft shadow and a gentle slope of light. numpy and Pillow only."""

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from tpu_ui.demo.scenes import Scene, SceneObject
from tpu_ui.demo.vocabulary import BACKGROUND_RGB, OBJECT_RGB

OVERSAMPLING = 4
SHADOW_STRENGTH = 0.20
SLOPE_STRENGTH = 9.0  # units of 255 from the middle of the canvas to its edge


def _circle(radius: float = 1.0, x: float = 0.0, y: float = 0.0) -> np.ndarray:
    angles = np.linspace(0, 2 * np.pi, 96, endpoint=False)
    return np.stack([x + radius * np.cos(angles), y + radius * np.sin(angles)], axis=1)


def _regular(corners: int, first_degrees: float, radii: tuple[float, ...] = (1.0,)) -> np.ndarray:
    angles = np.radians(first_degrees) + 2 * np.pi * np.arange(corners) / corners
    radius = np.array([radii[i % len(radii)] for i in range(corners)])
    return np.stack([radius * np.cos(angles), radius * np.sin(angles)], axis=1)


def _rounded(corners: np.ndarray, amount: float) -> np.ndarray:
    """The polygon with each corner replaced by a short curve that starts `amount` of the edge away from it."""
    points = []
    for i, corner in enumerate(corners):
        before, after = corners[i - 1], corners[(i + 1) % len(corners)]
        start, end = corner + amount * (before - corner), corner + amount * (after - corner)
        for t in np.linspace(0, 1, 7):
            points.append((1 - t) ** 2 * start + 2 * t * (1 - t) * corner + t**2 * end)
    return np.array(points)


def _heart() -> np.ndarray:
    t = np.linspace(0, 2 * np.pi, 96, endpoint=False)
    x = 16 * np.sin(t) ** 3
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t))
    return np.stack([x, y + 2.5], axis=1) / 15.5


def _cross(arm: float = 0.31, reach: float = 0.95) -> np.ndarray:
    quarter = np.array([(-arm, -reach), (arm, -reach), (arm, -arm)])
    turn = np.array([[0, 1], [-1, 0]])
    return np.concatenate([quarter @ np.linalg.matrix_power(turn, k) for k in range(4)])


OUTLINES: dict[str, tuple[np.ndarray, ...]] = {
    "circle": (_circle(0.94),),
    "square": (_rounded(_regular(4, 45, (1.16,)), 0.12),),
    "triangle": (_rounded(_regular(3, -90, (1.18,)) + np.array([0, 0.2]), 0.09),),
    "star": (_rounded(_regular(10, -90, (1.12, 0.5)) + np.array([0, 0.06]), 0.12),),
    "heart": (_heart(),),
    "ring": (_circle(1.0), _circle(0.55)),
    "cross": (_rounded(_cross(), 0.11),),
    "diamond": (_rounded(_regular(4, 0, (0.8, 1.15)), 0.09),),
    "moon": (_circle(1.0), _circle(0.82, 0.5, -0.2)),
    "hexagon": (_rounded(_regular(6, 0, (1.04,)), 0.09),),
}
"""Unit outlines, y downwards; a second outline is cut out of the first."""


def _coverage(item: SceneObject, width: int, height: int) -> tuple[np.ndarray, tuple[int, int]]:
    """How much of each pixel the shape covers (0 to 1), in a box around it, and the box's left upper corner."""
    radius = item.diameter * min(width, height) / 2
    centre = np.array([item.x * width, item.y * height])
    reach = int(np.ceil(radius * 1.3)) + 2
    corner = np.floor(centre).astype(int) - reach
    side = 2 * reach + 1
    mask = Image.new("L", (side * OVERSAMPLING,) * 2, 0)
    draw = ImageDraw.Draw(mask)
    for fill, outline in zip((255, 0), OUTLINES[item.shape], strict=False):
        points = (outline * radius + centre - corner) * OVERSAMPLING - 0.5
        draw.polygon([tuple(point) for point in points], fill=fill)
    return np.asarray(mask.reduce(OVERSAMPLING), np.float32) / 255, (int(corner[0]), int(corner[1]))


def _blend(canvas: np.ndarray, box: np.ndarray, corner: tuple[int, int], paint: np.ndarray | float) -> None:
    """Lays `paint` over the canvas where `box` is 1. The box may stick out of the canvas."""
    height, width = canvas.shape[:2]
    left, top = max(corner[0], 0), max(corner[1], 0)
    right, bottom = min(corner[0] + box.shape[1], width), min(corner[1] + box.shape[0], height)
    if right <= left or bottom <= top:
        return
    alpha = box[top - corner[1] : bottom - corner[1], left - corner[0] : right - corner[0], None]
    if isinstance(paint, np.ndarray) and paint.ndim == 3:
        paint = paint[top - corner[1] : bottom - corner[1], left - corner[0] : right - corner[0]]
    view = canvas[top:bottom, left:right]
    view += alpha * (paint - view)


def render(scene: Scene, width: int, height: int) -> np.ndarray:
    """The picture as uint8 RGB of shape (height, width, 3)."""
    short = min(width, height)
    ground = np.array(BACKGROUND_RGB[scene.background], np.float32) + np.array(scene.background_tint, np.float32)
    rows, columns = np.linspace(-1, 1, height, dtype=np.float32), np.linspace(-1, 1, width, dtype=np.float32)
    light = SLOPE_STRENGTH * (scene.slope[0] * columns[None, :] + scene.slope[1] * rows[:, None])
    canvas = ground[None, None, :] + light[:, :, None]
    for item in scene.objects:
        box, corner = _coverage(item, width, height)
        blur = item.diameter * short * 0.045
        pad = int(np.ceil(3 * blur))
        padded = Image.fromarray((np.pad(box, pad) * 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(blur))
        shadow = np.asarray(padded, np.float32) * (SHADOW_STRENGTH / 255)
        drop = round(item.diameter * short * 0.045)
        _blend(canvas, shadow, (corner[0] - pad, corner[1] - pad + drop), canvas.mean(axis=(0, 1)) * 0.25)
        paint = np.array(OBJECT_RGB[item.colour], np.float32) + np.array(item.tint, np.float32)
        shade = np.linspace(9, -9, box.shape[0], dtype=np.float32)[:, None, None]
        _blend(canvas, box, corner, np.broadcast_to(paint + shade, (*box.shape, 3)))
    return (np.clip(canvas, 0, 255) + 0.5).astype(np.uint8)
