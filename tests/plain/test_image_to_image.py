"""Image to image before torch is there: which files are taken, what is done to them, what stands of it in pictures."""

import hashlib
import io
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests.plain.folders import write_folder
from tests.plain.test_page_rooms import of_shape, record
from tests.plain.test_recipe import png
from tpu_ui import source_picture
from tpu_ui.errors import InvalidRequest
from tpu_ui.graphs import Stage, WarmupState
from tpu_ui.page import form
from tpu_ui.page.known_shapes import known_shapes
from tpu_ui.pipeline_kinds import check_image_to_image
from tpu_ui.recipe import Recipe, read_recipe
from tpu_ui.report import Report
from tpu_ui.request import GenerationRequest
from tpu_ui.resolution import DEFAULT_STRENGTH, least_strength
from tpu_ui.resolver import Resolver
from tpu_ui.settings import Settings
from tpu_ui.source_picture import MAX_FILE_BYTES, MAX_PIXELS, find_picture

WHITE, RED, BLUE = (255, 255, 255), (255, 0, 0), (0, 0, 255)


def halves(size: tuple[int, int] = (120, 60), mode: str = "RGB") -> Image.Image:
    """Red on the left, blue on the right."""
    made = Image.new("RGB", size, RED)
    made.paste(BLUE, (size[0] // 2, 0, *size))
    return made.convert(mode)


def saved(folder: Path, picture: Image.Image, name: str = "x.png", **options: object) -> str:
    picture.save(folder / name, **options)
    return str(folder / name)


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_picture_of_the_size_asked_for_is_taken_as_it_is(tmp_path: Path):
    path = saved(tmp_path, halves((64, 64)))
    found = find_picture(path)
    assert (found.width, found.height, found.notices(64, 64)) == (64, 64, ())
    assert found.sha256 == hashlib.sha256(Path(path).read_bytes()).hexdigest()
    assert found.fitted(64, 64).tobytes() == halves((64, 64)).tobytes()


def test_the_middle_is_cut_out_and_resized_and_said(tmp_path: Path):
    found = find_picture(saved(tmp_path, halves((120, 60))))
    fitted = found.fitted(32, 32)
    assert (fitted.size, fitted.getpixel((2, 16)), fitted.getpixel((29, 16))) == ((32, 32), RED, BLUE)
    assert found.notices(32, 32) == ("image: its middle was cut out and resized from 120×60 to 32×32.",)
    assert found.notices(60, 30) == ("image: resized from 120×60 to 60×30.",)


def test_exif_turns_it(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter to the right
    found = find_picture(saved(tmp_path, halves((120, 60)), "x.jpg", exif=exif, quality=95))
    assert (found.width, found.height) == (60, 120)
    red, _, blue = found.fitted(60, 120).getpixel((30, 10))
    assert red > 200 > blue
    assert found.remarks == ("image: turned as its EXIF says.",)


def test_what_is_transparent_becomes_white(tmp_path: Path):
    clear = halves((64, 64), "RGBA")
    clear.putpixel((0, 0), (0, 255, 0, 0))
    for name in ("x.png", "x.webp"):
        found = find_picture(saved(tmp_path, clear, name, lossless=True))
        assert found.fitted(64, 64).getpixel((0, 0)) == WHITE
        assert found.remarks == ("image: what is transparent in it became white.",)
    assert find_picture(saved(tmp_path, halves((64, 64), "RGBA"))).remarks == ()  # all of it opaque


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "CMYK", "I;16"])
def test_any_kind_of_pixels(tmp_path: Path, mode: str):
    picture = Image.new("I;16", (8, 8), 65535) if mode == "I;16" else Image.new("RGB", (8, 8), WHITE).convert(mode)
    name = "x.jpg" if mode == "CMYK" else "x.png"
    fitted = find_picture(saved(tmp_path, picture, name)).fitted(8, 8)
    assert (fitted.mode, fitted.getpixel((4, 4))) == ("RGB", WHITE)


def test_of_several_frames_the_first(tmp_path: Path):
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, BLUE)]
    found = find_picture(saved(tmp_path, frames[0], "x.webp", save_all=True, append_images=frames[1:], lossless=True))
    assert found.remarks == ("image: of several frames, the first was taken.",)
    assert found.fitted(16, 16).getpixel((8, 8)) == RED


