"""Writes tiny model folders in diffusers' format with nothing but json and struct: no torch, no diffusers."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpu_ui.safetensors_header import DTYPE_BITS

Tensors = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dtype, as safetensors names it, and shape of each tensor."""

MODEL_INDEX = {
    "sd3": {
        "_class_name": "StableDiffusion3Pipeline",
        "_diffusers_version": "0.42.1",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModelWithProjection"],
        "text_encoder_3": [None, None],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_3": [None, None],
        "transformer": ["diffusers", "SD3Transformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    },
    "flux": {
        "_class_name": "FluxPipeline",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "transformer": ["diffusers", "FluxTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    },
    "sdxl": {
        "_class_name": "StableDiffusionXLPipeline",
        "force_zeros_for_empty_prompt": True,
        "scheduler": ["diffusers", "EulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    },
    "flux2": {
        "_class_name": "Flux2Pipeline",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Mistral3ForConditionalGeneration"],
        "tokenizer": ["transformers", "PixtralProcessor"],
        "transformer": ["diffusers", "Flux2Transformer2DModel"],
        "vae": ["diffusers", "AutoencoderKLFlux2"],
    },
    "flux2-klein": {
        "_class_name": "Flux2KleinPipeline",
        "is_distilled": True,
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Qwen3ForCausalLM"],
        "tokenizer": ["transformers", "Qwen2TokenizerFast"],
        "transformer": ["diffusers", "Flux2Transformer2DModel"],
        "vae": ["diffusers", "AutoencoderKLFlux2"],
    },
    "z-image": {
        "_class_name": "ZImagePipeline",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Qwen3ForCausalLM"],
        "tokenizer": ["transformers", "Qwen2Tokenizer"],
        "transformer": ["diffusers", "ZImageTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    },
    "qwen-image": {
        "_class_name": "QwenImagePipeline",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
        "tokenizer": ["transformers", "Qwen2Tokenizer"],
        "transformer": ["diffusers", "QwenImageTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKLQwenImage"],
    },
    "sana": {
        "_class_name": "SanaPipeline",
        "scheduler": ["diffusers", "DPMSolverMultistepScheduler"],
        "text_encoder": ["transformers", "Gemma2Model"],
        "tokenizer": ["transformers", "GemmaTokenizerFast"],
        "transformer": ["diffusers", "SanaTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderDC"],
    },
}

# The figures that decide on sizes, as in the configurations of the real models.
CONFIGS: dict[str, dict[str, Any]] = {
    "SD3Transformer2DModel": {"num_layers": 1, "patch_size": 2, "sample_size": 128, "pos_embed_max_size": 384},
    "FluxTransformer2DModel": {"num_layers": 1, "num_single_layers": 2, "patch_size": 1, "guidance_embeds": False},
    "Flux2Transformer2DModel": {"patch_size": 1},
    "ZImageTransformer2DModel": {"all_patch_size": [2]},
    "QwenImageTransformer2DModel": {"patch_size": 2},
    "SanaTransformer2DModel": {"patch_size": 1, "sample_size": 32},
    "UNet2DConditionModel": {"sample_size": 128},
    "AutoencoderKL": {"block_out_channels": [128, 256, 512, 512]},
    "AutoencoderKLFlux2": {"block_out_channels": [128, 256, 512, 512]},
    "AutoencoderKLQwenImage": {"temperal_downsample": [False, True, True]},
    "AutoencoderDC": {"encoder_block_out_channels": [128, 256, 512, 512, 1024, 1024]},
    "CLIPTokenizer": {"model_max_length": 77},
}

TENSORS: dict[str, Tensors] = {
    "SD3Transformer2DModel": {
        "transformer_blocks.0.attn.to_q.weight": ("BF16", (8, 8)),
        "pos_embed.pos_embed": ("F32", (1, 4)),
    },
    "FluxTransformer2DModel": {
        "transformer_blocks.0.attn.to_q.weight": ("BF16", (8, 8)),
        "single_transformer_blocks.0.proj.weight": ("BF16", (4, 4)),
        "single_transformer_blocks.1.proj.weight": ("BF16", (4, 4)),
    },
}
_ANY_TENSORS: Tensors = {"weight": ("BF16", (4, 4)), "bias": ("BF16", (4,))}


def safetensors_bytes(tensors: Tensors) -> bytes:
    """A whole safetensors file with counted-up bytes for data."""
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + math.prod(shape) * DTYPE_BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    return with_header(header, bytes(i % 251 for i in range(end)))


def with_header(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def weights_name(library: str) -> str:
    return "diffusion_pytorch_model.safetensors" if library == "diffusers" else "model.safetensors"


def write_folder(
    root: Path,
    kind: str = "sd3",
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    index: Mapping[str, Any] | None = None,
) -> Path:
    """A complete folder. `configs` changes entries of a component's configuration, `index` of model_index.json."""
    model_index = {**MODEL_INDEX[kind], **(index or {})}
    write_json(root / "model_index.json", model_index)
    for name, value in model_index.items():
        if not isinstance(value, list) or value == [None, None]:
            continue
        library, class_name = value
        config = {"_class_name": class_name, **CONFIGS.get(class_name, {}), **(configs or {}).get(name, {})}
        if class_name.endswith("Scheduler"):
            write_json(root / name / "scheduler_config.json", config)
        elif class_name.endswith(("Tokenizer", "TokenizerFast", "Processor")):
            write_json(root / name / "tokenizer_config.json", config)
        else:
            write_json(root / name / "config.json", config)
            (root / name / weights_name(library)).write_bytes(safetensors_bytes(TENSORS.get(class_name, _ANY_TENSORS)))
    return root


def shard_transformer(root: Path, names: tuple[str, ...]) -> None:
    """Replace the transformer's file by as many shards, with an index."""
    folder = root / "transformer"
    config = json.loads((folder / "config.json").read_text())
    tensors = TENSORS[config["_class_name"]]
    (folder / weights_name("diffusers")).unlink()
    weight_map = {tensor: names[i % len(names)] for i, tensor in enumerate(tensors)}
    for shard in names:
        held = {tensor: tensors[tensor] for tensor in tensors if weight_map[tensor] == shard}
        (folder / shard).write_bytes(safetensors_bytes(held))
    write_json(folder / "diffusion_pytorch_model.safetensors.index.json", {"weight_map": weight_map})
