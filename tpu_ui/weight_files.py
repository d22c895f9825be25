"""Which of a component's files hold its weights, told from the names alone: on disk, or in a repository of the Hub."""

import re
from collections.abc import Collection

from tpu_ui.errors import UnusableModel

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

_WEIGHT_STEMS = {"diffusers": ("diffusion_pytorch_model",), "transformers": ("model",)}
_CONFIG_NAMES = (  # by the end of the class name; a model has config.json
    (("Scheduler",), ("scheduler_config.json",)),
    (("Tokenizer", "TokenizerFast", "TokenizersBackend"), ("tokenizer_config.json",)),
    (("ImageProcessor", "ImageProcessorFast", "FeatureExtractor"), ("preprocessor_config.json",)),
    (("Processor",), ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")),
)
_OTHER_NAMES = "Fetch the files without a variant, or take the variant's name out of the file names of every component."
_SAFE_WEIGHTS_ONLY = "Ask its author for safetensors weights, or convert them on a machine where you trust the file."


def is_component(value: object) -> bool:
    """Whether an entry of model_index.json is a component: [library, class name]."""
    return isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value)


def config_names(class_name: str) -> tuple[tuple[str, ...], bool]:
    """The names that a component's configuration may have, and whether it is a model, which has weights."""
    names = next((names for ends, names in _CONFIG_NAMES if class_name.endswith(ends)), None)
    return names or ("config.json",), names is None


def weight_stems(library: str) -> tuple[str, ...]:
    return _WEIGHT_STEMS.get(library, ("diffusion_pytorch_model", "model"))


def leading_weight_file(found: Collection[str], library: str) -> str | None:
    """The one safetensors file, or the index of many, that the library loads; None if there is neither."""
    for stem in weight_stems(library):
        single, index = f"{stem}.safetensors", f"{stem}.safetensors.index.json"
        # The order in which the two libraries look, where both are present.
        if index in found and (library == "diffusers" or single not in found):
            return index
        if single in found:
            return single
    return None


def why_no_weights(
    place: str,
    name: str,
    library: str,
    found: Collection[str],
    unfinished: str = "",
    remedy_for_variants: str = _OTHER_NAMES,
) -> UnusableModel:
    """What to tell of a component without weights that can be loaded.

    Args:
        place: the folder or repository. `name` is the component's, `found` its files.
        unfinished: half a sentence about downloads that were not finished.
    """
    stem = weight_stems(library)[0]
    if any(re.fullmatch(rf"{stem}-\d+-of-\d+\.safetensors", each) for each in found):
        return UnusableModel(
            f"{place}: {name}/{stem}.safetensors.index.json is missing{unfinished}.", "Fetch the model again."
        )
    variant = re.compile(rf"{stem}(?:\.safetensors\.index)?\.([A-Za-z0-9_]+)(?:-\d+-of-\d+)?\.(?:safetensors|json)")
    variants = sorted({match[1] for each in found if (match := variant.fullmatch(each))})
    if variants:
        return UnusableModel(
            f"{place}: {name} has its weights only as variant {' and '.join(variants)}; "
            f"{stem}.safetensors, without a variant, is missing.",
            remedy_for_variants,
        )
    pickles = sorted(each for each in found if each.endswith(PICKLE_SUFFIXES))
    if pickles:
        return UnusableModel(
            f"{place}: {name} has its weights only as pickle ({listed(pickles)}), which can run any code when it is "
            "opened; it was not opened.",
            _SAFE_WEIGHTS_ONLY,
        )
    return UnusableModel(f"{place}: {name}/{stem}.safetensors is missing{unfinished}.", "Fetch the model again.")


def listed(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
