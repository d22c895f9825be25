"""Where a model's files are: a folder, or the cache of the Hub."""

from dataclasses import dataclass
from pathlib import Path

from tpu_ui.catalogue import complete_card, find_card
from tpu_ui.errors import LoadFailed, NotDownloaded, UnknownModel
from tpu_ui.inspected_folders import inspected
from tpu_ui.model_card import ModelCard
from tpu_ui.model_folder import ModelFolder


@dataclass(frozen=True)
class ModelSource:
    """A model whose files have been found and checked."""

    card: ModelCard
    folder: ModelFolder
    revision: str


def find_model(name: str, *, offline: bool, download: bool = True) -> ModelSource:
    """Find a model by catalogue name, folder or Hub id, and check its files.

    Args:
        offline: no request may go to the Hub.
        download: fetch what is missing; otherwise a model that is not on this machine is an error.

    Raises:
        UnknownModel, UnusableModel: there is no such model, or its files cannot be used.
        LoadFailed: the Hub could not be reached or refused.
    """
    card = find_card(name)
    path = card.folder if card.repo_id is None else _snapshot(card, local_only=offline or not download)
    folder = inspected(path)
    revision = None if card.repo_id is None else path.name  # snapshots are folders named by their commit
    card = complete_card(card, folder, revision)
    return ModelSource(card, folder, card.revision)


def _snapshot(card: ModelCard, local_only: bool) -> Path:
    import huggingface_hub
    from huggingface_hub import errors

    patterns = ["*.json", "*.txt", "*.model", "*.jinja", "*/*.safetensors"]
    try:
        return Path(
            huggingface_hub.snapshot_download(
                card.repo_id, revision=card.revision, allow_patterns=patterns, local_files_only=local_only
            )
        )
    except errors.GatedRepoError as error:
        raise LoadFailed(
            f"{card.label}: the Hub gives it only to those who accepted its licence.",
            f"Accept it at https://huggingface.co/{card.repo_id}, then log in with `hf auth login` or set HF_TOKEN.",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UnknownModel(
            f"model: the Hub has no repository {card.repo_id}, or it is private.",
            "Check the name; for a private one log in with `hf auth login` or set HF_TOKEN.",
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise NotDownloaded(
            f"{card.label} is not on this machine" + ("." if local_only else ", and the Hub could not be reached."),
            "Connect to the network (and unset HF_HUB_OFFLINE), or name a local folder.",
        ) from error
    except (errors.HfHubHTTPError, OSError) as error:
        raise LoadFailed(
            f"{card.label} could not be downloaded ({type(error).__name__}).", "Try again; what arrived is kept."
        ) from error
