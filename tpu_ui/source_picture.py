"""The picture that a request starts from: a stranger's file, read with suspicion and brought to the size asked for."""

import functools
import hashlib
import io
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageOps

from tpu_ui.errors import InvalidRequest

MAX_FILE_BYTES = 64 * 2**20
MAX_PIXELS = 64_000_000  # a phone's 48 megapixels, and less than half of where Pillow takes a file for a bomb
FORMATS = ("PNG", "JPEG", "WEBP")

DAMAGED = (ValueError, SyntaxError, TypeError, LookupError, EOFError, struct.error, zlib.error)
"""What Pillow's readers raise beside OSError, by what is wrong with a file."""

_READABLE = "Give a whole PNG, JPEG or WebP file."
_EXIF_ORIENTATION = 0x0112
_WHITE = (255, 255, 255, 255)


@dataclass(frozen=True)
class SourcePicture:
    """A file that was read and found whole.

    Attributes:
        sha256: of the file's bytes, 64 hexadecimal digits.
        width, height: pixels, once it is turned as its EXIF says.
        remarks: what is done to it at any size, in sentences.
    """

    path: Path
    sha256: str
    width: int
    height: int
    remarks: tuple[str, ...]

    def notices(self, width: int, height: int) -> tuple[str, ...]:
        """What is done to it for a picture of this size, in sentences."""
        if (self.width, self.height) == (width, height):
            return self.remarks
        is_cut = self.width * height != self.height * width
        what = "its middle was cut out and resized" if is_cut else "resized"
        return (*self.remarks, f"image: {what} from {self.width}×{self.height} to {width}×{height}.")

    def fitted(self, width: int, height: int) -> Image.Image:
        """The picture in RGB: its largest middle part of this aspect ratio, resized to width × height.

        Raises:
            InvalidRequest: the file is another one by now.
        """
        content = _content_of(self.path)
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise InvalidRequest("image", f"{_name(self.path)} was changed in the meantime.", "Give it again.")
        return ImageOps.fit(_decoded(content, self.path)[0], (width, height), Image.Resampling.LANCZOS)


def find_picture(path: str) -> SourcePicture:
    """Read a file whole, once for each state of it.

    Raises:
        InvalidRequest: there is no such file, it is too large, or it is no picture of FORMATS that can be read.
    """
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        raise InvalidRequest("image", f"there is no file {_name(path)}.", _READABLE) from error
    return _inspected(Path(path), status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=64)
def _inspected(path: Path, _mtime_ns: int, _size: int) -> SourcePicture:
    content = _content_of(path)
    picture, remarks = _decoded(content, path)
    return SourcePicture(path, hashlib.sha256(content).hexdigest(), *picture.size, remarks)


def _content_of(path: Path) -> bytes:
    """Not more of a file than may be, so that a device file ends too."""
    try:
        if not path.is_file():
            raise InvalidRequest("image", f"{_name(path)} is no file.", _READABLE)
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest("image", f"{_name(path)} cannot be read ({error.strerror}).", _READABLE) from error
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequest(
            "image", f"{_name(path)} is larger than {MAX_FILE_BYTES // 2**20} MiB.", "Save it smaller, as JPEG say."
        )
    return content


def _decoded(content: bytes, path: Path) -> tuple[Image.Image, tuple[str, ...]]:
    """The picture upright in RGB, and what was done to it, in sentences."""
    too_large = InvalidRequest(
        "image", f"{_name(path)} has more than {MAX_PIXELS // 10**6} million pixels.", "Make it smaller first."
    )
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            if opened.width * opened.height > MAX_PIXELS:  # told by the header; no pixel is decoded yet
                raise too_large
            opened.load()
            remarks = []
            if getattr(opened, "n_frames", 1) > 1:
                remarks.append("image: of several frames, the first was taken.")
            if opened.getexif().get(_EXIF_ORIENTATION, 1) != 1:
                remarks.append("image: turned as its EXIF says.")
            picture = ImageOps.exif_transpose(opened)
            if picture.has_transparency_data:
                picture = picture.convert("RGBA")
                if picture.getextrema()[3][0] < 255:
                    remarks.append("image: what is transparent in it became white.")
                    picture = Image.alpha_composite(Image.new("RGBA", picture.size, _WHITE), picture)
            if picture.mode.startswith("I"):  # 16 bits a pixel, which convert() would clip
                picture = picture.convert("F").point(lambda value: value * (1 / 257)).convert("L")
            return picture.convert("RGB"), tuple(remarks)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise too_large from error
    except (OSError, *DAMAGED) as error:
        raise InvalidRequest("image", f"{_name(path)} is damaged, or no picture.", _READABLE) from error


def _name(path: str | Path) -> str:
    """A file in a sentence: others may read it, so without its folder."""
    return f"{Path(path).name!r:.80}"
