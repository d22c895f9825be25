"""LoRAs inside a picture's parameters: as they are written there, and which may be taken over from a stranger's."""

import re
from collections.abc import Iterable
from typing import Any

from tpu_ui.lora import Lora

_NAME = r"\w[\w.+\- ]{0,95}"
_PUBLIC = re.compile(rf"{_NAME}(?:/{_NAME}){{0,4}}(?:@[\w.\-/]{{1,80}})?")
_TAG = re.compile(r"<lora:([^<>\n]{1,300})>")  # A1111's <lora:name:weight>, which stands in the prompt


def public_loras(loras: Iterable[Lora]) -> tuple[Lora, ...]:
    """LoRAs without paths: of a file its name without the suffix, as those of the LoRA folder are named; a Hub id as it
    is.
    """
    named = {name: Lora(name, lora.weight) for lora in loras if (name := _public_name(lora.name))}
    return tuple(named.values())


def _public_name(name: str) -> str:
    if not _PUBLIC.fullmatch(name):  # a path from a root, a home or upwards, or with other signs
        name = re.sub(r"[^\w.+\- ]", "_", re.split(r"[/\\]+", name.rstrip("/\\ "))[-1]).lstrip(".+- ")[:96]
    return name if "/" in name else name.removesuffix(".safetensors")


def are_public(value: Any) -> bool:
    """Whether a list that stands in a picture names LoRAs without paths; the request checks the rest."""
    return isinstance(value, list) and all(
        isinstance(each, str) and _PUBLIC.fullmatch(each.rpartition(":")[0] or each) for each in value
    )


def with_tags(prompt: str, loras: Iterable[Lora]) -> str:
    """The prompt as A1111 writes it, with its LoRAs behind it."""
    tags = "".join(f"<lora:{lora}>" for lora in loras)
    return f"{prompt} {tags}".strip() if tags else prompt


def without_tags(prompt: str) -> tuple[str, list[str]]:
    """A prompt of A1111 and its LoRAs, as texts NAME:WEIGHT."""
    tags = [match[1] for match in _TAG.finditer(prompt)]
    return (_TAG.sub("", prompt).rstrip() if tags else prompt), list(dict.fromkeys(tags))
