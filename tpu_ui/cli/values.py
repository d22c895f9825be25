"""Text from the command line as values, with the same sentences as everywhere else."""

import argparse
from typing import Any

from tpu_ui.errors import InvalidRequest
from tpu_ui.shapes import parse_size


def integer(field: str, text: str | None) -> int | None:
    """A whole number.

    Raises:
        InvalidRequest: the text is none.
    """
    if text is None:
        return None
    try:
        return int(text, 10)
    except ValueError:
        raise InvalidRequest(field, f"{text!r:.40} is not a whole number.") from None


def number(field: str, text: str | None) -> float | None:
    """A decimal number.

    Raises:
        InvalidRequest: the text is none.
    """
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(field, f"{text!r:.40} is not a number.") from None


def request_values(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of a request that were given as options.

    Raises:
        InvalidRequest: an option's text is not a value of its kind, or two options contradict each other.
    """
    width, height = integer("width", options.width), integer("height", options.height)
    if options.size is not None:
        if width is not None or height is not None:
            raise InvalidRequest("size", "was given together with width or height.", "Give one or the other.")
        width, height = parse_size(options.size)
    values = {
        "prompt": options.prompt,
        "negative_prompt": options.negative_prompt,
        "model": options.model,
        "mode": options.mode,
        "placement": options.placement,
        "width": width,
        "height": height,
        "steps": integer("steps", options.steps),
        "guidance": number("guidance", options.guidance),
        "seed": integer("seed", options.seed),
        "batch": integer("batch", options.batch),
        "loras": options.lora,
        "image": options.image,
        "strength": number("strength", options.strength),
    }
    return {name: value for name, value in values.items() if value is not None}
