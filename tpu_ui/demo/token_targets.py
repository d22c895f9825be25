"""What each picture token shows, as numbers: a training aid for the denoiser.

Early layers that are asked to name the background, and the colour and shape of the object under each token, bind words
to places many times sooner than the loss of the flow alone would teach them.
"""

import numpy as np

from tpu_ui.demo.scenes import Scene
from tpu_ui.demo.vocabulary import COLOURS, SHAPES

TARGET_WIDTH = 2 * len(COLOURS) + len(SHAPES) + 4
REACH = 0.35
"""How far, in tokens, beyond its circle an object still counts."""


def token_targets(scene: Scene, rows: int, columns: int) -> np.ndarray:
    """Shape (rows * columns, TARGET_WIDTH): background; colour, shape, presence, radius, offset of an object."""
    targets = np.zeros((rows, columns, TARGET_WIDTH), np.float32)
    targets[..., COLOURS.index(scene.background)] = 1
    short = min(rows, columns)
    y, x = (np.arange(rows) + 0.5)[:, None], (np.arange(columns) + 0.5)[None, :]
    for item in scene.objects:
        radius = item.diameter * short / 2
        dx = np.broadcast_to(x - item.x * columns, (rows, columns))
        dy = np.broadcast_to(y - item.y * rows, (rows, columns))
        here = np.hypot(dx, dy) < radius + REACH
        targets[here, len(COLOURS) + COLOURS.index(item.colour)] = 1
        targets[here, 2 * len(COLOURS) + SHAPES.index(item.shape)] = 1
        ones = np.ones(here.sum())
        targets[here, -4:] = np.stack([ones, ones * radius, dx[here] / radius, dy[here] / radius], axis=1)
    return targets.reshape(rows * columns, TARGET_WIDTH)
