"""What tensor parallel can split, over how many devices, and why not. Plain: reads configurations, starts nothing."""

from collections.abc import Sequence

from tpu_ui.errors import InvalidRequest, ModeNotAllowed, shown
from tpu_ui.modes import ExecutionMode
from tpu_ui.placement import Placement
from tpu_ui.planner.parts import Part
from tpu_ui.planner.plan import TENSOR_PARALLEL_CLASSES, can_be_split
from tpu_ui.request import GenerationRequest

MAX_DEVICES = 256


def parse_devices(text: str) -> int | None:
    """Read the number of devices as a user writes it; None is `auto`.

    Raises:
        InvalidRequest: neither `auto` nor a number from 1 to MAX_DEVICES.
    """
    if text.strip().lower() == "auto":
        return None
    if not text.strip().isdecimal() or not 1 <= int(text) <= MAX_DEVICES:
        raise InvalidRequest(
            "tensor-parallel", f"{shown(text)} is no number of devices.", f"Give auto, or 1 to {MAX_DEVICES}."
        )
    return int(text)


def allowed_devices(parts: Sequence[Part], most: int = MAX_DEVICES) -> tuple[int, ...]:
    """Over how many devices the transformer among a pipeline's parts can be split, up to `most`; empty if it cannot.

    A device gets whole attention heads, so their number must be divided evenly.
    """
    transformer = _transformer(parts)
    if transformer is None:
        return ()
    heads = transformer.config.get("num_attention_heads")
    limit = min(most, heads) if type(heads) is int else most
    return tuple(devices for devices in range(1, limit + 1) if can_be_split(transformer, devices))


def check_group_request(request: GenerationRequest, label: str, parts: Sequence[Part], devices: int) -> None:
    """Refuse what a group of processes, one a device, cannot run.

    Args:
        request: with its mode filled in.
        label: the model's name for people.
        parts: empty where they are not known yet.
        devices: how many are in the group.

    Raises:
        ModeNotAllowed: a mode, placement or pipeline without tensor parallel.
        InvalidRequest: a number of devices that does not divide the heads.
    """
    if request.placement not in (Placement.AUTO, Placement.TENSOR_PARALLEL):
        raise ModeNotAllowed(
            f"placement: {request.placement.value} is for one device, and this is tensor parallel over {devices}.",
            "Choose auto or tensor_parallel, or start without --tensor-parallel.",
        )
    if request.mode is not None:
        check_group_mode(request.mode)
    if not parts:
        return  # nothing of the model is known yet
    allowed = allowed_devices(parts)
    if not allowed:
        raise ModeNotAllowed(
            f"tensor-parallel: {label} cannot be split: diffusers has a plan only for the transformers of FLUX.1, "
            "FLUX.2 and Qwen-Image.",
            "Choose one of these, or start without --tensor-parallel.",
        )
    if devices not in allowed:
        raise InvalidRequest(
            "tensor-parallel",
            f"{devices} devices do not divide the {_heads(parts)} attention heads of {label}.",
            f"Start with {' or '.join(map(str, (n for n in allowed if n > 1))) or 'one device'}.",
        )


def check_group_mode(mode: ExecutionMode) -> None:
    """Refuse a mode that processes cannot run together.

    Raises:
        ModeNotAllowed: it is fused eager.
    """
    if mode is ExecutionMode.FUSED_EAGER:
        raise ModeNotAllowed(
            "mode: fused eager cuts its programs in each process by itself; were they cut differently, the processes "
            "would wait for one another for ever.",
            "Choose compile or strict under tensor parallel.",
        )


def check_group_loras(request: GenerationRequest) -> None:
    """Refuse LoRAs, before they are looked for.

    Raises:
        InvalidRequest: there are some.
    """
    if request.loras:
        raise InvalidRequest(
            "loras", "cannot be merged into weights that are split over devices.", "Leave them out, or use one device."
        )


def check_lone_request(request: GenerationRequest) -> None:
    """Refuse tensor parallel where this process is alone.

    Raises:
        ModeNotAllowed: it was asked for.
    """
    if request.placement is Placement.TENSOR_PARALLEL:
        raise ModeNotAllowed(
            "placement: tensor_parallel needs one process for each chip, and this program runs in one.",
            "Start app.py with --tensor-parallel, or choose auto.",
        )


def _transformer(parts: Sequence[Part]) -> Part | None:
    for part in parts:
        if part.class_name in TENSOR_PARALLEL_CLASSES and part.class_name.endswith("Transformer2DModel"):
            return part
    return None


def _heads(parts: Sequence[Part]) -> int:
    transformer = _transformer(parts)
    return transformer.config["num_attention_heads"] if transformer is not None else 0
