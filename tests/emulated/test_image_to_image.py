"""Image to image: the pictures of plain diffusers, the warmth of text to image where graphs are equal."""


import numpy
import pytest
import torch
from PIL import Image

from tests.emulated.conftest import TOLERANCE_8_BIT
from tpu_ui.catalogue import find_card

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
        if model != "sdxl":
            arguments["max_sequence_length"] = find_card(str(tiny_models / model)).text_length
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
