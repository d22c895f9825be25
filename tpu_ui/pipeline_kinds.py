"""What is known of diffusers' pipeline classes by their names: which make pictures from text, and their defaults.

Read from the sources of diffusers 0.42.1, so that neither torch nor diffusers has to be imported to know it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from tpu_ui.errors import InvalidRequest, UnusableModel


class GuidanceKind(StrEnum):
    """How a model follows the prompt more or less closely."""

    NONE = "none"
    """The guidance value has no effect."""
    DISTILLED = "distilled"
    """The guidance value is an input of the denoiser: one pass a step, no negative prompt."""
    CLASSIFIER_FREE = "classifier_free"
    """The denoiser runs with and without the prompt; a low value switches the second pass off."""


@dataclass(frozen=True)
class PipelineKind:
    """The defaults of a pipeline class: those of its `__call__`, and what its checks demand.

    Attributes:
        steps, guidance: defaults of num_inference_steps and guidance_scale.
        guidance_kind: unless the configuration of the denoiser says otherwise.
        takes_negative_prompt: whether `negative_prompt` has an effect together with `guidance_scale`.
        text_length: tokens, default of max_sequence_length; 77, CLIP's length, where the pipeline takes none.
        patch: latents on a side that the pipeline joins into one token; None where the transformer's configuration
            says it, or it is a UNet.
        fixed_multiple: pixels, where the pipeline checks a fixed number instead of the autoencoder's scale.
        fixed_sample_size: latents on a side of the default size, where it is not the denoiser's sample_size.
        denoiser_sees_only_token_count: the denoiser's inputs have the same shapes for 1024×768 and 768×1024.
        guidance_argument: the argument of `__call__` that scales classifier-free guidance.
        guidance_off_at: the largest guidance value at which the denoiser runs without classifier-free guidance.
    """

    steps: int
    guidance: float
    guidance_kind: GuidanceKind
    takes_negative_prompt: bool
    text_length: int
    patch: int | None = None
    fixed_multiple: int | None = None
    fixed_sample_size: int | None = None
    denoiser_sees_only_token_count: bool = False
    guidance_argument: str = "guidance_scale"
    guidance_off_at: float = 1.0


_FREE = GuidanceKind.CLASSIFIER_FREE

# One line a class, from the pipeline's own file (pipelines/*/pipeline_*.py).
PIPELINE_KINDS: Mapping[str, PipelineKind] = MappingProxyType(
    {
        "StableDiffusionPipeline": PipelineKind(50, 7.5, _FREE, True, 77, fixed_multiple=8),
        "StableDiffusionXLPipeline": PipelineKind(50, 5.0, _FREE, True, 77, fixed_multiple=8),
        "KolorsPipeline": PipelineKind(50, 5.0, _FREE, True, 256, fixed_multiple=8),
        "StableDiffusionPAGPipeline": PipelineKind(50, 7.5, _FREE, True, 77, fixed_multiple=8),
        "StableDiffusionXLPAGPipeline": PipelineKind(50, 5.0, _FREE, True, 77, fixed_multiple=8),
        "LatentConsistencyModelPipeline": PipelineKind(4, 8.5, GuidanceKind.DISTILLED, False, 77, fixed_multiple=8),
        "StableDiffusion3Pipeline": PipelineKind(28, 7.0, _FREE, True, 256),
        "FluxPipeline": PipelineKind(
            28,
            3.5,
            GuidanceKind.NONE,
            False,
            512,
            patch=2,
            fixed_sample_size=128,
            denoiser_sees_only_token_count=True,
        ),
        "Flux2Pipeline": PipelineKind(
            50,
            4.0,
            GuidanceKind.DISTILLED,
            False,
            512,
            patch=2,
            fixed_sample_size=128,
            denoiser_sees_only_token_count=True,
        ),
        # Where it is not distilled, it guides against an empty prompt of its own.
        "Flux2KleinPipeline": PipelineKind(
            50, 4.0, _FREE, False, 512, patch=2, fixed_sample_size=128, denoiser_sees_only_token_count=True
        ),
        "ChromaPipeline": PipelineKind(35, 5.0, _FREE, True, 512, patch=2, fixed_sample_size=128),
        # Its guidance_scale is for distilled weights that nobody has published.
        "QwenImagePipeline": PipelineKind(
            50, 4.0, _FREE, True, 512, patch=2, fixed_sample_size=128, guidance_argument="true_cfg_scale"
        ),
        "QwenImage21Pipeline": PipelineKind(
            40, 4.0, _FREE, True, 512, fixed_multiple=32, guidance_argument="true_cfg_scale"
        ),
        "ZImagePipeline": PipelineKind(50, 5.0, _FREE, True, 512, patch=2, fixed_sample_size=128, guidance_off_at=0.0),
        "Lumina2Pipeline": PipelineKind(30, 4.0, _FREE, True, 256, patch=2, fixed_sample_size=128),
        "SanaPipeline": PipelineKind(20, 4.5, _FREE, True, 300, fixed_multiple=32),
        "PixArtSigmaPipeline": PipelineKind(20, 4.5, _FREE, True, 300),
    }
)

# For a class without a line above: what most pipelines of diffusers do.
USUAL_TRANSFORMER_PIPELINE = PipelineKind(28, 4.5, _FREE, True, 256, patch=2)
# 64 for a UNet: Kandinsky rounds other sizes up without a word.
USUAL_UNET_PIPELINE = PipelineKind(50, 5.0, _FREE, True, 77, fixed_multiple=64)

# Names in AUTO_TEXT2IMAGE_PIPELINES_MAPPING of diffusers 0.42.1 (pipelines/auto_pipeline.py), without those that need
# a picture besides the text (names with Control or Inpaint). A test compares the two.
TEXT_TO_IMAGE_CLASSES = frozenset(
    {
        "AuraFlowPipeline",
        "ChromaPipeline",
        "CogView3PlusPipeline",
        "CogView4Pipeline",
        "Flux2KleinPipeline",
        "Flux2Pipeline",
        "FluxKontextPipeline",
        "FluxPipeline",
        "GlmImagePipeline",
        "HeliosPipeline",
        "HeliosPyramidPipeline",
        "HunyuanDiTPAGPipeline",
        "HunyuanDiTPipeline",
        "IFPipeline",
        "Ideogram4Pipeline",
        "Kandinsky3Pipeline",
        "KandinskyCombinedPipeline",
        "KolorsPAGPipeline",
        "KolorsPipeline",
        "KandinskyV22CombinedPipeline",
        "Krea2Pipeline",
        "LatentConsistencyModelPipeline",
        "Lumina2Pipeline",
        "LuminaPipeline",
        "NucleusMoEImagePipeline",
        "OvisImagePipeline",
        "PRXPipeline",
        "PixArtAlphaPipeline",
        "PixArtSigmaPAGPipeline",
        "PixArtSigmaPipeline",
        "QwenImage21Pipeline",
        "QwenImagePipeline",
        "SanaPAGPipeline",
        "SanaPipeline",
        "StableCascadeCombinedPipeline",
        "StableDiffusion3PAGPipeline",
        "StableDiffusion3Pipeline",
        "StableDiffusionPAGPipeline",
        "StableDiffusionPipeline",
        "StableDiffusionXLPAGPipeline",
        "StableDiffusionXLPipeline",
        "WuerstchenCombinedPipeline",
        "ZImageOmniPipeline",
        "ZImagePipeline",
    }
)


# Of the classes above, those with one for image to image by AUTO_IMAGE2IMAGE_PIPELINES_MAPPING of diffusers 0.42.1,
# which is made of the same components and takes a `strength`. A test compares the two.
IMAGE_TO_IMAGE_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "FluxPipeline": "FluxImg2ImgPipeline",
        "IFPipeline": "IFImg2ImgPipeline",
        "Kandinsky3Pipeline": "Kandinsky3Img2ImgPipeline",
        "KolorsPipeline": "KolorsImg2ImgPipeline",
        "LatentConsistencyModelPipeline": "LatentConsistencyModelImg2ImgPipeline",
        "QwenImagePipeline": "QwenImageImg2ImgPipeline",
        "StableDiffusion3PAGPipeline": "StableDiffusion3PAGImg2ImgPipeline",
        "StableDiffusion3Pipeline": "StableDiffusion3Img2ImgPipeline",
        "StableDiffusionPAGPipeline": "StableDiffusionPAGImg2ImgPipeline",
        "StableDiffusionPipeline": "StableDiffusionImg2ImgPipeline",
        "StableDiffusionXLPAGPipeline": "StableDiffusionXLPAGImg2ImgPipeline",
        "StableDiffusionXLPipeline": "StableDiffusionXLImg2ImgPipeline",
        "ZImagePipeline": "ZImageImg2ImgPipeline",
    }
)

# These read a picture as a reference beside the text. That is another task: it has no strength, and other graphs.
REFERENCE_CLASSES = frozenset({"Flux2KleinPipeline", "Flux2Pipeline", "FluxKontextPipeline"})

# Those of the classes above that have no `load_lora_weights` in diffusers 0.42.1. A test compares the two.
CLASSES_WITHOUT_LORAS = frozenset(
    {
        "CogView3PlusPipeline",
        "GlmImagePipeline",
        "HunyuanDiTPAGPipeline",
        "HunyuanDiTPipeline",
        "KandinskyCombinedPipeline",
        "KandinskyV22CombinedPipeline",
        "LuminaPipeline",
        "NucleusMoEImagePipeline",
        "OvisImagePipeline",
        "PixArtAlphaPipeline",
        "PixArtSigmaPAGPipeline",
        "PixArtSigmaPipeline",
        "SanaPAGPipeline",
        "StableCascadeCombinedPipeline",
        "WuerstchenCombinedPipeline",
    }
)


def guidance_argument(pipeline_class: str | None) -> str:
    return PIPELINE_KINDS.get(pipeline_class, USUAL_TRANSFORMER_PIPELINE).guidance_argument


def guidance_off_at(pipeline_class: str | None) -> float:
    return PIPELINE_KINDS.get(pipeline_class, USUAL_TRANSFORMER_PIPELINE).guidance_off_at


def takes_loras(pipeline_class: str) -> bool:
    return pipeline_class not in CLASSES_WITHOUT_LORAS


def check_image_to_image(pipeline_class: str) -> None:
    """Accept a pipeline class that has one for image to image.

    Raises:
        InvalidRequest: it has none; the sentence says why.
    """
    if pipeline_class in IMAGE_TO_IMAGE_CLASSES:
        return
    why = "has no image to image in diffusers"
    if pipeline_class in REFERENCE_CLASSES:
        why = "reads a picture as a reference, without a strength; that is not offered here"
    elif "Combined" in pipeline_class:
        why = "is several pipelines in one, whose image to image is not offered here"
    raise InvalidRequest(
        "image",
        f"{pipeline_class:.80} {why}.",
        "Leave it out, or choose a model of FLUX.1, SDXL or Stable Diffusion 3.",
    )


def check_text_to_image(pipeline_class: str) -> None:
    """Accept the class of a text-to-image pipeline.

    Raises:
        UnusableModel: the class is another one; the sentence names it.
    """
    if pipeline_class in TEXT_TO_IMAGE_CLASSES:
        return
    needs = " (it needs a picture besides the text)" if re.search("Control|Inpaint|Img2Img", pipeline_class) else ""
    raise UnusableModel(
        f"{pipeline_class:.80} is not a text-to-image pipeline{needs}.",
        "Choose a model whose pipeline makes pictures from text, such as FluxPipeline or StableDiffusion3Pipeline.",
    )
