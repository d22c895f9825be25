"""A number whose value is an input of the graphs in which it takes part, and not a part of them."""

import operator
from collections.abc import Callable
from typing import Any

import torch


class DeviceScalar:
    """A number that meets device tensors as a tensor, so that its value is an input of a graph and not a part of it.

    It compares and computes as a float with numbers. It is no subclass of float on purpose: torch would take a float's
    value before asking __torch_function__.
    """

    def __init__(self, value: float) -> None:
        self.value = float(value)
        self._on_device: dict[torch.device, torch.Tensor] = {}

    def to(self, device: torch.device) -> torch.Tensor:
        """A float32 tensor of shape () on `device`."""
        if device not in self._on_device:
            self._on_device[device] = torch.tensor(self.value, dtype=torch.float32).to(device)
        return self._on_device[device]

    @classmethod
    def __torch_function__(cls, func: Callable, _types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        if tensors:
            device = tensors[0].device
            return func(*(_lifted(v, device) for v in args), **{k: _lifted(v, device) for k, v in kwargs.items()})
        # torch.full(size, value, device=...) and its like: filled on the host, since the value is part of a fill's
        # graph.
        device = kwargs.pop("device", None)
        made = func(*(_lowered(v) for v in args), **{k: _lowered(v) for k, v in kwargs.items()})
        return made.to(device) if device is not None else made

    def __float__(self) -> float:
        return self.value

    def __bool__(self) -> bool:
        return bool(self.value)

    def __repr__(self) -> str:
        return repr(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __hash__(self) -> int:
        return hash(self.value)

    def __neg__(self) -> float:
        return -self.value


def _lifted(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, DeviceScalar) else value


def _lowered(value: Any) -> Any:
    return value.value if isinstance(value, DeviceScalar) else value


def _binary(operation: Callable[[Any, Any], Any], reflected: bool = False) -> Callable[[DeviceScalar, Any], Any]:
    def compute(self: DeviceScalar, other: Any) -> Any:
        mine = self.to(other.device) if isinstance(other, torch.Tensor) else self.value
        other = _lowered(other)
        return operation(other, mine) if reflected else operation(mine, other)

    return compute


for _name in ("add", "sub", "mul", "truediv", "pow"):
    setattr(DeviceScalar, f"__{_name}__", _binary(getattr(operator, _name)))
    setattr(DeviceScalar, f"__r{_name}__", _binary(getattr(operator, _name), reflected=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(DeviceScalar, f"__{_name}__", _binary(getattr(operator, _name)))
