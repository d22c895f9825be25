"""tpu_ui against plain diffusers: the same weights, seeds and device, in one process, in turn."""

import contextlib
import inspect
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import diffusers
import torch

from tpu_ui.compiled_modules import modules_to_compile
from tpu_ui.loading import load_pipeline
from tpu_ui.manager import PipelineManager
from tpu_ui.modes import ExecutionMode
from tpu_ui.pipeline_kinds import guidance_argument
from tpu_ui.placement import Placement
from tpu_ui.request import GenerationRequest
from tpu_ui.resolution import ResolvedRequest
from tpu_ui.runtime import Runtime
from tpu_ui.sources import Fetching

_MAX_PASSES = 6
_OTHER_STEPS = (1, 3, 7)  # added to the step count, to see what new counts compile


@dataclass(frozen=True)
class Moves:
    """Bytes of weights that were copied."""

    to_device: int = 0
    to_host: int = 0

    def __sub__(self, earlier: "Moves") -> "Moves":
        return Moves(self.to_device - earlier.to_device, self.to_host - earlier.to_host)


@dataclass(frozen=True)
class Side:
    """One of the two programs in one mode.

    Attributes:
        first_seconds: the first picture, weights loaded, nothing compiled in this process.
        first_graphs: graphs compiled for it.
        passes_until_warm: passes of one request until one compiled nothing.
        new_step_graphs: graphs compiled for three new step counts once warm.
        warm_seconds: the timed rounds, each with a new prompt.
        repeated_seconds: as many rounds, each with the prompt of the one before and a new seed.
        first_moves, new_prompt_moves, repeated_moves: weights moved by the first request after placing, by a timed
            round, and by one with a repeated prompt.
    """

    first_seconds: float
    first_graphs: int
    passes_until_warm: int
    new_step_graphs: int
    warm_seconds: tuple[float, ...]
    repeated_seconds: tuple[float, ...]
    first_moves: Moves
    new_prompt_moves: Moves
    repeated_moves: Moves


@dataclass(frozen=True)
class Comparison:
    """Plain diffusers and tpu_ui in one mode; `ratios` are tpu_ui's wall time over plain's, round by round."""

    mode: str
    placement: str
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


def compare(
    manager: PipelineManager, request: GenerationRequest, mode: ExecutionMode, placement: Placement, rounds: int
) -> Comparison:
    """Measure one mode under one placement, which both sides have: SINGLE or CPU_OFFLOAD.

    Raises:
        TpuUiError: the request cannot run.
    """
    fields = _fields(request) | {"mode": mode.value, "placement": placement.value}
    resolved, source = manager.resolver.resolve(GenerationRequest.from_mapping(fields), Fetching())
    pipeline = load_pipeline(source.folder, getattr(torch, resolved.dtype), lambda *_: None)
    steps = resolved.request.steps
    sides = {"plain": _Plain(manager, pipeline, resolved), "tpu_ui": _Ours(manager)}
    prompts = (f"{request.prompt} {number:03}" for number in itertools.count())

    def run(side: "_Plain | _Ours", steps: int = steps) -> None:
        """With a new prompt each time, since tpu_ui keeps what the text encoders gave to the last ones."""
        side.run(replace(resolved.request, prompt=next(prompts), steps=steps))

    warm_ups, moves = {}, {}
    for name, side in sides.items():
        _forget_graphs(manager)  # neither side may live on the other's graphs
        manager.leave_device()  # nor may this mode's first request on the weights of the one before
        warm_ups[name] = _warm(manager.runtime, lambda steps, side=side: run(side, steps), side, steps)
    timed: dict[str, list[float]] = {name: [] for name in sides}
    repeated: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        run(side)
    for number in range(rounds):
        for name in list(sides)[:: 1 if number % 2 else -1]:
            side, asked = sides[name], replace(resolved.request, prompt=next(prompts))
            counted = side.moves
            timed[name].append(_seconds(side.run, asked))
            new_prompt, counted = side.moves - counted, side.moves
            repeated[name].append(_seconds(side.run, replace(asked, seed=asked.seed + 1)))
            moves[name] = (new_prompt, side.moves - counted)
    plain, ours = (
        Side(*warm_ups[name][:4], tuple(timed[name]), tuple(repeated[name]), warm_ups[name][4], *moves[name])
        for name in sides
    )
    return Comparison(mode.value, placement.value, plain, ours)


