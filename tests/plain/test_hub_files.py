"""Which files of a repository are needed, and what is said of one that cannot be used."""

import pytest

from tpu_ui.catalogue import find_card
from tpu_ui.errors import UnknownModel, UnusableModel
from tpu_ui.hub_files import check_is_pipeline, needed_files
from tpu_ui.settings import hub_cache_dir

INDEX = {
    "_class_name": "StableDiffusion3Pipeline",
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "CLIPTextModelWithProjection"],
    "text_encoder_3": [None, None],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "transformer": ["diffusers", "SD3Transformer2DModel"],
}
NEEDED = [
    "model_index.json", "scheduler/scheduler_config.json", "text_encoder/config.json", "text_encoder/model.safetensors",
    "tokenizer/merges.txt", "tokenizer/special_tokens_map.json", "tokenizer/tokenizer_config.json",
    "tokenizer/vocab.json", "transformer/config.json", "transformer/diffusion_pytorch_model.safetensors",
]  # fmt: skip
NOT_NEEDED = [
    ".gitattributes", "LICENSE.md", "README.md", "model.fp16.safetensors", "sd3_medium.safetensors", "sd3.ckpt",
    "text_encoder/model.fp16.safetensors", "text_encoder/pytorch_model.bin", "text_encoder/flax_model.msgpack",
    "text_encoder/model.onnx", "text_encoder/openvino_model.xml", "text_encoder_3/config.json",
    "text_encoder_3/model.safetensors", "text_encoders/t5xxl.safetensors", "transformer/diffusion_pytorch_model.bin",
    "transformer/diffusion_pytorch_model.bf16-00001-of-00002.safetensors",
    "transformer/diffusion_pytorch_model.safetensors.index.bf16.json", "transformer/nested/config.json",
    "transformer/diffusion_pytorch_model.bin.index.json", "example.png",
]  # fmt: skip


def test_needed_files():
    assert list(needed_files("org/m", NEEDED + NOT_NEEDED, INDEX)) == NEEDED


def test_shards_and_their_index_are_needed():
    stem = "transformer/diffusion_pytorch_model"
    shards = [f"{stem}-0000{i}-of-00002.safetensors" for i in (1, 2)] + [f"{stem}.safetensors.index.json"]
    names = [name for name in NEEDED if name != f"{stem}.safetensors"] + shards
    assert set(needed_files("org/m", names + NOT_NEEDED, INDEX)) == set(names)
    # Both kinds present: each library loads one of them.
    assert f"{stem}.safetensors" not in needed_files("org/m", names + NEEDED, INDEX)


@pytest.mark.parametrize(
    ("names", "index", "said"),
    [
        ([name for name in NEEDED + NOT_NEEDED if "text_encoder/model.s" not in name], INDEX, "variant fp16"),
        ([n for n in [*NEEDED, "text_encoder/pytorch_model.bin"] if "/model.s" not in n], INDEX, "only as pickle"),
        ([name for name in NEEDED if not name.startswith("transformer/")], INDEX, "transformer.*is missing"),
        (NEEDED, INDEX | {"_class_name": "StableDiffusionInpaintPipeline"}, "not a text-to-image"),
        (NEEDED, INDEX | {"..": ["diffusers", "AutoencoderKL"]}, "component named '..'"),
        (NEEDED, {"scheduler": INDEX["scheduler"]}, "names no pipeline"),
        ([*NEEDED, "transformer/own.py"], INDEX | {"transformer": ["own", "Own"]}, "its own code"),
    ],
)  # fmt: skip
def test_useless_repositories(names: list[str], index: dict, said: str):
    with pytest.raises(UnusableModel, match=said):
        needed_files("org/m", names, index)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["my_lora.safetensors", "README.md"], "LoRA"),
        (["model.safetensors", "config.json"], "single-file"),
        (["README.md"], "has no model_index.json"),
    ],
)
def test_no_pipeline_at_all(names: list[str], said: str):
    with pytest.raises(UnusableModel, match=said):
        check_is_pipeline("org/m", names)


def test_a_name_may_carry_a_revision():
    card = find_card("org/name@refs/pr/3")
    assert (card.repo_id, card.revision, card.id) == ("org/name", "refs/pr/3", "org/name@refs/pr/3")
    card = find_card("flux.1-schnell@" + "a" * 40)
    assert (card.repo_id, card.revision) == ("black-forest-labs/FLUX.1-schnell", "a" * 40)
    assert find_card("flux.1-schnell").revision is None
    for wrong in ("org/name@", "org/name@../../x", "org/name@a b", "demo@main"):
        with pytest.raises(UnknownModel):
            find_card(wrong)


def test_where_downloads_are_kept(tmp_path):
    space = {"SPACE_ID": "me/space"}
    assert hub_cache_dir({}, tmp_path) is None
    assert hub_cache_dir(space, tmp_path) == tmp_path / ".huggingface" / "hub"
    assert hub_cache_dir(space | {"HF_HOME": "/x"}, tmp_path) is None
    assert hub_cache_dir(space | {"TPU_UI_HUB_CACHE": "/y"}, tmp_path).as_posix() == "/y"
