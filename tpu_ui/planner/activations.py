"""Memory beside the weights while a part runs, estimated from its configuration.

XLA keeps a tensor from the operation that makes it to the last one that reads it, and runs the blocks of a model one
after another in the same memory. So the peak is that of the widest block: how many tensors of the block's width are
alive in it at once, times the size of one. The tensors are counted in the sources of diffusers; what fusion and padding
add or save is fitted to the scratch memory that libtpu 0.0.52 reports for real configurations in bfloat16, compiled for
v6e, in GiB:

    part                                   compiled  estimated
    SD 3.5 Medium, 512×512, batch 2            0.10       0.10
    SD 3.5 Medium, 1024×1024, batch 2          0.34       0.33
    SD 3.5 Large, 1024×1024, batch 2          0.425      0.422
    FLUX.1-schnell, 512×512                   0.133      0.125
    FLUX.1-schnell, 1024×1024                  0.39       0.42
    FLUX.2-klein 4B, 1024×1024                0.624      0.606
    SDXL's UNet, 1024×1024, batch 2           0.328      0.330
    VAE decoder, 512×512                      0.634      0.625
    VAE decoder, 1024×1024                    2.515      2.500
    T5-XXL encoder, 256 tokens                0.058      0.057
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpu_ui.planner.parts import Part

_FLOAT32_BYTES = 4
# Of a transformer's block, in maps of its width: the residual and its norm, and small copies.
_RESIDUAL_MAPS = 2.5
# Queries and keys in float32, as rotary embeddings turn them.
_ROTARY_MAPS = 2.5
# A second attention beside the joint one, as in SD 3.5 Medium.
_DUAL_ATTENTION_MAPS = 2.5
_WITHOUT_ROTARY = ("SD3Transformer2DModel", "SanaTransformer2DModel", "PixArtTransformer2DModel")
# Maps of the last decoder block that are alive at once: input, its norm in float32 (two), the convolution's result, and
# the sum with the shortcut.
_DECODER_MAPS = 5
# The widest block of a UNet: its input joined with the skip connection, its norm in float32 (two), and the result.
_UNET_MAPS = 4
_GATED_DENOISERS = ("Flux2Transformer2DModel", "ZImageTransformer2DModel", "SanaTransformer2DModel")
_MLP_RATIOS = {"ZImageTransformer2DModel": 8 / 3}  # where the configuration does not say; 4 elsewhere


@dataclass(frozen=True)
class Load:
    """What one run asks of the parts.

    Attributes:
        width, height: pixels.
        batch: pictures of one run.
        passes: 2 where classifier-free guidance joins both passes in one batch, else 1.
        image_tokens, text_tokens: tokens that a transformer sees.
        prompt_tokens: tokens of one prompt, as a text encoder sees them.
        latents: values on the autoencoder's grid, of one channel.
        number_bytes: of one number in the pipeline's data type.
    """

    width: int
    height: int
    batch: int
    passes: int
    image_tokens: int
    text_tokens: int
    prompt_tokens: int
    latents: int
    number_bytes: int


def activation_bytes(part: Part, load: Load) -> int:
    """Bytes beside the weights while `part` runs: a decoder, a denoiser or a text encoder; else 0."""
    if part.name == "vae":
        return _decoder(part.config, load)
    if part.name == "transformer":
        return _transformer(part, load)
    if part.name == "unet":
        return _unet(part.config, load)
    if part.name.startswith("text_encoder"):
        return _text_encoder(part, load)
    return 0


def _decoder(config: Mapping[str, Any], load: Load) -> int:
    """All pictures are decoded at once; the last block, at full resolution, has the largest maps."""
    channels = _widths(config, "decoder_block_out_channels") or _widths(config, "block_out_channels")
    if not channels:
        channels = [
            _whole(config, "base_dim", default=128) * factor for factor in _widths(config, "dim_mult") or (1, 2)
        ]
    into_last_block = channels[min(1, len(channels) - 1)]
    return _DECODER_MAPS * load.batch * load.width * load.height * into_last_block * load.number_bytes


def _transformer(part: Part, load: Load) -> int:
    tokens = load.batch * load.passes * (load.image_tokens + load.text_tokens)
    return round(tokens * _width(part.config) * _live_maps(part) * load.number_bytes)


def _live_maps(part: Part) -> float:
    """Tensors alive in the widest block, in maps of the width of its hidden states."""
    ratio = part.config.get("mlp_ratio")
    if not isinstance(ratio, int | float) or not 0 < ratio < 100:
        ratio = _MLP_RATIOS.get(part.class_name, 4)
    gated = ratio * (2 if part.class_name in _GATED_DENOISERS else 1)
    maps = _RESIDUAL_MAPS
    maps += 0 if part.class_name in _WITHOUT_ROTARY else _ROTARY_MAPS
    maps += _DUAL_ATTENTION_MAPS if part.config.get("dual_attention_layers") else 0
    if part.class_name == "Flux2Transformer2DModel":  # one matrix makes queries, keys, values and MLP; then it is split
        return maps + 2 * (3 + gated)
    if part.config.get("num_single_layers"):  # attention and MLP side by side, then joined
        return maps + 3 + gated + (1 + ratio)
    return maps + gated + ratio  # the MLP before and after its activation


def _width(config: Mapping[str, Any]) -> int:
    heads, size = (_whole(config, key, default=0) for key in ("num_attention_heads", "attention_head_dim"))
    return heads * size or _whole(config, "dim", "hidden_size", "inner_dim", default=3072)


def _unet(config: Mapping[str, Any], load: Load) -> int:
    """All skip connections wait for the way up, where the last block works on the most latents."""
    channels = _widths(config, "block_out_channels") or [320, 640, 1280, 1280]
    layers = _widths(config, "layers_per_block")
    if len(layers) != len(channels):
        layers = [_whole(config, "layers_per_block", default=2)] * len(channels)
    values = channels[0] * load.latents
    for level, (width, count) in enumerate(zip(channels, layers, strict=True)):
        values += count * width * load.latents // 4**level
        if level < len(channels) - 1:
            values += width * load.latents // 4 ** (level + 1)
    values += _UNET_MAPS * (channels[0] + channels[min(1, len(channels) - 1)]) * load.latents
    return load.batch * load.passes * values * load.number_bytes


def _text_encoder(part: Part, load: Load) -> int:
    """One prompt at a time. Encoders with a bias on their scores, such as T5, hold all scores of a layer in float32."""
    config = text_config(part)
    width = _whole(config, "d_model", "hidden_size", default=768)
    inner = _whole(config, "d_ff", "intermediate_size", default=4 * width)
    heads = _whole(config, "num_heads", "num_attention_heads", default=12)
    values = load.prompt_tokens * (4 * width + 2 * inner)
    if "ForCausalLM" in part.class_name or "ForConditionalGeneration" in part.class_name:
        values += load.prompt_tokens * _whole(config, "vocab_size", default=0)  # the pipelines let the head run, too
    scores = heads * load.prompt_tokens**2 * _FLOAT32_BYTES * 5 // 2 if "d_model" in config else 0
    return values * load.number_bytes + scores


def text_config(part: Part) -> Mapping[str, Any]:
    """The entries on text where a configuration has several, else all."""
    nested = part.config.get("text_config")
    return nested if isinstance(nested, Mapping) else part.config


def _whole(config: Mapping[str, Any], *keys: str, default: int) -> int:
    """The first of these entries that is a whole number above 0: a configuration may hold anything."""
    return next((config[key] for key in keys if type(config.get(key)) is int and config[key] > 0), default)


def _widths(config: Mapping[str, Any], key: str) -> list[int]:
    """A list of whole numbers above 0; empty if the entry is anything else, or longer than any model's."""
    values = config.get(key)
    if not isinstance(values, list | tuple) or len(values) > 16:
        return []
    return list(values) if all(type(value) is int and value > 0 for value in values) else []
