"""The pipeline class that starts from a picture, made of a loaded pipeline's own components."""

import diffusers
import torch

from tpu_ui.pipeline_kinds import IMAGE_TO_IMAGE_CLASSES


def image_to_image_of(pipeline: diffusers.DiffusionPipeline) -> diffusers.DiffusionPipeline | None:
    """The image-to-image pipeline of the same components: no weight is copied. None where diffusers has none."""
    if type(pipeline).__name__ not in IMAGE_TO_IMAGE_CLASSES:
        return None
    made = diffusers.AutoPipelineForImage2Image.from_pipe(pipeline)
    made.set_progress_bar_config(disable=True)
    vae = getattr(pipeline, "vae", None)
    if vae is not None and vae.config.get("force_upcast") and vae.dtype != torch.float16:
        # Meant for float16, which overflows. SDXL's encoding, unlike its decoding, obeys it for any data type, and
        # would leave the host's copy of the weights in another type under CPU offload.
        vae.register_to_config(force_upcast=False)
    return made
