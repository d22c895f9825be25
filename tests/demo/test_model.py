"""The shipped weights, through the plain diffusers pipeline."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from tpu_ui.demo.checker import check  # noqa: E402
from tpu_ui.demo.evaluate import DEFAULT_MODEL, draw, held_out_wanted, load_pipeline  # noqa: E402
from tpu_ui.demo.prompts import write_prompt  # noqa: E402
from tpu_ui.demo.tokenizer import EOS_ID, UNKNOWN_ID  # noqa: E402


@pytest.fixture(scope="module")
def pipeline():
    return load_pipeline(DEFAULT_MODEL)


def _picture(pipeline, prompt: str, seed: int) -> np.ndarray:
    return np.asarray(draw(pipeline, [prompt], [seed], 192, 192, 4, 3.0)[0])


def test_the_folder_is_small_and_holds_only_safetensors():
    files = [path for path in Path(DEFAULT_MODEL).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 25_000_000
    assert {path.suffix for path in files} <= {".safetensors", ".json", ".md", ""}
    assert {"README.md", "LICENSE"} <= {path.name for path in files}


def test_weights_load_as_32_bits(pipeline):
    for name in ("transformer", "vae", "text_encoder", "text_encoder_2"):
        assert getattr(pipeline, name).dtype == torch.float32


def test_held_out_prompts_are_drawn_as_asked(pipeline):
    """A quick version of `python -m tpu_ui.demo.evaluate`, whose figures are in the model card."""
    rng = np.random.default_rng(11)
    wanted = [held_out_wanted(rng, (256, 256), objects) for objects in (1, 2) * 10]
    pictures = draw(pipeline, [write_prompt(item) for item in wanted], list(range(20)), 256, 256, 12, 4.0)
    faults = [check(picture, item).faults for picture, item in zip(pictures, wanted, strict=True)]
    assert sum(not wrong for wrong in faults[::2]) >= 9, faults[::2]  # one object
    assert sum(not wrong for wrong in faults[1::2]) >= 8, faults[1::2]  # two


def test_equal_seeds_give_equal_pictures_and_other_seeds_others(pipeline):
    first, again, other = (_picture(pipeline, "a green heart on a white background", seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert np.abs(first.astype(int) - other.astype(int)).mean() > 0.5


def test_unknown_words_are_one_token_each_and_case_and_hyphens_do_not_matter(pipeline):
    ids = pipeline.tokenizer("A Red-star, qwertyuiop!").input_ids
    assert ids == pipeline.tokenizer("a red star , asdfgh").input_ids
    assert ids[-2:] == [UNKNOWN_ID, EOS_ID]


def test_leaving_out_the_t5_encoder_changes_nothing(pipeline):
    embeds = pipeline.encode_prompt("a red star", None, None, do_classifier_free_guidance=False)[0]
    kept = pipeline.text_encoder_3
    try:
        pipeline.text_encoder_3 = None
        bare = pipeline.encode_prompt("a red star", None, None, do_classifier_free_guidance=False)[0]
    finally:
        pipeline.text_encoder_3 = kept
    assert torch.equal(embeds, bare)
