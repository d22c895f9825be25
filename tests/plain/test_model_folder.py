"""Every way in which a model folder can be wrong has a sentence of its own; a whole folder is read without torch."""

import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.plain.folders import (
    safetensors_bytes,
    shard_transformer,
    weights_name,
    with_header,
    write_folder,
    write_json,
)
from tpu_ui import pipeline_kinds
from tpu_ui.errors import UnusableModel
from tpu_ui.model_folder import inspect_folder
from tpu_ui.safetensors_header import read_header

TRANSFORMER = "transformer/diffusion_pytorch_model.safetensors"
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22\nsize 4909\n"
# Protocol 0: `os.system("touch marker")`. It would run if anything unpickled it.
HOSTILE_PICKLE = b"cos\nsystem\n(S'touch marker'\ntR."

SHARDS = ("diffusion_pytorch_model-00001-of-00002.safetensors", "diffusion_pytorch_model-00002-of-00002.safetensors")

in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)


def complaint(path) -> str:
    with pytest.raises(UnusableModel) as caught:
        inspect_folder(path)
    assert caught.value.remedy, "a complaint without a remedy"
    assert "\n" not in caught.value.message
    return str(caught.value)


def test_a_whole_folder_is_read(tmp_path):
    folder = inspect_folder(write_folder(tmp_path / "model"))
    assert folder.pipeline_class == "StableDiffusion3Pipeline"
    assert set(folder.components) == {"scheduler", "text_encoder", "tokenizer", "transformer", "vae"}
    transformer = folder.components["transformer"]
    assert (transformer.library, transformer.class_name) == ("diffusers", "SD3Transformer2DModel")
    assert transformer.config["num_layers"] == 1
    assert [file.name for file in transformer.weight_files] == [weights_name("diffusers")]
    assert transformer.weight_bytes == (tmp_path / "model" / TRANSFORMER).stat().st_size
    assert transformer.dtypes == {"BF16": 128, "F32": 16}
    assert transformer.parameters == 68
    assert folder.components["tokenizer"].weight_files == ()
    assert folder.weight_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    assert folder.dtype == "bfloat16"


def test_settings_of_the_pipeline_are_kept(tmp_path):
    assert inspect_folder(write_folder(tmp_path, "sdxl")).settings == {"force_zeros_for_empty_prompt": True}


def test_neither_torch_nor_diffusers_is_imported(tmp_path):
    write_folder(tmp_path)
    program = (
        "import sys; from tpu_ui.catalogue import find_card; find_card(sys.argv[1]); import tpu_ui.hardware;"
        "print([name for name in ('torch', 'diffusers', 'transformers', 'safetensors') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- What is no folder of a pipeline


def test_missing_folder(tmp_path):
    assert "there is no such folder" in complaint(tmp_path / "nowhere")
    assert "there is no such folder" in complaint("\0")
    assert "cannot be read" in complaint("x" * 5000)


def test_empty_folder(tmp_path):
    assert "is empty" in complaint(tmp_path)


def test_folder_of_a_lora(tmp_path):
    (tmp_path / "README.md").write_text("a style")
    (tmp_path / "style.safetensors").write_bytes(safetensors_bytes({"unet.to_q.lora_A.weight": ("F32", (2, 2))}))
    said = complaint(tmp_path)
    assert "not a diffusers folder: no model_index.json" in said
    assert "README.md, style.safetensors (a LoRA file)" in said
    assert "the model that it was made for" in said


def test_long_lists_of_files_are_cut(tmp_path):
    for i in range(40):
        (tmp_path / f"{i:02}.png").touch()
    assert "07.png and 32 more" in complaint(tmp_path)


def test_a_component_or_a_cache_chosen_in_place_of_the_folder(tmp_path):
    write_folder(tmp_path / "model")
    assert f"choose {tmp_path / 'model'}" in complaint(tmp_path / "model" / "transformer")
    (tmp_path / "models--org--name" / "snapshots").mkdir(parents=True)
    assert "below its snapshots folder" in complaint(tmp_path / "models--org--name")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.safetensors", safetensors_bytes({"w": ("F32", (2,))}), "a single safetensors file"),
        ("model.safetensors", b"", "a single safetensors file"),
        ("my_lora.safetensors", safetensors_bytes({"w": ("F32", (2,))}), "a LoRA file"),
        ("model.ckpt", HOSTILE_PICKLE, "a pickle checkpoint"),
        ("model.gguf", b"GGUF", "a file"),
    ],
)
def test_a_single_file(tmp_path, monkeypatch, name, content, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    words = complaint(tmp_path / name)
    assert f"is {said}" in words
    assert "not a folder in diffusers' format" in words
    assert not (tmp_path / "marker").exists()


# --- model_index.json


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "model_index.json is not valid JSON"),
        ("", "model_index.json is not valid JSON"),
        ("[" * 100_000, "model_index.json is not valid JSON"),
        ("\ufeff[]", "model_index.json is not a JSON object"),
        ("[]", "model_index.json is not a JSON object"),
        ("null", "model_index.json is not a JSON object"),
        ("{}", "names no pipeline (_class_name is None)"),
        ('{"_class_name": ["my_pipeline", "MyPipeline"]}', "names no pipeline"),
        ('{"_class_name": "FluxPipeline"}', "lists no components"),
        ('{"_class_name": "FluxPipeline", "../../vae": ["diffusers", "AutoencoderKL"]}', "component named '../../vae'"),
    ],
)
def test_unusable_model_index(tmp_path, content, said):
    (tmp_path / "model_index.json").write_text(content)
    assert said in complaint(tmp_path)


