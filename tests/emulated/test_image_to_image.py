"""Image to image: the pictures of plain diffusers, the warmth of text to image where graphs are equal."""

import numpy
import pytest
import torch
from PIL import Image

from tests.emulated.conftest import TOLERANCE_8_BIT
from tpu_ui.catalogue import find_card
from tpu_ui.events import Phase
from tpu_ui.graphs import Stage, WarmupState
from tpu_ui.pipeline_kinds import IMAGE_TO_IMAGE_CLASSES, REFERENCE_CLASSES, TEXT_TO_IMAGE_CLASSES
from tpu_ui.request import GenerationRequest

MODELS = ("sd3", "flux", "sdxl")
WAYS = {
    "sd3": [("compile", "single"), ("fused", "cpu_offload"), ("strict", "single")],
    "flux": [("fused", "single"), ("compile", "cpu_offload")],
    "sdxl": [("compile", "single"), ("strict", "cpu_offload")],
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> tuple[str, str]:
    """Two, of another size and aspect ratio than asked for."""
    folder = tmp_path_factory.mktemp("pictures")
    rows, columns = numpy.mgrid[0:80, 0:120]
    for name, shift in (("one", 0), ("two", 90)):
        pixels = numpy.stack([rows * 2 + shift, columns * 2, (rows + columns + shift) % 200], axis=-1)
        Image.fromarray(pixels.astype("uint8")).save(folder / f"{name}.png")
    return str(folder / "one.png"), str(folder / "two.png")


@pytest.fixture
def plain(tiny_models):
    """The picture of plain diffusers on the CPU, from `AutoPipelineForImage2Image`."""
    from diffusers import AutoPipelineForImage2Image
    from PIL import ImageOps

    from tpu_ui.loading import load_pipeline
    from tpu_ui.model_folder import inspect_folder

    def run(model: str, image: str, seed: int, **arguments: object) -> numpy.ndarray:
        loaded = load_pipeline(inspect_folder(tiny_models / model), torch.float32, lambda *_: None)
        pipeline = AutoPipelineForImage2Image.from_pipe(loaded)
        if model != "sdxl":  # which takes the picture's size
            length = find_card(str(tiny_models / model)).text_length
            arguments |= {"max_sequence_length": length, "height": 64, "width": 64}
        made = pipeline(
            image=ImageOps.fit(Image.open(image), (64, 64), Image.Resampling.LANCZOS),
            generator=torch.Generator("cpu").manual_seed(seed), **arguments,
        )  # fmt: skip
        return numpy.asarray(made.images[0]).astype(int)

    return run


def pixels(result, index: int = 0) -> numpy.ndarray:
    return numpy.asarray(result.images[index]).astype(int)


@pytest.mark.parametrize("model", MODELS)
def test_the_pictures_of_plain_diffusers_and_no_graph_more_than_the_first_time(generate, plain, pictures, model):
    one, two = pictures
    guided = model != "flux"
    negative = {"negative_prompt": "blue"} if guided else {}
    asked = [
        {"image": one, "prompt": "two dogs", "seed": 11, "steps": 4, "strength": 0.5},
        {"image": two, "prompt": "a cat", "seed": 5, "steps": 3, "strength": 0.9},
    ]
    scales = (4.5, 3.0) if guided else (None, None)
    expected = [
        plain(
            model, each["image"], each["seed"], prompt=each["prompt"], num_inference_steps=each["steps"],
            strength=each["strength"], **({"guidance_scale": scale} if guided else {}), **negative,
        )
        for each, scale in zip(asked, scales, strict=True)
    ]  # fmt: skip
    assert abs(expected[0] - expected[1]).max() > 5 * TOLERANCE_8_BIT, "alike proves nothing"
    for mode, placement in WAYS[model]:
        way = {"model": model, "mode": mode, "placement": placement, **negative}
        for number, (each, scale, picture) in enumerate(zip(asked, scales, expected, strict=True)):
            result = generate(**way, **each, **({"guidance": scale} if guided else {}))
            assert abs(pixels(result) - picture).max() <= TOLERANCE_8_BIT, (mode, placement, each)
            report = result.report
            if number:
                told = (report.state_before, report.was_warm, report.new_compiles)
                assert told == ("warm", True, 0), (mode, placement, report.why_compiled)


@pytest.mark.parametrize(("model", "mode"), [("sd3", "compile"), ("flux", "fused"), ("sdxl", "fused")])
def test_what_text_to_image_warmed_is_warm_and_the_other_way_round(
    manager, generate, pictures, tiny_models, model, mode
):
    text = {"model": model, "mode": mode, "width": 96, "height": 64}
    from_picture = text | {"image": pictures[0], "strength": 0.7}

    def keys(fields):
        asked = GenerationRequest.from_mapping(fields | {"model": str(tiny_models / model), "prompt": "x"})
        return manager.foresee(asked)[0].graph_keys(manager.toolchain)

    generate(**text)
    shared = {stage: key for stage, key in keys(from_picture).items() if stage is not Stage.PICTURE}
    assert shared.keys() == {Stage.TEXT, Stage.DENOISER, Stage.DECODER}
    assert shared.items() <= keys(text).items()
    assert {manager.ledger.state(key) for key in shared.values()} == {WarmupState.WARM}
    seen = []  # graphs that were not in memory, by the phase
    asked = GenerationRequest.from_mapping(from_picture | {"model": str(tiny_models / model), "prompt": "x"})
    manager.generate(asked, lambda p: seen.append((p.phase, manager.runtime.counters().requested)), lambda: False)
    assert len({requested for phase, requested in seen if phase in (Phase.DENOISING, Phase.DECODING, Phase.DONE)}) == 1
    for fields in (text | {"seed": 3}, from_picture | {"seed": 3, "strength": 0.4, "steps": 5}):
        report = generate(**fields).report
        assert (report.state_before, report.was_warm, report.new_compiles) == ("warm", True, 0), fields


def test_each_of_a_batch_is_the_picture_that_it_is_alone(generate, pictures):
    fixed = {"model": "flux", "mode": "fused", "image": pictures[0], "strength": 0.6}
    both = generate(**fixed, seed=20, batch=2)
    assert both.report.seeds == (20, 21)
    for index in range(2):
        alone = generate(**fixed, seed=20 + index)
        assert abs(pixels(both, index) - pixels(alone)).max() <= TOLERANCE_8_BIT


def test_progress_counts_the_steps_that_run_and_the_report_names_the_picture(manager, pictures, tiny_models):
    import hashlib
    from pathlib import Path

    seen = []
    asked = GenerationRequest(
        "x", model=str(tiny_models / "sd3"), mode="fused", width=64, height=64, steps=5, image=pictures[0], strength=0.4
    )
    result = manager.generate(asked, seen.append, lambda: False)
    assert [(p.step, p.steps) for p in seen if p.step is not None and p.phase == "denoising"] == [(1, 2), (2, 2)]
    report = result.report
    assert (report.steps, report.strength) == (5, 0.4)
    assert report.image_sha256 == hashlib.sha256(Path(pictures[0]).read_bytes()).hexdigest()
    assert "image: its middle was cut out and resized from 120×80 to 64×64." in report.notices
    assert pictures[0] not in str(report)


def test_no_weights_are_copied(manager, generate):
    generate(mode="fused")
    (loaded,) = [p for (name, _), p in manager._residency._pipelines.items() if name == "sd3"]
    for name, part in loaded.image_to_image.components.items():
        assert part is loaded.pipeline.components[name], name


def test_the_classes_are_those_of_diffusers():
    import inspect

    from diffusers.pipelines.auto_pipeline import (
        AUTO_IMAGE2IMAGE_PIPELINES_MAPPING as WITH_PICTURE,
    )
    from diffusers.pipelines.auto_pipeline import (
        AUTO_TEXT2IMAGE_PIPELINES_MAPPING as WITH_TEXT,
    )

    pairs = {
        WITH_TEXT[key].__name__: WITH_PICTURE[key]
        for key in WITH_TEXT.keys() & WITH_PICTURE.keys()
        if WITH_TEXT[key].__name__ in TEXT_TO_IMAGE_CLASSES
    }
    takes_strength = {name for name, made in pairs.items() if "strength" in inspect.signature(made.__call__).parameters}
    assert pairs.keys() - takes_strength == REFERENCE_CLASSES
    offered = {name: pairs[name].__name__ for name in takes_strength if "Combined" not in name}
    assert offered == dict(IMAGE_TO_IMAGE_CLASSES)
