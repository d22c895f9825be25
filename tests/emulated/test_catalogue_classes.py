"""The promises, for a small pipeline of each class of the catalogue: pictures, warmth, restart, notices."""

from dataclasses import dataclass

import numpy
import pytest
import torch

from tests.emulated.conftest import TOLERANCE_8_BIT
from tpu_ui.catalogue import find_card
from tpu_ui.errors import InvalidRequest

MODES = ("strict", "fused", "compile")
PLACEMENTS = ("single", "cpu_offload")


@dataclass(frozen=True)
class Kind:
    """What a class takes. `guidance` is the value to ask for; None is for a model without guidance."""

    guidance: float | None = 4.5
    negative_prompt: bool = True


KINDS = {
    "sd3": Kind(),
    "sd3.5-large": Kind(),
    "sd3.5-medium": Kind(),
    "flux": Kind(guidance=None, negative_prompt=False),
    "flux-guided": Kind(negative_prompt=False),
    "sdxl": Kind(),
    "flux2": Kind(negative_prompt=False),
    "flux2-klein": Kind(guidance=None, negative_prompt=False),
    "flux2-klein-base": Kind(negative_prompt=False),
    "z-image": Kind(guidance=3.0),
    "qwen-image": Kind(),
    "sana": Kind(),
}
VARIANTS = ("sd3.5-medium", "sd3.5-large", "flux-guided", "flux2-klein-base")
"""The same pipeline class as another of the list, with other parts or weights."""
WAYS = tuple((mode, placement) for mode in MODES for placement in PLACEMENTS)
WHOLE = ("sd3", "flux", "flux2")
"""The classes that are tested in every way each time; of the others in two ways, and the rest is slow."""
ALWAYS = (("fused", "single"), ("compile", "cpu_offload"))


def ways_of(model: str) -> dict[str, tuple[tuple[str, str], ...]]:
    """Modes and placements to test: those of each time, and the slow ones."""
    if model in VARIANTS:
        return {"always": (("compile", "single"),), "slow": ()}
    if model in WHOLE:
        return {"always": WAYS, "slow": ()}
    return {"always": ALWAYS, "slow": tuple(way for way in WAYS if way not in ALWAYS)}


def marked(values: tuple, when: str) -> object:
    """Parameters of a test."""
    return pytest.param(*values, marks=[pytest.mark.slow] if when == "slow" else [], id="-".join(map(str, values)))


# Not square, so that no class may take one side for the other.
SIZE = {"width": 96, "height": 64}
each_kind = pytest.mark.parametrize("model", KINDS)
each_class = pytest.mark.parametrize("model", [name for name in KINDS if name not in VARIANTS])


@pytest.fixture(scope="module")
def plain(tiny_models):
    """Pictures of plain diffusers on the CPU, as 8-bit arrays."""
    import inspect

    from tpu_ui.loading import load_pipeline
    from tpu_ui.model_folder import inspect_folder
    from tpu_ui.pipeline_kinds import guidance_argument

    def run(model: str, seed: int, guidance: float | None, **arguments: object) -> numpy.ndarray:
        folder = tiny_models / model
        pipeline = load_pipeline(inspect_folder(folder), torch.float32, lambda *_: None)
        arguments |= {"max_sequence_length": find_card(str(folder)).text_length, "use_resolution_binning": False}
        if guidance is not None:
            arguments[guidance_argument(type(pipeline).__name__)] = guidance
        taken = inspect.signature(pipeline.__call__).parameters
        pictures = pipeline(
            generator=torch.Generator("cpu").manual_seed(seed), **SIZE,
            **{name: value for name, value in arguments.items() if name in taken},
        )  # fmt: skip
        return numpy.asarray(pictures.images[0]).astype(int)

    return run


@pytest.mark.parametrize(
    ("model", "when"), [marked((m, when), when) for m in KINDS for when, ways in ways_of(m).items() if ways]
)
def test_every_mode_and_placement_gives_the_picture_of_plain_diffusers(generate, plain, model, when):
    kind = KINDS[model]
    # Longer than the prompt: where text follows the prompt's length, the two meet in one batch.
    negative = {"negative_prompt": "blue, or anything that is not a dog"} if kind.negative_prompt else {}
    prompt = {"prompt": "two dogs", "seed": 11, "guidance": kind.guidance, **negative}
    expected = plain(model, num_inference_steps=3, **prompt)
    assert expected.std() > 1, "a flat picture would prove nothing"
    assert abs(plain(model, num_inference_steps=3, **prompt | {"prompt": "a red cat"}) - expected).max() > 0
    for mode, placement in ways_of(model)[when]:
        result = generate(model=model, **SIZE, mode=mode, placement=placement, steps=3, **prompt)
        got = numpy.asarray(result.images[0]).astype(int)
        assert got.shape == (64, 96, 3)
        assert abs(got - expected).max() <= TOLERANCE_8_BIT, (mode, placement)