def test_model_index_that_is_no_file(tmp_path):
    (tmp_path / "model_index.json").mkdir()
    assert "model_index.json is not a file" in complaint(tmp_path)


@pytest.mark.parametrize(
    ("pipeline_class", "said"),
    [
        ("StableVideoDiffusionPipeline", "is not a text-to-image pipeline"),
        ("FluxControlNetPipeline", "needs a picture besides the text"),
        ("FluxInpaintPipeline", "needs a picture besides the text"),
        ("Flux", "is not a text-to-image pipeline"),
        ("X" * 10_000, "is not a text-to-image pipeline"),
    ],
)
def test_other_pipelines_are_refused_by_name(tmp_path, pipeline_class, said):
    write_folder(tmp_path, index={"_class_name": pipeline_class})
    words = complaint(tmp_path)
    assert pipeline_class[:80] in words
    assert said in words
    assert len(words) < 400


@in_one_folder
@given(
    content=st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("FluxPipeline"),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.just("_class_name"), inner)
        ),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_model_index_is_refused_in_a_sentence(tmp_path, content):
    (tmp_path / "model_index.json").write_bytes(content)
    complaint(tmp_path)


# --- Components


def test_missing_component(tmp_path):
    shutil.rmtree(write_folder(tmp_path) / "vae")
    assert "the folder of component vae (AutoencoderKL) is missing" in complaint(tmp_path)


@pytest.mark.parametrize(
    "name", ["vae/config.json", "scheduler/scheduler_config.json", "tokenizer/tokenizer_config.json"]
)
@pytest.mark.parametrize(
    ("content", "said"), [(None, "is missing"), ("{", "not valid JSON"), ("3", "not a JSON object")]
)
def test_missing_or_broken_configuration(tmp_path, name, content, said):
    write_folder(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    words = complaint(tmp_path)
    assert name in words
    assert said in words


def test_a_component_with_code_of_its_own(tmp_path):
    write_folder(tmp_path, index={"vae": ["my_vae", "MyVae"]})
    (tmp_path / "vae" / "my_vae.py").write_text("raise SystemExit")
    assert "component vae brings its own code (my_vae.py), which is not run" in complaint(tmp_path)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".ckpt"])
def test_pickle_weights_are_refused_and_never_opened(tmp_path, monkeypatch, suffix):
    monkeypatch.chdir(tmp_path)
    (write_folder(tmp_path) / TRANSFORMER).unlink()
    (tmp_path / "transformer" / f"diffusion_pytorch_model{suffix}").write_bytes(HOSTILE_PICKLE)
    words = complaint(tmp_path)
    assert f"only as pickle (diffusion_pytorch_model{suffix})" in words
    assert "not opened" in words
    assert not (tmp_path / "marker").exists()