class _Ours:
    """tpu_ui's side."""

    def __init__(self, manager: PipelineManager) -> None:
        self._manager = manager
        self.moves = Moves()

    def run(self, request: GenerationRequest) -> None:
        report = self._manager.generate(request, lambda _: None, lambda: False).report
        self.moves = Moves(self.moves.to_device + report.moved_bytes, 0)


class _Plain:
    """Plain diffusers' side: the pipeline as it is, placed and compiled as diffusers' documentation does it."""

    def __init__(
        self, manager: PipelineManager, pipeline: diffusers.DiffusionPipeline, resolved: ResolvedRequest
    ) -> None:
        self._runtime = manager.runtime
        self._pipeline = pipeline
        self._resolved = resolved
        self.moves = Moves()
        placement = resolved.request.placement
        if placement is Placement.CPU_OFFLOAD:
            pipeline.enable_model_cpu_offload(device=self._runtime.torch_device)
        else:
            pipeline.to(self._runtime.torch_device)
        if resolved.request.mode is ExecutionMode.COMPILED:
            for module in modules_to_compile(pipeline, placement):
                backend = "tpu" if self._runtime.kind.startswith("tpu") else "inductor"
                module.compile(backend=backend, fullgraph=True, dynamic=False)

    def run(self, request: GenerationRequest) -> None:
        fused = request.mode is ExecutionMode.FUSED_EAGER
        # It compiles its model and leaves the eager mode at its default, DEFER_NEVER.
        self._runtime.set_mode(ExecutionMode.FUSED_EAGER if fused else ExecutionMode.STRICT_EAGER)
        offered = {
            "height": request.height,
            "width": request.width,
            "num_inference_steps": request.steps,
            guidance_argument(type(self._pipeline).__name__): request.guidance,
            "generator": torch.Generator("cpu").manual_seed(request.seed),
            "max_sequence_length": self._resolved.card.text_length,
            "use_resolution_binning": False,
        }
        taken = inspect.signature(self._pipeline.__call__).parameters
        with self._counting_moves():
            self._pipeline(request.prompt, **{name: value for name, value in offered.items() if name in taken})

    @contextlib.contextmanager
    def _counting_moves(self) -> Iterator[None]:
        """Count what torch.nn.Module.to moves, which is all that CPU offload does."""
        to = torch.nn.Module.to

        def counted(module: torch.nn.Module, *args: object, **kwargs: object) -> torch.nn.Module:
            before = _bytes_off_host(module)
            moved = to(module, *args, **kwargs)
            change = _bytes_off_host(module) - before
            self.moves = Moves(self.moves.to_device + max(0, change), self.moves.to_host + max(0, -change))
            return moved

        torch.nn.Module.to = counted
        try:
            yield
        finally:
            torch.nn.Module.to = to


def _bytes_off_host(module: torch.nn.Module) -> int:
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return sum(tensor.nbytes for tensor in tensors.values() if tensor.device.type != "cpu")


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


def _warm(
    runtime: Runtime, run: Callable[[int], None], side: _Plain | _Ours, steps: int
) -> tuple[float, int, int, int, Moves]:
    """First seconds, first graphs, passes until warm, graphs for new step counts, and what the first pass moved."""
    counted, moved = runtime.counters().compiles, side.moves
    first_seconds = _seconds(run, steps)
    first_graphs, first_moves = runtime.counters().compiles - counted, side.moves - moved
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
    return first_seconds, first_graphs, passes, runtime.counters().compiles - counted, first_moves


def _seconds(run: Callable[..., None], asked: object) -> float:
    started = time.perf_counter()
    run(asked)
    return time.perf_counter() - started


def _fields(request: GenerationRequest) -> dict:
    return {name: value for name, value in asdict(request).items() if name != "notices" and value is not None}
