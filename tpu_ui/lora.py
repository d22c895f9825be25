"""LoRAs as they are asked for: a name and a weight each, as one text `NAME[:WEIGHT]`."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from tpu_ui.errors import InvalidRequest, shown

MAX_LORAS = 8
MAX_WEIGHT = 4.0
MAX_PATH_CHARACTERS = 4096  # the longest path that Linux knows

_WEIGHT_RULE = f"Give -{MAX_WEIGHT:g} to {MAX_WEIGHT:g}."
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?|nan|inf(?:inity)?)", re.IGNORECASE)


@dataclass(frozen=True)
class Lora:
    """A LoRA and how strongly it is applied.

    Attributes:
        name: of a file in the LoRA folder, a path, or a Hub id: org/name[/file.safetensors][@revision].
        weight: -MAX_WEIGHT to MAX_WEIGHT; 0 is without it.

    Raises:
        InvalidRequest: one of them is not.
    """

    name: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        name = self.name.strip() if isinstance(self.name, str) else self.name
        if not isinstance(name, str) or not name:
            raise InvalidRequest("loras", f"{shown(self.name)} is not the name of a LoRA.", "Give a file or a Hub id.")
        if len(name) > MAX_PATH_CHARACTERS or any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
            raise InvalidRequest("loras", f"{name!r:.60} is no name of a file.", "Give a file or a Hub id.")
        weight = self.weight
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise InvalidRequest("loras", f"the weight {shown(weight)} of {name:.80} is not a number.", _WEIGHT_RULE)
        if not -MAX_WEIGHT <= weight <= MAX_WEIGHT:  # false for NaN
            raise InvalidRequest("loras", f"the weight {shown(weight)} of {name:.80} is out of range.", _WEIGHT_RULE)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "weight", float(weight))

    @classmethod
    def parse(cls, text: str) -> "Lora":
        """Read `NAME[:WEIGHT]`. A number behind the last colon is the weight, always: a name that ends like one is
        written with its weight, `odd:2:1`.
        """
        name, colon, weight = text.rpartition(":")
        if colon and _NUMBER.fullmatch(weight.strip()):
            return cls(name, float(weight))
        return cls(text)

    def __str__(self) -> str:
        """The text that `parse` reads back as the same LoRA."""
        return f"{self.name}:{repr(self.weight).removesuffix('.0')}"


def read_loras(value: object) -> tuple[Lora, ...]:
    """The LoRAs of a request: a list of texts `NAME[:WEIGHT]`, or of objects {"name": ..., "weight": ...}.

    Raises:
        InvalidRequest: it is none, has more than MAX_LORAS, or names one twice.
    """
    if not isinstance(value, list | tuple):
        raise InvalidRequest(
            "loras", f"must be a list, not {type(value).__name__}.", 'Write for example ["style:0.8"].'
        )
    if len(value) > MAX_LORAS:
        raise InvalidRequest("loras", f"{len(value)} are above the limit of {MAX_LORAS}.", "Leave some out.")
    loras = tuple(_read_one(each) for each in value)
    names = [lora.name for lora in loras]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest("loras", f"{twice:.80} is named twice.", "Name it once, with one weight.")
    return loras


def lines_of(text: str) -> list[str]:
    """LoRAs written one a line; empty lines are left out."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def _read_one(value: object) -> Lora:
    if isinstance(value, Lora):
        return value
    if isinstance(value, str):
        return Lora.parse(value)
    if isinstance(value, Mapping) and "name" in value and value.keys() <= {"name", "weight"}:
        return Lora(**value)
    raise InvalidRequest(
        "loras", f"{shown(value)} is not a LoRA.", 'Write "NAME:WEIGHT" or {"name": ..., "weight": ...}.'
    )
