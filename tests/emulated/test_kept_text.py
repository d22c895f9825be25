"""A prompt that comes again skips the text encoders: the same bits, the same promises, bounded."""

import pytest
import torch
from transformers import PreTrainedModel

from tests.emulated.test_catalogue_classes import KINDS, MODES, PLACEMENTS, SIZE
from tpu_ui.graphs import Stage
from tpu_ui.kept_text import KeptText
from tpu_ui.request import GenerationRequest


@pytest.fixture
def loaded(generate, manager, tiny_models):
    """A pipeline in memory, by the name of the tiny model."""

    def find(model: str):
        generate(model=model, mode="strict", steps=1)
        (found,) = [
            pipeline
            for (name, _), pipeline in manager._residency._pipelines.items()
            if name in (model, str(tiny_models / model))
        ]
        return found

    return find


@pytest.fixture
def encoder_calls(loaded):
    """Count the calls of a pipeline's text encoders."""

    def watch(model: str) -> list[str]:
        calls = []
        for name, module in loaded(model).pipeline.components.items():
            if isinstance(module, PreTrainedModel):
                handle = module.register_forward_pre_hook(lambda *_, name=name: calls.append(name))
                handles.append(handle)
        return calls

    handles = []
    yield watch
    for handle in handles:
        handle.remove()


# Each of the six ways with a class whose encoders differ from the others'.
@pytest.mark.parametrize(
    ("model", "mode", "placement"),
    [
        (model, MODES[i % 3], PLACEMENTS[i // 3])
        for i, model in enumerate(("sd3", "flux", "z-image", "flux2", "sdxl", "qwen-image"))
    ],
)
def test_a_repeated_prompt_skips_the_encoders_and_changes_no_bit(
    generate, loaded, encoder_calls, model, mode, placement
):
    negative = {"negative_prompt": "blue"} if KINDS[model].negative_prompt else {}
    fixed = {"model": model, **SIZE, "mode": mode, "placement": placement, "prompt": f"two dogs, {mode}", **negative}
    calls = encoder_calls(model)
    generate(**fixed, guidance=KINDS[model].guidance)
    assert calls
    for changes in ({"seed": 3}, {"steps": 5}, {"seed": 4, "steps": 2}):
        calls.clear()
        recalled = generate(**fixed, **changes, guidance=KINDS[model].guidance)
        assert calls == []
        assert (recalled.report.state_before, recalled.report.new_compiles) == ("warm", 0)
        loaded(model).kept_text.clear()
        encoded = generate(**fixed, **changes, guidance=KINDS[model].guidance)
        assert calls
        assert (encoded.report.state_before, encoded.report.new_compiles) == ("warm", 0)
        assert recalled.images[0].tobytes() == encoded.images[0].tobytes()
    for changes in (
        {"prompt": "one cat"},
        {"batch": 2},
        {"negative_prompt": "green"} if negative else {"prompt": "a bird"},
    ):
        calls.clear()
        generate(**fixed | changes, guidance=KINDS[model].guidance)
        assert calls, f"{changes} is other text"


@pytest.mark.parametrize(("model", "mode"), [("sd3", "fused"), ("flux", "compile"), ("sdxl", "strict")])
@pytest.mark.slow
def test_a_new_size_is_made_warm_with_text_that_was_kept(generate, manager, runtime, encoder_calls, model, mode):
    """Its own passes must not depend on whether the encoders ran in them."""
    fixed = {"model": model, "mode": mode, "placement": "cpu_offload", "prompt": f"three birds, {mode}"}
    generate(**fixed)
    calls = encoder_calls(model)
    new_size = {"width": 128, "height": 80}
    resolved, _ = manager.foresee(GenerationRequest(model=generate(**fixed).request.model, mode=mode, **new_size))
    manager.ledger.forget([key.digest for key in resolved.graph_keys(manager.toolchain).values() if key.height])
    calls.clear()
    generate(**fixed, **new_size)
    for changes in ({"seed": 2}, {"prompt": "a new prompt"}, {"prompt": "a new prompt", "steps": 6}, {"steps": 4}):
        report = generate(**fixed | changes, **new_size).report
        assert (report.state_before, report.new_compiles) == ("warm", 0), changes
    runtime.drop_graphs()
    manager.ledger.graphs_dropped()
    report = generate(**fixed, **new_size).report
    assert (report.state_before, report.new_compiles) == ("on_disk", 0)


def test_what_is_not_warm_is_encoded(generate, manager, runtime, encoder_calls):
    """Kept text outlives the encoders' graphs, which must not be called warm without having run."""
    calls = encoder_calls("sd3")
    generate(mode="fused", prompt="kept")
    runtime.drop_graphs()
    manager.ledger.graphs_dropped()
    calls.clear()
    report = generate(mode="fused", prompt="kept").report
    assert (report.state_before, report.new_compiles) == ("on_disk", 0)
    assert calls
    calls.clear()
    assert generate(mode="fused", prompt="kept").report.was_warm
    assert calls == []


def test_recalled_text_tells_nothing_about_the_time_of_a_new_prompt(generate, manager):
    generate(mode="fused", prompt="timed")
    request = generate(mode="fused", prompt="timed").request
    key = manager.foresee(request)[0].graph_keys(manager.toolchain)[Stage.TEXT]
    before = manager.ledger.record(key.digest)
    report = generate(mode="fused", prompt="timed", seed=5).report
    after = manager.ledger.record(key.digest)
    assert (after.runs, after.run_seconds) == (before.runs, before.run_seconds)
    assert after.last_used > before.last_used
    assert report.timings.encode < report.timings.denoise


# -- by itself --------------------------------------------------------------------------------------------------------


def encode(prompt, scale=1.0, prompt_embeds=None):  # noqa: ARG001 - a pipeline's takes it
    """Stands for a pipeline's encode_prompt: 400 bytes a prompt."""
    return torch.full((100,), scale * len(prompt)), [None, "mask"]


def was_recalled(kept: KeptText, *args, recall=True, ran_as="fused", **kwargs) -> bool:
    result, recalled = kept.encode(encode, args, kwargs, ran_as, recall)
    assert torch.equal(result[0], encode(*args, **kwargs)[0])
    return recalled


def test_equal_arguments_recall_however_they_are_given():
    kept = KeptText()
    assert not was_recalled(kept, "a")
    assert was_recalled(kept, prompt="a", scale=1.0)
    assert not was_recalled(kept, "a", scale=2.0)
    assert not was_recalled(kept, "a", ran_as="strict")
    assert not was_recalled(kept, "a", recall=False)
    assert not was_recalled(kept, ["a"])
    assert was_recalled(kept, ["a"])
    kept.clear()
    assert not was_recalled(kept, "a")


def test_what_cannot_be_compared_is_not_kept():
    kept = KeptText()
    assert not was_recalled(kept, "a", prompt_embeds=torch.ones(1))
    assert kept.bytes == 0


def test_the_oldest_go_first_and_too_large_a_result_is_not_kept():
    kept = KeptText(max_bytes=900)
    for prompt in ("a", "bb", "a", "ccc"):
        was_recalled(kept, prompt)
    assert kept.bytes == 800
    assert was_recalled(kept, "a")
    assert not was_recalled(kept, "bb")
    small = KeptText(max_bytes=399)
    assert not was_recalled(small, "a")
    assert small.bytes == 0


def test_a_list_that_the_pipeline_changes_is_its_own():
    kept = KeptText()
    for _ in range(3):
        (_, mask), _ = kept.encode(encode, ("a",), {}, "", True)
        assert mask == [None, "mask"]
        mask.append("more")
