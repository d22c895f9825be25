"""The shapes of the demo model's parts, built from nothing or put together as a diffusers folder."""

import json
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

from tpu_ui.demo.tokenizer import BOS_ID, EOS_ID, PAD_ID, TEXT_TOKENS, vocabulary_ids

LATENT_CHANNELS = 16
PIXELS_PER_LATENT = 16
PIXELS_PER_PATCH = 32
TEXT_WIDTHS = (128, 64)
POOLED_WIDTHS = (160, 96)
TRANSFORMER_WIDTH = 160
TRANSFORMER_LAYERS = 6
LARGEST_SIDE_PATCHES = 16


def new_autoencoder() -> AutoencoderKL:
    """A narrow autoencoder that shrinks each side by 16; without attention, so that any size works alike."""
    model = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 5,
        up_block_types=("UpDecoderBlock2D",) * 5,
        block_out_channels=(16, 32, 48, 64, 64),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        shift_factor=0.0,
        norm_num_groups=1,  # more groups normalise the colours of so narrow a network away
        sample_size=256,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
    )
    _start_almost_linear(model)
    return model


@torch.no_grad()
def _start_almost_linear(model: AutoencoderKL) -> None:
    """Lets colours pass from end to end from the first step: silent side branches, plain means and copies in between.

    From the usual start, a net this narrow spends hundreds of steps on grey pictures.
    """
    for name, layer in model.named_modules():
        if not isinstance(layer, torch.nn.Conv2d):
            continue
        if name.endswith("conv2"):
            layer.weight.zero_()
            layer.bias.zero_()
        elif ".downsamplers." in name:
            layer.weight.mul_(0.3).add_(torch.eye(layer.out_channels)[:, :, None, None] / 9)
        elif ".upsamplers." in name:
            layer.weight.mul_(0.3)[:, :, 1, 1].add_(torch.eye(layer.out_channels))
        elif name.endswith("conv_shortcut"):
            torch.nn.init.orthogonal_(layer.weight)
        elif name == "encoder.conv_out":
            layer.bias[LATENT_CHANNELS:] = -5.0
            layer.weight[LATENT_CHANNELS:] *= 0.1


def new_text_encoders() -> tuple[CLIPTextModelWithProjection, CLIPTextModelWithProjection]:
    """The two text encoders, whose outputs the pipeline lays side by side."""
    return tuple(
        CLIPTextModelWithProjection(
            CLIPTextConfig(
                vocab_size=len(vocabulary_ids()),
                hidden_size=width,
                intermediate_size=4 * width,
                projection_dim=pooled,
                num_hidden_layers=3,
                num_attention_heads=width // 32,
                max_position_embeddings=TEXT_TOKENS,
                hidden_act="gelu",
                bos_token_id=BOS_ID,
                eos_token_id=EOS_ID,
                pad_token_id=PAD_ID,
            )
        )
        for width, pooled in zip(TEXT_WIDTHS, POOLED_WIDTHS, strict=True)
    )


def new_silent_text_encoder() -> T5EncoderModel:
    """A T5 encoder of 25 thousand weights that returns zeros, which is what the pipeline puts there without one.

    StableDiffusion3Pipeline.from_pretrained refuses a folder without a T5 encoder unless it is told
    text_encoder_3=None. With this one the plain call works, and leaving it out changes nothing.
    """
    model = T5EncoderModel(
        T5Config(
            vocab_size=len(vocabulary_ids()),
            d_model=sum(TEXT_WIDTHS),
            d_kv=8,
            d_ff=8,
            num_layers=1,
            num_heads=1,
            pad_token_id=PAD_ID,
            eos_token_id=EOS_ID,
        )
    )
    torch.nn.init.zeros_(model.encoder.final_layer_norm.weight)
    return model


def new_transformer() -> SD3Transformer2DModel:
    """The denoiser. Gates and output start at zero, so that training starts from the identity."""
    model = SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=TRANSFORMER_LAYERS,
        attention_head_dim=32,
        num_attention_heads=TRANSFORMER_WIDTH // 32,
        joint_attention_dim=sum(TEXT_WIDTHS),
        caption_projection_dim=TRANSFORMER_WIDTH,
        pooled_projection_dim=sum(POOLED_WIDTHS),
        pos_embed_max_size=LARGEST_SIDE_PATCHES,
        qk_norm="rms_norm",
    )
    for name, parameter in model.named_parameters():
        if (".linear." in name and ("norm1" in name or "norm_out" in name)) or name.startswith("proj_out"):
            torch.nn.init.zeros_(parameter)
        elif parameter.ndim == 2:
            torch.nn.init.xavier_uniform_(parameter)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    return model


def new_scheduler(shift: float = 2.0) -> FlowMatchEulerDiscreteScheduler:
    """Euler steps along a straight flow; `shift` above 1 spends more of the steps on the noisy end."""
    return FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=shift)


def new_pipeline(
    tokenizer: PreTrainedTokenizerFast,
    text_encoders: tuple[CLIPTextModelWithProjection, CLIPTextModelWithProjection],
    autoencoder: AutoencoderKL,
    transformer: SD3Transformer2DModel,
) -> StableDiffusion3Pipeline:
    """The standard pipeline around the parts."""
    return StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=new_scheduler(),
        vae=autoencoder,
        text_encoder=text_encoders[0],
        tokenizer=tokenizer,
        text_encoder_2=text_encoders[1],
        tokenizer_2=tokenizer,
        text_encoder_3=new_silent_text_encoder(),
        tokenizer_3=tokenizer,
    )


def save_pipeline(pipeline: StableDiffusion3Pipeline, folder: Path) -> None:
    """Writes the folder with weights stored in 16 bits, which halves it; they load as 32 bits. Changes the parts."""
    encoders = ("text_encoder", "text_encoder_2", "text_encoder_3")
    for name in ("transformer", "vae", *encoders):
        getattr(pipeline, name).half()
    pipeline.save_pretrained(folder, safe_serialization=True)
    for name in encoders:
        _edit(folder / name / "config.json", {"dtype": "float32"})
    # The name that both transformers 4 and 5 know.
    tokenizers = ("tokenizer", "tokenizer_2", "tokenizer_3")
    _edit(folder / "model_index.json", {name: ["transformers", "PreTrainedTokenizerFast"] for name in tokenizers})
    for name in tokenizers:
        _edit(folder / name / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})


def _edit(path: Path, changes: dict) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes, indent=2, sort_keys=True) + "\n")