def test_a_pickle_beside_safetensors_does_not_matter(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "transformer" / "diffusion_pytorch_model.bin").write_bytes(HOSTILE_PICKLE)
    inspect_folder(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ["diffusion_pytorch_model.fp16.safetensors"],
        [
            "diffusion_pytorch_model.safetensors.index.fp16.json",
            "diffusion_pytorch_model.fp16-00001-of-00001.safetensors",
        ],
    ],
)
def test_only_a_variant_is_there(tmp_path, names):
    whole = (write_folder(tmp_path) / TRANSFORMER).read_bytes()
    (tmp_path / TRANSFORMER).unlink()
    for name in names:
        (tmp_path / "transformer" / name).write_bytes(whole)
    words = complaint(tmp_path)
    assert "only as variant fp16" in words
    (tmp_path / "transformer" / "diffusion_pytorch_model.ema.safetensors").write_bytes(whole)
    assert "only as variant ema and fp16" in complaint(tmp_path)


def test_missing_weights(tmp_path):
    (write_folder(tmp_path) / TRANSFORMER).unlink()
    assert f"{TRANSFORMER} is missing." in complaint(tmp_path)
    # The other library's name is not found by the loader either.
    (tmp_path / "transformer" / "model.safetensors").write_bytes(safetensors_bytes({"w": ("F32", (2,))}))
    assert f"{TRANSFORMER} is missing." in complaint(tmp_path)


# --- Shards


def test_shards_are_read_as_one(tmp_path):
    whole = inspect_folder(write_folder(tmp_path)).components["transformer"]
    shard_transformer(tmp_path, SHARDS)
    shards = inspect_folder(tmp_path).components["transformer"]
    assert [file.name for file in shards.weight_files] == list(SHARDS)
    assert (shards.parameters, shards.dtypes) == (whole.parameters, whole.dtypes)


def test_half_a_download_names_the_missing_shard(tmp_path):
    shard_transformer(write_folder(tmp_path), SHARDS)
    (tmp_path / "transformer" / SHARDS[1]).unlink()
    words = complaint(tmp_path)
    assert "half a download: 1 of 2 weight files of transformer are missing" in words
    assert SHARDS[1] in words
    assert SHARDS[0] not in words
    assert ".incomplete" not in words


def test_half_a_download_in_the_hubs_cache(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc123"
    shard_transformer(write_folder(snapshot), SHARDS)
    blobs.mkdir()
    for path in [path for path in snapshot.rglob("*") if path.is_file()]:
        blob = blobs / f"{path.parent.name}-{path.name}"
        path.rename(blob)
        path.symlink_to(blob)
    inspect_folder(snapshot)
    (blobs / f"transformer-{SHARDS[1]}").unlink()
    (blobs / "0123.incomplete").touch()
    words = complaint(snapshot)
    assert SHARDS[1] in words
    assert "1 unfinished .incomplete download(s)" in words


def test_debris_of_a_download_that_was_finished_later_does_not_matter(tmp_path):
    (write_folder(tmp_path) / "transformer" / "0123.incomplete").touch()
    inspect_folder(tmp_path)


def test_shards_without_their_index(tmp_path):
    shard_transformer(write_folder(tmp_path), SHARDS)
    (tmp_path / "transformer" / "diffusion_pytorch_model.safetensors.index.json").unlink()
    assert "diffusion_pytorch_model.safetensors.index.json is missing" in complaint(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not valid JSON"),
        ("{}", "does not say in which files"),
        ('{"weight_map": []}', "does not say in which files"),
        ('{"weight_map": {"a": 1}}', "does not say in which files"),
        ('{"weight_map": {"a": "../vae/diffusion_pytorch_model.safetensors"}}', "does not say in which files"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "does not say in which files"),
        ('{"weight_map": {"a": "pytorch_model.bin"}}', "does not say in which files"),
    ],
)
def test_broken_index(tmp_path, content, said):
    shard_transformer(write_folder(tmp_path), SHARDS)
    (tmp_path / "transformer" / "diffusion_pytorch_model.safetensors.index.json").write_text(content)
    words = complaint(tmp_path)
    assert "diffusion_pytorch_model.safetensors.index.json" in words
    assert said in words


# --- Damaged files

