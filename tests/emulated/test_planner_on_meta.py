"""Planned weights are exact: the list against classes on the meta device, folders against loaded pipelines."""

import shutil
from pathlib import Path

import pytest
import torch
from diffusers import DiffusionPipeline

from tests import tiny_pipelines
from tpu_ui.errors import UnusableModel
from tpu_ui.loading import load_pipeline
from tpu_ui.model_folder import inspect_folder
from tpu_ui.planner import published
from tpu_ui.planner.models import find_known_model
from tpu_ui.planner.on_meta import weights_on_meta

COMPONENTS = {name: each for name, each in vars(published).items() if isinstance(each, published.PublishedComponent)}


@pytest.mark.parametrize("name", COMPONENTS)
def test_published_figures_are_those_of_the_class_on_the_meta_device(name):
    component = COMPONENTS[name]
    weights = weights_on_meta(component.library, component.class_name, component.config)
    assert weights.floats == component.parameters
    assert weights.other_bytes <= 8  # a counter of batches, at most


def test_every_published_component_was_compared():
    used = {id(part) for model in published.PUBLISHED.values() for part in model.components.values()}
    assert used == {id(component) for component in COMPONENTS.values()}


def loaded(folder: Path, dtype: str) -> DiffusionPipeline:
    return load_pipeline(inspect_folder(folder), getattr(torch, dtype), lambda *_: None)


def saved_bytes(pipeline: DiffusionPipeline) -> dict[str, int]:
    """Bytes of what each module of a loaded pipeline holds and saves."""
    modules = {name: each for name, each in pipeline.components.items() if isinstance(each, torch.nn.Module)}
    return {
        name: sum({t.data_ptr(): t.nbytes for t in module.state_dict(keep_vars=True).values()}.values())
        for name, module in modules.items()
    }


@pytest.mark.parametrize("name", tiny_pipelines.BUILDERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_planned_bytes_are_those_of_the_loaded_pipeline(tiny_models: Path, tmp_path: Path, name: str, dtype: str):
    folder = tiny_models / name
    if dtype == "bfloat16":
        folder = tmp_path / "bfloat16"
        loaded(tiny_models / name, dtype).save_pretrained(folder)
    real = saved_bytes(loaded(folder, dtype))
    planned = find_known_model(str(folder), "tpu")
    assert planned.dtype == dtype
    assert {part.name: part.weight_bytes for part in planned.parts} == real


@pytest.mark.parametrize("name", tiny_pipelines.BUILDERS)
def test_a_folder_without_weights_is_planned_from_its_configurations(tiny_models: Path, tmp_path: Path, name: str):
    folder = tmp_path / "configurations"
    shutil.copytree(tiny_models / name, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    whole, bare = find_known_model(str(tiny_models / name), "cpu"), find_known_model(str(folder), "cpu")
    assert bare.known_from == "its configuration, on the meta device"
    sizes = [{part.name: part.weight_bytes for part in known.parts} for known in (whole, bare)]
    assert sizes[0] == sizes[1]
    assert (bare.card.pipeline_class, bare.card.size_rule) == (whole.card.pipeline_class, whole.card.size_rule)


def test_the_cache_of_the_hub_is_planned_from_its_configurations(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    repository, commit = tmp_path / "models--org--name", "0" * 40
    shutil.copytree(
        tiny_models / "sd3", repository / "snapshots" / commit, ignore=shutil.ignore_patterns("*.safetensors")
    )
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    known = find_known_model("org/name", "cpu")
    assert (known.card.id, known.card.pipeline_class) == ("org/name", "StableDiffusion3Pipeline")
    assert {part.name for part in known.parts} == {"text_encoder", "text_encoder_2", "transformer", "vae"}


@pytest.mark.parametrize(
    ("library", "class_name", "config"),
    [
        ("diffusers", "NoSuchModel", {}),
        ("os", "system", {}),
        ("diffusers", "AutoencoderKL", {"block_out_channels": "many"}),
        ("transformers", "CLIPTextModel", {"hidden_size": 30, "num_attention_heads": 4}),
    ],
)
def test_a_class_that_cannot_be_built_is_told(library, class_name, config):
    with pytest.raises(UnusableModel, match=class_name):
        weights_on_meta(library, class_name, config)
