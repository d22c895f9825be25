"""LoRAs merged into a pipeline's weights, and taken out again without a trace.

Merged on the host, as W + sum of weight_i * scale_i * B_i A_i, so that the modules, and with them every graph, stay
what they are without a LoRA: nothing compiles, and a step costs nothing more. diffusers and peft read the files and
find the places, but on a skeleton of the model without memory: `load_lora_weights` and `fuse_lora` on the pipeline
itself would change its modules while they are compiled or offloaded, and `unfuse_lora` subtracts, which leaves
rounding behind.
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import diffusers
import psutil
import torch
from peft import inject_adapter_in_model, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer

from tpu_ui.errors import DoesNotFit, InvalidRequest
from tpu_ui.lora_files import LoraFile
from tpu_ui.modes import ExecutionMode
from tpu_ui.runtime import Runtime

log = logging.getLogger(__name__)

_ADAPTER = "lora"
# What the converters of diffusers and peft raise at files of other models.
_UNREADABLE = (ValueError, KeyError, RuntimeError, TypeError, AttributeError, IndexError, OSError)
_WRONG_SHAPE = re.compile(r"size mismatch for (\S+?):")


@dataclass(frozen=True)
class _Place:
    """A weight of the pipeline: the component's name, and the parameter's in it."""

    component: str
    parameter: str


# What one LoRA adds to each weight: peft's layers, which hold the two small matrices.
_Layers = dict[_Place, BaseTunerLayer]


class LoraWeights:
    """The LoRAs that are in a pipeline's weights now. Belongs to the device thread."""

    def __init__(self, pipeline: diffusers.DiffusionPipeline, runtime: Runtime) -> None:
        self._pipeline = pipeline
        self._runtime = runtime
        self._originals: dict[_Place, torch.Tensor] = {}
        self.applied: tuple[LoraFile, ...] = ()

    @property
    def kept_bytes(self) -> int:
        """Host memory of the original weights that are kept while LoRAs are applied."""
        return sum(original.nbytes for original in self._originals.values())

    def would_change(self, loras: tuple[LoraFile, ...]) -> bool:
        return _effective(loras) != self.applied

    def apply(self, loras: tuple[LoraFile, ...]) -> None:
        """Make these the LoRAs of the pipeline, in the place of those before. Does nothing where they are already.

        The device is left in strict mode. On an error the weights are the original ones, or as they were.

        Raises:
            InvalidRequest: one was made for another model; the first name that does not match is told.
            DoesNotFit: the host's memory cannot hold the original weights.
        """
        if not self.would_change(loras):
            return
        wanted = _effective(loras)
        added = [(lora.weight, self._layers_of(lora)) for lora in wanted]
        places = list(dict.fromkeys(place for _, layers in added for place in layers))
        self._check_memory(places)
        # In fused mode the moves would become part of the next graphs.
        self._runtime.set_mode(ExecutionMode.STRICT_EAGER)
        self.applied = ()
        try:
            with torch.inference_mode(False), torch.no_grad():
                for place in self._originals.keys() - set(places):
                    self._restore(place)
                for place in places:
                    self._merge(place, [(weight, layers[place]) for weight, layers in added if place in layers])
            self._runtime.synchronize()
        except BaseException:
            self.remove()
            raise
        self.applied = wanted

    def remove(self) -> None:
        """Bring the original weights back, bit by bit."""
        self._runtime.set_mode(ExecutionMode.STRICT_EAGER)
        with torch.inference_mode(False), torch.no_grad():
            for place in list(self._originals):
                self._restore(place)
        self._runtime.synchronize()
        self.applied = ()

    def forget(self) -> None:
        """Give the memory back, without bringing anything back."""
        self._originals.clear()
        self.applied = ()

    def _parameter(self, place: _Place) -> torch.nn.Parameter:
        return getattr(self._pipeline, place.component).get_parameter(place.parameter)

    def _merge(self, place: _Place, added: list[tuple[float, BaseTunerLayer]]) -> None:
        parameter = self._parameter(place)
        if place not in self._originals:
            self._originals[place] = parameter.detach().to("cpu", copy=True)
        original = self._originals[place]
        merged = original.to(torch.float32, copy=True)  # rounded once, at the end
        for weight, layer in added:
            merged += weight * layer.get_delta_weight(_ADAPTER)
        parameter.copy_(merged.to(original.dtype))

    def _restore(self, place: _Place) -> None:
        self._parameter(place).copy_(self._originals[place])
        del self._originals[place]

    def _check_memory(self, places: list[_Place]) -> None:
        needed = sum(self._parameter(place).nbytes for place in places if place not in self._originals)
        available = psutil.virtual_memory().available
        if needed > available:
            raise DoesNotFit(
                f"loras: {needed / 1e9:.1f} GB of original weights are kept on the host while they are applied, and "
                f"{available / 1e9:.1f} GB of its memory are free.",
                "Leave the LoRAs out, or free memory.",
            )

    def _layers_of(self, lora: LoraFile) -> _Layers:
        twins = self._skeletons()
        places: _Layers = {}
        converted = _load(lora, self._pipeline, twins)
        for component, twin in twins.items():
            own = dict(getattr(self._pipeline, component).named_parameters())
            for name, layer in twin.named_modules():
                if not isinstance(layer, BaseTunerLayer):
                    continue
                place = _Place(component, f"{name}.weight")
                shape = own[place.parameter].shape if place.parameter in own else None
                if shape != layer.get_base_layer().weight.shape or getattr(layer, "lora_bias", {}).get(_ADAPTER):
                    raise _of_another_model(lora, self._pipeline, f"{component}.{name}")
                places[place] = layer
        _check_all_is_placed(lora, self._pipeline, converted, twins)
        return places

    def _skeletons(self) -> dict[str, torch.nn.Module]:
        components = {name: getattr(self._pipeline, name, None) for name in self._pipeline._lora_loadable_modules}
        return {name: _skeleton(part) for name, part in components.items() if isinstance(part, torch.nn.Module)}


