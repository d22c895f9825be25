"""Which graphs a request runs: the keys of everything that is known about warm-up."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum


class Stage(StrEnum):
    """The parts of a request, in the order in which they run. Each has graphs of its own."""

    TEXT = "text"  # tokenizers and text encoders
    LATENTS = "latents"  # first noise, position ids, the conditions' last preparation
    PICTURE = "picture"  # in image to image instead of LATENTS: the VAE's encoder, and noise added to what it gives
    DENOISER = "denoiser"  # transformer or UNet, and guidance
    DECODER = "decoder"  # the VAE, and the picture's way to the host


class WarmupState(StrEnum):
    """What stands between a request and its pictures. The value is the word in reports."""

    COLD = "cold"
    ON_DISK = "on_disk"
    COMPILING = "compiling"
    WARM = "warm"
    FAILED = "failed"


# From the best to the worst: a request is in the worst state of its keys.
_SEVERITY = (WarmupState.WARM, WarmupState.ON_DISK, WarmupState.COMPILING, WarmupState.COLD, WarmupState.FAILED)


def worst(states: list[WarmupState]) -> WarmupState:
    """The state of a request from those of its keys; with no key at all nothing is left to compile: warm."""
    return max(states, key=_SEVERITY.index, default=WarmupState.WARM)


# A change of these compiles nothing; a test holds the two lists apart.
NOT_IN_KEY = (
    "prompt",
    "negative_prompt",
    "seed",
    "steps",
    "guidance",
    "loras",
    "image",
    "strength",
    "image_sha256",
    "notices",
)

_CHANGES_EVERY_GRAPH = ("mode", "placement", "devices", "toolchain", "revision", "dtype", "lora")

_FIELD_WORDS = {
    "text_tokens": "text length",
    "dtype": "data type",
    "devices": "tensor parallel over",
    "tokens": "picture tokens",
    "guidance_on": "guidance on",
    "revision": "model revision",
    "lora": "LoRA set",
}


@dataclass(frozen=True)
class GraphKey:
    """Everything that decides which graphs a stage runs, and nothing else.

    Attributes:
        model, revision: the card's id, and the commit or content fingerprint of the weights.
        stage: which part of the request.
        height, width: pixels; 0 where the stage does not see them.
        tokens: picture tokens, for a denoiser that sees only their number; else 0.
        batch: pictures in one run.
        text_tokens: the fixed text length.
        guidance_on: classifier-free guidance runs the denoiser on two conditions.
        mode, placement, dtype: words as in reports.
        lora: names of active LoRAs, only where they change the graphs; merged into the weights they do not.
        devices: over how many the weights are split.
        toolchain: versions and chip as sorted (name, version) pairs.
    """

    model: str
    revision: str
    stage: str
    height: int
    width: int
    tokens: int
    batch: int
    text_tokens: int
    guidance_on: bool
    dtype: str
    mode: str
    placement: str
    toolchain: tuple[tuple[str, str], ...]
    lora: tuple[str, ...] = ()
    devices: int = 1

    @property
    def digest(self) -> str:
        """16 hexadecimal digits, the same in every process and on every machine."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        values = asdict(self)
        if self.devices == 1:  # records of one device are older than the field
            del values["devices"]
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "GraphKey":
        """Read a key back.

        Raises:
            ValueError, TypeError, KeyError: `text` is not a key of this version of the program.
        """
        values = json.loads(text)
        values["toolchain"] = tuple((name, version) for name, version in values["toolchain"])
        values["lora"] = tuple(values["lora"])
        return cls(**values)

    def differences(self, known: "GraphKey") -> tuple[str, ...]:
        """What changed from `known` to this key, in words: "height 1024→768", "torch_tpu 0.2.0→0.3.0"."""
        changes = [
            f"{_FIELD_WORDS.get(f.name, f.name)} {_word(getattr(known, f.name))}→{_word(getattr(self, f.name))}"
            for f in fields(self)
            if f.name != "toolchain" and getattr(self, f.name) != getattr(known, f.name)
        ]
        before, now = dict(known.toolchain), dict(self.toolchain)
        changes += [
            f"{name} {before.get(name, 'none')}→{now.get(name, 'none')}"
            for name in sorted({*before, *now})
            if before.get(name) != now.get(name)
        ]
        return tuple(changes)

    def distance(self, known: "GraphKey") -> tuple[int, int, int]:
        """How far `known` is: first what changes every graph, then the shape's fields, then pixels."""
        whole = sum(getattr(self, name) != getattr(known, name) for name in _CHANGES_EVERY_GRAPH)
        pixels = abs(self.height * self.width - known.height * known.width) + abs(self.height - known.height)
        return whole, len(self.differences(known)), pixels


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return "+".join(map(str, value)) or "none"
    return str(value)
