"""Stage one: the autoencoder, on crops of rendered pictures."""

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from tpu_ui.demo.components import new_autoencoder
from tpu_ui.demo.muon import Muon
from tpu_ui.demo.progress import Checkpoint, Log, RunningMean, learning_rate_factor, seed_torch, stream
from tpu_ui.demo.renderer import render
from tpu_ui.demo.scenes import FIRST_LESSON, sample_training_scene

STAGE = "autoencoder"
CROPS = ((64, 24, 0.45), (96, 12, 0.3), (128, 6, 0.1), (192, 4, 0.15))
"""Side in pixels, pictures in a step, share of the steps. The largest teaches the statistics of whole pictures."""
KL_WEIGHT = 1e-4
LEARNING_RATE = 3e-3


def pixels(picture: np.ndarray) -> torch.Tensor:
    """uint8 (height, width, 3) as float in [-1, 1] of shape (3, height, width)."""
    return torch.from_numpy(picture).permute(2, 0, 1).float() / 127.5 - 1


def crops(rng: np.random.Generator) -> torch.Tensor:
    """A batch of crops, most of them with a part of a shape inside."""
    side, count, _ = CROPS[rng.choice(len(CROPS), p=[share for _, _, share in CROPS])]
    batch = []
    while len(batch) < count:
        width, height = (int(32 * rng.integers(max(6, side // 32), 11)) for _ in range(2))
        scene = sample_training_scene(rng, (width, height), FIRST_LESSON)
        picture = pixels(render(scene, width, height))
        for item in scene.objects:
            spread = 0.0 if rng.random() < 0.15 else item.diameter * min(width, height) * 0.5
            x = item.x * width + rng.uniform(-1, 1) * spread if spread else rng.uniform(0, width)
            y = item.y * height + rng.uniform(-1, 1) * spread if spread else rng.uniform(0, height)
            left = int(np.clip(x - side / 2, 0, width - side))
            top = int(np.clip(y - side / 2, 0, height - side))
            batch.append(picture[:, top : top + side, left : left + side])
    return torch.stack(batch[:count])


def reconstruction_loss(drawn: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """L1 and L2 of the pixels and L1 of their differences, which keeps edges sharp."""
    loss = F.l1_loss(drawn, wanted) + F.mse_loss(drawn, wanted)
    for axis in (-1, -2):
        loss = loss + F.l1_loss(drawn.diff(dim=axis), wanted.diff(dim=axis))
    return loss


def train(out: Path, seed: int, steps: int, save_every: int = 200):
    """Trains to the given step, from the last checkpoint if there is one; returns the module with the mean weights."""
    checkpoint = Checkpoint(out, STAGE)
    torch.manual_seed(seed)
    model = new_autoencoder()
    kernels = [parameter for parameter in model.parameters() if parameter.ndim == 4]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 4]
    optimizers = (
        Muon(kernels, lr=LEARNING_RATE, weight_decay=0.0),
        torch.optim.AdamW(others, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    )
    mean = RunningMean(model, 0.995)
    start = 0
    if state := checkpoint.load():
        model.load_state_dict(state["model"])
        for optimizer, kept in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        mean.weights, start = state["mean"], state["step"]
    log = Log(STAGE, start, steps)
    for step in range(start, steps):
        seed_torch(seed, STAGE, step)
        wanted = crops(stream(seed, STAGE, step))
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = LEARNING_RATE * learning_rate_factor(step, steps, warmup=30, decay=0.5)
        with torch.autocast("cpu", torch.bfloat16):
            posterior = model.encode(wanted).latent_dist
            drawn = model.decode(posterior.sample()).sample.float()
        kl = 0.5 * (posterior.mean.float() ** 2 + posterior.var.float() - 1 - posterior.logvar.float()).mean()
        reconstruction = reconstruction_loss(drawn, wanted)
        (reconstruction + KL_WEIGHT * kl).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        mean.update(model, step)
        log.add(step, float(reconstruction.detach()), f"kl {float(kl.detach()):.2f}")
        if (step + 1) % save_every == 0 or step + 1 == steps:
            checkpoint.save(
                {
                    "model": model.state_dict(),
                    "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                    "mean": mean.weights,
                    "step": step + 1,
                }
            )
    model.load_state_dict(mean.weights)
    return model.eval()
