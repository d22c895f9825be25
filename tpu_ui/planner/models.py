"""From a model and a request to a plan, whether the model's weights are on this machine or not."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_ui.catalogue import complete_card, find_card
from tpu_ui.errors import LoadFailed, UnusableModel
from tpu_ui.model_card import (
    CLIP_TEXT_TOKENS,
    USUAL_AUTOENCODER_SCALE,
    ModelCard,
    autoencoder_scale,
    card_from_folder,
)
from tpu_ui.model_folder import Component, ModelFolder, inspect_folder
from tpu_ui.planner.activations import Load
from tpu_ui.planner.parts import (
    BYTES_PER_NUMBER,
    Part,
    dtype_on_device,
    parts_by_configuration,
    parts_of_folder,
    published_parts,
)
from tpu_ui.planner.plan import Plan, Target
from tpu_ui.planner.published import PUBLISHED
from tpu_ui.request import GenerationRequest
from tpu_ui.sources import find_model

# Pipelines of diffusers 0.42.1 that run the pass without the prompt by itself; the others join both in one batch.
_SEPARATE_PASSES = frozenset({"ChromaPipeline", "Flux2KleinPipeline", "Lumina2Pipeline", "QwenImagePipeline"})


@dataclass(frozen=True)
class KnownModel:
    """A model that can be planned.

    Attributes:
        known_from: where its figures are from, in words.
    """

    card: ModelCard
    parts: tuple[Part, ...]
    dtype: str
    known_from: str


def find_known_model(name: str, device_kind: str, hub_cache: Path | None = None) -> KnownModel:
    """Find what is known of a model without the network: its weights, else its configurations, else the list's.

    Args:
        hub_cache: as in `find_model`.

    Raises:
        UnknownModel: there is no such model.
        UnusableModel: its folder is no pipeline, or holds classes that are not known here.
        NotDownloaded: nothing of it is on this machine, and it is not on the list.
    """
    try:
        source = find_model(name, offline=True, hub_cache=hub_cache)
    except (UnusableModel, LoadFailed) as error:
        known = _without_weights(name, device_kind, hub_cache, error)
    else:
        dtype = dtype_on_device(source.card.dtype, device_kind)
        known = KnownModel(source.card, parts_of_folder(source.folder, dtype), dtype, "the headers of its weights")
    if not known.parts:
        raise UnusableModel(f"{known.card.label} has no component with weights.", "Choose another model.")
    return known


def _without_weights(
    name: str, device_kind: str, hub_cache: Path | None, error: UnusableModel | LoadFailed
) -> KnownModel:
    path = Path(name.strip()).expanduser()
    card = None if path.is_dir() else find_card(name)
    if card is not None:
        dtype = dtype_on_device(card.dtype, device_kind)
        parts = published_parts(card.repo_id, dtype)
        if parts is not None:
            return KnownModel(_completed(card), parts, dtype, "its published configuration")
        from tpu_ui.hub_cache import begun_snapshot  # imports huggingface_hub, which a local model does not need

        path = None if card.repo_id is None else begun_snapshot(card, hub_cache)
    if path is None or not (path / "model_index.json").is_file():
        raise error
    folder = inspect_folder(path, with_weights=False)
    card = card_from_folder(folder) if card is None else complete_card(card, folder)
    dtype = dtype_on_device(card.dtype, device_kind)
    return KnownModel(card, parts_by_configuration(folder, dtype), dtype, "its configuration, on the meta device")


def _completed(card: ModelCard) -> ModelCard:
    """The card, with the figures of its published configurations if it had none of its own."""
    if card.is_complete:
        return card
    model = PUBLISHED[card.repo_id]
    components = {
        name: Component(
            name, part.library, part.class_name, {key: _as_json(value) for key, value in part.config.items()}
        )
        for name, part in model.components.items()
    }
    return complete_card(card, ModelFolder(Path(card.repo_id), model.pipeline_class, components, model.settings, ""))


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def plan_of(
    card: ModelCard,
    parts: tuple[Part, ...],
    dtype: str,
    target: Target,
    request: GenerationRequest,
    guidance_on: bool,
) -> Plan:
    """The plan of a request whose defaults are filled in."""
    vae = next((part for part in parts if part.name == "vae"), None)
    scale = autoencoder_scale(vae.class_name, vae.config) if vae is not None else USUAL_AUTOENCODER_SCALE
    multiple = card.size_rule.multiple
    is_sd3 = card.pipeline_class == "StableDiffusion3Pipeline"
    load = Load(
        width=request.width,
        height=request.height,
        batch=request.batch,
        passes=2 if guidance_on and card.pipeline_class not in _SEPARATE_PASSES else 1,
        image_tokens=(request.width // multiple) * (request.height // multiple),
        text_tokens=card.text_length + (CLIP_TEXT_TOKENS if is_sd3 else 0),  # SD3 sets CLIP's and T5's end to end
        prompt_tokens=card.text_length,
        latents=(request.width // scale) * (request.height // scale),
        number_bytes=BYTES_PER_NUMBER[dtype],
    )
    return Plan(card.label, parts, load, target)
