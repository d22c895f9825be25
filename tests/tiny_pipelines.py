"""Small pipelines with random weights, of the real classes, saved in diffusers' folder format."""

import inspect
import json
from pathlib import Path

import torch
from diffusers import (
    AutoencoderDC,
    AutoencoderKL,
    AutoencoderKLFlux2,
    AutoencoderKLQwenImage,
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Pipeline,
    Flux2Transformer2DModel,
    FluxPipeline,
    FluxTransformer2DModel,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SanaPipeline,
    SanaTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    Gemma2Config,
    Gemma2Model,
    GemmaTokenizer,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
    PixtralVisionConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
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


def sd3(with_t5: bool = False, **changes: object) -> StableDiffusion3Pipeline:
    tokenizer = byte_tokenizer()
    clip = _clip_config(tokenizer)
    transformer = SD3Transformer2DModel(
        sample_size=32, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        caption_projection_dim=32, joint_attention_dim=64, pooled_projection_dim=64, out_channels=4,
        pos_embed_max_size=64, **changes,
    )  # fmt: skip
    t5 = T5Config(vocab_size=len(tokenizer), d_model=64, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return StableDiffusion3Pipeline(
        transformer=transformer, scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=_vae(shift_factor=0.06, scaling_factor=1.5),
        text_encoder=CLIPTextModelWithProjection(clip), tokenizer=tokenizer,
        text_encoder_2=CLIPTextModelWithProjection(clip), tokenizer_2=tokenizer,
        text_encoder_3=T5EncoderModel(t5) if with_t5 else None, tokenizer_3=byte_tokenizer(256) if with_t5 else None,
    )  # fmt: skip


def flux(guidance_embeds: bool = False, heads: int = 2) -> FluxPipeline:
    tokenizer = byte_tokenizer()
    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=16,
        num_attention_heads=heads, joint_attention_dim=32, pooled_projection_dim=32, guidance_embeds=guidance_embeds,
        axes_dims_rope=(4, 6, 6),
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


# The templates of the newer pipelines are long, so their tokenizers get merges: learnt from these sentences.
_SENTENCES = [
    "You are an AI that reasons about image descriptions.",
    "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships.",
    *inspect.signature(SanaPipeline.__call__).parameters["complex_human_instruction"].default,
]
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }} {{ message.content }}<|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think> </think> {% endif %}"
)
_PIXTRAL_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[INST]"
    "{% if message.content is string %}{{ message.content }}{% else %}{{ message.content[0].text }}{% endif %}"
    "[/INST]{% endfor %}"
)