def _effective(loras: tuple[LoraFile, ...]) -> tuple[LoraFile, ...]:
    return tuple(lora for lora in loras if lora.weight)


def _skeleton(module: torch.nn.Module) -> torch.nn.Module:
    """A module of the same structure whose weights take no memory: each is one number, seen as a whole tensor.

    Not on the meta device: some loaders move the LoRA's matrices to the device of the module, and there they would be
    lost.
    """
    with torch.device("meta"):
        is_diffusers = isinstance(module, diffusers.ModelMixin)
        twin = type(module).from_config(module.config) if is_diffusers else type(module)(module.config)
    for part in twin.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                part._parameters[name] = torch.nn.Parameter(torch.zeros(()).expand(weight.shape), requires_grad=False)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = torch.zeros((), dtype=buffer.dtype).expand(buffer.shape)
    if not is_diffusers:
        # transformers 5.24 has this method too, but for peft 0.22 and later, which does not exist yet.
        def load_adapter(*, adapter_name: str, adapter_state_dict: dict, peft_config: Any, **_: Any) -> None:
            inject_adapter_in_model(peft_config, twin, adapter_name=adapter_name)
            set_peft_model_state_dict(twin, adapter_state_dict, adapter_name)

        twin.load_adapter = load_adapter
    return twin


def _load(lora: LoraFile, pipeline: diffusers.DiffusionPipeline, twins: dict[str, torch.nn.Module]) -> list[str]:
    """Load a file into the skeletons; the names of its tensors, as diffusers converted them."""
    shell = type(pipeline)(**{**pipeline.components, **twins})
    converted: list[str] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        found = type(pipeline).lora_state_dict(*args, **kwargs)
        converted.extend(found[0] if isinstance(found, tuple) else found)
        return found

    shell.lora_state_dict = noted
    with _quiet():
        try:
            shell.load_lora_weights(
                str(lora.path.parent),
                weight_name=lora.path.name,
                adapter_name=_ADAPTER,
                use_safetensors=True,
                local_files_only=True,
            )
        except _UNREADABLE as error:
            log.info("%s: %s", lora.path.name, error, exc_info=True)
            mismatch = _WRONG_SHAPE.search(str(error))
            name = mismatch[1].replace(f".{_ADAPTER}.", ".") if mismatch else _most_telling(converted, twins)
            raise _of_another_model(lora, pipeline, name) from error
    return converted


def _check_all_is_placed(
    lora: LoraFile, pipeline: diffusers.DiffusionPipeline, converted: list[str], twins: dict[str, torch.nn.Module]
) -> None:
    """diffusers only warns of what it finds no place for; the picture would then lack it in silence."""
    matrices = [name for name in converted if not name.endswith(".alpha")]
    placed = {f"{component}.{name}" for component, twin in twins.items() for name in _adapter_parameters(twin)}
    if len(placed) >= len(matrices) > 0:
        return
    modules = {name.split(".lora_")[0].split(".lokr_")[0] for name in placed}
    missed = [name for name in matrices if not any(name.startswith(f"{module}.") for module in modules)]
    raise _of_another_model(lora, pipeline, _most_telling(missed, twins))


def _most_telling(names: list[str], twins: dict[str, torch.nn.Module]) -> str:
    """A tensor of a component that this pipeline has not, else the first."""
    return next((name for name in names if name.partition(".")[0] not in twins), next(iter(names), ""))


def _adapter_parameters(twin: torch.nn.Module) -> Iterator[str]:
    return (name for name, _ in twin.named_parameters() if f".{_ADAPTER}" in name)


def _of_another_model(lora: LoraFile, pipeline: diffusers.DiffusionPipeline, name: str) -> InvalidRequest:
    which = f" (the first that does not: {name:.160})" if name else ""
    return InvalidRequest(
        "loras",
        f"{lora.path.name} was made for another model: its tensors do not match this {type(pipeline).__name__}{which}.",
        "Choose the model that it was made for, or another LoRA.",
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """diffusers warns of each component that a LoRA leaves as it is, which most do."""
    level = diffusers.utils.logging.get_verbosity()
    diffusers.utils.logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        diffusers.utils.logging.set_verbosity(level)
