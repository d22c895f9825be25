"""Whether a prompt is longer than the text encoders read, and what of it is lost."""

import diffusers
from transformers import PreTrainedTokenizerBase

from tpu_ui.resolution import ResolvedRequest

_CLIP_TOKENS = 77
_PROMPT = "\N{OBJECT REPLACEMENT CHARACTER}"  # stands for the prompt in a template


def truncation_notices(pipeline: diffusers.DiffusionPipeline, resolved: ResolvedRequest) -> tuple[str, ...]:
    """Which text encoder will cut the prompt, how much it keeps, and the tail that is lost, in sentences."""
    notices = []
    for name, tokenizer in pipeline.components.items():
        encoder = pipeline.components.get(name.replace("tokenizer", "text_encoder"))
        if not name.startswith("tokenizer") or tokenizer is None or encoder is None:
            continue
        if "clip" in type(tokenizer).__name__.lower():
            limit = min(tokenizer.model_max_length, _CLIP_TOKENS)
        else:
            limit = resolved.card.text_length - _tokens_of_template(pipeline, tokenizer)
        for field in ("prompt", "negative_prompt"):
            ids = tokenizer(getattr(resolved.request, field), truncation=False, verbose=False).input_ids
            if len(ids) > limit:
                kept = limit - (ids[-1] in tokenizer.all_special_ids)  # a mark at the end is never cut
                tail = tokenizer.decode(ids[kept:], skip_special_tokens=True).strip()
                shown = tail if len(tail) <= 120 else f"{tail[:50]} … {tail[-60:]}"
                notices.append(
                    f"{field}: {type(encoder).__name__} reads {limit} tokens, {tokenizer.num_special_tokens_to_add()} "
                    f"of them marks, of the {len(ids)} given; cut off: “{shown}”."
                )
    return tuple(notices)


def _tokens_of_template(pipeline: diffusers.DiffusionPipeline, tokenizer: PreTrainedTokenizerBase) -> int:
    """How many of a pipeline's text tokens its template takes before the prompt begins."""
    match type(pipeline).__name__:
        case "QwenImagePipeline":
            before = pipeline.prompt_template_encode.partition("{}")[0]
            return max(0, len(tokenizer(before).input_ids) - pipeline.prompt_template_encode_start_idx)
        case "Flux2KleinPipeline" | "ZImagePipeline":
            messages = [{"role": "user", "content": _PROMPT}]
        case "Flux2Pipeline":
            said = {"system": pipeline.system_message, "user": _PROMPT}
            messages = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in said.items()]
        case "SanaPipeline":
            return 1  # with its long instruction, which has room of its own, the prompt gets one token less
        case _:
            return 0
    before = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True).partition(_PROMPT)[0]
    return len(tokenizer(before, add_special_tokens=False).input_ids)
