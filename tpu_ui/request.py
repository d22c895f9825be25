"""What is asked of the engine: checked once at the door, immutable, free of tensors."""

import re
import secrets
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tpu_ui.errors import InvalidRequest, shown
from tpu_ui.lora import MAX_PATH_CHARACTERS, Lora, read_loras
from tpu_ui.modes import ExecutionMode, parse_mode
from tpu_ui.placement import Placement, parse_placement

MAX_SEED = 2**63 - 1
# Below 2**53 a seed survives every JSON reader, browsers included, so drawn seeds stay there.
MAX_DRAWN_SEED = 2**53 - 1
MAX_STEPS = 200
MAX_BATCH = 16
MAX_GUIDANCE = 100.0
MAX_PROMPT_CHARACTERS = 20_000
MAX_SIDE_PX = 4096
MAX_REQUEST_PIXELS = 4096 * 4096

_KEPT_CONTROL_CHARACTERS = "\n\r\t"
_UNPRINTABLE_CATEGORIES = ("Cc", "Cs")  # control characters and lone surrogates: tokenizers fail on the latter
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class GenerationRequest:
    """One request for pictures. `None` means: the model's default.

    Attributes:
        prompt: may be empty; at most MAX_PROMPT_CHARACTERS.
        negative_prompt: what the picture should not show; has an effect only under classifier-free guidance above 1.
        model: a name of the catalogue, a folder or a Hub id; `None` is the app's default model.
        width, height: pixels; the model's own grid is checked when the model is known.
        steps: denoising steps, 1 to MAX_STEPS.
        guidance: guidance scale, 0 to MAX_GUIDANCE.
        seed: 0 to MAX_SEED; negative or None draws one. Picture i of a batch uses seed + i.
        batch: number of pictures, 1 to MAX_BATCH.
        loras: applied together; also given as texts `NAME[:WEIGHT]` (see `lora.read_loras`).
        image: path of a picture to start from instead of noise alone (image to image).
        strength: above 0, at most 1: how far from `image` it may go; that part of the steps runs.
        image_sha256: of the file `image`, 64 hexadecimal digits; where it is given, no other file will do.
        notices: what was changed on the way in, in plain sentences.
    """

    prompt: str = ""
    negative_prompt: str = ""
    model: str | None = None
    mode: ExecutionMode | None = None
    placement: Placement = Placement.AUTO
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    guidance: float | None = None
    seed: int | None = None
    batch: int = 1
    loras: tuple[Lora, ...] = ()
    image: str | None = None
    strength: float | None = None
    image_sha256: str | None = None
    notices: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        notices = list(self.notices)
        for name in ("prompt", "negative_prompt"):
            object.__setattr__(self, name, _clean_text(name, getattr(self, name), notices))
        if self.model is not None:
            _check_model(self.model)
        object.__setattr__(self, "mode", None if self.mode is None else parse_mode(self.mode))
        object.__setattr__(self, "placement", parse_placement(self.placement))
        for name in ("width", "height"):
            _check_integer(name, getattr(self, name), 1, MAX_SIDE_PX, "pixels")
        _check_integer("steps", self.steps, 1, MAX_STEPS, "steps")
        _check_integer("batch", self.batch, 1, MAX_BATCH, "pictures", required=True)
        if self.width and self.height and self.width * self.height * self.batch > MAX_REQUEST_PIXELS:
            raise InvalidRequest(
                "width × height × batch",
                f"{self.width} × {self.height} × {self.batch} is above the limit of {MAX_REQUEST_PIXELS} pixels.",
                "Ask for a smaller size or fewer pictures.",
            )
        object.__setattr__(self, "guidance", _check_guidance(self.guidance))
        _check_seed(self.seed, self.batch)
        object.__setattr__(self, "loras", read_loras(self.loras))
        _check_image(self.image, self.image_sha256)
        object.__setattr__(self, "strength", _check_strength(self.strength))
        object.__setattr__(self, "notices", tuple(notices))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "GenerationRequest":
        """Build a request from names and JSON values, as the command line, a request file and the API give them.

        Raises:
            InvalidRequest: an unknown name, or a value of the wrong type or out of range.
        """
        allowed = [f.name for f in fields(cls) if f.name != "notices"]
        unknown = sorted(f"{name!s:.40}" for name in values if name not in allowed)
        if unknown:
            raise InvalidRequest(unknown[0], "no such field in a request.", f"Fields are {', '.join(allowed)}.")
        given = {name: value for name, value in values.items() if value is not None}
        return cls(**given)

    def with_drawn_seed(self) -> "GenerationRequest":
        """The same request with a seed, drawn here if none was given or it is negative."""
        if self.seed is not None and self.seed >= 0:
            return self
        return replace(self, seed=secrets.randbelow(MAX_DRAWN_SEED - MAX_BATCH))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each picture. The request must have its seed already."""
        if self.seed is None or self.seed < 0:
            raise ValueError("call with_drawn_seed() first")
        return tuple(self.seed + i for i in range(self.batch))


def _clean_text(name: str, text: object, notices: list[str]) -> str:
    if not isinstance(text, str):
        raise InvalidRequest(name, f"must be text, not {type(text).__name__}.")
    if len(text) > MAX_PROMPT_CHARACTERS:
        raise InvalidRequest(
            name,
            f"{len(text):,} characters is above the limit of {MAX_PROMPT_CHARACTERS:,}.",
            "Shorten it: the text encoders read a few hundred tokens at most.",
        )
    kept = "".join(
        c for c in text if c in _KEPT_CONTROL_CHARACTERS or unicodedata.category(c) not in _UNPRINTABLE_CATEGORIES
    )
    if len(kept) < len(text):
        notices.append(f"{name}: {len(text) - len(kept)} control character(s) were removed.")
    return kept


def _check_model(value: object) -> None:
    remedy = "Give a name, a folder or a Hub id."
    if not isinstance(value, str) or not value.strip():
        raise InvalidRequest("model", f"{shown(value)} is not a model's name.", remedy)
    if len(value) > MAX_PATH_CHARACTERS:
        raise InvalidRequest("model", f"a name of {len(value):,} characters is no model's.", remedy)


def _check_integer(name: str, value: object, low: int, high: int, unit: str, required: bool = False) -> None:
    if value is None and not required:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(name, f"{shown(value)} is not a whole number.", f"Give {low} to {high} {unit}.")
    if not low <= value <= high:
        raise InvalidRequest(name, f"{shown(value)} is out of range.", f"Give {low} to {high} {unit}.")


def _check_guidance(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest("guidance", f"{shown(value)} is not a number.", f"Give 0 to {MAX_GUIDANCE:g}.")
    if not 0 <= value <= MAX_GUIDANCE:  # false for NaN
        raise InvalidRequest("guidance", f"{shown(value)} is out of range.", f"Give 0 to {MAX_GUIDANCE:g}.")
    return float(value)


def _check_image(path: object, sha256: object) -> None:
    is_name = isinstance(path, str) and path.strip() and "\0" not in path and len(path) <= MAX_PATH_CHARACTERS
    if path is not None and not is_name:
        raise InvalidRequest("image", f"{shown(path)} is not the name of a file.", "Give the path of a picture.")
    if sha256 is not None and not (isinstance(sha256, str) and _SHA256.fullmatch(sha256)):
        raise InvalidRequest(
            "image_sha256", f"{shown(sha256)} is not a SHA-256.", "Give 64 hexadecimal digits, or none."
        )


def _check_strength(value: object) -> float | None:
    if value is None:
        return None
    remedy = "Give a number above 0, at most 1."
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest("strength", f"{shown(value)} is not a number.", remedy)
    if not 0 < value <= 1:  # false for NaN
        raise InvalidRequest("strength", f"{shown(value)} is out of range.", remedy)
    return float(value)


def _check_seed(value: object, batch: int) -> None:
    if value is None:
        return
    remedy = f"Give a whole number from 0 to {MAX_SEED}, or a negative one to draw a seed."
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest("seed", f"{shown(value)} is not a whole number.", remedy)
    if value > MAX_SEED - (batch - 1):
        raise InvalidRequest("seed", f"{shown(value)} is above the limit (picture i uses seed + i).", remedy)
