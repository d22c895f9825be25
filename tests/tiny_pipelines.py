"""Small pipelines with random weights, of the real classes, saved in diffusers' folder format."""

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    DiffusionPipeline,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from tokenizers import pre_tokenizers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
)


def byte_tokenizer(length: int = 77) -> CLIPTokenizer:
    """A CLIP tokenizer without merges: each byte is a token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[], model_max_length=length)


def _clip_config(tokenizer: CLIPTokenizer) -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=37, num_hidden_layers=2, num_attention_heads=4,
        projection_dim=32, max_position_embeddings=77, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=1,
    )  # fmt: skip


def _vae(**changes: object) -> AutoencoderKL:
    return AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=4, block_out_channels=(16, 32), norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, sample_size=32,
        **changes,
    )  # fmt: skip


def sd3() -> StableDiffusion3Pipeline:
    tokenizer = byte_tokenizer()
    clip = _clip_config(tokenizer)
    transformer = SD3Transformer2DModel(
        sample_size=32, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        caption_projection_dim=32, joint_attention_dim=64, pooled_projection_dim=64, out_channels=4,
        pos_embed_max_size=64,
    )  # fmt: skip
    return StableDiffusion3Pipeline(
        transformer=transformer, scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=_vae(shift_factor=0.06, scaling_factor=1.5),
        text_encoder=CLIPTextModelWithProjection(clip), tokenizer=tokenizer,
        text_encoder_2=CLIPTextModelWithProjection(clip), tokenizer_2=tokenizer, text_encoder_3=None, tokenizer_3=None,
    )  # fmt: skip


def flux(guidance_embeds: bool = False) -> FluxPipeline:
    tokenizer = byte_tokenizer()
    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, guidance_embeds=guidance_embeds, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    t5 = T5Config(vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return FluxPipeline(
        transformer=transformer, scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=_vae(shift_factor=0.06, scaling_factor=1.5, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=CLIPTextModel(_clip_config(tokenizer)), tokenizer=tokenizer,
        text_encoder_2=T5EncoderModel(t5), tokenizer_2=tokenizer,
    )  # fmt: skip


def sdxl() -> StableDiffusionXLPipeline:
    tokenizer = byte_tokenizer()
    clip = _clip_config(tokenizer)
    unet = UNet2DConditionModel(
        block_out_channels=(16, 32), layers_per_block=1, sample_size=32, in_channels=4, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4), use_linear_projection=True, addition_embed_type="text_time",
        addition_time_embed_dim=8, transformer_layers_per_block=(1, 2), projection_class_embeddings_input_dim=80,
        cross_attention_dim=64, norm_num_groups=8,
    )  # fmt: skip
    scheduler = EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1, timestep_spacing="leading"
    )
    return StableDiffusionXLPipeline(
        unet=unet, scheduler=scheduler, vae=_vae(),
        text_encoder=CLIPTextModel(clip), tokenizer=tokenizer,
        text_encoder_2=CLIPTextModelWithProjection(clip), tokenizer_2=tokenizer,
    )  # fmt: skip


BUILDERS = {"sd3": sd3, "flux": flux, "flux-guided": lambda: flux(guidance_embeds=True), "sdxl": sdxl}


def save(name: str, folder: Path) -> Path:
    """Build the pipeline `name` with weights of a fixed seed and save it as `folder`/`name`."""
    torch.manual_seed(0)
    pipeline: DiffusionPipeline = BUILDERS[name]()
    pipeline.save_pretrained(folder / name)
    return folder / name
