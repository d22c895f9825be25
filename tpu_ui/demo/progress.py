"""What the three stages of training share: a schedule by steps, a mean of the weights, checkpoints that resume."""

import math
import os
import time
from pathlib import Path

import numpy as np
import torch


def stream(seed: int, stage: str, index: int) -> np.random.Generator:
    """The random numbers of one step of one stage: they depend on nothing else, so that a resumed run sees the same."""
    return np.random.default_rng([seed, *stage.encode(), index])


def seed_torch(seed: int, stage: str, index: int) -> None:
    """The same for torch's own random numbers."""
    torch.manual_seed(int(stream(seed, stage + "/torch", index).integers(2**62)))


def learning_rate_factor(step: int, steps: int, warmup: int, decay: float) -> float:
    """1 in the middle of the run; rises over `warmup` steps; falls to zero over the last `decay` share of the run."""
    left = (steps - step) / max(1.0, decay * steps)
    return min(1.0, (step + 1) / warmup, max(0.0, left))


class RunningMean:
    """An exponential mean of a module's weights that forgets faster while the run is young."""

    def __init__(self, module: torch.nn.Module, decay: float):
        self.decay = decay
        self.weights = {name: value.detach().clone() for name, value in module.state_dict().items()}

    def update(self, module: torch.nn.Module, step: int) -> None:
        """Moves the mean towards the module's weights of now."""
        decay = min(self.decay, (1 + step) / (10 + step))
        state = module.state_dict()
        floats = [name for name, value in state.items() if value.is_floating_point()]
        torch._foreach_lerp_([self.weights[n] for n in floats], [state[n] for n in floats], 1 - decay)


class Checkpoint:
    """One file that holds a stage's state; it is replaced in one move, so that a kill leaves the old or the new one."""

    def __init__(self, folder: Path, stage: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{stage}.pt"

    def save(self, state: dict) -> None:
        """Writes the state."""
        part = self.path.with_suffix(".part")
        torch.save(state, part)
        os.replace(part, self.path)

    def load(self) -> dict | None:
        """The state written last, or None."""
        return torch.load(self.path, weights_only=True) if self.path.exists() else None


class Log:
    """Prints a line now and then, with the mean loss since the last line and the time left at this pace."""

    def __init__(self, stage: str, first_step: int, steps: int, every: int = 50):
        self.stage, self.first, self.steps, self.every = stage, first_step, steps, every
        self.started, self.losses = time.monotonic(), []

    def add(self, step: int, loss: float, note: str = "") -> None:
        """Takes the loss of a step."""
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss of {self.stage} is {loss} at step {step}")
        self.losses.append(loss)
        done = step + 1
        if done % self.every == 0 or done == self.steps:
            pace = (time.monotonic() - self.started) / (done - self.first)
            mean = sum(self.losses) / len(self.losses)
            left = pace * (self.steps - done) / 60
            print(
                f"{self.stage}: step {done}/{self.steps} loss {mean:.4f} {pace:.3f} s/step {left:.1f} min left {note}",
                flush=True,
            )
            self.losses = []
