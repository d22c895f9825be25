"""Small random LoRAs for the tiny pipelines, saved by diffusers itself."""

from pathlib import Path

import diffusers
import torch
from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model

from tests import tiny_pipelines

_RANK = 4
_STRENGTH = 1.5  # of random matrices of the usual size a tiny picture shows little
_TEXT_TARGETS = ["q_proj", "v_proj", "fc1"]
_TARGETS = ["to_q", "to_k", "to_v", "to_out.0"]
TEXT_ENCODERS = {"sd3": ("text_encoder", "text_encoder_2"), "sdxl": ("text_encoder", "text_encoder_2"),
                 "flux": ("text_encoder",)}  # fmt: skip


def save(model: str, folder: Path, seed: int, with_text: bool = True) -> Path:
    """A LoRA of the denoiser, and of the text encoders, of the tiny pipeline `model`; the path of its file."""
    pipeline: diffusers.DiffusionPipeline = tiny_pipelines.BUILDERS[model]()
    torch.manual_seed(seed)
    denoiser = "unet" if hasattr(pipeline, "unet") else "transformer"
    components = (denoiser, *(TEXT_ENCODERS[model] if with_text else ()))
    layers = {}
    for name in components:
        module = getattr(pipeline, name)
        config = LoraConfig(
            r=_RANK, lora_alpha=_RANK, init_lora_weights=False,
            target_modules=_TARGETS if name == denoiser else _TEXT_TARGETS,
        )  # fmt: skip
        inject_adapter_in_model(config, module, adapter_name="tiny")
        matrices = get_peft_model_state_dict(module, adapter_name="tiny")
        layers[f"{name}_lora_layers"] = {key: _STRENGTH * matrix for key, matrix in matrices.items()}
    type(pipeline).save_lora_weights(folder, weight_name=f"{model}-{seed}.safetensors", **layers)
    return folder / f"{model}-{seed}.safetensors"
