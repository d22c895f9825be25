"""`bench`: what tpu_ui costs and saves against plain diffusers."""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tpu_ui.catalogue import default_model_on
from tpu_ui.cli.running import chosen_settings, results_on_stdout
from tpu_ui.cli.values import integer
from tpu_ui.errors import InvalidRequest
from tpu_ui.hardware import choose_device
from tpu_ui.modes import ExecutionMode, parse_mode
from tpu_ui.request import GenerationRequest
from tpu_ui.runtime import start_runtime
from tpu_ui.shapes import parse_size


def run(options: argparse.Namespace) -> int:
    """Measure each mode and print a table, or with --json everything."""
    rounds = integer("rounds", options.rounds)
    if not 1 <= rounds <= 1000:
        raise InvalidRequest("rounds", f"{rounds} is out of range.", "Give 1 to 1000.")
    kind = choose_device(options.device).kind
    width, height = parse_size(options.size) if options.size else (None, None)
    request = GenerationRequest(
        prompt="a small red star left of a large blue circle",
        model=options.model,
        width=width,
        height=height,
        steps=integer("steps", options.steps),
        seed=0,
    )
    if options.mode:
        modes = [parse_mode(options.mode)]
    else:
        modes = [mode for mode in ExecutionMode if kind.startswith("tpu") or mode is not ExecutionMode.FUSED_EAGER]
    with results_on_stdout() as results, tempfile.TemporaryDirectory() as cache_dir:
        settings = replace(chosen_settings(options), cache_dir=Path(cache_dir))  # the user's own graphs are left alone
        runtime = start_runtime(kind, settings)
        from tpu_ui import bench
        from tpu_ui.manager import PipelineManager

        manager = PipelineManager(runtime, settings, default_model_on(kind))
        rows = []
        for mode in modes:
            print(f"bench: {mode.label} ...", file=sys.stderr, flush=True)
            row = bench.compare(manager, request, mode, rounds).as_dict()
            row["restart"] = bench.restart(kind, GenerationRequest.from_mapping(_fields(request, mode)))
            rows.append(row)
        manager.close()
        if options.json:
            print(json.dumps({"device": kind, "versions": runtime.toolchain(), "modes": rows}, indent=2), file=results)
        else:
            print(_table(rows), file=results)
    return 0


def _fields(request: GenerationRequest, mode: ExecutionMode) -> dict:
    names = ("prompt", "model", "width", "height", "steps", "seed")
    return {name: getattr(request, name) for name in names} | {"mode": mode.value}


def _table(rows: list[dict]) -> str:
    lines = [
        "| mode | wall, tpu_ui / plain (min to max) | warm seconds, plain / tpu_ui | graphs first, plain / tpu_ui "
        "| passes until warm | graphs for 3 new step counts | restart: graphs, first picture |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        plain, ours, again = row["plain"], row["tpu_ui"], row["restart"]
        lines.append(
            f"| {row['mode']} | {row['wall_ratio']:.2f} ({row['wall_ratio_min']:.2f} to {row['wall_ratio_max']:.2f}) "
            f"| {statistics.median(plain['warm_seconds']):.3f} / {statistics.median(ours['warm_seconds']):.3f} "
            f"| {plain['first_graphs']} / {ours['first_graphs']} "
            f"| {plain['passes_until_warm']} / {ours['passes_until_warm']} "
            f"| {plain['new_step_graphs']} / {ours['new_step_graphs']} "
            f"| {again['second_process_compiles']}, {again['second_process_seconds']:.1f} s "
            f"(first process {again['first_process_compiles']}, {again['first_process_seconds']:.1f} s) |"
        )
    return "\n".join(lines)
