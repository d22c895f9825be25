"""Exact weights of a component from its configuration alone: its class, built on the meta device. Needs torch."""

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from tpu_ui.errors import UnusableModel


@dataclass(frozen=True)
class MetaWeights:
    """What a checkpoint holds; tied weights are counted once.

    Attributes:
        floats: floating-point numbers, which are cast to the data type of the pipeline.
        other_bytes: bytes of the tensors that keep their type.
    """

    floats: int
    other_bytes: int


def weights_on_meta(library: str, class_name: str, config: Mapping[str, Any]) -> MetaWeights:
    """The weights of a component of this configuration, counted without memory for them. Cached.

    Args:
        library, class_name: as in model_index.json; only diffusers and transformers are imported.
        config: entries of config.json.

    Raises:
        UnusableModel: there is no such class in these libraries, or it cannot be built from the configuration.
    """
    return _counted(library, class_name, json.dumps(dict(config), sort_keys=True))


@lru_cache(maxsize=128)
def _counted(library: str, class_name: str, config_json: str) -> MetaWeights:
    model_class = getattr(importlib.import_module(library), class_name, None) if library in _LIBRARIES else None
    if model_class is None:
        raise UnusableModel(
            f"{class_name:.80} is not a class of diffusers or transformers here.",
            "Update these packages, or choose another model.",
        )
    try:
        with torch.device("meta"):
            model = _LIBRARIES[library](model_class, json.loads(config_json))
    except _UNBUILDABLE as error:
        raise UnusableModel(
            f"{class_name:.80} cannot be built from its config.json ({type(error).__name__}).",
            "Fetch config.json again; it may be for another version.",
        ) from error
    saved = {id(tensor): tensor for tensor in model.state_dict(keep_vars=True).values()}.values()
    return MetaWeights(
        floats=sum(tensor.numel() for tensor in saved if tensor.is_floating_point()),
        other_bytes=sum(tensor.nbytes for tensor in saved if not tensor.is_floating_point()),
    )


def _from_diffusers(model_class: type, config: dict[str, Any]) -> torch.nn.Module:
    return model_class.from_config(config)


def _from_transformers(model_class: type, config: dict[str, Any]) -> torch.nn.Module:
    return model_class(model_class.config_class.from_dict(config))


# What the constructors of both libraries raise at a configuration that contradicts itself; NotImplementedError is a
# RuntimeError.
_UNBUILDABLE = (TypeError, ValueError, KeyError, AttributeError, RuntimeError, StrictDataclassError)
_LIBRARIES = {"diffusers": _from_diffusers, "transformers": _from_transformers}