def bomb(width: int, height: int) -> bytes:
    """A PNG that says so much of itself, and holds next to nothing."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_files_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = io.BytesIO()
    halves((200, 200)).save(whole, "PNG")
    gif = io.BytesIO()
    halves().save(gif, "GIF")
    contents = {
        "empty.png": (b"", "is damaged, or no picture"),
        "text.png": (b"not a picture" * 100, "is damaged, or no picture"),
        "cut.png": (whole.getvalue()[:-200], "is damaged, or no picture"),
        "svg.png": (b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>", "no picture"),
        "x.gif": (gif.getvalue(), "is damaged, or no picture"),
        "wide.png": (bomb(MAX_PIXELS + 1, 1), "has more than 64 million pixels"),
        "bomb.png": (bomb(30_000, 30_000), "has more than 64 million pixels"),
        "hollow.png": (bomb(4000, 4000), "is damaged, or no picture"),
    }
    for name, (content, sentence) in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidRequest, match=f"^image: '{name}' .*{sentence}"):
            find_picture(str(tmp_path / name))
    for path, sentence in ((tmp_path, "is no file"), (tmp_path / "none.png", "there is no file"), ("a\0b", "no file")):
        with pytest.raises(InvalidRequest, match=f"^image: .*{sentence}") as refusal:
            find_picture(str(path))
        assert str(tmp_path.parent) not in str(refusal.value)
    monkeypatch.setattr(source_picture, "MAX_FILE_BYTES", 100)
    with pytest.raises(InvalidRequest, match="is larger than"):
        find_picture(saved(tmp_path, halves()))
    assert MAX_FILE_BYTES == 64 * 2**20


def test_a_file_that_changes_meanwhile_is_not_used(tmp_path: Path):
    found = find_picture(saved(tmp_path, halves()))
    saved(tmp_path, halves((64, 64)))
    with pytest.raises(InvalidRequest, match=r"'x.png' was changed in the meantime\. Give it again\."):
        found.fitted(64, 64)
    assert find_picture(str(tmp_path / "x.png")).width == 64


# -- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"strength": 0}, "strength: 0 is out of range. Give a number above 0, at most 1."),
        ({"strength": 1.01}, "strength: 1.01 is out of range"),
        ({"strength": float("nan")}, "strength: nan is out of range"),
        ({"strength": True}, "strength: True is not a number"),
        ({"strength": "0.5"}, "strength: '0.5' is not a number"),
        ({"image": ""}, "image: '' is not the name of a file"),
        ({"image": 5}, "image: 5 is not the name of a file"),
        ({"image": "a\0b"}, "image: .* is not the name of a file"),
        ({"image": "x" * 5000}, "image: .* is not the name of a file"),
        ({"image_sha256": "abc"}, "image_sha256: 'abc' is not a SHA-256"),
    ],
)
def test_values_that_are_refused(values: dict, sentence: str):
    with pytest.raises(InvalidRequest, match=f"^{sentence}"):
        GenerationRequest.from_mapping(values)


@pytest.fixture
def resolver(tmp_path: Path) -> Resolver:
    return Resolver("cpu", Settings(cache_dir=tmp_path / "cache"), str(write_folder(tmp_path / "m", "sd3")))


def test_a_request_from_a_picture(resolver: Resolver, tmp_path: Path):
    image = saved(tmp_path, halves())
    asked = GenerationRequest(image=image, width=64, height=64, steps=10, strength=0.55)
    resolved, _ = resolver.resolve(asked)
    digest = hashlib.sha256(Path(image).read_bytes()).hexdigest()
    assert (resolved.request.image_sha256, resolved.steps_run) == (digest, 5)
    assert "image: its middle was cut out and resized from 120×60 to 64×64." in resolved.notices
    again, _ = resolver.resolve(replace(asked, image_sha256=digest))
    assert again.request.image_sha256 == digest
    with pytest.raises(InvalidRequest, match=r"^image: it is not the picture asked for, whose SHA-256 is 0+\. Give"):
        resolver.resolve(replace(asked, image_sha256="0" * 64))
    with pytest.raises(InvalidRequest, match=r"^image: the picture to start from is missing \(SHA-256 0+\)"):
        resolver.resolve(replace(asked, image=None, image_sha256="0" * 64))
    with pytest.raises(InvalidRequest, match=r"^strength: there is no picture to start from"):
        resolver.resolve(replace(asked, image=None))


def test_at_least_one_step_runs(resolver: Resolver, tmp_path: Path):
    image = saved(tmp_path, halves())
    for steps in range(1, 201):
        least = least_strength(steps)
        asked = GenerationRequest(image=image, width=64, height=64, steps=steps, strength=least)
        if steps in (1, 7, 28, 200):
            assert resolver.resolve(asked)[0].steps_run == 1
        assert int(steps * least) == 1
    with pytest.raises(InvalidRequest, match=r"^strength: 0.03 of 28 steps is less than one step. Give at least 0.036"):
        resolver.resolve(GenerationRequest(image=image, width=64, height=64, steps=28, strength=0.03))
    for steps, strength in ((28, DEFAULT_STRENGTH), (1, 1.0)):
        resolved, _ = resolver.resolve(GenerationRequest(image=image, width=64, height=64, steps=steps))
        assert resolved.request.strength == strength


@pytest.mark.parametrize(
    ("pipeline_class", "why"),
    [
        ("SanaPipeline", "has no image to image in diffusers"),
        ("Flux2Pipeline", "reads a picture as a reference, without a strength"),
        ("KandinskyCombinedPipeline", "is several pipelines in one"),
    ],
)
def test_classes_that_do_not_start_from_a_picture(pipeline_class: str, why: str):
    with pytest.raises(InvalidRequest, match=f"^image: {pipeline_class} {why}"):
        check_image_to_image(pipeline_class)


# -- what is told of it -----------------------------------------------------------------------------------------------


def test_a_picture_names_the_digest_and_never_the_path():
    digest = "ab" * 32
    asked = GenerationRequest("x", model="demo", steps=9, seed=3, image="/home/ann/secret.png", strength=0.4,
                              image_sha256=digest)  # fmt: skip
    recipe = Recipe.of(asked, Report(ok=True, seeds=(3,)))
    content = png(recipe.to_png_info())
    assert b"secret" not in content
    assert "Denoising strength: 0.4" in recipe.to_a1111()
    found = read_recipe(content).fields
    assert (found["strength"], found["image_sha256"]) == (0.4, digest)
    assert "image" not in found
    GenerationRequest.from_mapping(found)
    hostile = png(tpu_ui='{"schema": 1, "request": {"prompt": "x", "image": "/etc/passwd", "image_sha256": "zz"}}')
    read = read_recipe(hostile)
    assert read.fields == {"prompt": "x"}
    assert any(notice.startswith("image_sha256: ") for notice in read.notices)


def test_the_form_sends_a_strength_only_with_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    (tmp_path / "uploads").mkdir()
    image = saved(tmp_path / "uploads", halves())
    controls = dict.fromkeys(form.FIELDS) | {"prompt": "x", "placement": "auto", "batch": 1, "strength": 0.7}
    assert "strength" not in form.values(*controls.values())
    given = form.values(*(controls | {"image": image}).values())
    assert (given["image"], given["strength"]) == (image, 0.7)
    restored = form.from_request(GenerationRequest.from_mapping(given), "m")
    assert (restored["image"], restored["strength"]) == (image, 0.7)
    Path(image).unlink()
    assert form.from_request(GenerationRequest.from_mapping(given), "m")["image"] is None
    outside = saved(tmp_path, halves())
    (tmp_path / "uploads" / "link.png").symlink_to(outside)
    for path in (outside, str(tmp_path / "uploads" / "link.png"), "/etc/passwd", f"{tmp_path}/uploads/../x.png", image,
                 str(tmp_path / "uploads"), "http://127.0.0.1/x.png", "a\0b", {"url": "x"}, 5, [image]):  # fmt: skip
        with pytest.raises(InvalidRequest, match=r"^image: is not a file that was uploaded\."):
            form.values(*(controls | {"image": path}).values())


def test_shapes_from_a_picture_have_rows_of_their_own():
    records = [record(Stage.TEXT), *of_shape(64, 64), record(Stage.PICTURE, 64, 64, graphs=5)]
    states = lambda key: WarmupState.COLD if key.stage == Stage.PICTURE else WarmupState.WARM  # noqa: E731
    shapes = known_shapes(records, states, (("torch", "2"),))
    told = {(shape.from_picture, shape.state, shape.graphs) for shape in shapes}
    assert told == {(False, "warm", 6), (True, "cold", 9)}
