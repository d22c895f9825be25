"""A picture carries what made it, says nothing else, and a stranger's picture can do no harm."""

import contextlib
import io
import json
import struct
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tpu_ui.errors import InvalidRequest
from tpu_ui.public_names import public_model_name
from tpu_ui.recipe import MAX_TEXT_CHARACTERS, Recipe, read_recipe
from tpu_ui.report import Report
from tpu_ui.request import GenerationRequest

AS_RAN = {
    "prompt": "a fox",
    "negative_prompt": "blur",
    "model": "demo",
    "mode": "compile",
    "placement": "single",
    "width": 256,
    "height": 128,
    "steps": 5,
    "guidance": 7.5,
    "seed": 7,
    "batch": 1,
}
REPORT = Report(ok=True, revision="0123abcd", device="tpu", versions={"torch": "2.13.0+cpu"})


def png(info: PngInfo | None = None, **texts: str) -> bytes:
    info = info or PngInfo()
    for key, text in texts.items():
        info.add_text(key, text)
    stream = io.BytesIO()
    Image.new("RGB", (4, 4)).save(stream, "PNG", pnginfo=info)
    return stream.getvalue()


def recipe(**changes) -> Recipe:
    return Recipe.of(GenerationRequest.from_mapping(AS_RAN | changes), REPORT)


TRICKY = [
    "",
    "🦊" * 300,
    "a fox\n\nSteps: 3, Sampler: Euler, CFG scale: 4, Seed: 5, Size: 8x8",
    'Steps: 3\nNegative prompt: "not, this"\n',
    "../../tmp/x",
    "CON",
    'say "hi, you": \\ é ü \u2028 \t end ',
]


@pytest.mark.parametrize("prompt", TRICKY)
def test_our_own_settings_come_back_exactly(prompt):
    read = read_recipe(png(recipe(prompt=prompt, negative_prompt=prompt).to_png_info()))
    assert read.source == "tpu_ui"
    assert read.notices == ()
    assert read.fields == AS_RAN | {"prompt": prompt, "negative_prompt": prompt}


@settings(max_examples=150, deadline=None)
@given(
    prompt=st.text(max_size=300),
    negative=st.text(max_size=100),
    seed=st.integers(0, 2**63 - 1),
    guidance=st.floats(0, 100),
    steps=st.integers(1, 200),
)
def test_any_request_comes_back_exactly(prompt, negative, seed, guidance, steps):
    ran = GenerationRequest.from_mapping(
        AS_RAN | {"prompt": prompt, "negative_prompt": negative, "seed": seed, "guidance": guidance, "steps": steps}
    )
    read = read_recipe(png(Recipe.of(ran, REPORT).to_png_info()))
    assert GenerationRequest.from_mapping(read.fields) == ran


_ONE_LINE = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=200).map(str.strip)


@settings(max_examples=150, deadline=None)
@given(lines=st.lists(_ONE_LINE.filter(bool), max_size=4), negative=_ONE_LINE)
def test_the_a1111_text_comes_back_without_our_own(lines, negative):
    prompt = "\n".join(lines)
    text = recipe(prompt=prompt, negative_prompt=negative).to_a1111()
    read = read_recipe(png(parameters=text))
    assert read.source == "A1111"
    assert read.raw_text == text
    expected = {k: v for k, v in AS_RAN.items() if k not in ("mode", "placement", "batch")}
    if not negative:
        del expected["negative_prompt"]
    assert read.fields == expected | {"prompt": prompt} | ({"negative_prompt": negative} if negative else {})


def test_each_picture_of_a_batch_has_its_own_seed():
    request = GenerationRequest.from_mapping(AS_RAN | {"batch": 4})
    report = Report(ok=True, seeds=(7, 8, 10))  # 9 was spoilt
    reads = [read_recipe(png(Recipe.of(request, report, i).to_png_info())) for i in range(3)]
    assert [read.fields["seed"] for read in reads] == [7, 8, 10]
    assert {read.fields["batch"] for read in reads} == {1}


def test_the_a1111_text_reads_as_people_know_it():
    assert recipe(model="org/name, two: x").to_a1111().splitlines() == [
        "a fox",
        "Negative prompt: blur",
        "Steps: 5, CFG scale: 7.5, Seed: 7, Size: 256x128, Model: name_ two_ x, Version: tpu_ui 0.1.0",
    ]
    quoted = Recipe(GenerationRequest(prompt="x"), sampler='a, "b"\nc').to_a1111()
    assert quoted.splitlines()[1].startswith(r'Sampler: "a, \"b\"\nc", ')


