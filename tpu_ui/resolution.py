"""From what was asked to what will run: the model's defaults filled in, its limits checked, its graphs named."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tpu_ui.catalogue import ModelCard
from tpu_ui.errors import InvalidRequest
from tpu_ui.graphs import GraphKey, Stage
from tpu_ui.lora_files import LoraFile
from tpu_ui.modes import ExecutionMode, check_mode_on_device
from tpu_ui.pipeline_kinds import GuidanceKind, check_image_to_image, guidance_off_at
from tpu_ui.request import GenerationRequest
from tpu_ui.source_picture import SourcePicture

DEFAULT_STRENGTH = 0.6


@dataclass(frozen=True)
class ResolvedRequest:
    """A request with nothing left open.

    Attributes:
        request: every field set, the seed included; the placement is not AUTO once the Resolver has placed it.
        card: the model.
        revision: commit, or fingerprint of the folder.
        dtype: name of the data type it runs in.
        guidance_on: classifier-free guidance will run.
        run_batch: pictures of one run, which divides those of the request; the Resolver makes it smaller where they do
            not fit at once.
        notices: what the user should know, in sentences.
        fits: True where the planner found that it fits the device's memory; None where that is not known yet.
        loras: the files of its LoRAs that are on this machine.
        picture: what it starts from, read and found whole; None where it starts from noise.
        placement_reason: why AUTO became CPU offload, one sentence; empty where it did not.
        weight_room_bytes: by component, what all weights may take on the device while it runs; empty where not known.
        devices: over how many the weights are split by tensor parallel; else 1.
    """

    request: GenerationRequest
    card: ModelCard
    revision: str
    dtype: str
    guidance_on: bool
    run_batch: int
    notices: tuple[str, ...]
    fits: bool | None = None
    loras: tuple[LoraFile, ...] = ()
    picture: SourcePicture | None = None
    placement_reason: str = ""
    weight_room_bytes: Mapping[str, int] = field(default_factory=dict)
    devices: int = 1

    @property
    def steps_run(self) -> int:
        """The steps that run; a pipeline may round a strength that ends within a step up instead of down."""
        return int(self.request.steps * (self.request.strength or 1))

    @property
    def latents_stage(self) -> Stage:
        """The stage that makes the latents of the first step."""
        return Stage.LATENTS if self.request.image is None else Stage.PICTURE

    @property
    def runs(self) -> int:
        """How often the pipeline runs for the request."""
        return self.request.batch // self.run_batch

    def run(self, number: int) -> "ResolvedRequest":
        """One run of the request, counted from 0: some of its pictures, with their seeds."""
        first_seed = self.request.seeds[number * self.run_batch]
        return replace(self, request=replace(self.request, batch=self.run_batch, seed=first_seed))

    def graph_keys(self, toolchain: dict[str, str]) -> dict[Stage, GraphKey]:
        """The key of each stage, in the order in which they run."""
        request = self.request
        by_tokens = self.card.denoiser_sees_only_token_count
        size = {"height": request.height, "width": request.width}
        no_size = {"height": 0, "width": 0}
        multiple = self.card.size_rule.multiple
        tokens = (request.height // multiple) * (request.width // multiple)
        common = {
            "model": self.card.id,
            "revision": self.revision,
            "tokens": 0,
            "batch": self.run_batch,
            "text_tokens": self.card.text_length,
            "guidance_on": self.guidance_on,
            "dtype": self.dtype,
            "mode": request.mode.value,
            "placement": request.placement.value,
            "devices": self.devices,
            "toolchain": tuple(sorted(toolchain.items())),
        }
        return {
            Stage.TEXT: GraphKey(stage=Stage.TEXT.value, **common, **no_size),
            self.latents_stage: GraphKey(stage=self.latents_stage.value, **common, **size),
            Stage.DENOISER: GraphKey(
                stage=Stage.DENOISER.value,
                **(common | {"tokens": tokens} if by_tokens else common),
                **(no_size if by_tokens else size),
            ),
            Stage.DECODER: GraphKey(stage=Stage.DECODER.value, **(common | {"guidance_on": False}), **size),
        }


def resolve(
    request: GenerationRequest,
    card: ModelCard,
    *,
    revision: str,
    dtype: str,
    device_kind: str,
    default_mode: ExecutionMode,
) -> ResolvedRequest:
    """Fill the model's defaults in and check its limits. The placement stays as it was asked for, AUTO too.

    Raises:
        InvalidRequest: a size that the model cannot make, or a picture to start from that it does not take.
        ModeNotAllowed: a mode that the device does not have.
    """
    notices = list(request.notices)
    width = request.width or card.default_width
    height = request.height or card.default_height
    card.size_rule.check(width, height)
    mode = request.mode or default_mode
    check_mode_on_device(mode, device_kind)
    guidance = card.default_guidance if request.guidance is None else request.guidance
    if card.guidance_kind is GuidanceKind.NONE and guidance != card.default_guidance:
        notices.append(f"guidance: ignored, since {card.label} was distilled to run without it.")
        guidance = card.default_guidance
    off_at = guidance_off_at(card.pipeline_class)
    guidance_on = card.guidance_kind is GuidanceKind.CLASSIFIER_FREE and guidance > off_at
    negative_prompt = request.negative_prompt
    if negative_prompt.strip() and not (card.takes_negative_prompt and guidance_on):
        why = (
            f"at guidance {off_at:g}{' or below' * (off_at > 0)}" if card.takes_negative_prompt else f"by {card.label}"
        )
        notices.append(f"negative_prompt: ignored {why}.")
        negative_prompt = ""
    steps = request.steps or card.default_steps
    filled = replace(
        request,
        width=width,
        height=height,
        mode=mode,
        steps=steps,
        strength=_strength(request, card, steps),
        guidance=guidance,
        negative_prompt=negative_prompt,
    ).with_drawn_seed()
    return ResolvedRequest(filled, card, revision, dtype, guidance_on, filled.batch, tuple(notices))


def least_strength(steps: int) -> float:
    """The least strength, in thousandths, at which one of so many steps runs."""
    return math.ceil(1000 / steps) / 1000


def _strength(request: GenerationRequest, card: ModelCard, steps: int) -> float | None:
    if request.image is None:
        if request.image_sha256 is not None:
            raise InvalidRequest(
                "image", f"the picture to start from is missing (SHA-256 {request.image_sha256}).", "Give it again."
            )
        if request.strength is not None:
            raise InvalidRequest("strength", "there is no picture to start from.", "Give image too, or leave it out.")
        return None
    check_image_to_image(card.pipeline_class)
    least = least_strength(steps)
    if request.strength is None:
        return max(DEFAULT_STRENGTH, least)
    if int(steps * request.strength) < 1:
        raise InvalidRequest(
            "strength",
            f"{request.strength:g} of {steps} steps is less than one step.",
            f"Give at least {least:g}, or more steps.",
        )
    return request.strength
