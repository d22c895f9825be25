"""What a picture looks like while it forms, without the device and without tables that someone measured for a model.

An autoencoder's latents tell the colours of their place in the picture almost linearly. That linear map is learnt here
from each model's own pictures: whenever one is made, its last latents and its pixels are both on the host. Until the
first picture of a model there is no preview.
"""

import contextlib
import hashlib
import json
import logging
import math
import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy
from PIL import Image

log = logging.getLogger(__name__)

_ENOUGH_PICTURES = 64  # more would change the map no more, and cost each request some milliseconds
_RIDGE = 1e-4  # of the features' mean square: keeps channels that never vary from being given a meaning
_PIXELS_PER_SIDE = 4  # of the picture, for one of the preview, where the map can tell as much
_DAMAGE = (ValueError, TypeError, KeyError, EOFError, MemoryError, zipfile.BadZipFile, numpy.linalg.LinAlgError)


@dataclass(frozen=True, eq=False)
class LatentPreview:
    """A picture on its way. Cheap to make; the work is done when somebody asks for the image, on his thread.

    Attributes:
        denoised: what the latents will be by the latest step's guess, on the host, in a form LatentColours reads.
        width, height: of the pictures that will be, in pixels.
    """

    denoised: Callable[[], numpy.ndarray]
    width: int
    height: int
    colours: "LatentColours"

    @cached_property
    def image(self) -> Image.Image | None:
        """The pictures of the batch, small, side by side; None where nothing is known of the model yet."""
        pictures = self.colours.paint(self.denoised(), self.width, self.height)
        if pictures is None:
            return None
        _, rows, columns, _ = pictures.shape
        across = math.ceil(math.sqrt(len(pictures)))
        sheet = Image.new("RGB", (across * columns, math.ceil(len(pictures) / across) * rows))
        for i, picture in enumerate(pictures):
            sheet.paste(Image.fromarray(picture), (i % across * columns, i // across * rows))
        return sheet


class _Sums(NamedTuple):
    """The normal equations of least squares. `features` counts the channels of a cell and one for the constant.

    Attributes:
        gram: float64, (features, features), the features' products summed over all cells seen.
        cross: float64, (features, parts * parts * 3), their products with the colours of the cell's parts.
        pictures: how many were seen.
    """

    gram: numpy.ndarray
    cross: numpy.ndarray
    pictures: int


class LatentColours:
    """A model's linear map from latents to colours, kept in a file.

    Latents are float32, either (pictures, channels, rows, columns) or packed as (pictures, rows * columns, channels),
    and cover the picture with square cells. A cell is told as `parts` × `parts` pixels.

    `learn` belongs to one thread; `paint` to any.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sums = _read(path)
        self._weights = None if self._sums is None else _solve(self._sums)

    @property
    def wants_more(self) -> bool:
        """Whether another picture would still make the map better."""
        return self._sums is None or self._sums.pictures < _ENOUGH_PICTURES

    def learn(self, latents: numpy.ndarray, images: Sequence[Image.Image]) -> None:
        """Take finished pictures in, one for each of the latents, and write the file. What is not usable is left out.

        A file that cannot be written is told to the log: then the next process learns again.
        """
        if not images or len(latents) != len(images) or not numpy.isfinite(latents).all():
            return
        width, height = images[0].size
        cells = _cells(latents, width, height)
        if cells is None:
            return
        _, rows, columns, _ = cells.shape
        parts = max(1, height // rows // _PIXELS_PER_SIDE)
        features = _features(cells)
        colours = numpy.concatenate([_averages(image, rows, columns, parts) for image in images])
        gram, cross, pictures = features.T @ features, features.T @ colours, len(images)
        if self._sums is not None and self._sums.cross.shape == cross.shape:
            gram, cross, pictures = gram + self._sums.gram, cross + self._sums.cross, pictures + self._sums.pictures
        self._sums = _Sums(gram, cross, pictures)
        self._weights = _solve(self._sums)
        try:
            _write(self._path, self._sums)
        except OSError as error:
            log.warning("what previews learnt is not kept: %s", error)

    def paint(self, latents: numpy.ndarray, width: int, height: int) -> numpy.ndarray | None:
        """The colours of latents of pictures of `width` × `height`.

        Returns:
            uint8, (pictures, rows * parts, columns * parts, 3); None before anything was learnt, and for latents of
            another kind than those that were learnt from.
        """
        weights, cells = self._weights, _cells(latents, width, height)
        if weights is None or cells is None or cells.shape[-1] + 1 != len(weights):
            return None
        pictures, rows, columns, _ = cells.shape
        parts = math.isqrt(weights.shape[1] // 3)
        colours = numpy.nan_to_num(_features(cells) @ weights).clip(0, 255)
        blocks = colours.reshape(pictures, rows, columns, parts, parts, 3)
        return blocks.swapaxes(2, 3).reshape(pictures, rows * parts, columns * parts, 3).round().astype(numpy.uint8)


def colours_path(folder: Path, model: str, revision: str) -> Path:
    """The file of a model's LatentColours."""
    digest = hashlib.sha256(json.dumps([model, revision]).encode()).hexdigest()
    return folder / f"{digest[:32]}.npz"


def _cells(latents: numpy.ndarray, width: int, height: int) -> numpy.ndarray | None:
    """Latents as (pictures, rows, columns, channels); None where they are no grid of square cells."""
    if latents.ndim == 4:
        return latents.transpose(0, 2, 3, 1)
    if latents.ndim != 3:
        return None
    pictures, tokens, channels = latents.shape
    rows = round(math.sqrt(tokens * height / width))
    if rows < 1 or tokens % rows or rows * width != tokens // rows * height:
        return None
    return latents.reshape(pictures, rows, tokens // rows, channels)


def _features(cells: numpy.ndarray) -> numpy.ndarray:
    """float64, (cells, channels + 1); the last one is always 1."""
    flat = cells.reshape(-1, cells.shape[-1]).astype(numpy.float64)
    return numpy.concatenate([flat, numpy.ones((len(flat), 1))], axis=1)


def _averages(image: Image.Image, rows: int, columns: int, parts: int) -> numpy.ndarray:
    """float64, (rows * columns, parts * parts * 3): the mean colour of each part of each cell."""
    small = image.convert("RGB").resize((columns * parts, rows * parts), Image.Resampling.BOX)
    blocks = numpy.asarray(small, dtype=numpy.float64).reshape(rows, parts, columns, parts, 3)
    return blocks.swapaxes(1, 2).reshape(rows * columns, parts * parts * 3)


def _solve(sums: _Sums) -> numpy.ndarray:
    """The weights, (features, parts * parts * 3)."""
    squares = numpy.diag(sums.gram)[:-1]
    ridge = numpy.full(len(sums.gram), _RIDGE * squares.mean() + 1e-9)
    ridge[-1] = 0.0  # the mean colour is free
    return numpy.linalg.solve(sums.gram + numpy.diag(ridge), sums.cross)


def _read(path: Path) -> _Sums | None:
    """What the file holds; None where there is none. A damaged one is set aside."""
    try:
        with numpy.load(path, allow_pickle=False) as stored:
            sums = _Sums(stored["gram"], stored["cross"], int(stored["pictures"]))
        features, colours = sums.cross.shape
        parts = math.isqrt(colours // 3)
        if sums.gram.shape != (features, features) or parts < 1 or parts * parts * 3 != colours:
            raise ValueError(f"shapes {sums.gram.shape} and {sums.cross.shape}")
        _solve(sums)
        if not (numpy.isfinite(sums.gram).all() and numpy.isfinite(sums.cross).all()):
            raise ValueError("not-a-number")
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("previews begin anew: %s", error)
        return None
    except _DAMAGE as error:
        aside = path.with_suffix(".damaged")
        log.warning("%s is damaged (%s) and was renamed to %s; previews begin anew", path, error, aside.name)
        with contextlib.suppress(OSError):
            os.replace(path, aside)
        return None
    return sums


def _write(path: Path, sums: _Sums) -> None:
    """Whole or not at all: another process may read or write it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            numpy.savez(file, **sums._asdict())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
