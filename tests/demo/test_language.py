"""Vocabulary, scenes, captions, prompts: plain Python, no torch."""

import subprocess
import sys

import numpy as np
import pytest

from tpu_ui.demo.captions import SLOTS, caption
from tpu_ui.demo.prompts import Wanted, WantedObject, read_prompt, wanted_of, write_prompt
from tpu_ui.demo.scenes import is_held_out, is_held_out_pair, sample_scene, sample_training_scene, swapped
from tpu_ui.demo.vocabulary import BACKGROUND_RGB, COLOURS, OBJECT_RGB, SHAPES, canonical, words


def test_the_language_is_as_large_as_promised():
    assert len(COLOURS) >= 8
    assert len(SHAPES) >= 8
    assert set(BACKGROUND_RGB) == set(OBJECT_RGB)


def test_each_colour_and_each_shape_has_one_held_out_partner():
    pairs = [(colour, shape) for colour in COLOURS for shape in SHAPES if is_held_out_pair(colour, shape)]
    assert sorted(colour for colour, _ in pairs) == sorted(COLOURS)
    assert sorted(shape for _, shape in pairs) == sorted(SHAPES)


def test_training_scenes_hold_no_held_out_pair():
    rng = np.random.default_rng(0)
    assert not any(is_held_out(sample_training_scene(rng, (256, 256))) for _ in range(500))


def test_captions_use_known_words_only_and_are_short():
    rng, known = np.random.default_rng(0), set(words())
    for _ in range(1000):
        told = caption(sample_training_scene(rng, (256, 256)), rng)
        said = told.text.split()
        assert len(said) <= 30
        assert set(said) <= known | {"unheard"}
        assert len(told.slots) == len(SLOTS)


def test_a_caption_tells_nothing_that_the_scene_does_not_show():
    rng = np.random.default_rng(1)
    for _ in range(500):
        scene = sample_training_scene(rng, (256, 256))
        told = dict(zip(SLOTS, caption(scene, rng, partial=0.0).slots, strict=True))
        value = {name: SLOTS[name][index - 1] for name, index in told.items() if index}
        assert value.get("background", scene.background) == scene.background
        if len(scene.objects) == 2 and value.get("layout") in ("first left", "first above"):
            first = scene if scene.relation in ("left of", "above") else swapped(scene)
            assert value.get("first shape", first.objects[0].shape) == first.objects[0].shape
            assert value.get("second colour", first.objects[1].colour) == first.objects[1].colour


@pytest.mark.parametrize("objects", [1, 2])
def test_prompts_are_read_as_they_were_written(objects):
    rng = np.random.default_rng(2)
    for _ in range(200):
        wanted = wanted_of(sample_scene(rng, (256, 256), objects))
        assert read_prompt(write_prompt(wanted)) == wanted


def test_prompts_in_other_words_are_understood():
    two = read_prompt("A photo of a tiny crimsonish RED star to the left of a big blue disc, on a yellow backdrop")
    assert two == Wanted(
        (WantedObject("red", "star", "small"), WantedObject("blue", "circle", "large")), "yellow", relation="left of"
    )
    assert read_prompt("two green hearts") == Wanted((WantedObject("green", "heart"),) * 2)
    assert read_prompt("a plus in the upper left corner on teal") == Wanted(
        (WantedObject(None, "cross"),), "teal", place="top left"
    )


def test_synonyms_lead_to_words_of_the_language():
    assert canonical("Violet") == "purple"
    assert canonical("crosses") == "cross"


def test_importing_the_demo_package_and_its_checker_loads_no_torch():
    code = (
        "import sys, tpu_ui.demo.checker, tpu_ui.demo.renderer, tpu_ui.demo.captions; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
