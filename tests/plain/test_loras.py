"""LoRAs before torch is there: how they are written, found and refused, and what stands of them in pictures."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL.PngImagePlugin import PngInfo

from tests.plain.folders import write_folder
from tests.plain.test_recipe import png
from tpu_ui.errors import InvalidRequest, LoadFailed, NotDownloaded
from tpu_ui.lora import MAX_LORAS, Lora, lines_of, read_loras
from tpu_ui.lora_files import HubLora, choose_file, find_loras, names_in
from tpu_ui.page import form
from tpu_ui.pipeline_kinds import TEXT_TO_IMAGE_CLASSES, takes_loras
from tpu_ui.recipe import Recipe, read_recipe
from tpu_ui.report import Report
from tpu_ui.request import GenerationRequest
from tpu_ui.resolver import Resolver
from tpu_ui.settings import Settings, read_settings


def safetensors(*names: str) -> bytes:
    tensors = {name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, name in enumerate(names)}
    header = json.dumps(tensors).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4 * len(names))


LORA = safetensors("transformer.blocks.0.to_q.lora_A.weight", "transformer.blocks.0.to_q.lora_B.weight")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "loras"
    made.mkdir()
    for name in ("star.safetensors", "ring.safetensors", "two.parts.safetensors"):
        (made / name).write_bytes(LORA)
    return made


def no_hub(hub: HubLora) -> Path:
    raise AssertionError(hub)


def find(name: str, folder: Path, pipeline_class: str = "FluxPipeline", fetch=no_hub):
    return find_loras((Lora.parse(name),), pipeline_class, folder, fetch)


# -- how they are written ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "weight"),
    [
        ("star", "star", 1.0),
        (" star : 0.8 ", "star", 0.8),
        ("./a b/star.safetensors:-2", "./a b/star.safetensors", -2.0),
        ("org/name/x.safetensors@main:.5", "org/name/x.safetensors@main", 0.5),
        ("org/name@v1.0", "org/name@v1.0", 1.0),
        ("odd:2:1", "odd:2", 1.0),
        ("odd:2", "odd", 2.0),
        ("C:star", "C:star", 1.0),
        ("star:1e-3", "star", 0.001),
        ("star:0", "star", 0.0),
    ],
)
def test_a_number_behind_the_last_colon_is_the_weight(text: str, name: str, weight: float):
    assert Lora.parse(text) == Lora(name, weight)


@given(st.text(min_size=1, max_size=40), st.floats(-4, 4))
def test_what_is_written_is_read_back(name: str, weight: float):
    try:
        lora = Lora(name, weight)
    except InvalidRequest:
        return
    assert Lora.parse(str(lora)) == lora


@pytest.mark.parametrize("weight", ["4.1", "-5", "nan", "inf", "-inf", "1e9"])
def test_weights_out_of_range(weight: str):
    with pytest.raises(InvalidRequest, match=r"^loras: the weight .* of star is out of range. Give -4 to 4.$"):
        Lora.parse(f"star:{weight}")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("star", "must be a list, not str"),
        (["a"] * (MAX_LORAS + 1), "9 are above the limit of 8"),
        (["star:1", "star:2"], "star is named twice"),
        ([{"name": "star", "weight": True}], "the weight True of star is not a number"),
        ([{"name": "star", "weight": math.nan}], "out of range"),
        ([{"name": "star", "scale": 1}], "is not a LoRA"),
        ([3], "3 is not a LoRA"),
        ([":0.5"], "'' is not the name of a LoRA"),
        (["a\0b"], "is no name of a file"),
    ],
)
def test_what_is_no_list_of_loras(value: object, sentence: str):
    with pytest.raises(InvalidRequest, match=f"^loras: .*{sentence}"):
        GenerationRequest.from_mapping({"loras": value})


def test_both_forms_in_a_request():
    request = GenerationRequest.from_mapping({"loras": ["star:0.5", {"name": "ring"}, {"name": "x:1", "weight": 2}]})
    assert request.loras == (Lora("star", 0.5), Lora("ring", 1.0), Lora("x:1", 2.0))
    assert read_loras(request.loras) == request.loras
    assert lines_of(" star:0.5 \n\n ring\n") == ["star:0.5", "ring"]


def test_the_form_gives_them_a_line_each_and_takes_them_back():
    controls = dict.fromkeys(form.FIELDS) | {"prompt": "x", "placement": "auto", "batch": 1, "loras": "star:0.5\nring"}
    values = form.values(*controls.values())
    assert values["loras"] == ["star:0.5", "ring"]
    request = GenerationRequest.from_mapping(values)
    assert form.from_request(request, "m")["loras"] == "star:0.5\nring:1"
    assert "loras" not in form.values(*(controls | {"loras": " \n "}).values())


# -- where they are found ---------------------------------------------------------------------------------------------


def test_names_of_the_folder_and_paths(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert names_in(folder) == ("ring", "star", "two.parts")
    assert names_in(tmp_path / "none") == ()
    monkeypatch.chdir(tmp_path)
    for name in ("star", "star.safetensors", "loras/star.safetensors", str(folder / "star.safetensors")):
        (found,), notices = find(f"{name}:0.5", folder)
        assert (found.path.resolve(), found.weight, notices) == (folder / "star.safetensors", 0.5, ())
    single = tmp_path / "single"
    single.mkdir()
    (single / "any.safetensors").write_bytes(LORA)
    assert find("./single", folder)[0][0].path.name == "any.safetensors"


def test_a_file_written_anew_is_another_one(folder: Path):
    before = find("star", folder)[0]
    (folder / "star.safetensors").write_bytes(LORA + b"")
    assert find("star", folder)[0][0].signature[1] != before[0].signature[1]


def test_one_of_several_files_has_to_be_named():
    assert (
        choose_file("org/x", ["a.safetensors", "pytorch_lora_weights.safetensors"])
        == "pytorch_lora_weights.safetensors"
    )
    with pytest.raises(InvalidRequest, match=r"org/x holds 2 files: a.safetensors, b.safetensors. Name one: org/x/a"):
        choose_file("org/x", ["b.safetensors", "a.safetensors", "README.md"])
    with pytest.raises(InvalidRequest, match=r"holds only a.bin pickle, which can run any code .* not opened"):
        choose_file("org/x", ["a.bin"])
    with pytest.raises(InvalidRequest, match=r"holds no .safetensors file"):
        choose_file("org/x", ["README.md"])


def test_a_name_that_no_file_can_have(folder: Path):
    for name in ("a" * 300, "😀" * 90, "./" + "a" * 300, "a" * 300 + "/b"):
        with pytest.raises(InvalidRequest, match=r"LoRA|no file|File name too long"):
            find(name, folder)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("stra", r"there is no LoRA 'stra'. Did you mean star\?"),
        ("./none.safetensors", "there is no file './none.safetensors'"),
        ("star:abc", "there is no LoRA 'star:abc'"),
        ("org/name/x.bin", "there is no LoRA"),
        ("org/name/../x.safetensors", "there is no LoRA"),
        ("org/name@../x", "there is no LoRA"),
    ],
)
def test_what_is_not_there(folder: Path, name: str, sentence: str):
    with pytest.raises(InvalidRequest, match=f"^loras: {sentence}"):
        find(name, folder)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("x.bin", b"\x80", "pickle, which can run any code when it is opened; it was not opened"),
        ("x.txt", b"", "x.txt is not a .safetensors file"),
        ("x.safetensors", b"", r"x.safetensors is empty"),
        ("x.safetensors", LORA[:-1], r"x.safetensors is cut"),
        ("x.safetensors", b"<html>" * 30, r"x.safetensors is not a safetensors file"),
        ("x.safetensors", safetensors("blocks.0.weight"), "not a LoRA: none of its 1 tensors"),
        ("x.safetensors", safetensors("a.lora_down.weight", "a.dora_scale"), r"is a DoRA \(it holds a.dora_scale\)"),
    ],
)
def test_what_is_no_lora(folder: Path, file: str, content: bytes, sentence: str):
    (folder / file).write_bytes(content)
    with pytest.raises(InvalidRequest, match=f"^loras: .*{sentence}"):
        find(str(folder / file), folder)


@pytest.mark.parametrize(
    ("name", "hub"),
    [
        ("org/name", HubLora("org/name", None, None)),
        ("org/name@refs/pr/1", HubLora("org/name", None, "refs/pr/1")),
        ("org/name/sub/x 1.safetensors@v2:0.5", HubLora("org/name", "sub/x 1.safetensors", "v2")),
    ],
)
def test_names_on_the_hub(folder: Path, name: str, hub: HubLora):
    asked = []

    def fetch(wanted: HubLora) -> Path:
        asked.append(wanted)
        return folder / "star.safetensors"

    (found,), _ = find(name, folder, fetch=fetch)
    assert asked == [hub]
    assert found.path == folder / "star.safetensors"

    def absent(wanted: HubLora) -> Path:
        raise NotDownloaded(f"{wanted.repo_id} is not on this machine.", "It is fetched with the next request.")

    files, notices = find(name, folder, fetch=absent)
    assert (files, notices) == (
        (), ("loras: org/name is not on this machine. It is fetched with the next request.",),
    )  # fmt: skip


def test_pipelines_that_take_none(folder: Path):
    assert takes_loras("FluxPipeline")
    with pytest.raises(InvalidRequest, match=r"PixArtSigmaPipeline takes none in diffusers. Leave them out."):
        find("star", folder, pipeline_class="PixArtSigmaPipeline")
    assert find_loras((), "PixArtSigmaPipeline", folder, no_hub) == ((), ())
    assert sum(map(takes_loras, TEXT_TO_IMAGE_CLASSES)) > 20


def test_a_request_is_resolved_with_its_files(folder: Path, tmp_path: Path):
    model = write_folder(tmp_path / "model", "sd3")
    resolver = Resolver("cpu", Settings(tmp_path / "cache", offline=True, lora_dir=folder), str(model))
    resolved, _ = resolver.resolve(GenerationRequest.from_mapping({"loras": ["star:0.5"]}))
    assert [(lora.name, lora.weight) for lora in resolved.loras] == [("star", 0.5)]
    with pytest.raises(InvalidRequest, match="there is no LoRA 'moon'"):
        resolver.resolve(GenerationRequest.from_mapping({"loras": ["moon"]}))


def test_a_lora_that_cannot_be_had_is_refused_before_the_click(folder: Path, tmp_path: Path):
    """Offline one of the Hub; and one that is nowhere, also where the model itself is not on this machine yet."""
    model = write_folder(tmp_path / "model", "sd3")
    settings = Settings(tmp_path / "cache", lora_dir=folder, hub_cache_dir=tmp_path / "hub")
    wanted = GenerationRequest.from_mapping({"model": str(model), "loras": ["org/name"]})
    with pytest.raises(LoadFailed, match="HF_HUB_OFFLINE is set"):
        Resolver("cpu", replace(settings, offline=True), str(model)).resolve(wanted)
    resolver = Resolver("cpu", settings, str(model))
    assert "It is fetched with the next request." in resolver.resolve(wanted)[0].notices[0]
    assert resolver.foresee_unseen(replace(wanted, model="sdxl")).notices == resolver.resolve(wanted)[0].notices
    with pytest.raises(InvalidRequest, match="there is no LoRA 'moon'"):
        resolver.foresee_unseen(GenerationRequest.from_mapping({"model": "sdxl", "loras": ["moon"]}))


def test_the_folder_is_a_setting(tmp_path: Path):
    environ = {"TPU_UI_CACHE_DIR": str(tmp_path)}
    assert read_settings(environ).lora_folder == tmp_path / "loras"
    assert read_settings(environ | {"TPU_UI_LORAS": "/l"}).lora_folder == Path("/l")


# -- in pictures ------------------------------------------------------------------------------------------------------


def recipe(*loras: str, prompt: str = "a fox") -> Recipe:
    report = Report(ok=True, seeds=(7,))
    return Recipe.of(GenerationRequest(prompt=prompt, width=64, height=64, steps=3, seed=7, loras=loras), report)


def test_a_picture_carries_names_and_weights_but_no_path(folder: Path):
    made = recipe("star:0.5", f"{folder}/ring.safetensors:2", "org/name/x.safetensors@v1", "~/me/moon.safetensors:-1")
    text = made.to_json() + made.to_a1111()
    assert str(folder) not in text
    assert "~" not in text
    assert "/me/" not in text
    read = read_recipe(png(made.to_png_info()))
    assert read.fields["loras"] == ["star:0.5", "ring:2", "org/name/x.safetensors@v1:1", "moon:-1"]
    assert read.notices == ()


def test_a_relative_path_is_one_too(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder.parent)
    assert recipe("loras/star.safetensors:2").request.loras == (Lora("star", 2.0),)


@pytest.mark.parametrize("prompt", ["a fox", "", "two\nlines"])
def test_a1111_writes_them_into_the_prompt(prompt: str):
    made = recipe("star:0.5", "ring", prompt=prompt)
    assert f"{prompt} <lora:star:0.5><lora:ring:1>".strip() in made.to_a1111()
    read = read_recipe(png(parameters=made.to_a1111()))
    assert read.source == "A1111"
    assert (read.fields.get("prompt", ""), read.fields["loras"]) == (prompt, ["star:0.5", "ring:1"])


@pytest.mark.parametrize("hostile", ["../../etc/x:1", "/etc/passwd", "~/x:1", "C:\\x:1", 3, None, {"name": "star"}])
def test_paths_in_a_strangers_picture_are_left_out(hostile: object):
    content = {"schema": 1, "request": {"prompt": "x", "loras": [hostile]}}
    info = PngInfo()
    info.add_text("tpu_ui", json.dumps(content))
    read = read_recipe(png(info))
    assert "loras" not in read.fields
    assert read.notices == ("loras: what stands in the picture is of no use here. It was left out.",)
