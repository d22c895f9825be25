"""Stage four: the decoder alone, polished on the latents as they are, so that edges and small shapes become crisp.

The encoder stays as it was, so that this stage may follow the denoiser. A little noise on the latents makes the decoder
forgive what the denoiser leaves.
"""

from pathlib import Path

import torch

from tpu_ui.demo.muon import Muon
from tpu_ui.demo.progress import Checkpoint, Log, RunningMean, learning_rate_factor, seed_torch, stream
from tpu_ui.demo.train_autoencoder import crops, reconstruction_loss

STAGE = "decoder"
LEARNING_RATE = 2e-3
LATENT_NOISE = 0.04  # of the latents' standard deviation


def train(out: Path, seed: int, steps: int, autoencoder, save_every: int = 100):
    """Trains to the given step, from the last checkpoint if there is one; changes the given autoencoder's decoder."""
    checkpoint, decoder = Checkpoint(out, STAGE), autoencoder.decoder
    kernels = [parameter for parameter in decoder.parameters() if parameter.ndim == 4]
    others = [parameter for parameter in decoder.parameters() if parameter.ndim != 4]
    optimizers = (
        Muon(kernels, lr=LEARNING_RATE, weight_decay=0.0),
        torch.optim.AdamW(others, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    )
    mean, start = RunningMean(decoder, 0.98), 0
    if state := checkpoint.load():
        decoder.load_state_dict(state["model"])
        for optimizer, kept in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        mean.weights, start = state["mean"], state["step"]
    log = Log(STAGE, start, steps)
    noise = LATENT_NOISE / autoencoder.config.scaling_factor
    for step in range(start, steps):
        seed_torch(seed, STAGE, step)
        wanted = crops(stream(seed, STAGE, step))
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = LEARNING_RATE * learning_rate_factor(step, steps, warmup=20, decay=0.7)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                latents = autoencoder.encode(wanted).latent_dist.mean
            drawn = decoder(latents + noise * torch.randn_like(latents)).float()
        loss = reconstruction_loss(drawn, wanted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        mean.update(decoder, step)
        log.add(step, float(loss.detach()))
        if (step + 1) % save_every == 0 or step + 1 == steps:
            checkpoint.save(
                {
                    "model": decoder.state_dict(),
                    "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                    "mean": mean.weights,
                    "step": step + 1,
                }
            )
    decoder.load_state_dict(mean.weights)
    return autoencoder.eval()
