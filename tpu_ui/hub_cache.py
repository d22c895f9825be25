"""What the Hub's cache on this machine holds of a model, told without a request to the Hub."""

import json
from pathlib import Path

import huggingface_hub
from huggingface_hub import errors

from tpu_ui.errors import NotDownloaded, UnusableModel
from tpu_ui.hub_files import MODEL_INDEX, needed_files
from tpu_ui.model_card import ModelCard


def find_snapshot(card: ModelCard, cache_dir: Path | None) -> Path:
    """The folder of a model's files, named by their commit.

    All files are there with the sizes that the Hub told, as far as that was noted: a cache that other programs filled
    may hold no list of files, and then `inspect_folder` has to find out.

    Args:
        cache_dir: None is huggingface_hub's own choice.

    Raises:
        NotDownloaded: nothing of it is there, or not all; files that are missing or cut are named.
        UnusableModel: it is no pipeline that could be loaded.
    """
    folder = begun_snapshot(card, cache_dir)
    if folder is None:
        raise NotDownloaded(f"{card.label} is not on this machine.", "Connect to the network, or name a local folder.")
    try:
        listing = huggingface_hub.get_cached_repo_tree(card.repo_id, revision=folder.name, cache_dir=cache_dir)
    except errors.CachedRepoTreeNotFoundError:
        return folder
    expected = {file.path: file.size for file in listing}
    names = needed_files(card.repo_id, expected, read_model_index(card, folder))
    found = {name: _file_bytes(folder / name) for name in names}
    wrong = [name for name in names if found[name] != expected[name]]
    if wrong:
        missing = sum(found[name] is None for name in wrong)
        first = wrong[0]
        fault = "missing" if found[first] is None else f"{found[first]:,} bytes instead of {expected[first]:,}"
        kinds = [f"{missing} missing"] * (missing > 0) + [f"{len(wrong) - missing} damaged"] * (missing < len(wrong))
        raise NotDownloaded(
            f"{card.label} is on this machine only in part: of {len(names)} files {' and '.join(kinds)}, "
            f"the first {first} ({fault}).",
            "Connect to the network: only these are fetched then.",
        )
    return folder


def begun_snapshot(card: ModelCard, cache_dir: Path | None) -> Path | None:
    """The folder of the commit to which the card's revision points on this machine, complete or not."""
    index = huggingface_hub.try_to_load_from_cache(card.repo_id, MODEL_INDEX, cache_dir, card.revision)
    return Path(index).parent if isinstance(index, str) else None


def read_model_index(card: ModelCard, snapshot: Path) -> dict:
    """The contents of model_index.json.

    Raises:
        UnusableModel: it is not a JSON object.
    """
    try:
        value = json.loads((snapshot / MODEL_INDEX).read_bytes())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UnusableModel(f"{card.repo_id}: model_index.json is not a JSON object.", "Choose another repository.")
    return value


def _file_bytes(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
