"""Stage three: the transformer, by rectified flow on the latents of rendered scenes."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from tpu_ui.demo.captions import caption
from tpu_ui.demo.components import TEXT_WIDTHS, TRANSFORMER_WIDTH, new_transformer
from tpu_ui.demo.latents import FIRST_LESSON_SHARDS, ShardStore
from tpu_ui.demo.muon import Muon
from tpu_ui.demo.progress import Checkpoint, Log, RunningMean, learning_rate_factor, seed_torch, stream
from tpu_ui.demo.token_targets import TARGET_WIDTH, token_targets
from tpu_ui.demo.tokenizer import TEXT_TOKENS, new_tokenizer
from tpu_ui.demo.train_text import encode, token_ids

STAGE = "denoiser"
FIRST_SHARDS = 8
STEPS_PER_NEW_SHARD = 24
FIRST_LESSON_STEPS = (FIRST_LESSON_SHARDS - FIRST_SHARDS) * STEPS_PER_NEW_SHARD
TOKENS_PER_STEP = 4480
MUON_LEARNING_RATE = 3e-3
ADAM_LEARNING_RATE = 2e-3
PROBED_LAYER, PROBE_WEIGHT = 2, 3.0
ZERO_TOKENS = ((256, 0.4), (32, 0.35), (77, 0.15), (8, 0.1))
"""How many zero tokens stand in the place of the T5 text (the pipeline's max_sequence_length), and how often."""


class WeightedAttention:
    """SD3's joint attention, where the last text token counts as many.

    With no T5 encoder the pipeline appends up to 256 zero tokens. Without positions they are all alike, so one token
    whose attention score is raised by log(n) gives exactly the same result, at a fraction of the cost.
    Matrix products in the open are also several times faster on a CPU than the fused attention's gradient.
    """

    def __init__(self):
        self.last_token_count = 1

    def __call__(self, attn, hidden_states, encoder_hidden_states, **_):
        batch, pixels, _ = hidden_states.shape

        def heads(x: torch.Tensor) -> torch.Tensor:
            return x.view(batch, x.shape[1], attn.heads, -1).transpose(1, 2)

        query = attn.norm_q(heads(attn.to_q(hidden_states)))
        key = attn.norm_k(heads(attn.to_k(hidden_states)))
        text_query = attn.norm_added_q(heads(attn.add_q_proj(encoder_hidden_states)))
        text_key = attn.norm_added_k(heads(attn.add_k_proj(encoder_hidden_states)))
        value = torch.cat([heads(attn.to_v(hidden_states)), heads(attn.add_v_proj(encoder_hidden_states))], dim=2)
        query, key = torch.cat([query, text_query], dim=2), torch.cat([key, text_key], dim=2)
        scores = (query * query.shape[-1] ** -0.5).to(value.dtype) @ key.to(value.dtype).mT
        bias = torch.zeros(scores.shape[-1], dtype=scores.dtype)
        bias[-1] = math.log(self.last_token_count)
        mixed = torch.softmax(scores + bias, dim=-1, dtype=scores.dtype) @ value
        mixed = mixed.transpose(1, 2).flatten(2)
        pictures, text = mixed[:, :pixels], mixed[:, pixels:]
        return attn.to_out[0](pictures), text if attn.context_pre_only else attn.to_add_out(text)


class LayerProbe(torch.nn.Module):
    """A linear reader of one layer's picture tokens. It lives in training only."""

    def __init__(self, model):
        super().__init__()
        self.read = torch.nn.Linear(TRANSFORMER_WIDTH, TARGET_WIDTH)
        self.seen: torch.Tensor | None = None
        model.transformer_blocks[PROBED_LAYER].register_forward_hook(self._keep)

    def _keep(self, block, inputs, outputs):  # noqa: ARG002 (the interface of torch's hooks)
        self.seen = outputs[1]

    def loss(self, targets: torch.Tensor) -> torch.Tensor:
        """Mean squared error against what the tokens show."""
        return F.mse_loss(self.read(self.seen.float()), targets)


def _optimizers(model, probe: LayerProbe) -> tuple[Muon, torch.optim.AdamW]:
    inner, outer = [], list(probe.parameters())
    for name, parameter in model.named_parameters():
        (inner if parameter.ndim == 2 and name.startswith("transformer_blocks") else outer).append(parameter)
    return (
        Muon(inner, lr=MUON_LEARNING_RATE),
        torch.optim.AdamW(outer, lr=ADAM_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    )


class Batches:
    """Draws the batch of a step: latents, texts and token targets of freshly told scenes of one size."""

    def __init__(self, store: ShardStore, encoders, mean: float, deviation: float, seed: int):
        self.store, self.encoders, self.mean, self.deviation, self.seed = store, encoders, mean, deviation, seed
        self.tokenizer = new_tokenizer()

    @torch.no_grad()
    def __call__(self, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
        rng = stream(self.seed, STAGE, step)
        first, since = (0, step) if step < FIRST_LESSON_STEPS else (FIRST_LESSON_SHARDS, step - FIRST_LESSON_STEPS)
        shard = self.store[first + int(rng.integers(FIRST_SHARDS + since // STEPS_PER_NEW_SHARD))]
        rows, columns = (side // 2 for side in shard.latents.shape[-2:])
        count = TOKENS_PER_STEP // (rows * columns + TEXT_TOKENS + 1)
        chosen = rng.choice(len(shard.scenes), size=count, replace=False)
        captions = [caption(shard.scenes[i], rng) for i in chosen]
        states, pooled = encode(self.encoders, token_ids(self.tokenizer, captions))
        tokens = torch.cat([torch.cat(states, dim=-1), torch.zeros(count, 1, sum(TEXT_WIDTHS))], dim=1)
        latents = (shard.latents[torch.from_numpy(chosen)].float() - self.mean) / self.deviation
        zero_tokens = int(rng.choice([n for n, _ in ZERO_TOKENS], p=[share for _, share in ZERO_TOKENS]))
        targets = np.stack([token_targets(shard.scenes[i], rows, columns) for i in chosen])
        return latents, tokens, pooled, zero_tokens, torch.from_numpy(targets)


def train(
    out: Path,
    seed: int,
    steps: int,
    batches: Batches,
    save_every: int = 250,
    export: Callable[[torch.nn.Module], None] = lambda _: None,
    export_every: int = 1000,
):
    """Trains to the given step, from the last checkpoint if there is one; returns the module with the mean weights.

    `export` is called with such a module now and then, so that there is always a model to look at.
    """
    checkpoint = Checkpoint(out, STAGE)
    torch.manual_seed(seed)
    model = new_transformer()
    usual, attention = model.attn_processors, WeightedAttention()
    model.set_attn_processor(attention)
    probe = LayerProbe(model)
    optimizers = _optimizers(model, probe)
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    mean, start = RunningMean(model, 0.998), 0
    if state := checkpoint.load():
        model.load_state_dict(state["model"])
        probe.load_state_dict(state["probe"])
        for optimizer, kept in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        mean.weights, start = state["mean"], state["step"]
    log = Log(STAGE, start, steps)
    for step in range(start, steps):
        latents, tokens, pooled, attention.last_token_count, targets = batches(step)
        seed_torch(seed, STAGE, step)
        noise = torch.randn_like(latents)
        sigma = torch.sigmoid(torch.randn(len(latents)) * 1.2 + 0.5)
        noisy = torch.lerp(latents, noise, sigma[:, None, None, None])
        with torch.autocast("cpu", torch.bfloat16):
            flow = model(noisy, tokens, pooled, sigma * 1000, return_dict=False)[0]
        loss = F.mse_loss(flow.float(), noise - latents)
        named = probe.loss(targets)
        (loss + PROBE_WEIGHT * named).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        factor = learning_rate_factor(step, steps, warmup=100, decay=0.45)
        for group, rate in zip((g for o in optimizers for g in o.param_groups), rates, strict=True):
            group["lr"] = rate * factor
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        mean.update(model, step)
        log.add(step, float(loss.detach()), f"named {float(named.detach()):.4f}")
        if (step + 1) % save_every == 0 or step + 1 == steps:
            checkpoint.save(
                {
                    "model": model.state_dict(),
                    "probe": probe.state_dict(),
                    "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                    "mean": mean.weights,
                    "step": step + 1,
                }
            )
        if (step + 1) % export_every == 0:
            export(_averaged(mean.weights))
    model.load_state_dict(mean.weights)
    model.set_attn_processor(usual)
    return model.eval()


def _averaged(weights: dict[str, torch.Tensor]):
    model = new_transformer()
    model.load_state_dict(weights)
    return model.eval()
