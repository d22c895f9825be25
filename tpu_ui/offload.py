"""Model CPU offload in which no weights move twice.

diffusers' enable_model_cpu_offload() copies each model to the device when it runs, copies it back to the host when the
next one runs, and empties the device after each request. Here the host's copy of the weights is kept, so that leaving
the device is free; a model leaves only when another needs its room; and what is there at a request's end stays.
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from diffusers import DiffusionPipeline

from tpu_ui.modes import ExecutionMode
from tpu_ui.planner.moves import parts_to_drop
from tpu_ui.runtime import Runtime

log = logging.getLogger(__name__)


class OffloadedModels:
    """The models of one pipeline under CPU offload; belongs to the device thread.

    Attributes:
        bytes_to_device: weights copied to the device since the placement.
    """

    def __init__(self, pipeline: DiffusionPipeline, runtime: Runtime) -> None:
        self.bytes_to_device = 0
        self._pipeline = pipeline
        self._runtime = runtime
        self._mode = ExecutionMode.STRICT_EAGER
        self._room: Mapping[str, int] = {}
        self._last_called: str | None = None
        modules = {name: part for name, part in pipeline.components.items() if isinstance(part, torch.nn.Module)}
        in_sequence = [name for name in pipeline.model_cpu_offload_seq.split("->") if name in modules]
        self._order = [*in_sequence, *(name for name in modules if name not in in_sequence)]
        self._modules = modules
        self._weight_bytes = {name: _weight_bytes(module) for name, module in modules.items()}
        # Of each model on the device, what it was on the host: (submodule, name of its tensor, the tensor).
        self._on_host: dict[str, list[tuple[torch.nn.Module, str, torch.Tensor]]] = {}
        move(pipeline, torch.device("cpu"))
        for name, module in modules.items():
            if name in pipeline._exclude_from_cpu_offload:  # it is called in other ways than through a hook
                module.to(runtime.torch_device)
            else:
                add_hook_to_module(module, _BringOnCall(self, name), append=True)

    def begin_run(self, mode: ExecutionMode, room_bytes: Mapping[str, int]) -> None:
        """A run begins.

        Args:
            mode: of the run, in which the device is left after each move.
            room_bytes: by model, what the weights of all may take together while it runs; a model that is not named
                has the device for itself.
        """
        self._mode, self._room, self._last_called = mode, room_bytes, None

    def bring(self, name: str) -> None:
        """A model is about to run: see that it is on the device."""
        if name == self._last_called:
            return
        self._last_called = name
        # Deferred operations end here whether weights have to move or not, so that no graph depends on that.
        self._runtime.synchronize()
        if name in self._on_host:
            return
        for leaving in parts_to_drop(
            self._order, self._weight_bytes, self._on_host.keys(), name, self._room.get(name, 0)
        ):
            self._leave(leaving)
        # Strict, so that the copies are not fused into the model's own graphs.
        self._runtime.set_mode(ExecutionMode.STRICT_EAGER)
        self._on_host[name] = _tensors(self._modules[name])
        try:
            self._copy_to_device(name)
            self._runtime.synchronize()
        except BaseException:
            self._leave(name)  # it came in part
            raise
        finally:
            self._runtime.set_mode(self._mode)
        self.bytes_to_device += self._weight_bytes[name]

    def leave_all(self) -> None:
        """Free the device's memory for another pipeline."""
        self._runtime.synchronize()
        for name in list(self._on_host):
            self._leave(name)

    def remove(self) -> None:
        """Undo the placement; the weights are on the host then."""
        self.leave_all()
        self._pipeline.remove_all_hooks()

    def _copy_to_device(self, name: str) -> None:
        """Not by the module's own `to`, which makes two copies of weights that are tied."""
        on_device: dict[int, torch.Tensor] = {}
        for owner, tensor_name, tensor in self._on_host[name]:
            if id(tensor) not in on_device:
                on_device[id(tensor)] = _on(self._runtime.torch_device, tensor)
            setattr(owner, tensor_name, on_device[id(tensor)])

    def _leave(self, name: str) -> None:
        log.debug("%s leaves the device", name)
        for owner, tensor_name, tensor in self._on_host.pop(name):
            setattr(owner, tensor_name, tensor)
        self._modules[name].to("cpu")  # and what it made for itself on the device


class _BringOnCall(ModelHook):
    """Asked by accelerate and diffusers before a model's forward, and before a VAE's encode and decode."""

    def __init__(self, models: OffloadedModels, name: str) -> None:
        self._models = models
        self._name = name
        self.execution_device = models._runtime.torch_device  # diffusers asks a pipeline's hooks for it

    def pre_forward(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple, dict]:  # noqa: ARG002
        self._models.bring(self._name)
        return args, kwargs


def move(pipeline: DiffusionPipeline, device: torch.device) -> None:
    """`pipeline.to(device)`, after which weights that are tied still are: by itself it makes a copy for each place."""
    first: dict[int, tuple[torch.nn.Module, str]] = {}
    again = []
    for module in pipeline.components.values():
        for owner, name, tensor in _tensors(module) if isinstance(module, torch.nn.Module) else ():
            if id(tensor) in first:
                again.append((owner, name, *first[id(tensor)]))
            first.setdefault(id(tensor), (owner, name))
    pipeline.to(device, silence_dtype_warnings=True)
    for owner, name, first_owner, first_name in again:
        setattr(owner, name, getattr(first_owner, first_name))


def _on(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        copy = tensor.to(device)
    return torch.nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else copy


def _tensors(module: torch.nn.Module) -> list[tuple[torch.nn.Module, str, torch.Tensor]]:
    return [
        (owner, name, tensor)
        for owner in module.modules()
        for tensors in (owner.named_parameters(recurse=False), owner.named_buffers(recurse=False))
        for name, tensor in tensors
    ]


def _weight_bytes(module: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for _, _, tensor in _tensors(module)}.values())
