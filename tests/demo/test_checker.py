"""The renderer and the checker, which know nothing of each other, must agree."""

import numpy as np
import pytest
from PIL import Image

from tpu_ui.demo.checker import check_prompt, look
from tpu_ui.demo.evaluate import checker_rates
from tpu_ui.demo.prompts import wanted_of, write_prompt
from tpu_ui.demo.renderer import render
from tpu_ui.demo.scenes import sample_scene


def test_the_checker_accepts_what_is_right_and_refuses_what_is_wrong():
    rates = checker_rates(120)
    assert rates["false_refusals"] <= 0.01
    assert rates["false_acceptances"] <= 0.01


@pytest.mark.parametrize(("width", "height"), [(192, 192), (256, 256), (384, 256), (192, 384)])
def test_any_size_is_rendered_and_read(width, height):
    rng = np.random.default_rng(width + height)
    for _ in range(5):
        scene = sample_scene(rng, (width, height))
        picture = render(scene, width, height)
        assert picture.shape == (height, width, 3)
        assert picture.dtype == np.uint8
        verdict = check_prompt(Image.fromarray(picture), write_prompt(wanted_of(scene)))
        assert verdict.ok, verdict.faults


def test_a_plain_picture_holds_no_object():
    seen = look(np.full((192, 192, 3), (255, 228, 122), np.uint8))
    assert seen.background == "yellow"
    assert seen.objects == ()


def test_noise_is_not_accepted():
    noise = np.random.default_rng(0).integers(0, 256, (192, 192, 3)).astype(np.uint8)
    assert not check_prompt(noise, "a red star on a blue background").ok


def test_faults_say_what_is_wrong():
    scene = sample_scene(np.random.default_rng(5), (256, 256), objects=1)
    wrong = "red" if scene.objects[0].colour != "red" else "blue"
    verdict = check_prompt(render(scene, 256, 256), f"a {wrong} {scene.objects[0].shape}")
    assert verdict.faults == (f"colour is {scene.objects[0].colour}, not {wrong}",)
