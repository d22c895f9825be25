"""Names of models and LoRAs inside a picture's parameters: never a path from a root, a home, a drive or upwards."""

import os
import re
from collections.abc import Iterable
from typing import Any

from tpu_ui.lora import Lora

_NAME = r"\w[\w.+\- ]{0,95}"
_PUBLIC_MODEL = re.compile(rf"{_NAME}(?:/{_NAME})?")
_PUBLIC_LORA = re.compile(rf"{_NAME}(?:/{_NAME}){{0,4}}(?:@[\w.\-/]{{1,80}})?")
_TAG = re.compile(r"<lora:([^<>\n]{1,300})>")  # A1111's <lora:name:weight>, which stands in the prompt


def is_public_model(name: str) -> bool:
    """Whether it is a name or a Hub id."""
    return _PUBLIC_MODEL.fullmatch(name) is not None


def public_model_name(model: str | None) -> str | None:
    """The model's name or Hub id; of a folder or an address its last part only."""
    if model is None or is_public_model(model):
        return model
    return _last_part(re.split(r"[?#]", model)[0])


def public_loras(loras: Iterable[Lora]) -> tuple[Lora, ...]:
    """LoRAs without paths: of a file its name without the suffix, as those of the LoRA folder are named; a Hub id as it
    is.
    """
    named = {name: Lora(name, lora.weight) for lora in loras if (name := _public_lora(lora.name))}
    return tuple(named.values())


def _public_lora(name: str) -> str:
    if not _PUBLIC_LORA.fullmatch(name) or os.path.exists(name):  # a path, if only from the working folder
        name = _last_part(name) or ""
    return name if "/" in name else name.removesuffix(".safetensors")


def _last_part(path: str) -> str | None:
    last = re.split(r"[/\\]+", path.rstrip("/\\ "))[-1].rsplit("@", 1)[-1]
    return re.sub(r"[^\w.+\- ]", "_", last).lstrip(".+- ")[:96] or None


def are_public(value: Any) -> bool:
    """Whether a list that stands in a picture names LoRAs without paths; the request checks the rest."""
    return isinstance(value, list) and all(
        isinstance(each, str) and _PUBLIC_LORA.fullmatch(each.rpartition(":")[0] or each) for each in value
    )


def with_tags(prompt: str, loras: Iterable[Lora]) -> str:
    """The prompt as A1111 writes it, with its LoRAs behind it."""
    tags = "".join(f"<lora:{lora}>" for lora in loras)
    return f"{prompt} {tags}".strip() if tags else prompt


def without_tags(prompt: str) -> tuple[str, list[str]]:
    """A prompt of A1111 and its LoRAs, as texts NAME:WEIGHT."""
    tags = [match[1] for match in _TAG.finditer(prompt)]
    return (_TAG.sub("", prompt).rstrip() if tags else prompt), list(dict.fromkeys(tags))
