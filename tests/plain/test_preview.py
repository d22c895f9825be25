"""What previews learn from pictures, and what they make of latents, on latents whose colours are known."""

import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tpu_ui.preview import LatentColours, LatentPreview, colours_path


class KnownModel:
    """Its autoencoder is a linear map, from the channels of a cell to the colours of its parts.

    Args:
        parts: parts of a cell on each side; each is `part_pixels` wide.
    """

    def __init__(self, channels: int, parts: int, part_pixels: int = 4, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.channels, self.parts, self.part_pixels = channels, parts, part_pixels
        self.weights = self.rng.normal(size=(channels, parts * parts * 3)) * 60 / channels**0.5
        self.mean = self.rng.uniform(100, 150, parts * parts * 3)

    @property
    def cell(self) -> int:
        return self.parts * self.part_pixels

    def latents(self, rows: int, columns: int, pictures: int = 1) -> np.ndarray:
        return self.rng.normal(size=(pictures, self.channels, rows, columns)).astype(np.float32).clip(-1.5, 1.5)

    def colours(self, latents: np.ndarray) -> np.ndarray:
        """The truth, as `paint` should tell it: uint8, (pictures, rows * parts, columns * parts, 3)."""
        pictures, _, rows, columns = latents.shape
        flat = np.einsum("pcyx,ck->pyxk", latents, self.weights) + self.mean
        parts = flat.reshape(pictures, rows, columns, self.parts, self.parts, 3).swapaxes(2, 3)
        return parts.reshape(pictures, rows * self.parts, columns * self.parts, 3).clip(0, 255).round().astype(np.uint8)

    def pictures(self, latents: np.ndarray) -> list[Image.Image]:
        large = self.colours(latents).repeat(self.part_pixels, axis=1).repeat(self.part_pixels, axis=2)
        return [Image.fromarray(picture) for picture in large]


def packed(latents: np.ndarray) -> np.ndarray:
    return latents.reshape(*latents.shape[:2], -1).swapaxes(1, 2)


def as_is(latents: np.ndarray) -> np.ndarray:
    return latents


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return colours_path(tmp_path / "previews", "model", "revision")


@pytest.mark.parametrize("layout", [as_is, packed])
@pytest.mark.parametrize(
    ("channels", "parts", "part_pixels"), [(4, 2, 4), (16, 2, 4), (64, 4, 4), (4, 1, 2), (8, 1, 5)]
)
def test_a_linear_map_is_learnt(path: Path, layout, channels: int, parts: int, part_pixels: int):
    model = KnownModel(channels, parts, part_pixels)
    colours = LatentColours(path)
    for rows, columns in ((24, 16), (16, 24), (20, 20)):  # a model is asked for many sizes
        seen = model.latents(rows, columns, 2)
        colours.learn(layout(seen), model.pictures(seen))
    unseen = model.latents(9, 15)
    told = colours.paint(layout(unseen), 15 * model.cell, 9 * model.cell)
    truth = model.colours(unseen)
    assert told.shape == truth.shape
    # What is above white or below black is cut off in pictures, so no linear map is exact.
    assert abs(told.astype(int) - truth).mean() < 4
    assert truth.std() > 30


def test_nothing_is_told_before_the_first_picture(path: Path):
    assert LatentColours(path).paint(KnownModel(4, 1).latents(8, 8), 32, 32) is None
    assert not path.exists()


@pytest.mark.parametrize(
    ("latents", "width", "height"),
    [
        (np.zeros((1, 5, 8, 8), np.float32), 64, 64),  # another number of channels
        (np.zeros((1, 60, 4), np.float32), 64, 64),  # 60 tokens are no square grid
        (np.zeros((1, 64, 4), np.float32), 128, 64),
        (np.zeros((1, 1, 4), np.float32), 640, 16),
        (np.zeros((1, 4, 2, 8, 8), np.float32), 64, 64),  # frames of a video
        (np.zeros((64, 4), np.float32), 64, 64),
    ],
)
def test_latents_of_an_unknown_kind_have_no_preview(path: Path, latents: np.ndarray, width: int, height: int):
    model, colours = KnownModel(4, 2), LatentColours(path)
    seen = model.latents(16, 16)
    colours.learn(seen, model.pictures(seen))
    assert colours.paint(latents, width, height) is None
    before = colours.paint(seen, 128, 128)
    if latents.shape[1] != 5:
        colours.learn(latents, [Image.new("RGB", (width, height))] * len(latents))
    assert (colours.paint(seen, 128, 128) == before).all()


def test_not_a_number_is_neither_learnt_nor_a_fault(path: Path):
    model, colours = KnownModel(4, 2), LatentColours(path)
    seen = model.latents(16, 16)
    colours.learn(seen, model.pictures(seen))
    before = colours.paint(seen, 128, 128)
    spoilt = seen.copy()
    spoilt[0, 0, 3, 3] = np.nan
    colours.learn(spoilt, model.pictures(seen))
    assert (colours.paint(seen, 128, 128) == before).all()
    assert colours.paint(spoilt, 128, 128).shape == before.shape


def test_flat_pictures_do_not_break_the_map(path: Path):
    colours = LatentColours(path)
    colours.learn(np.zeros((1, 4, 8, 8), np.float32), [Image.new("RGB", (64, 64), (10, 20, 30))])
    assert (colours.paint(np.ones((1, 4, 8, 8), np.float32), 64, 64) == (10, 20, 30)).all()


def test_the_map_is_kept_for_the_next_process(path: Path):
    model, colours = KnownModel(16, 2), LatentColours(path)
    seen = model.latents(16, 16)
    colours.learn(seen, model.pictures(seen))
    again = LatentColours(path)
    assert (again.paint(seen, 128, 128) == colours.paint(seen, 128, 128)).all()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert path != colours_path(path.parent, "model", "another revision")


def test_there_is_an_end_to_learning(path: Path):
    model, colours = KnownModel(4, 2), LatentColours(path)
    seen = model.latents(8, 8, 8)
    for _ in range(8):
        assert colours.wants_more
        colours.learn(seen, model.pictures(seen))
    assert not colours.wants_more
    assert not LatentColours(path).wants_more


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "array", "shapes", "not a number", "no such part"])
def test_a_damaged_file_is_set_aside(path: Path, damage: str, caplog: pytest.LogCaptureFixture):
    model = KnownModel(4, 2)
    seen = model.latents(8, 8)
    LatentColours(path).learn(seen, model.pictures(seen))
    good = path.read_bytes()
    with np.load(path) as stored:
        parts = dict(stored)
    if damage == "cut":
        path.write_bytes(good[: len(good) // 2])
    elif damage == "text":
        path.write_text("not an archive")
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "array":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    else:
        changed = {
            "shapes": parts | {"cross": parts["cross"][:, :5]},
            "not a number": parts | {"gram": parts["gram"] * np.nan},
            "no such part": {"gram": parts["gram"]},
        }[damage]
        np.savez(path, **changed)
    with caplog.at_level(logging.WARNING):
        colours = LatentColours(path)
    assert colours.paint(seen, 64, 64) is None
    assert "damaged" in caplog.text
    assert path.with_suffix(".damaged").exists()
    colours.learn(seen, model.pictures(seen))
    assert path.read_bytes() == good


def test_a_folder_that_cannot_be_written_costs_only_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "previews").write_text("a file where the folder should be")
    model, colours = KnownModel(4, 2), LatentColours(tmp_path / "previews" / "x.npz")
    seen = model.latents(8, 8)
    colours.learn(seen, model.pictures(seen))
    assert "not kept" in caplog.text
    assert colours.paint(seen, 64, 64) is not None


def test_a_batch_is_one_sheet_and_is_painted_once(path: Path):
    model, colours = KnownModel(4, 2), LatentColours(path)
    seen = model.latents(12, 20, 3)
    asked = []

    def denoised() -> np.ndarray:
        asked.append(1)
        return seen

    preview = LatentPreview(denoised, 160, 96, colours)
    assert asked == [], "nothing is computed before somebody asks"
    colours.learn(seen, model.pictures(seen))
    sheet = np.asarray(preview.image)
    assert preview.image is preview.image
    assert asked == [1]
    assert sheet.shape == (48, 80, 3)
    told = colours.paint(seen, 160, 96)
    for i, (top, left) in enumerate(((0, 0), (0, 40), (24, 0))):
        assert (sheet[top : top + 24, left : left + 40] == told[i]).all()
    assert not sheet[24:, 40:].any()
