"""LoRAs: the pictures of plain diffusers with the same LoRAs, gone without a trace, and not one graph more."""

from pathlib import Path

import numpy
import pytest
import torch

from tests import tiny_loras, tiny_pipelines
from tests.emulated.conftest import TOLERANCE_8_BIT
from tpu_ui.catalogue import find_card
from tpu_ui.errors import InvalidRequest
from tpu_ui.pipeline_kinds import TEXT_TO_IMAGE_CLASSES, takes_loras

MODELS = ("sd3", "flux", "sdxl")
each_model = pytest.mark.parametrize("model", MODELS)
# Merging does not know the mode: each mode and each placement with one of the classes is enough.
WAYS = {
    "sd3": [("compile", "single"), ("fused", "cpu_offload")],
    "flux": [("strict", "single"), ("compile", "cpu_offload")],
    "sdxl": [("fused", "single"), ("strict", "cpu_offload")],
}


@pytest.fixture(scope="module")
def loras(tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    """Two for each model."""
    folder = tmp_path_factory.mktemp("loras")
    return {model: tuple(tiny_loras.save(model, folder, seed) for seed in (1, 2)) for model in MODELS}


@pytest.fixture
def plain(tiny_models, monkeypatch):
    """The picture of plain diffusers on the CPU, with LoRA layers beside the weights, not in them."""
    from tpu_ui.loading import load_pipeline
    from tpu_ui.model_folder import inspect_folder

    # transformers 5.24 asks for a peft that is not released; what it needs is in this one.
    monkeypatch.setattr("transformers.integrations.peft.check_peft_version", lambda **_: None)

    def run(model: str, loras: dict[Path, float], **arguments: object) -> numpy.ndarray:
        pipeline = load_pipeline(inspect_folder(tiny_models / model), torch.float32, lambda *_: None)
        for path in loras:
            pipeline.load_lora_weights(str(path.parent), weight_name=path.name, adapter_name=path.stem)
        if loras:
            pipeline.set_adapters([path.stem for path in loras], list(loras.values()))
        if model != "sdxl":
            arguments["max_sequence_length"] = find_card(str(tiny_models / model)).text_length
        pictures = pipeline(
            "two dogs", height=64, width=64, num_inference_steps=3, generator=torch.Generator("cpu").manual_seed(11),
            **arguments,
        )  # fmt: skip
        return numpy.asarray(pictures.images[0]).astype(int)

    return run


def pixels(result) -> numpy.ndarray:
    return numpy.asarray(result.images[0]).astype(int)


@each_model
def test_the_pictures_of_plain_diffusers_and_no_new_graph(generate, plain, loras, model):
    one, two = loras[model]
    guidance = {} if model == "flux" else {"guidance_scale": 4.5, "negative_prompt": "blue"}
    sets = {(): {}, (f"{one}:0.8",): {one: 0.8}, (f"{one}:0.8", f"{two}:-0.5"): {one: 0.8, two: -0.5}}
    expected = {key: plain(model, weights, **guidance) for key, weights in sets.items()}
    pictures = list(expected.values())
    apart = [abs(picture - other).max() for i, picture in enumerate(pictures) for other in pictures[:i]]
    assert min(apart) > 5 * TOLERANCE_8_BIT, f"alike proves nothing: {apart}"
    for mode, placement in WAYS[model]:
        fixed = {"model": model, "mode": mode, "placement": placement, "prompt": "two dogs", "seed": 11,
                 **({} if model == "flux" else {"guidance": 4.5, "negative_prompt": "blue"})}  # fmt: skip
        before = generate(**fixed)
        for names, picture in expected.items():
            result = generate(**fixed, loras=list(names))
            assert abs(pixels(result) - picture).max() <= TOLERANCE_8_BIT, (mode, placement, names)
            report = result.report
            assert (report.state_before, report.was_warm, report.new_compiles) == ("warm", True, 0), (mode, placement)
            assert report.loras == names
        after = generate(**fixed)
        assert (pixels(after) == pixels(before)).all(), (mode, placement)
        assert (after.report.was_warm, after.report.new_compiles) == (True, 0)


def test_a_lora_stays_in_the_weights_that_leave_the_device_and_come_again(generate, manager, loras):
    fixed = {"mode": "fused", "placement": "cpu_offload", "prompt": "two dogs"}
    without = pixels(generate(**fixed))
    with_lora = pixels(generate(**fixed, loras=[str(loras["sd3"][0])]))
    assert (with_lora != without).any()
    manager.leave_device()
    assert (pixels(generate(**fixed, loras=[str(loras["sd3"][0])])) == with_lora).all()
    manager.leave_device()
    assert (pixels(generate(**fixed)) == without).all()


@each_model
def test_after_removal_every_weight_is_the_original_one(generate, manager, loras, model):
    def weights() -> dict[str, torch.Tensor]:
        (loaded,) = [p for (name, _), p in manager._residency._pipelines.items() if name == model]
        parts = {n: part for n, part in loaded.pipeline.components.items() if isinstance(part, torch.nn.Module)}
        return {f"{n}.{k}": v.detach().cpu().clone() for n, part in parts.items() for k, v in part.state_dict().items()}

    def loaded_bytes() -> int:
        return manager._residency.loaded_bytes

    one, two = map(str, loras[model])
    generate(model=model, mode="fused")
    before, bytes_before = weights(), loaded_bytes()
    generate(model=model, mode="fused", loras=[one, f"{two}:2"])
    with_both = weights()
    changed = [name for name, weight in with_both.items() if not torch.equal(weight, before[name])]
    assert changed
    assert loaded_bytes() - bytes_before == sum(before[name].nbytes for name in changed)
    generate(model=model, mode="fused", loras=[f"{two}:2"], placement="cpu_offload")
    generate(model=model, mode="fused", loras=[f"{one}:0"], placement="single")
    assert with_both.keys() == before.keys()
    assert [name for name, weight in weights().items() if not torch.equal(weight, before[name])] == []
    assert loaded_bytes() == bytes_before


def test_a_file_that_was_written_anew_is_read_anew(generate, tmp_path):
    path = tiny_loras.save("sd3", tmp_path, 1)
    first = pixels(generate(mode="fused", loras=[str(path)]))
    tiny_loras.save("sd3", tmp_path, 5).replace(path)
    assert abs(pixels(generate(mode="fused", loras=[str(path)])) - first).max() > 0


def test_a_lora_of_another_model_is_refused_with_the_name_that_does_not_match(generate, loras):
    before = pixels(generate(mode="fused"))
    for other, name in (("flux", "single_transformer_blocks|transformer_blocks|text_encoder"), ("sdxl", "unet")):
        with pytest.raises(InvalidRequest, match=f"made for another model.*StableDiffusion3Pipeline.*({name})"):
            generate(mode="fused", loras=[str(loras["sd3"][0]), str(loras[other][0])])
    assert (pixels(generate(mode="fused")) == before).all()


def test_wrong_shapes_are_named(generate, tmp_path, loras):
    from safetensors.torch import load_file, save_file

    tensors = load_file(loras["sd3"][0])
    name = next(name for name in tensors if "transformer_blocks" in name and "lora_A" in name)
    tensors[name] = torch.zeros(4, tensors[name].shape[1] + 1)
    save_file(tensors, tmp_path / "wide.safetensors")
    with pytest.raises(InvalidRequest, match=r"wide.safetensors was made for another model.*transformer_blocks"):
        generate(mode="fused", loras=[str(tmp_path / "wide.safetensors")])
    extra = load_file(loras["sd3"][0]) | {
        f"transformer.transformer_blocks.9.attn.to_q.lora_{side}.weight": torch.zeros(4, 4) for side in "AB"
    }
    save_file(extra, tmp_path / "extra.safetensors")
    with pytest.raises(InvalidRequest, match=r"first that does not: transformer.transformer_blocks.9.attn.to_q"):
        generate(mode="fused", loras=[str(tmp_path / "extra.safetensors")])


@pytest.mark.parametrize("model", tiny_pipelines.BUILDERS)
def test_each_class_of_the_catalogue_takes_one_and_gives_it_back(runtime, tmp_path, model):
    from tpu_ui.lora_files import LoraFile
    from tpu_ui.lora_weights import LoraWeights

    path = tiny_loras.save(model, tmp_path, 1, with_text=False)
    pipeline = tiny_pipelines.BUILDERS[model]()
    denoiser = pipeline.unet if hasattr(pipeline, "unet") else pipeline.transformer
    structure, before = str(denoiser), {name: weight.clone() for name, weight in denoiser.state_dict().items()}

    def changed() -> int:
        return sum(not torch.equal(weight, before[name]) for name, weight in denoiser.state_dict().items())

    loras = LoraWeights(pipeline, runtime)
    loras.apply((LoraFile("x", path, 0.5, (0, 0)),))
    assert changed() >= 8
    assert str(denoiser) == structure
    loras.apply(())
    assert (changed(), loras.kept_bytes) == (0, 0)


def test_the_classes_that_take_none_are_those_of_diffusers():
    import diffusers

    for name in TEXT_TO_IMAGE_CLASSES:
        assert takes_loras(name) == hasattr(getattr(diffusers, name), "load_lora_weights"), name
