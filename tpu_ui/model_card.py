"""What the app has to know of a model, and how that is derived from a folder that nobody has described."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tpu_ui.errors import UnusableModel
from tpu_ui.model_folder import ModelFolder
from tpu_ui.pipeline_kinds import (
    IMAGE_TO_IMAGE_CLASSES,
    PIPELINE_KINDS,
    USUAL_TRANSFORMER_PIPELINE,
    USUAL_UNET_PIPELINE,
    GuidanceKind,
    PipelineKind,
)
from tpu_ui.shapes import MAX_SIDE_PX, NamedSize, ShapeLadder, SizeRule

MAX_TEXT_TOKENS = 512
"""No prompt is padded to more tokens than this: it is the limit of the pipelines of FLUX.1 and Stable Diffusion 3."""
USUAL_AUTOENCODER_SCALE = 8
"""Pixels on a side of one latent where no configuration says, as the pipelines themselves assume."""
MAX_GRID_PX = 128
"""A folder whose sizes would have to be multiples of more than this is taken for damaged."""
CLIP_TEXT_TOKENS = 77

Dtype = Literal["bfloat16", "float32", "float16"]


@dataclass(frozen=True)
class ModelCard:
    """What the app has to know of a model before it loads it.

    Attributes:
        id: the name on the command line and in the page.
        repo_id, folder: where the weights are: a repository of the Hub, or a folder.
        revision: commit of the repository, or fingerprint of the folder; None where it is not known yet.
        pipeline_class: diffusers' class; None for a repository of which nothing is known before it is downloaded:
            then all figures are placeholders until `complete_card` replaces them.
        dtype: in which the pipeline runs. For a folder, that of most of its weights.
        default_width, default_height: pixels.
        ladder: the sizes on offer, the default first.
        text_length: tokens, given to the pipeline as max_sequence_length; 77 where the pipeline takes none.
        takes_negative_prompt: whether a negative prompt has an effect.
        gated: whether the Hub wants a login and the licence accepted.
        link: the page from which the figures are.
        denoiser_sees_only_token_count: width and height may be swapped without a new graph of the denoiser.
        tested: with which weights the app was tested.
    """

    id: str
    label: str
    repo_id: str | None
    folder: Path | None
    revision: str | None
    pipeline_class: str | None
    dtype: Dtype
    size_rule: SizeRule
    default_width: int
    default_height: int
    ladder: ShapeLadder
    default_steps: int
    default_guidance: float
    guidance_kind: GuidanceKind
    text_length: int
    takes_negative_prompt: bool
    gated: bool
    licence: str
    link: str
    denoiser_sees_only_token_count: bool
    tested: str

    def __post_init__(self) -> None:
        if self.repo_id is None and self.folder is None:
            raise ValueError(f"{self.id}: a card names a repository or a folder")
        if not self.size_rule.allows(self.default_width, self.default_height):
            raise ValueError(f"{self.id}: default size {self.default_width}×{self.default_height} breaks its own rule")
        if any(not self.size_rule.allows(size.width, size.height) for size in self.ladder):
            raise ValueError(f"{self.id}: a size of the ladder breaks the size rule")
        if self.default_steps < 1 or self.default_guidance < 0 or self.text_length < 1:
            raise ValueError(f"{self.id}: steps and text length are at least 1, guidance at least 0")

    @property
    def is_complete(self) -> bool:
        """False for a repository of the Hub that was never looked into."""
        return self.pipeline_class is not None

    @property
    def takes_picture(self) -> bool:
        """Whether a request may start from a picture."""
        return self.pipeline_class in IMAGE_TO_IMAGE_CLASSES


def card_from_folder(folder: ModelFolder) -> ModelCard:
    """Derive a card from a folder's configurations, by the rules of its pipeline class.

    Raises:
        UnusableModel: the configurations ask for a grid of sizes that no model has.
    """
    kind = _kind_of(folder)
    denoiser = _denoiser_config(folder)
    vae = folder.components.get("vae")
    scale = autoencoder_scale(vae.class_name, vae.config) if vae is not None else USUAL_AUTOENCODER_SCALE
    patch = kind.patch or _whole_number(denoiser, "patch_size", 64) or 1
    # A pipeline with a fixed multiple still returns a smaller picture than asked if the autoencoder's grid is coarser.
    multiple = math.lcm(kind.fixed_multiple, scale) if kind.fixed_multiple else scale * patch
    if multiple > MAX_GRID_PX:
        raise UnusableModel(
            f"{folder.path}: sizes would have to be multiples of {multiple} pixels, above the limit of {MAX_GRID_PX}.",
            "Check patch_size of the denoiser and block_out_channels of the autoencoder.",
        )
    # Stable Diffusion 3 crops its position table to the picture, and fails on one that is larger than the table.
    table = _whole_number(denoiser, "pos_embed_max_size", MAX_SIDE_PX)
    rule = SizeRule.with_multiple(multiple, max_side=table * patch * scale if table else MAX_SIDE_PX)
    width, height = _default_size(kind, denoiser, scale, rule)
    name = folder.path.resolve().name or str(folder.path)
    return ModelCard(
        id=name,
        label=name,
        repo_id=None,
        folder=folder.path,
        revision=folder.fingerprint,
        pipeline_class=folder.pipeline_class,
        dtype=folder.dtype,
        size_rule=rule,
        default_width=width,
        default_height=height,
        ladder=_ladder(rule, width, height),
        default_steps=kind.steps,
        default_guidance=kind.guidance,
        guidance_kind=kind.guidance_kind,
        text_length=kind.text_length,
        takes_negative_prompt=kind.takes_negative_prompt,
        gated=False,
        licence="unknown",
        link=str(folder.path),
        denoiser_sees_only_token_count=kind.denoiser_sees_only_token_count,
        tested="untested",
    )


def card_of_unseen_repository(repo_id: str) -> ModelCard:
    """The incomplete card of a repository of the Hub; `catalogue.complete_card` completes it after the download."""
    rule = SizeRule.with_multiple(8)
    return ModelCard(
        id=repo_id,
        label=repo_id,
        repo_id=repo_id,
        folder=None,
        revision=None,
        pipeline_class=None,
        dtype="bfloat16",
        size_rule=rule,
        default_width=1024,
        default_height=1024,
        ladder=_ladder(rule, 1024, 1024),
        default_steps=USUAL_TRANSFORMER_PIPELINE.steps,
        default_guidance=USUAL_TRANSFORMER_PIPELINE.guidance,
        guidance_kind=USUAL_TRANSFORMER_PIPELINE.guidance_kind,
        text_length=USUAL_TRANSFORMER_PIPELINE.text_length,
        takes_negative_prompt=USUAL_TRANSFORMER_PIPELINE.takes_negative_prompt,
        gated=False,
        licence="unknown",
        link=f"https://huggingface.co/{repo_id}",
        denoiser_sees_only_token_count=False,
        tested="untested",
    )


def _denoiser_config(folder: ModelFolder) -> Mapping[str, Any]:
    component = folder.components.get("transformer") or folder.components.get("unet")
    return component.config if component else {}


def _kind_of(folder: ModelFolder) -> PipelineKind:
    """The class's line of the table, corrected by what the configurations say of guidance and text encoders."""
    usual = USUAL_UNET_PIPELINE if "unet" in folder.components else USUAL_TRANSFORMER_PIPELINE
    kind = PIPELINE_KINDS.get(folder.pipeline_class, usual)
    denoiser = _denoiser_config(folder)
    match folder.pipeline_class:
        case "FluxPipeline" | "FluxKontextPipeline":
            if denoiser.get("guidance_embeds") is True:
                return replace(kind, guidance_kind=GuidanceKind.DISTILLED)
            return replace(kind, steps=4, guidance=0.0, guidance_kind=GuidanceKind.NONE, text_length=256)
        case "Flux2KleinPipeline" if folder.settings.get("is_distilled") is True:
            return replace(kind, steps=4, guidance=1.0, guidance_kind=GuidanceKind.NONE)
        case "StableDiffusion3Pipeline":
            # Without a T5 the pipeline puts max_sequence_length zeros in its place: no more of them than CLIP gives.
            with_t5 = "text_encoder_3" in folder.components
            tokenizer = folder.components.get("tokenizer_3" if with_t5 else "tokenizer")
            length = _whole_number(tokenizer.config if tokenizer else {}, "model_max_length", MAX_TEXT_TOKENS)
            usual = kind.text_length if with_t5 else CLIP_TEXT_TOKENS
            return replace(kind, text_length=min(length or usual, kind.text_length))
    if denoiser.get("time_cond_proj_dim") is not None:
        return replace(kind, guidance_kind=GuidanceKind.DISTILLED, takes_negative_prompt=False)
    return kind