@pytest.mark.parametrize(
    ("model", "mode", "placement"),
    [marked((m, *way), when) for m in KINDS for when, ways in ways_of(m).items() for way in ways],
)
def test_only_the_first_request_of_a_shape_compiles(generate, manager, model, mode, placement):
    fixed = {"model": model, **SIZE, "mode": mode, "placement": placement}
    guidance = KINDS[model].guidance
    generate(**fixed)
    before = manager.runtime.counters().compiles
    for changes in (
        {"prompt": "two dogs", "seed": 7, "steps": 8},
        {"prompt": "", "negative_prompt": "blurry, dark", "steps": 1},
        {"prompt": "a very long prompt " * 200, "negative_prompt": "very " * 700},
        {"guidance": 5.5, "steps": 5},
        {"guidance": guidance and guidance / 2, "seed": 2**63 - 1},
    ):
        report = generate(**fixed, **changes).report
        assert (report.state_before, report.was_warm, report.new_compiles) == ("warm", True, 0), changes
    assert manager.runtime.counters().compiles == before


@each_class
def test_each_picture_of_a_batch_can_be_made_alone(generate, model):
    batch = generate(model=model, **SIZE, mode="fused", batch=2, seed=7)
    for image, seed in zip(batch.images, batch.report.seeds, strict=True):
        alone = numpy.asarray(generate(model=model, **SIZE, mode="fused", seed=seed).images[0]).astype(int)
        assert abs(alone - numpy.asarray(image).astype(int)).max() <= TOLERANCE_8_BIT


@each_kind
def test_a_negative_prompt_changes_the_picture_or_is_said_to_be_ignored(generate, model):
    without = generate(model=model, **SIZE, mode="fused")
    result = generate(model=model, **SIZE, mode="fused", negative_prompt="blurry, text")
    told = [notice for notice in result.report.notices if notice.startswith("negative_prompt: ignored")]
    same = (numpy.asarray(result.images[0]) == numpy.asarray(without.images[0])).all()
    assert (same, len(told)) == ((False, 0) if KINDS[model].negative_prompt else (True, 1))
    assert result.request.negative_prompt == ("blurry, text" if KINDS[model].negative_prompt else "")


@pytest.mark.parametrize("guidance", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("model", ["sd3", "sdxl", "z-image", "qwen-image", "sana"])
def test_low_guidance_is_one_pass_a_step_and_says_that_the_negative_prompt_is_ignored(generate, model, guidance):
    result = generate(model=model, **SIZE, mode="fused", negative_prompt="blurry, text", guidance=guidance)
    is_on = guidance > (0 if model == "z-image" else 1)
    assert any("negative_prompt: ignored at guidance" in notice for notice in result.report.notices) is not is_on


@each_kind
def test_a_prompt_that_is_cut_is_told_with_its_tail(generate, model):
    notices = generate(
        model=model, **SIZE, mode="fused", prompt="a grey wall, " * 300 + "and one red bicycle"
    ).report.notices
    assert notices
    assert all("tokens" in notice and "and one red bicycle”." in notice for notice in notices)


@each_kind
def test_a_size_off_the_grid_is_refused_with_its_neighbours(generate, tiny_models, model):
    multiple = find_card(str(tiny_models / model)).size_rule.multiple
    with pytest.raises(InvalidRequest, match=f"^width: .* multiple of {multiple}.* Use 64 or {64 + multiple}"):
        generate(model=model, width=65, height=64)


@pytest.mark.slow
def test_after_a_restart_nothing_compiles(generate, manager):
    """Last in this file: the graphs in memory go, those on disk stay."""
    ways = (("strict", "single"), ("fused", "cpu_offload"), ("compile", "single"), ("compile", "cpu_offload"))
    classes = [name for name in KINDS if name not in VARIANTS]
    asked = [
        {"model": model, "mode": mode, "placement": placement, **SIZE}
        for i, model in enumerate(classes)
        for mode, placement in ways[i % 2 :: 2]
    ]
    for request in asked:
        generate(**request)
    manager.runtime.drop_graphs()
    manager.ledger.graphs_dropped()
    for request in asked:
        report = generate(**request).report
        assert (report.state_before, report.new_compiles) == ("on_disk", 0), request
