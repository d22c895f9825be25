"""The parts of a pipeline that have weights, with their bytes: from safetensors headers, configurations or the list."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpu_ui.model_folder import Component, ModelFolder
from tpu_ui.planner.published import PUBLISHED
from tpu_ui.safetensors_header import DTYPE_BITS

BYTES_PER_NUMBER: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


def dtype_on_device(card_dtype: str, device_kind: str) -> str:
    """The data type to run in: float16 has no hardware on a TPU, and neither half type is fast on most CPUs."""
    if device_kind == "cpu":
        return "float32"
    if device_kind.startswith("tpu") and card_dtype == "float16":
        return "bfloat16"
    return card_dtype


@dataclass(frozen=True)
class Part:
    """One component with weights.

    Attributes:
        weight_bytes: in the data type in which the pipeline runs.
        config: entries of its config.json.
    """

    name: str
    class_name: str
    weight_bytes: int
    config: Mapping[str, Any] = field(repr=False)


def parts_of_folder(folder: ModelFolder, dtype: str) -> tuple[Part, ...]:
    """The parts of a folder whose weights are there, exact by the headers of its files."""
    components = (component for component in folder.components.values() if component.weight_files)
    return tuple(Part(c.name, c.class_name, _bytes_in(dtype, c), c.config) for c in components)


def parts_by_configuration(folder: ModelFolder, dtype: str) -> tuple[Part, ...]:
    """The parts of a folder that holds configurations only, exact by the meta device. Imports torch.

    Raises:
        UnusableModel: a class cannot be built from its configuration.
    """
    from tpu_ui.planner.on_meta import weights_on_meta

    parts = []
    for component in folder.components.values():
        if component.is_model:
            weights = weights_on_meta(component.library, component.class_name, component.config)
            weight_bytes = weights.floats * BYTES_PER_NUMBER[dtype] + weights.other_bytes
            parts.append(Part(component.name, component.class_name, weight_bytes, component.config))
    return tuple(parts)


def published_parts(repo_id: str | None, dtype: str) -> tuple[Part, ...] | None:
    """The parts of a model of the catalogue, without any of its files; None for another repository."""
    model = PUBLISHED.get(repo_id or "")
    if model is None:
        return None
    size = BYTES_PER_NUMBER[dtype]
    return tuple(
        Part(name, component.class_name, component.parameters * size, component.config)
        for name, component in model.components.items()
    )


def _bytes_in(dtype: str, component: Component) -> int:
    """Floating-point weights are cast to the pipeline's data type; others keep theirs."""
    total = 0
    for name, count in component.dtypes.items():
        is_float = name.startswith(("F", "BF"))
        total += count * 8 // DTYPE_BITS[name] * BYTES_PER_NUMBER[dtype] if is_float else count
    return total