def autoencoder_scale(class_name: str, config: Mapping[str, Any]) -> int:
    """Pixels on a side of one latent of an autoencoder of this class and configuration."""
    if class_name == "AutoencoderKLQwenImage":
        stages = config.get("temperal_downsample")
        return 2 ** len(stages) if isinstance(stages, list | tuple) else USUAL_AUTOENCODER_SCALE
    channels = config.get("encoder_block_out_channels" if class_name == "AutoencoderDC" else "block_out_channels")
    if not isinstance(channels, list | tuple) or not channels:
        return USUAL_AUTOENCODER_SCALE
    # The cap keeps a forged configuration from asking for an astronomical number; MAX_GRID_PX then refuses it.
    return 2 ** (min(len(channels), 16) - 1)


def _default_size(kind: PipelineKind, denoiser: Mapping[str, Any], scale: int, rule: SizeRule) -> tuple[int, int]:
    latents = kind.fixed_sample_size or denoiser.get("sample_size")
    height, width = latents if isinstance(latents, list) and len(latents) == 2 else (latents, latents)
    sides = [
        _on_grid(side * scale, rule) if isinstance(side, int) and 0 < side <= MAX_SIDE_PX else None
        for side in (width, height)
    ]
    if None in sides:
        sides = [_on_grid(1024, rule)] * 2
    return sides[0], sides[1]


def _on_grid(side: int, rule: SizeRule) -> int:
    return max(rule.min_side, min(side, rule.max_side) // rule.multiple * rule.multiple)


def _ladder(rule: SizeRule, width: int, height: int) -> ShapeLadder:
    budgets = [width * height] + [width * height // 4] * (min(width, height) >= 1024)
    sizes = ShapeLadder.for_pixels(rule, *budgets).sizes
    default = [size for size in sizes if (size.width, size.height) == (width, height)]
    others = [size for size in sizes if size not in default]
    return ShapeLadder(tuple(default or [NamedSize("default", width, height)]) + tuple(others))


def _whole_number(config: Mapping[str, Any], key: str, largest: int) -> int | None:
    value = config.get(key)
    return value if type(value) is int and 1 <= value <= largest else None
