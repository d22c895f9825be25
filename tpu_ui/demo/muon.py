"""Muon: momentum whose matrix updates are made orthogonal. All matrices of one shape go through in one batch,
which on a CPU is several times faster than one by one."""

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalised(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """The nearest matrices with all singular values near 1, by Newton-Schulz in bfloat16. Shape (n, rows, columns)."""
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16()
    if tall := x.shape[-2] > x.shape[-1]:
        x = x.mT.contiguous()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon(torch.optim.Optimizer):
    """Steps have the size that AdamW's would have, so that learning rates carry over."""

    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.01):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):  # noqa: ARG002 (the interface of torch's optimizers)
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                for parameter in parameters:
                    if "momentum" not in self.state[parameter]:
                        self.state[parameter]["momentum"] = torch.zeros_like(parameter)
                gradients = [parameter.grad for parameter in parameters]
                moments = [self.state[parameter]["momentum"] for parameter in parameters]
                torch._foreach_lerp_(moments, gradients, 1 - group["momentum"])
                ahead = torch._foreach_lerp(gradients, moments, group["momentum"])
                flat = torch.stack(ahead).flatten(2)  # a convolution's kernel counts as one long row for each output
                update = (orthogonalised(flat) * (0.2 * max(flat.shape[1:]) ** 0.5)).view(len(ahead), *shape)
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parameters, list(update.unbind()), alpha=-group["lr"])
