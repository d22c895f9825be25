"""Reads the header of a safetensors file, and finds out whether the file is whole, without touching its tensors.

The format: eight bytes of header length (little-endian), a JSON object, then the tensors' bytes without gaps
(https://huggingface.co/docs/safetensors/index#format).
"""

import hashlib
import json
import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tpu_ui.errors import UnusableModel

MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library itself. A forged length beyond it is refused before anything is read."""

# Bits of one element; the names are those of the format.
DTYPE_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}

_LENGTH_BYTES = 8
_SAMPLE_BYTES = 64 * 1024
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_FETCH_AGAIN = "Fetch this file again."


@dataclass(frozen=True)
class SafetensorsHeader:
    """What the header of a whole file says.

    Attributes:
        file_bytes: size of the file.
        data_start: where the tensors begin, in bytes from the start of the file.
        tensor_names: in the header's order.
        dtype_bytes: bytes of tensors by dtype, named as in the format ("BF16", "F32").
        parameters: number of elements of all tensors.
    """

    file_bytes: int
    data_start: int
    tensor_names: tuple[str, ...]
    dtype_bytes: Mapping[str, int]
    parameters: int


def read_header(path: Path, shown_as: str) -> SafetensorsHeader:
    """Read and check a header. `shown_as` names the file in errors.

    Raises:
        UnusableModel: the file is empty, cut, too long, a Git LFS pointer, or no safetensors file.
    """
    try:
        with path.open("rb") as file:
            file_bytes = path.stat().st_size
            length = _header_length(file, file_bytes, shown_as)
            text = file.read(length)
    except OSError as error:
        raise UnusableModel(f"{shown_as} cannot be read: {error.strerror}.", "Check the file.") from error
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableModel(f"{shown_as} is not a safetensors file: its header is not JSON.", _FETCH_AGAIN) from error
    if not isinstance(entries, dict):
        raise UnusableModel(f"{shown_as} is not a safetensors file: its header is not an object.", _FETCH_AGAIN)
    entries.pop("__metadata__", None)
    return _checked(entries, file_bytes, _LENGTH_BYTES + length, shown_as)


def update_digest(digest: "hashlib._Hash", path: Path, header: SafetensorsHeader) -> None:
    """Add a file's size, header, and first and last 64 KiB of tensors to a digest: enough to tell two models apart."""
    with path.open("rb") as file:
        digest.update(struct.pack("<Q", header.file_bytes))
        digest.update(file.read(header.data_start))
        digest.update(file.read(_SAMPLE_BYTES))
        file.seek(max(header.data_start, header.file_bytes - _SAMPLE_BYTES))
        digest.update(file.read(_SAMPLE_BYTES))


def _header_length(file: BinaryIO, file_bytes: int, shown_as: str) -> int:
    if file_bytes == 0:
        raise UnusableModel(f"{shown_as} is empty (0 bytes).", _FETCH_AGAIN)
    start = file.read(_LENGTH_BYTES)
    pointer = start + file.read(len(_LFS_POINTER) - len(start))
    if pointer == _LFS_POINTER:
        raise UnusableModel(
            f"{shown_as} is a Git LFS pointer ({file_bytes} bytes of text), not the weights.",
            "Run `git lfs pull` in the repository, or fetch the file from the Hub.",
        )
    if len(start) < _LENGTH_BYTES:
        raise UnusableModel(f"{shown_as} is cut: {file_bytes} bytes, not even a header.", _FETCH_AGAIN)
    (length,) = struct.unpack("<Q", start)
    if length > MAX_HEADER_BYTES:
        raise UnusableModel(
            f"{shown_as} is not a safetensors file: its header claims {length:,} bytes, "
            f"the format allows {MAX_HEADER_BYTES:,}; the file has {file_bytes:,}.",
            _FETCH_AGAIN,
        )
    if _LENGTH_BYTES + length > file_bytes:
        raise UnusableModel(
            f"{shown_as} is cut: {file_bytes:,} bytes found, {_LENGTH_BYTES + length:,} expected for its header alone.",
            _FETCH_AGAIN,
        )
    file.seek(_LENGTH_BYTES)
    return length


def _checked(entries: dict[str, Any], file_bytes: int, data_start: int, shown_as: str) -> SafetensorsHeader:
    data_bytes = file_bytes - data_start
    dtype_bytes: Counter[str] = Counter()
    parameters = 0
    spans = []
    for name, entry in entries.items():
        span = _span(entry)
        if span is None:
            raise UnusableModel(
                f"{shown_as} is damaged: the header's entry for tensor {name!r:.80} makes no sense.", _FETCH_AGAIN
            )
        spans.append(span)
        dtype_bytes[entry["dtype"]] += span[1] - span[0]
        parameters += math.prod(entry["shape"])
    spans.sort()
    end = spans[-1][1] if spans else 0
    if end != data_bytes:
        fault = "cut" if end > data_bytes else "longer than it should be"
        raise UnusableModel(
            f"{shown_as} is {fault}: {file_bytes:,} bytes found, {data_start + end:,} expected.", _FETCH_AGAIN
        )
    if any(begin != previous_end for (begin, _), (_, previous_end) in zip(spans, [(0, 0), *spans], strict=False)):
        raise UnusableModel(f"{shown_as} is damaged: its tensors overlap or leave gaps.", _FETCH_AGAIN)
    return SafetensorsHeader(file_bytes, data_start, tuple(entries), dict(dtype_bytes), parameters)


def _span(entry: object) -> tuple[int, int] | None:
    """Where a tensor's bytes begin and end, or None if the entry contradicts itself."""
    if not isinstance(entry, dict):
        return None
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS or not _are_sizes(shape) or not _are_sizes(offsets):
        return None
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        return None
    bits = 8 * (offsets[1] - offsets[0])
    elements = 0 if 0 in shape else 1
    for side in shape:
        elements *= side
        if elements * DTYPE_BITS[dtype] > bits:  # also keeps a forged shape from growing without bound
            return None
    return (offsets[0], offsets[1]) if elements * DTYPE_BITS[dtype] == bits else None


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)
