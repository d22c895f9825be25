"""Scenes and their latents, in shards that are made once, kept on disk, and depend on seed and number alone."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tpu_ui.demo.components import LATENT_CHANNELS, PIXELS_PER_PATCH
from tpu_ui.demo.progress import stream
from tpu_ui.demo.renderer import render
from tpu_ui.demo.scenes import FIRST_LESSON, LAST_LESSON, Scene, sample_training_scene
from tpu_ui.demo.train_autoencoder import pixels

SHARD_SCENES = 192
FIRST_LESSON_SHARDS = 216
COMMON_SIZES = (((256, 256), 0.3), ((192, 192), 0.2), ((384, 384), 0.05), ((320, 256), 0.03), ((256, 320), 0.03))
"""(width, height) in pixels and share of the shards; all other shards draw both sides freely from 192 to 384."""


@dataclass(frozen=True)
class Shard:
    """Scenes of one size, and their latents: float16, (scenes, channels, height / 16, width / 16), before scaling."""

    scenes: tuple[Scene, ...]
    latents: torch.Tensor


def _size(rng: np.random.Generator) -> tuple[int, int]:
    draw = rng.random()
    for size, share in COMMON_SIZES:
        draw -= share
        if draw < 0:
            return size
    return tuple(int(PIXELS_PER_PATCH * side) for side in rng.integers(6, 13, size=2))


@torch.no_grad()
def encode_pictures(autoencoder, pictures: list[np.ndarray]) -> torch.Tensor:
    """The mean latents of pictures of one size, a few at a time."""
    parts = []
    for start in range(0, len(pictures), 16):
        batch = torch.stack([pixels(picture) for picture in pictures[start : start + 16]])
        with torch.autocast("cpu", torch.bfloat16):
            parts.append(autoencoder.encode(batch).latent_dist.mean.float())
    return torch.cat(parts)


class ShardStore:
    """Makes shards when they are first asked for."""

    def __init__(self, folder: Path, seed: int, autoencoder):
        self.folder, self.seed, self.autoencoder = folder, seed, autoencoder
        self.kept: dict[int, Shard] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def __getitem__(self, number: int) -> Shard:
        if number not in self.kept:
            self.kept[number] = self._make(number)
        return self.kept[number]

    def _make(self, number: int) -> Shard:
        rng = stream(self.seed, "shard", number)
        width, height = _size(rng)
        lesson = FIRST_LESSON if number < FIRST_LESSON_SHARDS else LAST_LESSON
        scenes = tuple(sample_training_scene(rng, (width, height), lesson) for _ in range(SHARD_SCENES))
        path = self.folder / f"shard_{number:05d}.pt"
        if path.exists():
            return Shard(scenes, torch.load(path, weights_only=True))
        latents = encode_pictures(self.autoencoder, [render(scene, width, height) for scene in scenes]).half()
        torch.save(latents, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
        return Shard(scenes, latents)


def measure_latents(autoencoder, seed: int) -> tuple[float, float]:
    """Mean and standard deviation of the latents of 96 pictures of 256 x 256 pixels."""
    rng = stream(seed, "latent statistics", 0)
    latents = encode_pictures(
        autoencoder, [render(sample_training_scene(rng, (256, 256), FIRST_LESSON), 256, 256) for _ in range(96)]
    )
    assert latents.shape[1] == LATENT_CHANNELS
    return float(latents.mean()), float(latents.std())
