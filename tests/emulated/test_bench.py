"""What bench counts: the moves of weights of both sides, under CPU offload."""

from dataclasses import replace

import pytest
import torch

from tpu_ui import bench
from tpu_ui.loading import load_pipeline, weight_bytes
from tpu_ui.request import GenerationRequest


@pytest.fixture
def asked(tiny_models):
    fields = {"prompt": "moved", "width": 64, "height": 64, "steps": 2, "seed": 0, "placement": "cpu_offload"}
    return GenerationRequest.from_mapping(fields | {"model": str(tiny_models / "flux"), "mode": "strict"})


def test_plain_offload_moves_all_weights_there_and_back_for_each_request(manager, asked):
    resolved, source = manager.resolver.resolve(asked)
    pipeline = load_pipeline(source.folder, torch.float32, lambda *_: None)
    plain = bench._Plain(manager, pipeline, resolved)
    weights, to = weight_bytes(pipeline), torch.nn.Module.to
    plain.run(resolved.request)
    first = plain.moves
    assert first.to_device == first.to_host
    assert weights <= first.to_device < 1.1 * weights  # it copies tied embeddings twice
    plain.run(resolved.request)
    assert plain.moves - first == first
    assert torch.nn.Module.to is to


def test_tpu_ui_moves_them_once(manager, asked):
    resolved, _ = manager.resolver.resolve(asked)
    ours = bench._Ours(manager)
    manager._residency.evict_all()
    ours.run(resolved.request)
    (loaded,) = manager._residency._pipelines.values()
    assert ours.moves == bench.Moves(loaded.weight_bytes, 0)
    ours.run(resolved.request)
    assert ours.moves == bench.Moves(loaded.weight_bytes, 0)
    manager.leave_device()
    ours.run(replace(resolved.request, prompt="moved again"))
    assert ours.moves == bench.Moves(2 * loaded.weight_bytes, 0)