A1111_TEXT = """portrait, (sharp:1.2),
with "quotes": and, commas
Negative prompt: text, b&w,
second line, x: y
Steps: 30, Sampler: DPM++ 2M Karras, CFG scale: 5, Seed: 1960802277, Size: 768x512, Model hash: 31e35c80fc, \
Model: sd_xl_base_1.0, Lora hashes: "a: 1, b: 2", Wildcard prompt: "say \\"hi\\", Seed: 9\\nSteps: 9", Version: 1"""


def check_a1111(read):
    assert read.source == "A1111"
    assert read.fields == {
        "prompt": 'portrait, (sharp:1.2),\nwith "quotes": and, commas',
        "negative_prompt": "text, b&w,\nsecond line, x: y",
        "width": 768,
        "height": 512,
        "steps": 30,
        "guidance": 5.0,
        "seed": 1960802277,
    }
    assert "sd_xl_base_1.0" in read.notices[0]
    assert "Lora hashes" in read.notices[1]


def test_a1111_text_with_quoted_values_and_lines():
    check_a1111(read_recipe(png(parameters=A1111_TEXT)))
    check_a1111(read_recipe(png(parameters=A1111_TEXT.replace("\n", "\r\n"))))
    check_a1111(read_recipe(png(parameters=A1111_TEXT + "\nTemplate: Steps of {a|b}")))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
@pytest.mark.parametrize("code", ["utf-16-be", "utf-16-le", "utf-8", None])
def test_a1111_text_in_exif(kind, code):
    body = A1111_TEXT.encode(code or "ascii")
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9286] = {"utf-8": b"", None: b"ASCII\0\0\0"}.get(code, b"UNICODE\0") + body
    stream = io.BytesIO()
    Image.new("RGB", (4, 4)).save(stream, kind, exif=exif)
    check_a1111(read_recipe(stream.getvalue()))


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("only a prompt", {"prompt": "only a prompt"}),
        ("a\nSteps: 3", {"prompt": "a\nSteps: 3"}),
        ("Steps: 3, Seed: 4, Size: 64x64", {"prompt": "", "steps": 3, "seed": 4, "width": 64, "height": 64}),
        ("a\nSteps: 4, CFG scale: 1, Distilled CFG Scale: 3.5, Seed: 1", {"guidance": 3.5}),
        ("a\nSteps: 4, Seed: 1, Model: FLUX.1-Schnell", {"model": "flux.1-schnell"}),
        ("a\nSteps: 4, Seed: 1, Model: black-forest-labs/FLUX.1-schnell", {"model": "flux.1-schnell"}),
        ("a\nSteps: 999, Seed: x, CFG scale: -2, Size: 99999x8", {"prompt": "a", "height": 8}),
    ],
)
def test_a1111_text_in_parts(text, fields):
    read = read_recipe(png(parameters=text))
    assert fields.items() <= read.fields.items()
    assert GenerationRequest.from_mapping(read.fields)


def test_wrong_values_are_dropped_with_a_notice():
    read = read_recipe(png(parameters="a\nSteps: 999, Seed: x, CFG scale: nan, Size: 99999x8"))
    assert read.fields == {"prompt": "a", "height": 8}
    said = " ".join(read.notices)
    assert all(name in said for name in ("steps: 999", "seed: 'x'", "guidance", "width: 99999"))


GRAPH = {
    "3": {
        "class_type": "KSampler",
        "inputs": {
            "seed": 156680208700286,
            "steps": 20,
            "cfg": 8,
            "model": ["4", 0],
            "positive": ["6", 0],
            "negative": ["7", 0],
            "latent_image": ["5", 0],
        },
    },
    "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "/secret/v1-5.safetensors"}},
    "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 512, "height": 768, "batch_size": 1}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "glass bottle\n🌌", "clip": ["4", 1]}},
    "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "watermark", "clip": ["4", 1]}},
    "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0]}},
}
COMFY = {
    "prompt": "glass bottle\n🌌",
    "negative_prompt": "watermark",
    "width": 512,
    "height": 768,
    "steps": 20,
    "guidance": 8.0,
    "seed": 156680208700286,
}


