"""`plan`: what a model needs, and where it fits, before any of it is loaded."""

import argparse
import json

from tpu_ui import hardware
from tpu_ui.catalogue import default_model_on
from tpu_ui.cli.show import print_table
from tpu_ui.cli.values import integer
from tpu_ui.errors import InvalidRequest
from tpu_ui.modes import ExecutionMode
from tpu_ui.placement import Placement
from tpu_ui.planner.models import KnownModel, find_known_model, plan_of
from tpu_ui.planner.plan import Decision, Plan, Target, gib
from tpu_ui.request import GenerationRequest
from tpu_ui.resolution import resolve
from tpu_ui.settings import read_settings
from tpu_ui.shapes import parse_size

_KIND = "tpu"
_USUAL_CHIP = "v6e"
_MOST_CHIPS = 256


def run(options: argparse.Namespace) -> int:
    target = _target(options)
    width, height = (None, None) if options.size is None else parse_size(options.size)
    request = GenerationRequest(width=width, height=height, batch=integer("batch", options.batch))
    model = find_known_model(options.model or default_model_on(_KIND), _KIND, read_settings().hub_cache_dir)
    resolved = resolve(
        request,
        model.card,
        revision=model.card.revision or "",
        dtype=model.dtype,
        device_kind=_KIND,
        default_mode=ExecutionMode.COMPILED,
    )
    plan = plan_of(model.card, model.parts, model.dtype, target, resolved.request, resolved.guidance_on)
    if options.json:
        print(json.dumps(_as_dict(plan, model), indent=2))
    else:
        _tell(plan, model)
    return 0


def _target(options: argparse.Namespace) -> Target:
    host = hardware.find_tpus()
    name = options.chip or (host.chip.name if host is not None else _USUAL_CHIP)
    chips = integer("chips", options.chips)
    if not 1 <= chips <= _MOST_CHIPS:
        raise InvalidRequest("chips", f"{chips} is out of range.", f"Give 1 to {_MOST_CHIPS}.")
    return Target.of_chips(hardware.find_chip(name), chips)


def _largest_batch(plan: Plan) -> int | None:
    """None where the decision is no placement of one device."""
    if plan.decision in (Decision.SINGLE, Decision.CPU_OFFLOAD):
        return plan.largest_batch(Placement(plan.decision.value))
    return None


def _peaks(plan: Plan) -> dict[str, int]:
    """Bytes of one device at the peak, by placement."""
    peaks = {"single": plan.single_bytes, "cpu_offload": plan.offload_bytes}
    if plan.devices_needed is not None:
        peaks["tensor_parallel"] = plan.tensor_parallel_bytes(plan.devices_needed)
    return peaks


def _as_dict(plan: Plan, model: KnownModel) -> dict:
    return {
        "model": model.card.id,
        "known_from": model.known_from,
        "dtype": model.dtype,
        "width": plan.load.width,
        "height": plan.load.height,
        "batch": plan.load.batch,
        "device": plan.target.name,
        "devices": plan.target.devices,
        "device_bytes": plan.target.bytes,
        "program_bytes": plan.target.program_bytes,
        "components": [
            {
                "name": part.name,
                "class": part.class_name,
                "weight_bytes": part.weight_bytes,
                "activation_bytes": plan.activations[part.name],
            }
            for part in plan.parts
        ],
        "weight_bytes": plan.weight_bytes,
        "peak_bytes": _peaks(plan),
        "tensor_parallel_devices": plan.devices_needed,
        "decision": plan.decision.value,
        "fits": plan.decision is not Decision.NOT_POSSIBLE,
        "sentence": plan.sentence,
        "largest_batch": _largest_batch(plan),
    }


def _tell(plan: Plan, model: KnownModel) -> None:
    load = plan.load
    print(
        f"{plan.label}, {load.width}x{load.height}, batch {load.batch}, {model.dtype}; known from {model.known_from}\n"
    )
    rows = [
        {
            "component": part.name,
            "class": part.class_name,
            "bytes": f"{part.weight_bytes:,}",
            "weights": gib(part.weight_bytes),
            "activations": gib(plan.activations[part.name]),
        }
        for part in plan.parts
    ]
    rows.append(
        {
            "component": "together",
            "class": "",
            "bytes": f"{plan.weight_bytes:,}",
            "weights": gib(plan.weight_bytes),
            "activations": f"{gib(plan.largest_activations)} at most",
        }
    )
    print_table(rows, ("component", "class", "bytes", "weights", "activations"))
    over = f" over {plan.devices_needed} {plan.target.unit}s"
    rows = [
        {
            "placement": name + (over if name == "tensor_parallel" else ""),
            "peak": gib(peak),
            "available": gib(plan.target.bytes),
            "fits": "yes" if peak <= plan.target.bytes else "no",
        }
        for name, peak in _peaks(plan).items()
    ]
    print()
    print_table(rows, ("placement", "peak", "available", "fits"))
    print(f"\n{plan.decision.value.replace('_', ' ')}: {plan.sentence}.")
    batch = _largest_batch(plan)
    if batch is not None:
        print(f"One run fits up to {batch} picture(s) of this size.")
    elif plan.decision is Decision.TENSOR_PARALLEL:
        print(f"Start it with: python app.py --model {model.card.id} --tensor-parallel {plan.devices_needed}")
