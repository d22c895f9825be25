"""Where a LoRA's file is: in the LoRA folder, at a path, or in the cache of the Hub. Only headers are read here."""

import difflib
import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tpu_ui.catalogue import is_hub_id
from tpu_ui.errors import InvalidRequest, NotDownloaded, UnusableModel
from tpu_ui.lora import Lora
from tpu_ui.pipeline_kinds import takes_loras
from tpu_ui.safetensors_header import read_header
from tpu_ui.weight_files import PICKLE_SUFFIXES, listed

SUFFIX = ".safetensors"
USUAL_NAME = "pytorch_lora_weights.safetensors"
"""The name that diffusers gives a LoRA's file; it is taken where several files lie beside each other."""

_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
_PART = re.compile(r"[A-Za-z0-9_][\w.+\- ]{0,199}")
_DORA = ("dora_scale", "lora_magnitude_vector")


@dataclass(frozen=True)
class LoraFile:
    """A LoRA whose file has been found and is one.

    Attributes:
        signature: size and time of the file; another one when the file was written anew.
    """

    name: str
    path: Path
    weight: float
    signature: tuple[int, int]


@dataclass(frozen=True)
class HubLora:
    """A LoRA on the Hub; without `file` its repository has to hold one only."""

    repo_id: str
    file: str | None
    revision: str | None


FetchLora = Callable[[HubLora], Path]
"""Finds the file of a LoRA of the Hub on this machine, or fetches it."""


def find_loras(
    loras: tuple[Lora, ...], pipeline_class: str | None, folder: Path, fetch: FetchLora
) -> tuple[tuple[LoraFile, ...], tuple[str, ...]]:
    """The files of a request's LoRAs, and notices about those that are still to be downloaded.

    Args:
        folder: the LoRA folder, whose files are named without a path.

    Raises:
        InvalidRequest: there is no such file, it is no LoRA, or the pipeline takes none.
        LoadFailed: it could not be downloaded.
    """
    if loras and pipeline_class is not None and not takes_loras(pipeline_class):
        raise InvalidRequest("loras", f"{pipeline_class} takes none in diffusers.", "Leave them out.")
    files, notices = [], []
    for lora in loras:
        try:
            files.append(_checked(lora, _path_of(lora.name, folder, fetch)))
        except NotDownloaded as absent:
            notices.append(f"loras: {absent.message} {absent.remedy}")
    return tuple(files), tuple(notices)


def names_in(folder: Path) -> tuple[str, ...]:
    """The names of the LoRAs in the LoRA folder."""
    try:
        return tuple(sorted(file.stem for file in folder.iterdir() if file.suffix == SUFFIX and file.is_file()))
    except OSError:
        return ()


def choose_file(place: str, names: Collection[str]) -> str:
    """The one LoRA of a folder or repository, told from the names of its files.

    Raises:
        InvalidRequest: there is none, or one must be chosen.
    """
    found = sorted(name for name in names if name.endswith(SUFFIX))
    if len(found) == 1:
        return found[0]
    if USUAL_NAME in found:
        return USUAL_NAME
    if found:
        raise InvalidRequest(
            "loras", f"{place} holds {len(found)} files: {listed(found)}.", f"Name one: {place}/{found[0]}."
        )
    pickles = sorted(name for name in names if name.endswith(PICKLE_SUFFIXES))
    if pickles:
        raise _pickled(f"{place} holds only {listed(pickles)}")
    raise InvalidRequest("loras", f"{place} holds no {SUFFIX} file.", "Name another folder or file.")


def _path_of(name: str, folder: Path, fetch: FetchLora) -> Path:
    # os.path, since in Python 3.11 a Path raises at a name that is too long.
    if "/" not in name:
        for candidate in (folder / f"{name}{SUFFIX}", folder / name):
            if os.path.isfile(candidate) and not name.startswith("."):
                return candidate
    looks_like_path = name.startswith((".", "/", "~", os.sep))
    path = _expanded(name)
    if looks_like_path or os.path.exists(path):
        return _local(name, path)
    hub = _on_hub(name)
    if hub is not None:
        return fetch(hub)
    near = difflib.get_close_matches(name, names_in(folder), n=3, cutoff=0.5)
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    raise InvalidRequest(
        "loras",
        f"there is no LoRA {name!r:.120}.{meant}",
        f"Name a file of {folder}, a path, or a Hub id, each with :WEIGHT or without.",
    )


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def _local(name: str, path: Path) -> Path:
    try:
        if path.is_dir():
            return path / choose_file(name, [file.name for file in path.iterdir() if file.is_file()])
    except OSError as error:
        raise InvalidRequest("loras", f"{name:.120} cannot be read: {error.strerror}.", "Check the folder.") from error
    if not os.path.isfile(path):
        raise InvalidRequest("loras", f"there is no file {name!r:.120}.", "Check the path.")
    if path.suffix in PICKLE_SUFFIXES:
        raise _pickled(f"{path.name} is")
    if path.suffix != SUFFIX:
        raise InvalidRequest("loras", f"{path.name:.120} is not a {SUFFIX} file.", "Name a LoRA.")
    return path


def _pickled(what: str) -> InvalidRequest:
    return InvalidRequest(
        "loras",
        f"{what} pickle, which can run any code when it is opened; it was not opened.",
        f"Ask its author for a {SUFFIX} file.",
    )


def _on_hub(name: str) -> HubLora | None:
    """Read org/name[/file.safetensors][@revision]; None if it is not of this form."""
    address, at, revision = name.partition("@")
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        return None
    parts = address.split("/")
    if not is_hub_id("/".join(parts[:2])):
        return None
    inner = parts[2:]
    if inner and (not inner[-1].endswith(SUFFIX) or not all(_PART.fullmatch(part) for part in inner)):
        return None
    return HubLora("/".join(parts[:2]), "/".join(inner) or None, revision or None)


def _checked(lora: Lora, path: Path) -> LoraFile:
    try:
        stat = path.stat()
        signature = (stat.st_size, stat.st_mtime_ns)
        _check_is_lora(path, signature)
    except OSError as error:
        raise InvalidRequest("loras", f"{path.name} cannot be read: {error.strerror}.", "Check the file.") from error
    except UnusableModel as error:
        raise InvalidRequest("loras", error.message, error.remedy) from error
    return LoraFile(lora.name, path, lora.weight, signature)


@lru_cache(maxsize=64)
def _check_is_lora(path: Path, _signature: tuple[int, int]) -> None:
    """Asked at each change of a control, so remembered for each state of the file."""
    names = read_header(path, path.name).tensor_names
    if not any("lora" in name or "lokr" in name for name in names):
        raise UnusableModel(f"{path.name} is not a LoRA: none of its {len(names)} tensors is of one.", "Name a LoRA.")
    dora = next((name for name in names if name.endswith(_DORA)), None)
    if dora is not None:
        raise UnusableModel(
            f"{path.name} is a DoRA (it holds {dora:.120}), of which diffusers applies only a part.", "Name a LoRA."
        )
