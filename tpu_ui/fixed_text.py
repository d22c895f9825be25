"""Text of one length, whatever the prompt says, for pipelines whose text is as long as the prompt.

A length is part of a graph's shape. What follows the prompt's length here follows a mask instead, which is data; the
pictures stay those of the plain pipeline, up to rounding.
"""

from types import MethodType
from typing import Any

import diffusers
import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.utils import apply_lora_scale
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_ALWAYS_MASKED = "sdpa_always_masked"
_Z_IMAGE_GROUP = 32  # Z-Image fills text and picture up to multiples of so many tokens


def fix_text_length(pipeline: diffusers.DiffusionPipeline) -> None:
    """Make a pipeline's text independent of the prompt in all shapes. For a pipeline whose text is so already it only
    makes sure that no graph depends on whether a prompt fills it.
    """
    for module in pipeline.components.values():
        if isinstance(module, PreTrainedModel) and module.config._attn_implementation == "sdpa":
            module.set_attn_implementation(_ALWAYS_MASKED)
    match type(pipeline).__name__:
        case "QwenImagePipeline" | "QwenImageImg2ImgPipeline":
            pipeline.encode_prompt = MethodType(_encode_for_qwen_image, pipeline)
        case "ZImagePipeline" | "ZImageImg2ImgPipeline":
            pipeline._encode_prompt = MethodType(_encode_for_z_image, pipeline)
            transformer = pipeline.transformer
            transformer.forward = MethodType(_z_image_forward, transformer)
            rope = transformer.rope_embedder  # computes its table at the first call, which a full graph cannot
            rope.freqs_cis = rope.precompute_freqs_cis(rope.axes_dims, rope.axes_lens, theta=rope.theta)