WHOLE = safetensors_bytes({"transformer_blocks.0.attn.to_q.weight": ("BF16", (64, 64))})
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", ["is empty (0 bytes)"]),
        (WHOLE[: len(WHOLE) // 2], [f"is cut: {len(WHOLE) // 2:,} bytes found, {len(WHOLE):,} expected"]),
        (WHOLE[:-1], [f"is cut: {len(WHOLE) - 1:,} bytes found"]),
        (WHOLE[:20], ["is cut: 20 bytes found", "for its header alone"]),
        (WHOLE[:7], ["is cut: 7 bytes"]),
        (WHOLE + b"\0", [f"longer than it should be: {len(WHOLE) + 1:,} bytes found, {len(WHOLE):,} expected"]),
        (LFS_POINTER, ["is a Git LFS pointer", "git lfs pull"]),
        (struct.pack("<Q", 2**60) + WHOLE[8:], ["header claims 1,152,921,504,606,846,976 bytes", "100,000,000"]),
        (struct.pack("<Q", 2**64 - 1), ["header claims"]),
        (struct.pack("<Q", 100_000_001) + WHOLE[8:], ["header claims 100,000,001 bytes"]),
        (struct.pack("<Q", 100_000_000) + WHOLE[8:], ["is cut"]),
        (with_header(b"{"), ["header is not JSON"]),
        (with_header(b"\xff\xfe"), ["header is not JSON"]),
        (with_header(b"[" * 50_000), ["header is not JSON"]),
        (with_header([]), ["header is not an object"]),
        (with_header({}), ["hold no tensors"]),
        (with_header({"__metadata__": {"format": "pt"}}), ["hold no tensors"]),
        (with_header({"w": 3}, bytes(8)), ["tensor 'w' makes no sense"]),
        (with_header({"w": {**ENTRY, "dtype": "F31"}}, bytes(8)), ["tensor 'w' makes no sense"]),
        (with_header({"w": {**ENTRY, "shape": [3]}}, bytes(8)), ["tensor 'w' makes no sense"]),
        (with_header({"w": {**ENTRY, "shape": [-2]}}, bytes(8)), ["tensor 'w' makes no sense"]),
        (with_header({"w": {**ENTRY, "shape": [2**62] * 9999}}, bytes(8)), ["tensor 'w' makes no sense"]),
        (with_header({"w": {**ENTRY, "data_offsets": [8, 0]}}, bytes(8)), ["tensor 'w' makes no sense"]),
        (with_header({"w": {**ENTRY, "data_offsets": [0]}}, bytes(8)), ["tensor 'w' makes no sense"]),
        (with_header({"w": ENTRY, "v": ENTRY}, bytes(8)), ["overlap or leave gaps"]),
        (with_header({"w": {**ENTRY, "data_offsets": [8, 16]}}, bytes(16)), ["overlap or leave gaps"]),
    ],
)
def test_damaged_weights_are_named(tmp_path, content, said):
    (write_folder(tmp_path) / TRANSFORMER).write_bytes(content)
    words = complaint(tmp_path)
    assert "transformer" in words
    for each in said:
        assert each in words


def test_a_forged_header_length_allocates_nothing(tmp_path):
    for length in (2**60, 2**63, 99_999_999):
        (tmp_path / "forged.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
        tracemalloc.start()
        with pytest.raises(UnusableModel):
            read_header(tmp_path / "forged.safetensors", "forged.safetensors")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        tracemalloc.stop()


def verdicts(path) -> tuple[bool, bool]:
    """Whether we take the file for whole, and whether the safetensors library does."""
    try:
        read_header(path, path.name)
        ours = True
    except UnusableModel as error:
        ours = False
        assert path.name in error.message  # noqa: PT017 - either outcome is right, but a complaint names its file
    try:
        safetensors.safe_open(path, framework="numpy")
    except (safetensors.SafetensorError, OSError):
        return ours, False
    return ours, True


@in_one_folder
@given(content=st.binary(max_size=300) | st.binary(max_size=100).map(with_header))
def test_any_bytes_are_judged_as_the_library_does(tmp_path, content):
    path = tmp_path / "any.safetensors"
    path.write_bytes(content)
    ours, theirs = verdicts(path)
    assert ours == theirs


@in_one_folder
@given(position=st.integers(0, len(WHOLE) - 1), value=st.integers(0, 255), length=st.integers(0, len(WHOLE) + 20))
def test_a_changed_byte_or_length_is_judged_as_the_library_does(tmp_path, position, value, length):
    content = bytearray((WHOLE + bytes(20))[:length])
    if position < len(content):
        content[position] = value
    path = tmp_path / "changed.safetensors"
    path.write_bytes(content)
    ours, theirs = verdicts(path)
    assert ours == theirs


def test_what_the_library_writes_is_read(tmp_path):
    path = tmp_path / "real.safetensors"
    arrays = {"a": np.zeros((3, 5), np.float16), "b": np.zeros((), np.int64), "c": np.zeros((0, 4), np.float32)}
    safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})
    header = read_header(path, path.name)
    assert set(header.tensor_names) == {"a", "b", "c"}
    assert header.parameters == 16
    assert header.dtype_bytes == {"F16": 30, "I64": 8, "F32": 0}
    assert header.file_bytes == path.stat().st_size


