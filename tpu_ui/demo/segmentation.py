"""Plain image analysis in numpy: perceptual colour, a smooth background, connected regions."""

import numpy as np


def srgb_to_lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB (D65) of sRGB values from 0 to 255; the last axis holds the three channels."""
    value = np.asarray(rgb, np.float64) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = linear @ matrix.T / np.array([0.9505, 1.0, 1.089])
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.stack(
        [116 * root[..., 1] - 16, 500 * (root[..., 0] - root[..., 1]), 200 * (root[..., 1] - root[..., 2])], axis=-1
    )


def smooth_background(lab: np.ndarray) -> np.ndarray:
    """A plane in each channel, fitted to the picture's rim and blind to what differs much from the rim's median."""
    height, width = lab.shape[:2]
    rows, columns = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    rim = np.zeros((height, width), bool)
    edge = max(2, min(height, width) // 40)
    rim[:edge] = rim[-edge:] = True
    rim[:, :edge] = rim[:, -edge:] = True
    basis = np.stack([np.ones_like(rows), columns, rows], axis=-1)
    values, points = lab[rim], basis[rim]
    near = np.linalg.norm(values - np.median(values, axis=0), axis=1) < 20
    plane, *_ = np.linalg.lstsq(points[near], values[near], rcond=None)
    return basis @ plane


def difference(lab: np.ndarray, background: np.ndarray) -> np.ndarray:
    """Distance from the background in CIELAB, where being a little darker, as in a shadow, counts for little."""
    delta = lab - background
    light = np.where(delta[..., 0] < 0, np.minimum(delta[..., 0] + 16, 0), delta[..., 0])
    return np.sqrt(light**2 + delta[..., 1] ** 2 + delta[..., 2] ** 2)


def connected_regions(mask: np.ndarray) -> list[np.ndarray]:
    """The 4-connected regions of a boolean mask as index arrays of shape (pixels, 2), largest first."""
    parent: list[int] = []

    def root(label: int) -> int:
        while parent[label] != label:
            parent[label] = parent[parent[label]]
            label = parent[label]
        return label

    runs: list[tuple[int, int, int, int]] = []  # row, first column, end column, label
    above: list[tuple[int, int, int, int]] = []
    for row in range(mask.shape[0]):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], mask[row].view(np.int8), [0]])))
        here = []
        for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            touching = [root(run[3]) for run in above if run[1] < end and first < run[2]]
            label = touching[0] if touching else len(parent)
            if not touching:
                parent.append(label)
            for other in touching[1:]:
                parent[root(other)] = root(label)
            here.append((row, first, end, label))
        runs += here
        above = here
    groups: dict[int, list[np.ndarray]] = {}
    for row, first, end, label in runs:
        columns = np.arange(first, end)
        groups.setdefault(root(label), []).append(np.stack([np.full_like(columns, row), columns], axis=1))
    return sorted((np.concatenate(parts) for parts in groups.values()), key=len, reverse=True)
