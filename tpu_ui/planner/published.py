"""Configurations of the catalogue's models, so that a model can be planned before any of its files is on this machine.

Only entries that differ from the defaults of the class, or that an estimate reads, are listed. `parameters` is what the
class has on the meta device; a test builds each and compares. Where the figures are from stands beside each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class PublishedComponent:
    """One part with weights.

    Attributes:
        library, class_name: as in model_index.json.
        parameters: floating-point numbers that a checkpoint holds; tied ones are counted once.
        config: arguments of the class's configuration.
    """

    library: str
    class_name: str
    parameters: int
    config: Mapping[str, Any] = field(repr=False)


def _diffusers(class_name: str, parameters: int, **config: Any) -> PublishedComponent:
    return PublishedComponent("diffusers", class_name, parameters, MappingProxyType(config))


def _transformers(class_name: str, parameters: int, **config: Any) -> PublishedComponent:
    return PublishedComponent("transformers", class_name, parameters, MappingProxyType(config))


# -- text encoders: the models that the pipelines' own pages name, by the configuration of those ----------------------

_CLIP_L = {  # openai/clip-vit-large-patch14
    "vocab_size": 49408, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "max_position_embeddings": 77, "projection_dim": 768,
}  # fmt: skip
_CLIP_G = {  # laion/CLIP-ViT-bigG-14-laion2B-39B-b160k
    "vocab_size": 49408, "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32,
    "num_attention_heads": 20, "max_position_embeddings": 77, "projection_dim": 1280, "hidden_act": "gelu",
}  # fmt: skip
CLIP_L = _transformers("CLIPTextModel", 123_060_480, **_CLIP_L)
CLIP_L_PROJECTED = _transformers("CLIPTextModelWithProjection", 123_650_304, **_CLIP_L)
CLIP_G_PROJECTED = _transformers("CLIPTextModelWithProjection", 694_659_840, **_CLIP_G)
T5_XXL = _transformers(  # google/t5-v1_1-xxl
    "T5EncoderModel", 4_762_310_656, vocab_size=32128, d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64,
    feed_forward_proj="gated-gelu", tie_word_embeddings=False,
)  # fmt: skip
_QWEN3 = {"vocab_size": 151936, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
          "head_dim": 128}  # fmt: skip
QWEN3_4B = _transformers(  # Qwen/Qwen3-4B
    "Qwen3ForCausalLM", 4_022_468_096, **_QWEN3, hidden_size=2560, intermediate_size=9728, tie_word_embeddings=True
)
QWEN3_8B = _transformers(  # Qwen/Qwen3-8B
    "Qwen3ForCausalLM", 8_190_735_360, **_QWEN3, hidden_size=4096, intermediate_size=12288, tie_word_embeddings=False
)
GEMMA2_2B = _transformers(  # google/gemma-2-2b-it
    "Gemma2Model", 2_614_341_888, vocab_size=256000, hidden_size=2304, intermediate_size=9216, num_hidden_layers=26,
    num_attention_heads=8, num_key_value_heads=4, head_dim=256,
)  # fmt: skip
QWEN2_5_VL_7B = _transformers(  # Qwen/Qwen2.5-VL-7B-Instruct
    "Qwen2_5_VLForConditionalGeneration", 8_292_166_656,
    text_config={"model_type": "qwen2_5_vl_text", "vocab_size": 152064, "hidden_size": 3584,
                 "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
                 "num_key_value_heads": 4},
    vision_config={"model_type": "qwen2_5_vl", "depth": 32, "hidden_size": 1280, "num_heads": 16,
                   "intermediate_size": 3420, "out_hidden_size": 3584},
    tie_word_embeddings=False,
)  # fmt: skip
MISTRAL_SMALL_24B = _transformers(  # mistralai/Mistral-Small-3.2-24B-Instruct-2506
    "Mistral3ForConditionalGeneration", 24_011_361_280,
    text_config={"model_type": "mistral", "vocab_size": 131072, "hidden_size": 5120, "intermediate_size": 32768,
                 "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
                 "tie_word_embeddings": False},
    vision_config={"model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
                   "num_attention_heads": 16, "head_dim": 64, "image_size": 1540, "patch_size": 14},
    multimodal_projector_bias=False, spatial_merge_size=2, tie_word_embeddings=False,
)  # fmt: skip

# -- autoencoders -----------------------------------------------------------------------------------------------------

_KL = {
    "block_out_channels": (128, 256, 512, 512), "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4, "layers_per_block": 2, "sample_size": 1024,
}  # fmt: skip
VAE_4 = _diffusers("AutoencoderKL", 83_653_863, **_KL, latent_channels=4)  # stabilityai/sdxl-vae
VAE_16 = _diffusers(  # the VAE of Stable Diffusion 3 and of FLUX.1; Z-Image has FLUX.1's
    "AutoencoderKL", 83_819_683, **_KL, latent_channels=16, use_quant_conv=False, use_post_quant_conv=False
)
VAE_FLUX2 = _diffusers("AutoencoderKLFlux2", 84_046_371, **_KL, latent_channels=32)  # the defaults of the class
VAE_QWEN = _diffusers(  # the defaults of the class
    "AutoencoderKLQwenImage", 126_892_531, base_dim=96, z_dim=16, dim_mult=(1, 2, 4, 4), num_res_blocks=2,
    temperal_downsample=(False, True, True),
)  # fmt: skip
_DC_STAGES = ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3
_DC_CHANNELS = (128, 256, 512, 512, 1024, 1024)
_DC_SCALES = ((), (), (), (5,), (5,), (5,))
VAE_DC = _diffusers(  # mit-han-lab/dc-ae-f32c32-sana-1.1, as in diffusers' scripts/convert_dcae_to_diffusers.py
    "AutoencoderDC", 312_250_275, latent_channels=32, encoder_block_types=_DC_STAGES, decoder_block_types=_DC_STAGES,
    encoder_block_out_channels=_DC_CHANNELS, decoder_block_out_channels=_DC_CHANNELS,
    encoder_qkv_multiscales=_DC_SCALES, decoder_qkv_multiscales=_DC_SCALES,
    encoder_layers_per_block=(2, 2, 2, 3, 3, 3), decoder_layers_per_block=(3, 3, 3, 3, 3, 3),
    downsample_block_type="conv", upsample_block_type="interpolate",
)  # fmt: skip

# -- denoisers --------------------------------------------------------------------------------------------------------

_FLUX1 = {  # the defaults of the class, as in diffusers' scripts/convert_flux_to_diffusers.py
    "in_channels": 64, "num_layers": 19, "num_single_layers": 38, "attention_head_dim": 128, "num_attention_heads": 24,
    "joint_attention_dim": 4096, "pooled_projection_dim": 768,
}  # fmt: skip
_SD3_5 = {  # diffusers' scripts/convert_sd3_to_diffusers.py reads these off the checkpoints
    "sample_size": 128, "patch_size": 2, "in_channels": 16, "attention_head_dim": 64, "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048, "out_channels": 16, "qk_norm": "rms_norm",
}  # fmt: skip
_FLUX2 = {"in_channels": 128, "attention_head_dim": 128, "mlp_ratio": 3.0}
SCHNELL = _diffusers("FluxTransformer2DModel", 11_891_178_560, **_FLUX1, guidance_embeds=False)
DEV = _diffusers("FluxTransformer2DModel", 11_901_408_320, **_FLUX1, guidance_embeds=True)
SD3_5_MEDIUM = _diffusers(
    "SD3Transformer2DModel", 2_469_663_936, **_SD3_5, num_layers=24, num_attention_heads=24,
    caption_projection_dim=1536, pos_embed_max_size=384, dual_attention_layers=tuple(range(13)),
)  # fmt: skip
SD3_5_LARGE = _diffusers(
    "SD3Transformer2DModel", 8_146_280_768, **_SD3_5, num_layers=38, num_attention_heads=38,
    caption_projection_dim=2432, pos_embed_max_size=192,
)  # fmt: skip
FLUX2_DEV = _diffusers(  # the defaults of the class
    "Flux2Transformer2DModel", 32_223_281_152, **_FLUX2, num_layers=8, num_single_layers=48, num_attention_heads=48,
    joint_attention_dim=15360,
)  # fmt: skip
# github.com/black-forest-labs/flux2, src/flux2/model.py: Klein4BParams and Klein9BParams
KLEIN_4B = _diffusers(
    "Flux2Transformer2DModel", 3_875_544_576, **_FLUX2, num_layers=5, num_single_layers=20, num_attention_heads=24,
    joint_attention_dim=7680, guidance_embeds=False,
)  # fmt: skip
KLEIN_9B = _diffusers(
    "Flux2Transformer2DModel", 9_078_581_248, **_FLUX2, num_layers=8, num_single_layers=24, num_attention_heads=32,
    joint_attention_dim=12288, guidance_embeds=False,
)  # fmt: skip
Z_IMAGE = _diffusers(  # the defaults of the class
    "ZImageTransformer2DModel", 6_154_908_736, dim=3840, n_layers=30, n_refiner_layers=2, n_heads=30, n_kv_heads=30,
    cap_feat_dim=2560,
)  # fmt: skip
QWEN_IMAGE = _diffusers(  # the defaults of the class
    "QwenImageTransformer2DModel", 20_430_401_088, num_layers=60, attention_head_dim=128, num_attention_heads=24,
    joint_attention_dim=3584,
)  # fmt: skip
SANA_1600M = _diffusers(  # diffusers' scripts/convert_sana_to_diffusers.py
    "SanaTransformer2DModel", 1_604_462_752, in_channels=32, out_channels=32, num_layers=20, num_attention_heads=70,
    attention_head_dim=32, num_cross_attention_heads=20, cross_attention_head_dim=112, cross_attention_dim=2240,
    caption_channels=2304, mlp_ratio=2.5,
)  # fmt: skip
SDXL_UNET = _diffusers(  # stabilityai/stable-diffusion-xl-base-1.0
    "UNet2DConditionModel", 2_567_463_684, sample_size=128, block_out_channels=(320, 640, 1280), layers_per_block=2,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), attention_head_dim=(5, 10, 20),
    cross_attention_dim=2048, transformer_layers_per_block=(1, 2, 10), use_linear_projection=True,
    addition_embed_type="text_time", addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816,
)  # fmt: skip


@dataclass(frozen=True)
class PublishedModel:
    """A pipeline: its class, its parts with weights by name, and the other entries of model_index.json that matter."""

    pipeline_class: str
    components: Mapping[str, PublishedComponent]
    settings: Mapping[str, Any] = field(default_factory=dict)


def _flux1(transformer: PublishedComponent) -> PublishedModel:
    parts = {"text_encoder": CLIP_L, "text_encoder_2": T5_XXL, "transformer": transformer, "vae": VAE_16}
    return PublishedModel("FluxPipeline", parts)


def _sd3_5(transformer: PublishedComponent) -> PublishedModel:
    encoders = {"text_encoder": CLIP_L_PROJECTED, "text_encoder_2": CLIP_G_PROJECTED, "text_encoder_3": T5_XXL}
    return PublishedModel("StableDiffusion3Pipeline", encoders | {"transformer": transformer, "vae": VAE_16})


def _one_encoder(
    pipeline_class: str,
    encoder: PublishedComponent,
    transformer: PublishedComponent,
    vae: PublishedComponent,
    **settings: Any,
) -> PublishedModel:
    return PublishedModel(pipeline_class, {"text_encoder": encoder, "transformer": transformer, "vae": vae}, settings)


_SANA = _one_encoder("SanaPipeline", GEMMA2_2B, SANA_1600M, VAE_DC)

PUBLISHED: Mapping[str, PublishedModel] = MappingProxyType(
    {
        "black-forest-labs/FLUX.1-schnell": _flux1(SCHNELL),
        "black-forest-labs/FLUX.1-dev": _flux1(DEV),
        "stabilityai/stable-diffusion-3.5-medium": _sd3_5(SD3_5_MEDIUM),
        "stabilityai/stable-diffusion-3.5-large": _sd3_5(SD3_5_LARGE),
        "stabilityai/stable-diffusion-3.5-large-turbo": _sd3_5(SD3_5_LARGE),
        "black-forest-labs/FLUX.2-dev": _one_encoder("Flux2Pipeline", MISTRAL_SMALL_24B, FLUX2_DEV, VAE_FLUX2),
        "black-forest-labs/FLUX.2-klein-4B": _one_encoder(
            "Flux2KleinPipeline", QWEN3_4B, KLEIN_4B, VAE_FLUX2, is_distilled=True
        ),
        "black-forest-labs/FLUX.2-klein-9B": _one_encoder(
            "Flux2KleinPipeline", QWEN3_8B, KLEIN_9B, VAE_FLUX2, is_distilled=True
        ),
        "Tongyi-MAI/Z-Image-Turbo": _one_encoder("ZImagePipeline", QWEN3_4B, Z_IMAGE, VAE_16),
        "Qwen/Qwen-Image": _one_encoder("QwenImagePipeline", QWEN2_5_VL_7B, QWEN_IMAGE, VAE_QWEN),
        "Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers": _SANA,
        "Efficient-Large-Model/Sana_1600M_1024px_diffusers": _SANA,
        "stabilityai/stable-diffusion-xl-base-1.0": PublishedModel(
            "StableDiffusionXLPipeline",
            {"text_encoder": CLIP_L, "text_encoder_2": CLIP_G_PROJECTED, "unet": SDXL_UNET, "vae": VAE_4},
        ),
    }
)
"""By repository of the Hub."""
