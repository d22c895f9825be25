"""Once a shape is warm, nothing that is not in its key compiles anything; and what is in the key is found again."""

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from tpu_ui.errors import UnexpectedCompile
from tpu_ui.placement import Placement

MODES = ("strict", "fused", "compile")


requests = st.fixed_dictionaries(
    {
        "model": st.sampled_from(("sd3", "flux", "sdxl")),
        "mode": st.sampled_from(MODES),
        "placement": st.sampled_from(("single", "cpu_offload")),
        "height": st.sampled_from((64, 96)),
        "prompt": st.text(max_size=40),
        "negative_prompt": st.sampled_from(("", "blue")),
        "seed": st.integers(0, 2**63 - 1),
        "steps": st.integers(1, 6),
        "guidance": st.floats(1.5, 9.0),
    }
)


@hypothesis.settings(max_examples=6, deadline=None, derandomize=True)
@hypothesis.given(st.lists(st.one_of(requests, requests, st.just("graphs dropped")), min_size=2, max_size=7))
def test_any_sequence_keeps_its_promises(generate, manager, runtime, sequence):
    """Also where the graphs in memory are dropped in between, as when a pipeline makes room for another."""
    broken_before = manager.ledger.promises()["broken"]
    warm, known = set(), set()
    for fields in sequence:
        if fields == "graphs dropped":
            runtime.drop_graphs()
            manager.ledger.graphs_dropped()
            warm.clear()
            continue
        shape = tuple(fields[name] for name in ("model", "mode", "placement", "height"))
        report = generate(**fields).report
        if shape in known:
            assert report.state_before == ("warm" if shape in warm else "on_disk"), (shape, sequence)
        if report.state_before in ("warm", "on_disk"):
            assert report.new_compiles == 0, (shape, sequence)
        warm.add(shape)
        known.add(shape)
    assert manager.ledger.promises()["broken"] == broken_before


def test_more_shapes_than_dynamo_allows_by_itself(runtime):
    """Dynamo's own limit is 8 shapes of one function; beyond it a full graph is an error."""
    compiled = runtime.compile(lambda rows: rows * 2 + 1)
    for rows in range(1, 12):
        assert compiled(torch.ones(rows, 4).to(runtime.torch_device)).shape == (rows, 4)
    with runtime.forbid_recompiles():
        compiled(torch.ones(1, 4).to(runtime.torch_device))
    with pytest.raises(UnexpectedCompile), runtime.forbid_recompiles():
        compiled(torch.ones(99, 4).to(runtime.torch_device))


@pytest.mark.parametrize("model", ["flux", "flux2-klein"])
def test_a_flux_transformer_shares_its_graph_between_orientations(generate, manager, model):
    """It sees a number of tokens: after 96x64, 64x96 compiles nothing in the denoiser."""
    from tpu_ui.graphs import Stage
    from tpu_ui.request import GenerationRequest

    wide = generate(model=model, mode="compile", width=96, height=64)
    tall = GenerationRequest(model=wide.request.model, mode="compile", width=64, height=96)
    resolved, _ = manager.foresee(tall)
    keys = resolved.graph_keys(manager.toolchain)
    assert manager.ledger.state(keys[Stage.DENOISER]).value == "warm"
    with manager.runtime.forbid_recompiles():  # the latents and the decoder, outside torch.compile, are new
        report = generate(model=model, mode="compile", width=64, height=96).report
    denoiser = manager.ledger.record(keys[Stage.DENOISER].digest)
    assert report.ok
    assert denoiser.key.tokens == 24 * 16
    assert report.placement == Placement.SINGLE
