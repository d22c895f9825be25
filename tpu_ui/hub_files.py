"""Which files of a Hub repository a pipeline needs: the rest, often the larger part, is not downloaded."""

import re
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any

from tpu_ui.errors import UnusableModel
from tpu_ui.pipeline_kinds import check_text_to_image
from tpu_ui.weight_files import config_names, is_component, leading_weight_file, why_no_weights

MODEL_INDEX = "model_index.json"

_TEXT_SUFFIXES = (".json", ".txt", ".model", ".jinja")  # configurations, and the vocabularies of tokenizers
_WEIGHT_INDEX = ".index.json"
_ANY_WEIGHT_INDEX = re.compile(r"\.index(\.\w+)?\.json$")  # of a variant or of another framework too
_OTHER_REPOSITORY = "Choose a repository that holds them without a variant, for example the one this was made from."


def check_is_pipeline(repo_id: str, names: Collection[str]) -> None:
    """Refuse a repository without a pipeline in diffusers' format.

    Raises:
        UnusableModel: there is no model_index.json; what there is instead is told.
    """
    if MODEL_INDEX in names:
        return
    root = [name for name in names if "/" not in name]
    if any("lora" in name.lower() and name.endswith(".safetensors") for name in root):
        what, remedy = "It seems to be a LoRA.", "A LoRA is applied to a model: choose the model that it was made for."
    elif any(name.endswith((".safetensors", ".ckpt", ".gguf")) for name in root):
        what, remedy = "It holds single-file weights.", "Choose a repository in diffusers' format."
    else:
        what, remedy = "", "Choose a repository of a text-to-image pipeline in diffusers' format."
    raise UnusableModel(f"{repo_id} has no model_index.json. {what}".strip(), remedy)


def needed_files(repo_id: str, names: Collection[str], model_index: Mapping[str, Any]) -> tuple[str, ...]:
    """The files of a repository that its pipeline is loaded from, by name.

    For each component of model_index.json: its configuration and vocabularies, and one set of safetensors weights,
    those without a variant. Not the single-file checkpoint in the root, nor weights of other frameworks.

    Args:
        names: of all files, as paths in the repository.

    Raises:
        UnusableModel: it makes no pictures from text, or a component has no weights that can be loaded safely.
    """
    pipeline_class = model_index.get("_class_name")
    if not isinstance(pipeline_class, str):
        raise UnusableModel(f"{repo_id}: model_index.json names no pipeline.", "Choose another repository.")
    check_text_to_image(pipeline_class)
    needed = [MODEL_INDEX]
    for component, value in model_index.items():
        if is_component(value):
            if not component.isidentifier():  # it becomes a path
                raise UnusableModel(
                    f"{repo_id}: model_index.json has a component named {component!r:.60}.",
                    "Choose another repository.",
                )
            _refuse_own_code(repo_id, component, value[0], names)
            in_folder = {PurePosixPath(name).name for name in names if str(PurePosixPath(name).parent) == component}
            needed += [f"{component}/{name}" for name in _of_component(repo_id, component, in_folder, *value)]
    return tuple(needed)


def _refuse_own_code(repo_id: str, component: str, library: str, names: Collection[str]) -> None:
    code = next((each for each in (f"{component}/{library}.py", f"{library}.py") if each in names), None)
    if code is not None:
        raise UnusableModel(
            f"{repo_id}: component {component} brings its own code ({code}), which is not run.",
            "Choose a model that is made of the classes of diffusers and transformers.",
        )


def _of_component(repo_id: str, component: str, found: set[str], library: str, class_name: str) -> list[str]:
    if not found:
        raise UnusableModel(
            f"{repo_id}: the folder of component {component} ({class_name:.80}) is missing.",
            "Choose another repository: this one is incomplete.",
        )
    chosen = [name for name in found if name.endswith(_TEXT_SUFFIXES) and not _ANY_WEIGHT_INDEX.search(name)]
    if config_names(class_name)[1]:
        leading = leading_weight_file(found, library)
        if leading is None:
            raise why_no_weights(repo_id, component, library, found, remedy_for_variants=_OTHER_REPOSITORY)
        chosen.append(leading)
        if leading.endswith(_WEIGHT_INDEX):
            shard = re.compile(
                re.escape(leading.removesuffix(f".safetensors{_WEIGHT_INDEX}")) + r"-\d+-of-\d+\.safetensors"
            )
            chosen += [name for name in found if shard.fullmatch(name)]
    return sorted(chosen)
