"""Stage two: the text encoders, taught on text alone to lay open what a caption tells.

The denoiser then finds colour, shape, size and place of each object ready to read, in the pooled vector and at the last
tokens, and has only drawing left to learn.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tpu_ui.demo.captions import SLOTS, Caption, caption
from tpu_ui.demo.components import POOLED_WIDTHS, TEXT_WIDTHS, new_text_encoders
from tpu_ui.demo.muon import Muon
from tpu_ui.demo.progress import Checkpoint, Log, learning_rate_factor, seed_torch, stream
from tpu_ui.demo.scenes import FIRST_LESSON, sample_training_scene
from tpu_ui.demo.tokenizer import TEXT_TOKENS, new_tokenizer

STAGE = "text"
BATCH = 128
LEARNING_RATE = 3e-3
SUMMARY_TOKENS = 4
"""The last tokens, padding almost always, have seen the whole text: they are taught to hold all slots too."""


class SlotReader(nn.Module):
    """Linear readers of every slot, from the pooled vectors and from the last tokens. Used in training only."""

    def __init__(self):
        super().__init__()
        answers = sum(1 + len(values) for values in SLOTS.values())
        self.pooled = nn.Linear(sum(POOLED_WIDTHS), answers)
        self.tokens = nn.ModuleList(nn.Linear(width, answers) for width in TEXT_WIDTHS)

    def forward(self, tokens: tuple[torch.Tensor, torch.Tensor], pooled: torch.Tensor) -> list[torch.Tensor]:
        """Logits of all slots side by side: one tensor for each place that is read."""
        summaries = [states[:, -SUMMARY_TOKENS:] for states in tokens]
        return [self.pooled(pooled)[:, None]] + [read(x) for read, x in zip(self.tokens, summaries, strict=True)]


def encode(encoders, ids: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The states of every token in both encoders, and the pooled vectors side by side, as the pipeline takes them."""
    outputs = [encoder(ids, output_hidden_states=True) for encoder in encoders]
    return tuple(output.hidden_states[-2] for output in outputs), torch.cat([o.text_embeds for o in outputs], dim=-1)


def token_ids(tokenizer, captions: list[Caption]) -> torch.Tensor:
    """Token ids of shape (captions, 32)."""
    texts = [item.text for item in captions]
    return tokenizer(
        texts, padding="max_length", max_length=TEXT_TOKENS, truncation=True, return_tensors="pt"
    ).input_ids


def _loss(logits: list[torch.Tensor], slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean cross-entropy of all readings, and the share of captions whose pooled vector gives every slot right."""
    loss, right = 0.0, torch.ones(len(slots), dtype=torch.bool)
    for reading in logits:
        start = 0
        for i, values in enumerate(SLOTS.values()):
            part = reading[..., start : start + 1 + len(values)].float()
            wanted = slots[:, i, None].expand(part.shape[:-1])
            loss = loss + F.cross_entropy(part.flatten(0, 1), wanted.flatten()) / len(logits)
            if reading.shape[1] == 1:
                right &= part[:, 0].argmax(-1) == slots[:, i]
            start += 1 + len(values)
    return loss, right.float().mean()


def draw_captions(rng: np.random.Generator, count: int) -> list[Caption]:
    """Captions of training scenes; fewer empty ones than the denoiser sees, since they teach nothing."""
    return [caption(sample_training_scene(rng, (256, 256), FIRST_LESSON), rng, empty=0.02) for _ in range(count)]


def train(out: Path, seed: int, steps: int, save_every: int = 200):
    """Trains to the given step, from the last checkpoint if there is one; returns the two frozen encoders."""
    checkpoint, tokenizer = Checkpoint(out, STAGE), new_tokenizer()
    torch.manual_seed(seed)
    encoders, reader = nn.ModuleList(new_text_encoders()), SlotReader()
    inner, outer = [], list(reader.parameters())
    for name, parameter in encoders.named_parameters():
        (inner if parameter.ndim == 2 and "encoder.layers" in name else outer).append(parameter)
    optimizers = (
        Muon(inner, lr=LEARNING_RATE),
        torch.optim.AdamW(outer, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    )
    start = 0
    if state := checkpoint.load():
        encoders.load_state_dict(state["model"])
        reader.load_state_dict(state["reader"])
        for optimizer, kept in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        start = state["step"]
    log = Log(STAGE, start, steps, every=50)
    for step in range(start, steps):
        seed_torch(seed, STAGE, step)
        captions = draw_captions(stream(seed, STAGE, step), BATCH)
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = LEARNING_RATE * learning_rate_factor(step, steps, warmup=50, decay=0.6)
        with torch.autocast("cpu", torch.bfloat16):
            logits = reader(*encode(encoders, token_ids(tokenizer, captions)))
        loss, right = _loss(logits, torch.tensor([item.slots for item in captions]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(encoders.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        log.add(step, float(loss.detach()), f"all slots right {float(right):.2f}")
        if (step + 1) % save_every == 0 or step + 1 == steps:
            checkpoint.save(
                {
                    "model": encoders.state_dict(),
                    "reader": reader.state_dict(),
                    "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                    "step": step + 1,
                }
            )
    return tuple(encoder.eval().requires_grad_(False) for encoder in encoders)
