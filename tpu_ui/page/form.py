"""The form of the Generate tab as a request's names and values, and back."""

import json
import os
from typing import Any

from tpu_ui.errors import InvalidRequest
from tpu_ui.lora import lines_of
from tpu_ui.model_card import ModelCard
from tpu_ui.page.uploads import uploaded
from tpu_ui.request import MAX_SEED, GenerationRequest
from tpu_ui.resolution import DEFAULT_STRENGTH

FIELDS = (
    "prompt", "negative_prompt", "model", "mode", "placement",
    "width", "height", "steps", "guidance", "seed", "batch", "loras",
    "image", "strength",
)  # fmt: skip
"""The order in which the form's controls are given to handlers."""

_WHOLE_NUMBERS = ("width", "height", "steps", "batch")
_NUMBERS = (*_WHOLE_NUMBERS, "guidance")
_KEPT_CHARACTERS = 200_000


def values(*controls: Any) -> dict[str, Any]:
    """Names and values from the form's controls, in the order of FIELDS. An empty control is the default.

    Raises:
        InvalidRequest: the seed is not a number, or the picture was not uploaded. The rest is checked by the
            request itself.
    """
    form = dict(zip(FIELDS, controls, strict=True))
    for name in _WHOLE_NUMBERS:
        form[name] = whole(form[name])
    form["seed"] = seed(form["seed"])
    form["prompt"] = form["prompt"] or ""
    form["negative_prompt"] = form["negative_prompt"] or ""
    form["image"] = uploaded(form["image"])
    if form["image"] is None:
        form["strength"] = None  # its slider always has a value
    if not form["loras"] or isinstance(form["loras"], str):
        form["loras"] = lines_of(form["loras"] or "") or None
    return {name: value for name, value in form.items() if (value is not None and value != "") or "prompt" in name}


def seed(text: object) -> int | None:
    """A seed from its text field; text, because a browser rounds numbers above 2^53.

    Raises:
        InvalidRequest: the text is not a whole number.
    """
    stripped = str(text).strip() if text is not None else ""
    if not stripped:
        return None
    try:
        return int(stripped, 10)
    except ValueError:
        raise InvalidRequest(
            "seed",
            f"{stripped!r:.40} is not a whole number.",
            f"Give 0 to {MAX_SEED}, or leave it empty for a random one.",
        ) from None


def whole(value: object) -> object:
    """A browser's number field gives 4.0 for 4; 4.5 stays what it is and is refused by the request."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def from_request(request: GenerationRequest, model_id: str) -> dict[str, Any]:
    """Values for the form's controls from a request."""
    restored = {name: getattr(request, name) for name in FIELDS}
    restored["model"] = model_id
    restored["mode"] = request.mode.value if request.mode is not None else None
    restored["placement"] = request.placement.value
    restored["loras"] = "\n".join(map(str, request.loras))
    if request.image is not None and not os.path.isfile(request.image):
        restored["image"] = None
    restored["strength"] = request.strength or DEFAULT_STRENGTH
    restored["seed"] = "" if request.seed is None else str(request.seed)
    return restored


def from_storage(text: object) -> tuple[str, dict[str, Any]]:
    """The page and its form's values, from the JSON that a browser kept: {"page": ..., "form": {name: value}}.

    What has another type than its control's value is left out, whatever it is: anything may stand in a browser.
    """
    try:
        content = json.loads(text) if isinstance(text, str) and len(text) <= _KEPT_CHARACTERS else None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("form"), dict):
        return "", {}
    values = {name: content["form"][name] for name in FIELDS if name in content["form"]}
    return str(content.get("page")), {name: value for name, value in values.items() if _fits_control(name, value)}


def _fits_control(name: str, value: object) -> bool:
    if name in _NUMBERS or name == "strength":
        low, high = (0.01, 1) if name == "strength" else (-1e9, 1e9)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
        return is_number or (value is None and name != "strength")
    if value is None:
        return name == "image"
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def size_value(width: int, height: int) -> str:
    return f"{width}x{height}"


def size_choices(card: ModelCard, states: dict[tuple[int, int], str], marks: dict[str, str]) -> list[tuple[str, str]]:
    """Labels and values of the named sizes, each with its warm-up state where that is known."""
    choices = []
    for size in card.ladder:
        state = states.get((size.width, size.height))
        told = f"\n{marks[state]}" if state is not None else "\n "
        choices.append((f"{size.aspect} · {size.width}×{size.height}{told}", size_value(size.width, size.height)))
    return choices
