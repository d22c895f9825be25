"""`bench`: what tpu_ui costs and saves against plain diffusers; and what replicas give."""

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
from tpu_ui.hardware import DeviceChoice, choose_device
from tpu_ui.modes import ExecutionMode, parse_mode
from tpu_ui.placement import Placement, parse_placement
from tpu_ui.replicas.starting import replica_starter
from tpu_ui.request import GenerationRequest
from tpu_ui.runtime import start_runtime
from tpu_ui.shapes import parse_size
from tpu_ui.wording import size_in_bytes

_MOVES = {
    "the first request": "first_moves",
    "a new prompt": "new_prompt_moves",
    "a repeated prompt": "repeated_moves",
}


def run(options: argparse.Namespace) -> int:
    """Measure each mode and print a table, or with --json everything."""
    rounds = integer("rounds", options.rounds)
    if not 1 <= rounds <= 1000:
        raise InvalidRequest("rounds", f"{rounds} is out of range.", "Give 1 to 1000.")
    choice = choose_device(options.device)
    kind = choice.kind
    width, height = parse_size(options.size) if options.size else (None, None)
    request = GenerationRequest(
        prompt="a small red star left of a large blue circle",
        model=options.model,
        width=width,
        height=height,
        steps=integer("steps", options.steps),
        seed=0,
    )
    placement = parse_placement(options.placement)
    placement = Placement.SINGLE if placement is Placement.AUTO else placement
    if options.replicas:
        mode = parse_mode(options.mode) if options.mode else None
        return _run_replicas(options, choice, replace(request, mode=mode, placement=placement), rounds)
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
            row = bench.compare(manager, request, mode, placement, rounds).as_dict()
            again = GenerationRequest.from_mapping(_fields(request, mode) | {"placement": placement.value})
            row["restart"] = bench.restart(kind, again)
            rows.append(row)
        manager.close()
        if options.json:
            print(json.dumps({"device": kind, "versions": runtime.toolchain(), "modes": rows}, indent=2), file=results)
        else:
            print(_table(rows), file=results)
            print(f"\n{_repeats_table(rows)}", file=results)
    return 0


def _run_replicas(options: argparse.Namespace, choice: DeviceChoice, request: GenerationRequest, rounds: int) -> int:
    """Measure replicas against one of them instead."""
    with results_on_stdout() as results, tempfile.TemporaryDirectory() as cache_dir:
        settings = replace(chosen_settings(options), cache_dir=Path(cache_dir))
        start = replica_starter(choice, settings, default_model_on(choice.kind), options.replicas)
        print("bench: replicas ...", file=sys.stderr, flush=True)
        pool = start()
        from tpu_ui.replicas.bench import measure

        try:
            row = measure(pool, request, rounds).as_dict() | {"device": choice.kind, "versions": pool.toolchain}
        finally:
            pool.close()
        print(json.dumps(row, indent=2) if options.json else _replicas_table(row), file=results)
    return 0


def _replicas_table(row: dict) -> str:
    ratio = f"{row['throughput_ratio']:.2f} ({row['throughput_ratio_min']:.2f} to {row['throughput_ratio_max']:.2f})"
    one, every = (statistics.median(row[name]) for name in ("one", "all"))
    return (
        "| replicas | clients | requests a round | requests a second, one / all | all / one (min to max) |\n"
        "|---|---|---|---|---|\n"
        f"| {row['replicas']} | {row['clients']} | {row['requests']} | {one:.2f} / {every:.2f} | {ratio} |"
    )


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


def _repeats_table(rows: list[dict]) -> str:
    """What a repeated prompt saves, and under CPU offload the weights that each request moves."""
    offload = rows[0]["placement"] == Placement.CPU_OFFLOAD
    lines = [
        "| mode | seconds, new prompt, plain / tpu_ui | seconds, repeated prompt, plain / tpu_ui |"
        + " moved by | to the device | to the host |" * offload,
        "|---|---|---|" + "---|---|---|" * offload,
    ]
    for row in rows:
        sides = (row["plain"], row["tpu_ui"])
        times = [
            " / ".join(f"{statistics.median(side[name]):.3f}" for side in sides)
            for name in ("warm_seconds", "repeated_seconds")
        ]
        start = f"| {row['mode']} | {times[0]} | {times[1]} |"
        if not offload:
            lines.append(start)
            continue
        for words, name in _MOVES.items():
            moved = [" / ".join(size_in_bytes(side[name][way]) for side in sides) for way in ("to_device", "to_host")]
            lines.append(f"{start} {words} | {moved[0]} | {moved[1]} |")
            start = "| | | |"
    return "\n".join(lines)
