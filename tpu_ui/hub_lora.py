"""LoRAs of the Hub: found in its cache, or fetched into it, one file each."""

from dataclasses import replace
from pathlib import Path

import huggingface_hub

from tpu_ui.errors import InvalidRequest, LoadFailed, NotDownloaded, UnknownModel
from tpu_ui.hub_download import Download
from tpu_ui.hub_transfer import HubFile
from tpu_ui.lora_files import HubLora, choose_file
from tpu_ui.model_card import ModelCard, card_of_unseen_repository
from tpu_ui.sources import Fetching


def find(hub: HubLora, *, offline: bool, hub_cache: Path | None, fetching: Fetching | None) -> Path:
    """The file on this machine. One that is there is used as it is: the Hub is not asked for a newer one.

    Args:
        fetching: fetch it if it is missing; None: that is an error.

    Raises:
        NotDownloaded: it is not on this machine, and no download was asked for.
        InvalidRequest, NoAccess, DiskFull, LoadFailed: it could not be downloaded, or no download is possible.
        JobCancelled: `fetching.cancelled` said so.
    """
    cached = _in_cache(hub, hub_cache)
    if cached is not None:
        return cached
    if offline:
        raise LoadFailed(
            f"loras: {hub.repo_id} is not on this machine, and HF_HUB_OFFLINE is set.", "Unset it, or leave it out."
        )
    if fetching is None:
        raise NotDownloaded(f"{hub.repo_id} is not on this machine.", "It is fetched with the next request.")
    card = replace(card_of_unseen_repository(hub.repo_id), revision=hub.revision)
    download = _LoraDownload(card, hub_cache, hub.file)
    try:
        return download.run(fetching.emit, fetching.cancelled) / download.file
    except UnknownModel as error:  # its sentence is about a model
        raise InvalidRequest("loras", error.message.removeprefix("model: "), error.remedy) from error


class _LoraDownload(Download):
    def __init__(self, card: ModelCard, cache_dir: Path | None, file: str | None) -> None:
        super().__init__(card, cache_dir)
        self.file = file

    def _needed(self, files: dict[str, HubFile]) -> tuple[str, ...]:
        if self.file is None:
            self.file = choose_file(self._card.repo_id, [name for name in files if "/" not in name])
        elif self.file not in files:
            raise InvalidRequest(
                "loras", f"{self._card.repo_id} has no file {self.file}.", f"See its files at {self._card.link}."
            )
        return (self.file,)


def _in_cache(hub: HubLora, cache_dir: Path | None) -> Path | None:
    file = hub.file
    if file is None:
        try:
            listing = huggingface_hub.get_cached_repo_tree(hub.repo_id, revision=hub.revision, cache_dir=cache_dir)
        except huggingface_hub.errors.CachedRepoTreeNotFoundError:
            return None
        file = choose_file(hub.repo_id, [each.path for each in listing if "/" not in each.path])
    found = huggingface_hub.try_to_load_from_cache(hub.repo_id, file, cache_dir, hub.revision)
    return Path(found) if isinstance(found, str) else None