def _learnt(tokenizer: Tokenizer, special: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a byte pair encoding of the sentences above."""
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def _byte_level(special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _learnt(tokenizer, special)
    return tokenizer


def qwen_tokenizer() -> Qwen2Tokenizer:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocab, merges = _learnt(_byte_level(special), special)
    return Qwen2Tokenizer(
        vocab=vocab,
        merges=merges,
        extra_special_tokens=special[1:],
        chat_template=_CHAT_TEMPLATE,
        model_max_length=4096,
    )


def gemma_tokenizer() -> GemmaTokenizer:
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    vocab, merges = _learnt(tokenizer, special)
    return GemmaTokenizer(vocab=vocab, merges=merges)


def pixtral_tokenizer() -> PreTrainedTokenizerFast:
    special = ["<unk>", "<s>", "</s>", "<pad>", "[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"]
    return PreTrainedTokenizerFast(
        tokenizer_object=_byte_level(special), unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        extra_special_tokens=special[4:], padding_side="left", model_max_length=4096, chat_template=_PIXTRAL_TEMPLATE,
    )  # fmt: skip


# Weights of the usual size make text features of a tiny model so alike that no prompt would change a picture.
_LIVELY = 0.3


def _livelier(transformer: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for weight in transformer.parameters():
            if weight.ndim == 2:
                weight.mul_(2)
    return transformer


def _flux2_parts(text_channels: int, guidance_embeds: bool) -> dict[str, object]:
    transformer = Flux2Transformer2DModel(
        in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=text_channels, timestep_guidance_channels=32, axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=guidance_embeds,
    )  # fmt: skip
    vae = AutoencoderKLFlux2(
        block_out_channels=(16, 32), layers_per_block=1, latent_channels=4, norm_num_groups=8, sample_size=32,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    return {"transformer": _livelier(transformer), "vae": vae, "scheduler": scheduler}


def flux2() -> Flux2Pipeline:
    """Its text encoder is as deep as the layers that the pipeline reads: 10, 20 and 30."""
    tokenizer = pixtral_tokenizer()
    text = MistralConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=30,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=None, initializer_range=_LIVELY,
    )  # fmt: skip
    vision = PixtralVisionConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=8
    )
    config = Mistral3Config(text_config=text, vision_config=vision, image_token_index=6)
    encoder = Mistral3ForConditionalGeneration(config)
    return Flux2Pipeline(text_encoder=encoder, tokenizer=tokenizer, **_flux2_parts(3 * 16, guidance_embeds=True))


def _qwen3(tokenizer: Qwen2Tokenizer, layers: int) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=layers,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, initializer_range=_LIVELY,
            bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip


def flux2_klein(is_distilled: bool = True) -> Flux2KleinPipeline:
    """Its text encoder is as deep as the layers that the pipeline reads: 9, 18 and 27."""
    tokenizer = qwen_tokenizer()
    parts = _flux2_parts(3 * 16, guidance_embeds=False)
    return Flux2KleinPipeline(
        text_encoder=_qwen3(tokenizer, 27), tokenizer=tokenizer, is_distilled=is_distilled, **parts
    )


def z_image() -> ZImagePipeline:
    tokenizer = qwen_tokenizer()
    transformer = ZImageTransformer2DModel(
        in_channels=4, dim=32, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=16,
        axes_dims=[4, 6, 6], axes_lens=[1024, 64, 64],
    )  # fmt: skip
    # Made empty, and random they would drown the few tokens of a small picture.
    torch.nn.init.normal_(transformer.x_pad_token, std=0.02)
    torch.nn.init.normal_(transformer.cap_pad_token, std=0.02)
    return ZImagePipeline(
        transformer=transformer, scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=_vae(shift_factor=0.06, scaling_factor=1.5), text_encoder=_qwen3(tokenizer, 3), tokenizer=tokenizer,
    )  # fmt: skip


def qwen_image() -> QwenImagePipeline:
    tokenizer = qwen_tokenizer()
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": _LIVELY,
        "bos_token_id": None, "eos_token_id": None,
        "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32,
        "fullatt_block_indexes": [0],
    }  # fmt: skip
    transformer = QwenImageTransformer2DModel(
        in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    vae = AutoencoderKLQwenImage(
        base_dim=8, z_dim=4, dim_mult=[1, 2], num_res_blocks=1, temperal_downsample=[False],
        latents_mean=[0.0, 0.1, -0.1, 0.2], latents_std=[1.0, 1.2, 0.9, 1.1],
    )  # fmt: skip
    return QwenImagePipeline(
        transformer=_livelier(transformer), vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision)),
        tokenizer=tokenizer,
    )  # fmt: skip


def sana() -> SanaPipeline:
    tokenizer = gemma_tokenizer()
    text = Gemma2Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    transformer = SanaTransformer2DModel(
        in_channels=4, out_channels=4, num_layers=2, num_attention_heads=2, attention_head_dim=8,
        num_cross_attention_heads=2, cross_attention_head_dim=8, cross_attention_dim=16, caption_channels=16,
        sample_size=8,
    )  # fmt: skip
    stages = 6  # 32 pixels a latent, as the real one
    vae = AutoencoderDC(
        latent_channels=4, attention_head_dim=4,
        encoder_block_types=("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
        decoder_block_types=("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
        encoder_block_out_channels=(8,) * stages, decoder_block_out_channels=(8,) * stages,
        encoder_layers_per_block=(1,) * stages, decoder_layers_per_block=(1,) * stages,
        encoder_qkv_multiscales=((), (), (), (5,), (5,), (5,)), decoder_qkv_multiscales=((), (), (), (5,), (5,), (5,)),
        downsample_block_type="Conv", upsample_block_type="interpolate",
        decoder_norm_types="rms_norm", decoder_act_fns="silu", scaling_factor=0.41407,
    )  # fmt: skip
    scheduler = DPMSolverMultistepScheduler(use_flow_sigmas=True, flow_shift=3.0, prediction_type="flow_prediction")
    return SanaPipeline(
        tokenizer=tokenizer, text_encoder=Gemma2Model(text), vae=vae, transformer=transformer, scheduler=scheduler
    )


BUILDERS = {
    "sd3": sd3,
    "sd3.5-large": lambda: sd3(with_t5=True, qk_norm="rms_norm"),
    "sd3.5-medium": lambda: sd3(with_t5=True, qk_norm="rms_norm", dual_attention_layers=(0,)),
    "flux": flux,
    "flux-4-heads": lambda: flux(heads=4),
    "flux-guided": lambda: flux(guidance_embeds=True),
    "sdxl": sdxl,
    "flux2": flux2,
    "flux2-klein": flux2_klein,
    "flux2-klein-base": lambda: flux2_klein(is_distilled=False),
    "z-image": z_image,
    "qwen-image": qwen_image,
    "sana": sana,
}


def save(name: str, folder: Path) -> Path:
    """Build the pipeline `name` with weights of a fixed seed and save it as `folder`/`name`."""
    torch.manual_seed(0)
    pipeline: DiffusionPipeline = BUILDERS[name]()
    pipeline.save_pretrained(folder / name)
    if name == "flux2":
        _name_pixtral_processor(folder / name)
    return folder / name


def _name_pixtral_processor(folder: Path) -> None:
    """As in the real folder: the tokenizer is part of a processor, whose own class needs torchvision."""
    index_path = folder / "model_index.json"
    index = json.loads(index_path.read_text()) | {"tokenizer": ["transformers", "PixtralProcessor"]}
    index_path.write_text(json.dumps(index))
    processor = {"processor_class": "PixtralProcessor", "patch_size": 8, "spatial_merge_size": 2}
    (folder / "tokenizer" / "processor_config.json").write_text(json.dumps(processor))