def graph(**changes) -> bytes:
    return png(prompt=json.dumps(GRAPH | changes))


def test_a_simple_comfyui_graph():
    read = read_recipe(graph())
    assert (read.source, read.fields) == ("ComfyUI", COMFY)
    assert read.notices == ("model: the picture was made with 'v1-5.safetensors'; choose one here.",)


def test_a_comfyui_graph_with_flux_and_a_second_pass():
    sampler = GRAPH["3"]["inputs"] | {"seed": ["20", 0], "positive": ["11", 0], "negative": ["12", 0], "cfg": 1.0}
    read = read_recipe(
        graph(**{
            "2": {"class_type": "KSampler", "inputs": sampler | {"latent_image": ["15", 0], "steps": 3}},
            "3": {"class_type": "KSampler", "inputs": sampler},
            "5": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 1024, "height": 512}},
            "11": {"class_type": "FluxGuidance", "inputs": {"guidance": 3.5, "conditioning": ["6", 0]}},
            "12": {"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["6", 0]}},
            "15": {"class_type": "LatentUpscale", "inputs": {"samples": ["3", 0], "width": 9, "height": 9}},
            "20": {"class_type": "PrimitiveInt", "inputs": {"value": 2**64 - 1}},
        })
    )  # fmt: skip
    expected = COMFY | {"width": 1024, "height": 512, "guidance": 3.5}
    del expected["negative_prompt"], expected["seed"]
    assert read.fields == expected
    assert any(notice.startswith("seed: 18446744073709551615 is above") for notice in read.notices)


