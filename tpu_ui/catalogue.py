"""How a model is found by any of its names, and how a folder or Hub repository outside the list becomes a card too."""

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import replace

from tpu_ui.errors import UnknownModel, UnusableModel
from tpu_ui.inspected_folders import inspected
from tpu_ui.known_models import CATALOGUE, DEMO_FOLDER
from tpu_ui.model_card import ModelCard, card_from_folder, card_of_unseen_repository
from tpu_ui.model_folder import ModelFolder
from tpu_ui.pipeline_kinds import GuidanceKind

__all__ = ["CATALOGUE", "DEMO_FOLDER", "GuidanceKind", "ModelCard", "card_from_folder", "complete_card", "find_card"]

_HUB_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"{_HUB_NAME}/{_HUB_NAME}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_HUB_URL = re.compile(rf"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/({_HUB_NAME}/{_HUB_NAME})(?:[/?#].*)?")


def default_model_on(device_kind: str) -> str:
    """The model when a request names none: on a TPU one that is worth it, elsewhere the bundled demo."""
    return "flux.1-schnell" if device_kind == "tpu" else "demo"


def find_card(name: str, *, catalogue: Iterable[ModelCard] = CATALOGUE) -> ModelCard:
    """The card of a model named by its id, its repository, or a folder.

    After the id or the repository, `@` and a branch, tag or commit choose another revision than the newest.
    Dots and dashes in an id may be left out (flux2-dev). A folder is looked into at once. A repository outside the
    catalogue comes back incomplete (see ModelCard).

    Raises:
        UnknownModel: the name is none of these; close matches are named.
        UnusableModel: the name is a folder that cannot be used.
    """
    catalogue = tuple(catalogue)
    cards = {card.id.casefold(): card for card in catalogue}
    repositories = {card.repo_id.casefold(): card for card in cards.values() if card.repo_id is not None}
    wanted = name.strip()
    known = cards.get(wanted.casefold()) or repositories.get(wanted.casefold())
    if known is not None:
        return known
    of_revision = _card_of_revision(wanted, catalogue)
    if of_revision is not None:
        return of_revision
    looks_like_path = wanted.startswith((".", "/", "~", os.sep)) and "\0" not in wanted
    if looks_like_path or (wanted and os.path.exists(wanted)):
        return card_from_folder(inspected(os.path.expanduser(wanted)))
    ways = f"Name one of {', '.join(card.id for card in cards.values())}, a folder, or a Hub repository as org/name."
    if _URL.match(wanted):
        hub = _HUB_URL.fullmatch(wanted)
        raise UnknownModel(
            f"{wanted!r:.120} is an address, and models are not fetched from addresses.",
            f"Give {hub[1]} instead." if hub else ways,
        )
    if is_hub_id(wanted):
        return card_of_unseen_repository(wanted)
    alike = {_without_dashes(card.id): card for card in cards.values()}.get(_without_dashes(wanted))
    if alike is not None:
        return alike
    names = {card.id.casefold(): card.id for card in cards.values()}
    names |= {card.label.casefold(): card.id for card in cards.values()}
    start = wanted[:200].casefold()
    near = [each for each in names if start and each.startswith(start)]
    near += difflib.get_close_matches(start, names, cutoff=0.5)
    meant = f" Did you mean {' or '.join(dict.fromkeys(names[each] for each in near))}?" if near else ""
    raise UnknownModel(f"There is no model {wanted!r:.120}.{meant}", ways)


def _without_dashes(name: str) -> str:
    return name.casefold().translate(dict.fromkeys(map(ord, ".-_ ")))


def _card_of_revision(name: str, catalogue: Iterable[ModelCard]) -> ModelCard | None:
    model, at, revision = name.partition("@")
    if not at or not _REVISION.fullmatch(revision) or ".." in revision or os.path.exists(name):
        return None
    if not is_hub_id(model) and _without_dashes(model) not in {_without_dashes(card.id) for card in catalogue}:
        return None
    card = find_card(model, catalogue=catalogue)
    if card.repo_id is None:
        raise UnknownModel(f"{card.label} is bundled and has no revisions.", f"Choose {card.id}.")
    return replace(card, id=f"{card.id}@{revision}", label=f"{card.label} ({revision:.12})", revision=revision)


def complete_card(card: ModelCard, folder: ModelFolder, revision: str | None = None) -> ModelCard:
    """The card of a model whose files are on disk now: its own figures, or the folder's if it had none.

    `revision` is the commit of the repository; without one, the card's own or else the folder's fingerprint is kept.

    Raises:
        UnusableModel: the folder holds another pipeline than the card says.
    """
    revision = revision or card.revision or folder.fingerprint
    if not card.is_complete:
        names = {name: getattr(card, name) for name in ("id", "label", "repo_id", "gated", "link")}
        return replace(card_from_folder(folder), revision=revision, **names)
    if card.pipeline_class != folder.pipeline_class:
        raise UnusableModel(
            f"{card.label} should be a {card.pipeline_class}, but {folder.path} holds a {folder.pipeline_class}.",
            "Fetch the model again.",
        )
    return replace(card, folder=folder.path, revision=revision)


def is_hub_id(name: str) -> bool:
    """The Hub's rules for org/name (huggingface_hub's validate_repo_id)."""
    return _HUB_ID.fullmatch(name) is not None and "--" not in name and ".." not in name and not name.endswith(".git")
