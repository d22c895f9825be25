"""Where a model's files are: a folder, or the cache of the Hub."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tpu_ui.catalogue import complete_card, find_card
from tpu_ui.errors import NotDownloaded, UnusableModel
from tpu_ui.events import ProgressListener
from tpu_ui.inspected_folders import inspected
from tpu_ui.model_card import ModelCard
from tpu_ui.model_folder import ModelFolder


@dataclass(frozen=True)
class ModelSource:
    """A model whose files have been found and checked."""

    card: ModelCard
    folder: ModelFolder
    revision: str


@dataclass(frozen=True)
class Fetching:
    """How a download is watched and ended."""

    emit: ProgressListener = lambda _: None
    cancelled: Callable[[], bool] = lambda: False


def find_model(
    name: str, *, offline: bool, hub_cache: Path | None = None, fetching: Fetching | None = None
) -> ModelSource:
    """Find a model by catalogue name, folder or Hub id, and check its files.

    A model of the Hub that is complete on this machine is used as it is: the Hub is not asked for a newer one.

    Args:
        offline: no request may go to the Hub.
        hub_cache: the Hub's cache; None is huggingface_hub's own choice (HF_HUB_CACHE, HF_HOME).
        fetching: fetch what is missing or damaged; None: a model that is not on this machine is an error.

    Raises:
        UnknownModel, UnusableModel: there is no such model, or its files cannot be used.
        NotDownloaded: it is not on this machine, or only in part.
        LoadFailed: it could not be downloaded; see `hub_download.Download`.
        JobCancelled: `fetching.cancelled` said so.
    """
    card = find_card(name)
    if card.repo_id is None:
        folder, revision = inspected(card.folder), None
    else:
        folder = _in_hub_cache(card, offline, hub_cache, fetching)
        revision = folder.path.name  # snapshots are folders named by their commit
    card = complete_card(card, folder, revision)
    return ModelSource(card, folder, card.revision)


def fetch(card: ModelCard, hub_cache: Path | None, fetching: Fetching) -> ModelFolder:
    """Ask the Hub for the card's revision, by default the newest, and fetch what is missing of it.

    Raises:
        See `find_model`.
    """
    from tpu_ui.hub_download import Download  # imports huggingface_hub, which a local model does not need

    folder = Download(card, hub_cache).run(fetching.emit, fetching.cancelled)
    try:
        return inspected(folder)
    except UnusableModel:
        # Right sizes, wrong contents? If the contents are right as well, the second look says what is wrong.
        return inspected(Download(card, hub_cache, check_contents=True).run(fetching.emit, fetching.cancelled))


def _in_hub_cache(card: ModelCard, offline: bool, hub_cache: Path | None, fetching: Fetching | None) -> ModelFolder:
    from tpu_ui.hub_cache import begun_snapshot, find_snapshot

    try:
        return inspected(find_snapshot(card, hub_cache))
    except (NotDownloaded, UnusableModel) as fault:
        if offline:
            raise
        if fetching is None:
            raise NotDownloaded(fault.message, "What is missing is fetched with the next request.") from fault
    begun = begun_snapshot(card, hub_cache)
    # What is begun is completed, even if the Hub has a newer commit by now.
    return fetch(card if begun is None else replace(card, revision=begun.name), hub_cache, fetching)