def _mask_with_padding(*args: Any, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor | None:
    # transformers looks into the mask and does without it where nothing is padded: a prompt that fills the length
    # would have graphs of its own.
    if attention_mask is not None:
        kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(*args, attention_mask=attention_mask, **kwargs)


ALL_MASK_ATTENTION_FUNCTIONS.register(_ALWAYS_MASKED, _mask_with_padding)
ALL_ATTENTION_FUNCTIONS.register(_ALWAYS_MASKED, ALL_ATTENTION_FUNCTIONS["sdpa"])


# -- Qwen-Image: the plain pipeline pads to the longest prompt, and drops a mask that masks nothing --------------------


def _encode_for_qwen_image(
    self: diffusers.QwenImagePipeline,
    prompt: str | list[str],
    device: torch.device | None = None,
    num_images_per_prompt: int = 1,
    prompt_embeds: torch.Tensor | None = None,
    prompt_embeds_mask: torch.Tensor | None = None,
    max_sequence_length: int = 1024,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Text features, shape (pictures, max_sequence_length, channels), and their mask without the channels."""
    if prompt_embeds is None:
        device = device or self._execution_device
        template_tokens = self.prompt_template_encode_start_idx
        tokens = self.tokenizer(
            [self.prompt_template_encode.format(text) for text in ([prompt] if isinstance(prompt, str) else prompt)],
            max_length=template_tokens + max_sequence_length,
            padding="max_length",
            padding_side="right",  # the encoder is causal: what follows the prompt does not change it
            truncation=True,
            return_tensors="pt",
        ).to(device)
        hidden = self.text_encoder(
            input_ids=tokens.input_ids, attention_mask=tokens.attention_mask, output_hidden_states=True
        ).hidden_states[-1]
        prompt_embeds = hidden[:, template_tokens:].to(self.text_encoder.dtype)
        # As the transformer wants it: with a mask of integers XLA:CPU, the emulation's compiler, loses a function of
        # the graph of a tiny model at 64×64 ("Function multiply_exponential_fusion not found").
        prompt_embeds_mask = tokens.attention_mask[:, template_tokens:].bool()
    return tuple(each.repeat_interleave(num_images_per_prompt, dim=0) for each in (prompt_embeds, prompt_embeds_mask))


# -- Z-Image: the plain pipeline cuts the features to the prompt, and the transformer counts positions from their end --


def _encode_for_z_image(
    self: diffusers.ZImagePipeline,
    prompt: str | list[str],
    device: torch.device | None = None,
    prompt_embeds: list[torch.Tensor] | None = None,
    max_sequence_length: int = 512,
) -> list[torch.Tensor]:
    """One tensor a prompt, shape (max_sequence_length, channels + 1); the last channel is 1 where there is text."""
    if prompt_embeds is not None:
        return prompt_embeds
    texts = [
        self.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True, enable_thinking=True
        )
        for text in ([prompt] if isinstance(prompt, str) else prompt)
    ]
    tokens = self.tokenizer(
        texts,
        padding="max_length",
        padding_side="right",
        max_length=max_sequence_length,
        truncation=True,
        return_tensors="pt",
    ).to(device or self._execution_device)
    features = self.text_encoder(
        input_ids=tokens.input_ids, attention_mask=tokens.attention_mask, output_hidden_states=True
    ).hidden_states[-2]
    mask = tokens.attention_mask.unsqueeze(-1).to(features.dtype)
    return list(torch.cat([features, mask], dim=-1).unbind())


@apply_lora_scale("joint_attention_kwargs")
def _z_image_forward(
    self: diffusers.ZImageTransformer2DModel,
    x: list[torch.Tensor],
    t: torch.Tensor,
    cap_feats: list[torch.Tensor],
    return_dict: bool = True,
    patch_size: int = 2,
    f_patch_size: int = 1,
    joint_attention_kwargs: dict[str, Any] | None = None,  # noqa: ARG001 - apply_lora_scale reads it
) -> Transformer2DModelOutput | tuple[list[torch.Tensor]]:
    """The transformer on text features from `_encode_for_z_image`.

    Args:
        x: latents, one tensor a picture, all of shape (channels, frames, height, width).
        t: shape (pictures,), 0 to 1.
    """
    latents, text = torch.stack(x), torch.stack(cap_feats)
    batch, channels, frames, height, width = latents.shape
    grid = (frames // f_patch_size, height // patch_size, width // patch_size)
    text_length = _group_up(text.shape[1])
    positions = _ZImagePositions(self, text, text_length, grid)
    condition = self.t_embedder(t * self.t_scale).type_as(latents)

    patches = latents.view(batch, channels, grid[0], f_patch_size, grid[1], patch_size, grid[2], patch_size)
    patches = patches.permute(0, 2, 4, 6, 3, 5, 7, 1).reshape(batch, grid[0] * grid[1] * grid[2], -1)
    picture_tokens = patches.shape[1]
    picture = self.all_x_embedder[f"{patch_size}-{f_patch_size}"](patches)
    filling = self.x_pad_token.to(picture.dtype).expand(batch, _group_up(picture_tokens) - picture_tokens, -1)
    picture = torch.cat([picture, filling], dim=1)
    for layer in self.noise_refiner:
        picture = layer(picture, None, positions.picture, condition)

    captions = self.cap_embedder(torch.nn.functional.pad(text[..., :-1], (0, 0, 0, text_length - text.shape[1])))
    captions = torch.where(positions.is_text.unsqueeze(-1), captions, self.cap_pad_token.to(captions.dtype))
    for layer in self.context_refiner:
        captions = layer(captions, positions.is_seen, positions.text)

    together = torch.cat([picture, captions], dim=1)
    seen = torch.cat([positions.is_seen.new_ones(batch, picture.shape[1]), positions.is_seen], dim=1)
    rotations = torch.cat([positions.picture, positions.text], dim=1)
    for layer in self.layers:
        together = layer(together, seen, rotations, condition)
    together = self.all_final_layer[f"{patch_size}-{f_patch_size}"](together, c=condition)

    out = together[:, :picture_tokens].view(batch, *grid, f_patch_size, patch_size, patch_size, self.out_channels)
    out = out.permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(batch, self.out_channels, frames, height, width)
    pictures = list(out.unbind())
    return Transformer2DModelOutput(sample=pictures) if return_dict else (pictures,)


class _ZImagePositions:
    """Where the tokens are, and which of them count.

    Attributes:
        is_text, is_seen: bool, shape (pictures, text length): the prompt's own tokens; these and those that fill its
            last group, the rest being out of sight.
        text, picture: rotations, complex, shape (pictures, tokens, head channels / 2).
    """

    def __init__(
        self, model: diffusers.ZImageTransformer2DModel, text: torch.Tensor, text_length: int, grid: tuple[int, ...]
    ) -> None:
        batch, device = len(text), text.device
        index = torch.arange(text_length, device=device)
        words = (text[..., -1] > 0.5).sum(dim=1, keepdim=True)
        seen = (words + _Z_IMAGE_GROUP - 1) // _Z_IMAGE_GROUP * _Z_IMAGE_GROUP
        self.is_text, self.is_seen = index < words, index < seen
        text_ids = torch.stack([index + 1, index * 0, index * 0], dim=-1).expand(batch, -1, -1)
        axes = [torch.arange(span, device=device) for span in grid]
        picture_ids = torch.stack(torch.meshgrid(axes, indexing="ij"), dim=-1).flatten(0, 2).expand(batch, -1, -1)
        # The first picture position is the one after the text that is seen; tokens that fill the last group are at 0.
        after_text = torch.nn.functional.pad(seen + 1, (0, 2)).unsqueeze(1)
        tokens = picture_ids.shape[1]
        picture_ids = torch.nn.functional.pad(picture_ids + after_text, (0, 0, 0, _group_up(tokens) - tokens))
        self.text, self.picture = (
            model.rope_embedder(ids.reshape(-1, 3)).view(batch, ids.shape[1], -1) for ids in (text_ids, picture_ids)
        )


def _group_up(tokens: int) -> int:
    return -(-tokens // _Z_IMAGE_GROUP) * _Z_IMAGE_GROUP