def test_odd_graphs_are_told_not_crashed_on():
    assert "no KSampler" in read_recipe(graph(**{"3": GRAPH["9"]})).notices[0]
    assert read_recipe(png(prompt="[1, 2]")).source is None
    assert read_recipe(png(prompt='{"a": 1}')).source is None
    circle = {"class_type": "Reroute", "inputs": {"conditioning": ["6", 0], "text": ["6", 0]}}
    assert "prompt" not in read_recipe(graph(**{"6": circle})).fields


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["3", "5", "6"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(values=st.fixed_dictionaries({key: _JSON for key in AS_RAN}), inputs=st.lists(_JSON, min_size=7, max_size=7))
def test_whatever_stands_in_json_what_is_handed_on_is_valid(values, inputs):
    ours = read_recipe(
        png(tpu_ui=json.dumps({"schema": values, "request": values | {"evil": 1}, "created_ms": inputs}))
    )
    assert GenerationRequest.from_mapping(ours.fields)
    hostile = {"class_type": "KSampler", "inputs": dict(zip(GRAPH["3"]["inputs"], inputs, strict=True))}
    other = read_recipe(graph(**{"3": hostile, "6": {"class_type": "CLIPTextEncode", "inputs": {"text": inputs[0]}}}))
    assert GenerationRequest.from_mapping(other.fields)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_files_have_their_sentence(data):
    whole = bytearray(png(recipe().to_png_info()))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    with contextlib.suppress(InvalidRequest):  # nothing else may come out
        assert GenerationRequest.from_mapping(read_recipe(bytes(whole[:cut])).fields)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def with_chunk(kind: bytes, body: bytes) -> bytes:
    whole = png()
    return whole[:33] + chunk(kind, body) + whole[33:]  # behind the header


@pytest.mark.parametrize(
    "picture",
    [
        b"",
        b"GIF89a" + bytes(100),
        b"not a picture",
        with_chunk(b"zTXt", b"parameters\0\0" + zlib.compress(bytes(50 * 2**20))),
        with_chunk(b"iTXt", b"tpu_ui\0\1\0\0\0" + zlib.compress(b"x" * (50 * 2**20))),
        with_chunk(b"tEXt", b"prompt\0" + b"{" * (MAX_TEXT_CHARACTERS + 1)),
        with_chunk(b"tEXt", b"parameters\0" + b"x" * (64 * 2**20)),
    ],
    ids=["empty", "gif", "text", "zTXt bomb", "iTXt bomb", "long text", "long file"],
)
def test_unreadable_and_huge_files_are_refused(picture):
    with pytest.raises(InvalidRequest, match="picture"):
        read_recipe(picture)


def test_a_decompression_bomb_is_not_unfolded():
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 2**31 - 1, 2**31 - 1, 8, 2, 0, 0, 0))
    with pytest.raises(InvalidRequest, match="picture"):
        read_recipe(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", bytes(10)))


@pytest.mark.parametrize("text", ["[" * 100_000, "{" * 100_000, '{"request": ' * 50_000, "9" * 100_000])
def test_deep_json_is_no_crash(text):
    for key in ("tpu_ui", "prompt", "parameters"):
        assert read_recipe(png(**{key: text})).fields.keys() <= {"prompt"}


@pytest.mark.parametrize("line", ['a: "b, c: \\"', 'a: "', "a" * 60 + " ", " ", 'x:"\\', "Steps: 1, "])
def test_hostile_settings_lines_take_no_time(line):
    text = "Steps: 3, " + line * (1_000_000 // len(line))
    started = time.process_time()
    read_recipe(png(parameters=text))
    read_recipe(png(parameters=text.replace(", ", ",\n")))
    assert time.process_time() - started < 2


def test_paths_are_neither_opened_nor_followed(tmp_path):
    for path in (tmp_path, tmp_path / "missing.png", Path("/dev/zero"), "a\0b.png"):
        with pytest.raises(InvalidRequest, match="picture"):
            read_recipe(path)
    for model in ("/etc/passwd", "../x", "~/x", "C:\\x", "https://h/x/y", "a/b/c", "./a", "file:x"):
        read = read_recipe(png(tpu_ui=json.dumps({"schema": 1, "request": {"model": model, "steps": 4}})))
        assert read.fields == {"steps": 4}
        assert "model" in read.notices[0]


@pytest.mark.parametrize(
    ("model", "public"),
    [
        (None, None),
        ("demo", "demo"),
        ("stabilityai/stable-diffusion-3.5-medium", "stabilityai/stable-diffusion-3.5-medium"),
        ("/home/ana/models/my model", "my model"),
        ("/home/ana/models/mine/", "mine"),
        ("C:\\Users\\ana\\mine", "mine"),
        ("~/mine", "mine"),
        ("../mine", "mine"),
        ("https://ana:hf_TESTONLY123@host/org/mine?token=hf_TESTONLY123", "mine"),
        ("/", None),
    ],
)
def test_of_a_folder_only_its_name_is_told(model, public):
    assert public_model_name(model) == public


def test_no_path_user_or_token_gets_into_a_picture():
    report = Report(
        ok=True,
        images=("/home/ana/out/x.png",),
        model="/home/ana/mine",
        revision="/home/ana/rev",
        device="/home/ana/dev",
        versions={"torch": "/home/ana/torch", "jax": "0.10.2"},
        notices=("read /home/ana/hf_TESTONLY123",),
        why_compiled=("/home/ana",),
    )
    picture = png(Recipe.of(GenerationRequest.from_mapping(AS_RAN | {"model": "/home/ana/mine"}), report).to_png_info())
    assert b"ana/" not in picture
    assert b"hf_TESTONLY123" not in picture
    assert b"0.10.2" in picture
    assert read_recipe(picture).fields["model"] == "mine"


def test_a_newer_version_is_read_as_far_as_it_is_known():
    content = {"schema": 9, "request": {"prompt": "x", "later": 1}, "created_ms": -5}
    read = read_recipe(png(tpu_ui=json.dumps(content)))
    assert (read.fields, read.created_ms) == ({"prompt": "x"}, None)
    assert "another version" in read.notices[0]


@pytest.mark.parametrize(
    "request_", [{"batch": 16, "width": 4096, "height": 4096}, {"batch": 2, "seed": 2**63 - 1, "steps": 3}]
)
def test_a_batch_that_does_not_go_with_the_rest_is_dropped(request_):
    read = read_recipe(png(tpu_ui=json.dumps({"schema": 1, "request": request_})))
    del request_["batch"]
    assert read.fields == request_
    assert "batch" in read.notices[0]


def test_a_recipe_is_of_one_picture():
    assert Recipe(GenerationRequest.from_mapping(AS_RAN | {"batch": 4, "model": "/home/ana/m"})).request == (
        GenerationRequest.from_mapping(AS_RAN | {"model": "m"})
    )


def test_settings_of_another_kind_are_not_taken_for_a_prompt():
    read = read_recipe(png(parameters='{"sui_image_params": {"prompt": "x"}}'))
    assert (read.source, read.fields) == (None, {})
    assert read.notices
