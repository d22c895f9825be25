"""The step of schedulers that only weigh the latents and the model's output, done on the device.

Such a step is a * latents + b * output. Both numbers are asked of diffusers' own arithmetic with a probe on the host,
and the device gets them as tensors, so that no graph depends on them. The host then prepares the next step while the
device still works on this one.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

_AFFINE = frozenset({"FlowMatchEulerDiscreteScheduler", "EulerDiscreteScheduler"})
_HARMLESS = frozenset({"generator", "return_dict"})  # the generator is read for churn and stochastic sampling only

PROBE_LATENTS, PROBE_OUTPUT = torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0])


class Weights(NamedTuple):
    """float32 tensors of shape (), on one device."""

    latents: torch.Tensor
    output: torch.Tensor

    @staticmethod
    def read(probed: torch.Tensor, device: torch.device) -> "Weights":
        """The weights, from what became of the probes.

        Raises:
            ValueError: the step adds something of its own, so it is not affine in the two.
        """
        if probed[0] != 0:
            raise ValueError("the step of this scheduler is more than a weighted sum")
        # Clones: a view's offset would be part of the graph.
        return Weights(*(probed[i].float().clone().to(device) for i in (1, 2)))

    def sum(self, latents: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """As diffusers adds them: the latents in float32, the product with the output rounded once to its type."""
        return latents.float() * self.latents + (output.float() * self.output).to(output.dtype)


def is_affine(scheduler: Any, arguments: tuple, named: Mapping[str, Any]) -> bool:
    """Whether a call of `step` with these further arguments is such a weighted sum, and only the latents are wanted."""
    return (
        type(scheduler).__name__ in _AFFINE
        and not arguments
        and named.get("return_dict") is False
        and named.keys() <= _HARMLESS
        and not scheduler.config.get("stochastic_sampling")
    )
