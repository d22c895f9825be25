"""tpu_ui against plain diffusers: the same weights, seeds and device, in one process, in turn."""

import inspect
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import diffusers
import torch

from tpu_ui.compiled_modules import denoisers
from tpu_ui.loading import load_pipeline
from tpu_ui.manager import PipelineManager
from tpu_ui.modes import ExecutionMode
from tpu_ui.pipeline_kinds import guidance_argument
from tpu_ui.request import GenerationRequest
from tpu_ui.resolution import ResolvedRequest
from tpu_ui.runtime import Runtime
from tpu_ui.sources import Fetching

_MAX_PASSES = 6
_OTHER_STEPS = (1, 3, 7)  # added to the step count, to see what new counts compile


@dataclass(frozen=True)
class Side:
    """One of the two programs in one mode.

    Attributes:
        first_seconds: the first picture, weights loaded, nothing compiled in this process.
        first_graphs: graphs compiled for it.
        passes_until_warm: passes of one request until one compiled nothing.
        new_step_graphs: graphs compiled for three new step counts once warm.
        warm_seconds: the timed rounds.
    """

    first_seconds: float
    first_graphs: int
    passes_until_warm: int
    new_step_graphs: int
    warm_seconds: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """Plain diffusers and tpu_ui in one mode; `ratios` are tpu_ui's wall time over plain's, round by round."""

    mode: str
    plain: Side
    tpu_ui: Side

    @property
    def ratios(self) -> list[float]:
        return [ours / plain for ours, plain in zip(self.tpu_ui.warm_seconds, self.plain.warm_seconds, strict=True)]

    def as_dict(self) -> dict:
        ratios = sorted(self.ratios)
        return asdict(self) | {
            "wall_ratio": statistics.median(ratios),
            "wall_ratio_min": ratios[0],
            "wall_ratio_max": ratios[-1],
        }


def compare(manager: PipelineManager, request: GenerationRequest, mode: ExecutionMode, rounds: int) -> Comparison:
    """Measure one mode. The request's placement is one chip, since plain pipelines are placed so.

    Raises:
        TpuUiError: the request cannot run.
    """
    request = GenerationRequest.from_mapping(_fields(request) | {"mode": mode.value, "placement": "single"})
    resolved, source = manager.resolver.resolve(request, Fetching())
    runtime = manager.runtime
    pipeline = load_pipeline(source.folder, getattr(torch, resolved.dtype), lambda *_: None)
    pipeline.to(runtime.torch_device)
    if mode is ExecutionMode.COMPILED:
        for module in denoisers(pipeline).values():
            backend = "tpu" if runtime.kind.startswith("tpu") else "inductor"
            module.compile(backend=backend, fullgraph=True, dynamic=False)

    numbers = itertools.count()

    def new_prompt(steps: int) -> GenerationRequest:
        """Each time another, since tpu_ui keeps what the text encoders gave to the last ones."""
        return replace(resolved.request, prompt=f"{request.prompt} {next(numbers)}", steps=steps)

    def plain(steps: int) -> None:
        _plain_eager_mode(runtime, mode)
        _run_plain(pipeline, resolved, new_prompt(steps))

    def ours(steps: int) -> None:
        manager.generate(new_prompt(steps), lambda _: None, lambda: False)

    steps = resolved.request.steps
    warm_ups = {}
    for name, run in (("plain", plain), ("ours", ours)):
        _forget_graphs(manager)  # neither side may live on the other's graphs
        warm_ups[name] = _warm(runtime, run, steps)
    for run in (plain, ours):
        run(steps)
    timed: dict[str, list[float]] = {"plain": [], "ours": []}
    for round_number in range(rounds):
        sides = (("plain", plain), ("ours", ours))
        for name, run in sides if round_number % 2 else reversed(sides):
            timed[name].append(_seconds(run, steps))
    return Comparison(
        mode.value,
        plain=Side(*warm_ups["plain"], tuple(timed["plain"])),
        tpu_ui=Side(*warm_ups["ours"], tuple(timed["ours"])),
    )


def _forget_graphs(manager: PipelineManager) -> None:
    manager.runtime.drop_graphs()
    manager.ledger.graphs_dropped()
    manager.cache.remove(manager.cache.files())


def restart(device: str, request: GenerationRequest) -> dict[str, float]:
    """Run a request in two processes that share a fresh cache folder; what the second one compiled, and its time."""
    fields = _fields(request)
    with tempfile.TemporaryDirectory() as folder:
        fields["out"] = str(Path(folder) / "out.png")
        line = json.dumps(fields)
        first, second = (_in_new_process(device, line, folder) for _ in range(2))
    return {
        "first_process_compiles": first["new_compiles"],
        "first_process_seconds": first["timings"]["total"],
        "second_process_compiles": second["new_compiles"],
        "second_process_seconds": second["timings"]["total"],
    }


def _in_new_process(device: str, line: str, cache_dir: str) -> dict:
    command = [sys.executable, "-m", "tpu_ui", "generate", "--device", device, "--requests", "-"]
    environment = os.environ | {"TPU_UI_CACHE_DIR": cache_dir}
    done = subprocess.run(command, input=line, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def _warm(runtime: Runtime, run: Callable[[int], None], steps: int) -> tuple[float, int, int, int]:
    """First seconds, first graphs, passes until warm, graphs for new step counts."""
    counted = runtime.counters().compiles
    first_seconds = _seconds(run, steps)
    first_graphs = runtime.counters().compiles - counted
    passes = 1
    while passes < _MAX_PASSES:
        counted = runtime.counters().compiles
        run(steps)
        if runtime.counters().compiles == counted:
            break
        passes += 1
    counted = runtime.counters().compiles
    for more in _OTHER_STEPS:
        run(steps + more)
    return first_seconds, first_graphs, passes, runtime.counters().compiles - counted


def _seconds(run: Callable[[int], None], steps: int) -> float:
    started = time.perf_counter()
    run(steps)
    return time.perf_counter() - started


def _plain_eager_mode(runtime: Runtime, mode: ExecutionMode) -> None:
    """Plain diffusers compiles its model and leaves the eager mode at its default, DEFER_NEVER."""
    runtime.set_mode(ExecutionMode.FUSED_EAGER if mode is ExecutionMode.FUSED_EAGER else ExecutionMode.STRICT_EAGER)


def _run_plain(pipeline: diffusers.DiffusionPipeline, resolved: ResolvedRequest, request: GenerationRequest) -> None:
    offered = {
        "height": request.height,
        "width": request.width,
        "num_inference_steps": request.steps,
        guidance_argument(type(pipeline).__name__): request.guidance,
        "generator": torch.Generator("cpu").manual_seed(request.seed),
        "max_sequence_length": resolved.card.text_length,
        "use_resolution_binning": False,
    }
    taken = inspect.signature(pipeline.__call__).parameters
    pipeline(request.prompt, **{name: value for name, value in offered.items() if name in taken})


def _fields(request: GenerationRequest) -> dict:
    return {name: value for name, value in asdict(request).items() if name != "notices" and value is not None}
