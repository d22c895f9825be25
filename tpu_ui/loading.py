"""From a checked folder to a diffusers pipeline in host memory, component by component."""

import importlib
import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import diffusers
import torch
import transformers
from torch.distributed.tensor import DTensor

from tpu_ui.errors import LoadFailed

if TYPE_CHECKING:
    from tpu_ui.model_folder import Component, ModelFolder

log = logging.getLogger(__name__)

# The libraries' own bars would run through ours.
diffusers.utils.logging.disable_progress_bar()
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

# (bytes read, bytes in all, component read now)
LoadListener = Callable[[int, int, str], None]

# What a component's `from_pretrained` is given beside the usual.
ArgumentsOf = Callable[["Component"], dict[str, Any]]


def no_arguments(_component: "Component") -> dict[str, Any]:
    """Each component is loaded whole."""
    return {}


def load_pipeline(
    folder: "ModelFolder",
    dtype: torch.dtype,
    on_progress: LoadListener,
    arguments_of: ArgumentsOf = no_arguments,
) -> diffusers.DiffusionPipeline:
    """Load a pipeline from a folder that `model_folder.inspect_folder` has approved.

    Each model is read by its own class, so that progress is real and the order is ours: the largest first, while the
    rest of the host's memory is still free.

    Raises:
        LoadFailed: a file that passed the checks could not be read after all, or a class is unknown.
        JobCancelled: from `on_progress`.
    """
    with_weights = [component for component in folder.components.values() if component.weight_files]
    total = sum(component.weight_bytes for component in with_weights)
    models, done = {}, 0
    for component in sorted(with_weights, key=lambda component: -component.weight_bytes):
        on_progress(done, total, component.name)
        models[component.name] = _load_model(folder, component, dtype, arguments_of(component))
        done += component.weight_bytes
    on_progress(done, total, "")
    try:
        tokenizers = _tokenizers_of_processors(folder)
        pipeline_class = getattr(diffusers, folder.pipeline_class)
        pipeline = pipeline_class.from_pretrained(
            folder.path,
            local_files_only=True,
            use_safetensors=True,
            dtype=dtype,
            **_absent(pipeline_class, folder),
            **dict.fromkeys(tokenizers),
            **models,
        )
        pipeline.register_modules(**tokenizers)
    except (OSError, ValueError, TypeError, AttributeError, ImportError, KeyError) as error:
        raise LoadFailed(
            f"{folder.path.name}: diffusers could not build {folder.pipeline_class} ({_first_line(error)}).",
            "Check that the folder is complete and made for this version of diffusers.",
        ) from error
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _absent(pipeline_class: type, folder: "ModelFolder") -> dict[str, None]:
    """Parts that the pipeline's constructor asks for and the folder does without, as SD3 without its T5."""
    wanted = inspect.signature(pipeline_class.__init__).parameters.values()
    named = [p.name for p in wanted if p.default is inspect.Parameter.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return {name: None for name in named if name != "self" and name not in folder.components}


def _tokenizers_of_processors(folder: "ModelFolder") -> dict[str, transformers.PreTrainedTokenizerBase]:
    """The tokenizers alone of components that are whole processors (FLUX.2): the other half reads pictures, which text
    to image does without, and its classes refuse to be made where torchvision is absent.
    """
    names = [component.name for component in folder.components.values() if component.class_name.endswith("Processor")]
    return {
        name: transformers.AutoTokenizer.from_pretrained(folder.path / name, local_files_only=True)
        for name in names
        if name.startswith("tokenizer")
    }


def _load_model(
    folder: "ModelFolder", component: "Component", dtype: torch.dtype, arguments: dict[str, Any]
) -> torch.nn.Module:
    try:
        model_class = getattr(importlib.import_module(component.library), component.class_name)
        model = model_class.from_pretrained(
            folder.path / component.name, dtype=dtype, use_safetensors=True, local_files_only=True, **arguments
        )
    except (OSError, ValueError, RuntimeError, AttributeError, ImportError, KeyError, TypeError) as error:
        log.debug("loading %s failed", component.name, exc_info=True)
        raise LoadFailed(
            f"{folder.path.name}/{component.name}: {component.class_name} could not be loaded ({_first_line(error)}).",
            "Fetch the folder again; if it is your own, compare its config.json with the weights.",
        ) from error
    return model.eval().requires_grad_(False)


def weight_bytes(pipeline: diffusers.DiffusionPipeline) -> int:
    """Bytes of all parameters and buffers in this process, counted once where modules share them."""
    modules = [module for module in pipeline.components.values() if isinstance(module, torch.nn.Module)]
    tensors = {id(t): t for module in modules for t in (*module.parameters(), *module.buffers())}
    return sum(_own_part(tensor).nbytes for tensor in tensors.values())


def free_weights(module: torch.nn.Module) -> None:
    """Give a module's memory back. It is of no use afterwards."""
    if any(isinstance(tensor, DTensor) for tensor in module.parameters()):
        # Neither what is split over processes nor, as diffusers 0.42.1 loads it, the rest of such a model can be moved.
        for part in module.modules():
            for name in [name for name, _ in part.named_parameters(recurse=False)]:
                delattr(part, name)
    module.to("meta")


def _own_part(tensor: torch.Tensor) -> torch.Tensor:
    """Of a tensor that is split over processes, what this one has."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