@pytest.mark.parametrize(
    ("kind", "config", "said"),
    [
        ("sd3", {"num_layers": 2}, "the weights have 1 transformer_blocks, but config.json says num_layers = 2"),
        ("flux", {"num_layers": 3}, "the weights have 1 transformer_blocks, but config.json says num_layers = 3"),
        ("flux", {"num_single_layers": 1}, "2 single_transformer_blocks, but config.json says num_single_layers = 1"),
    ],
)
def test_configuration_that_does_not_fit_the_weights(tmp_path, kind, config, said):
    write_folder(tmp_path, kind, configs={"transformer": config})
    assert said in complaint(tmp_path)


# --- Fingerprint


def test_the_fingerprint_depends_on_the_content_alone(tmp_path):
    first = inspect_folder(write_folder(tmp_path / "first"))
    shutil.copytree(tmp_path / "first", tmp_path / "second" / "deeper")
    assert inspect_folder(tmp_path / "second" / "deeper").fingerprint == first.fingerprint
    assert len(first.fingerprint) == 16
    (tmp_path / "first" / "README.md").write_text("not part of the model")
    assert inspect_folder(tmp_path / "first").fingerprint == first.fingerprint


@pytest.mark.parametrize(
    "changed", ["model_index.json", "vae/config.json", "scheduler/scheduler_config.json", "tokenizer/vocab.json"]
)
def test_the_fingerprint_sees_every_configuration(tmp_path, changed):
    before = inspect_folder(write_folder(tmp_path)).fingerprint
    path = tmp_path / changed
    value = json.loads(path.read_text()) if path.exists() else {}
    write_json(path, {**value, "changed": 1})
    assert inspect_folder(tmp_path).fingerprint != before


@pytest.mark.parametrize("place", [0, -1])
def test_the_fingerprint_sees_both_ends_of_the_weights(tmp_path, place):
    path = write_folder(tmp_path) / TRANSFORMER
    tensors = {"transformer_blocks.0.w": ("F32", (300, 300))}
    path.write_bytes(safetensors_bytes(tensors))
    before = inspect_folder(tmp_path).fingerprint
    content = bytearray(path.read_bytes())
    content[read_header(path, "").data_start if place == 0 else place] ^= 1
    path.write_bytes(content)
    assert inspect_folder(tmp_path).fingerprint != before


def test_the_fingerprint_is_the_same_on_every_machine(tmp_path):
    assert inspect_folder(write_folder(tmp_path)).fingerprint == "ca7ee484f303186d"


# --- Last, since it imports diffusers; in a process of its own, since that imports torch

_PRINT_CLASSES = """
import json
from diffusers.pipelines.auto_pipeline import AUTO_TEXT2IMAGE_PIPELINES_MAPPING
print(json.dumps([pipeline.__name__ for pipeline in AUTO_TEXT2IMAGE_PIPELINES_MAPPING.values()]))
"""
# In diffusers' mapping only where sentencepiece is installed.
_DEPENDS_ON_INSTALLATION = {"KolorsPipeline", "KolorsPAGPipeline"}


@pytest.mark.skipif(importlib.util.find_spec("diffusers") is None, reason="diffusers is not installed")
def test_the_list_of_pipeline_classes_is_that_of_diffusers():
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-c", _PRINT_CLASSES], capture_output=True, check=True, env=environment)
    classes = set(json.loads(done.stdout.splitlines()[-1])) | _DEPENDS_ON_INSTALLATION
    wanted = {name for name in classes if "Control" not in name and "Inpaint" not in name}
    assert wanted == pipeline_kinds.TEXT_TO_IMAGE_CLASSES
    assert set(pipeline_kinds.PIPELINE_KINDS) <= wanted
