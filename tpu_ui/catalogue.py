"""The one list of models, and how any other folder or Hub repository becomes an entry of the same kind."""

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tpu_ui.errors import UnknownModel, UnusableModel
from tpu_ui.inspected_folders import inspected
from tpu_ui.model_card import CLIP_TEXT_TOKENS, ModelCard, card_from_folder, card_of_unseen_repository
from tpu_ui.model_folder import ModelFolder
from tpu_ui.pipeline_kinds import GuidanceKind
from tpu_ui.shapes import ShapeLadder, SizeRule

__all__ = ["CATALOGUE", "DEMO_FOLDER", "GuidanceKind", "ModelCard", "card_from_folder", "complete_card", "find_card"]

DEMO_FOLDER = Path(__file__).resolve().parent.parent / "assets" / "demo"
"""The bundled model, beside the package in a checkout; the folder may be absent."""

MEGAPIXEL = 1024 * 1024

_HUB_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"{_HUB_NAME}/{_HUB_NAME}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_HUB_URL = re.compile(rf"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/({_HUB_NAME}/{_HUB_NAME})(?:[/?#].*)?")


_SMALL_RANDOM = "small random weights of the same classes"
_DEMO_RULE = SizeRule.with_multiple(32, max_side=512)
_FLUX_RULE = SizeRule.with_multiple(16, max_side=2048, max_pixels=4 * MEGAPIXEL)
_SD3_RULE = SizeRule.with_multiple(16, max_side=2048, max_pixels=4 * MEGAPIXEL)
_SDXL_RULE = SizeRule.with_multiple(8, max_side=2048, max_pixels=4 * MEGAPIXEL)

# Steps, guidance and text length as in the example of each model's page (`link`); grids from the checks of the
# pipeline class; sides up to 2048, above the one to two megapixels that the pages name.
CATALOGUE: tuple[ModelCard, ...] = (
    ModelCard(
        id="demo",
        label="Demo (bundled, tiny)",
        repo_id=None,
        folder=DEMO_FOLDER,
        revision=None,
        pipeline_class="StableDiffusion3Pipeline",
        dtype="float32",
        size_rule=_DEMO_RULE,
        default_width=256,
        default_height=256,
        ladder=ShapeLadder.for_pixels(_DEMO_RULE, 256 * 256),
        default_steps=12,
        default_guidance=3.0,
        guidance_kind=GuidanceKind.CLASSIFIER_FREE,
        text_length=32,
        takes_negative_prompt=True,
        gated=False,
        licence="Apache-2.0",
        link="assets/demo/README.md",
        denoiser_sees_only_token_count=False,
        tested="its own weights",
    ),
    ModelCard(
        id="flux.1-schnell",
        label="FLUX.1 schnell",
        repo_id="black-forest-labs/FLUX.1-schnell",
        folder=None,
        revision=None,
        pipeline_class="FluxPipeline",
        dtype="bfloat16",
        size_rule=_FLUX_RULE,
        default_width=1024,
        default_height=1024,
        ladder=ShapeLadder.for_pixels(_FLUX_RULE, MEGAPIXEL, MEGAPIXEL // 4),
        default_steps=4,
        default_guidance=0.0,
        guidance_kind=GuidanceKind.NONE,
        text_length=256,
        takes_negative_prompt=False,
        gated=True,  # since July 2025, although the licence is free
        licence="Apache-2.0",
        link="https://huggingface.co/black-forest-labs/FLUX.1-schnell",
        denoiser_sees_only_token_count=True,
        tested=_SMALL_RANDOM,
    ),
    ModelCard(
        id="flux.1-dev",
        label="FLUX.1 dev",
        repo_id="black-forest-labs/FLUX.1-dev",
        folder=None,
        revision=None,
        pipeline_class="FluxPipeline",
        dtype="bfloat16",
        size_rule=_FLUX_RULE,
        default_width=1024,
        default_height=1024,
        ladder=ShapeLadder.for_pixels(_FLUX_RULE, MEGAPIXEL, MEGAPIXEL // 4),
        default_steps=50,
        default_guidance=3.5,
        guidance_kind=GuidanceKind.DISTILLED,
        text_length=512,
        takes_negative_prompt=False,
        gated=True,
        licence="FLUX.1 [dev] Non-Commercial License",
        link="https://huggingface.co/black-forest-labs/FLUX.1-dev",
        denoiser_sees_only_token_count=True,
        tested=_SMALL_RANDOM,
    ),
    ModelCard(
        id="sd3.5-medium",
        label="Stable Diffusion 3.5 Medium",
        repo_id="stabilityai/stable-diffusion-3.5-medium",
        folder=None,
        revision=None,
        pipeline_class="StableDiffusion3Pipeline",
        dtype="bfloat16",
        size_rule=_SD3_RULE,
        default_width=1024,
        default_height=1024,
        ladder=ShapeLadder.for_pixels(_SD3_RULE, MEGAPIXEL, MEGAPIXEL // 4),
        default_steps=40,
        default_guidance=4.5,
        guidance_kind=GuidanceKind.CLASSIFIER_FREE,
        text_length=256,  # the page warns of artefacts beyond 256 tokens
        takes_negative_prompt=True,
        gated=True,
        licence="Stability AI Community License",
        link="https://huggingface.co/stabilityai/stable-diffusion-3.5-medium",
        denoiser_sees_only_token_count=False,
        tested=_SMALL_RANDOM,
    ),
    ModelCard(
        id="sdxl",
        label="Stable Diffusion XL base 1.0",
        repo_id="stabilityai/stable-diffusion-xl-base-1.0",
        folder=None,
        revision=None,
        pipeline_class="StableDiffusionXLPipeline",
        dtype="bfloat16",
        size_rule=_SDXL_RULE,
        default_width=1024,
        default_height=1024,
        ladder=ShapeLadder.for_pixels(_SDXL_RULE, MEGAPIXEL),
        default_steps=50,  # defaults of the pipeline: the page's example gives none
        default_guidance=5.0,
        guidance_kind=GuidanceKind.CLASSIFIER_FREE,
        text_length=CLIP_TEXT_TOKENS,
        takes_negative_prompt=True,
        gated=False,
        licence="CreativeML Open RAIL++-M",
        link="https://huggingface.co/stabilityai/stable-diffusion-xl-base-1.0",
        denoiser_sees_only_token_count=False,
        tested=_SMALL_RANDOM,
    ),
)


def default_model_on(device_kind: str) -> str:
    """The model when a request names none: on a TPU one that is worth it, elsewhere the bundled demo."""
    return "flux.1-schnell" if device_kind == "tpu" else "demo"


def find_card(name: str, *, catalogue: Iterable[ModelCard] = CATALOGUE) -> ModelCard:
    """The card of a model named by its id, its repository, or a folder.

    After the id or the repository, `@` and a branch, tag or commit choose another revision than the newest.
    A folder is looked into at once. A repository outside the catalogue comes back incomplete (see ModelCard).

    Raises:
        UnknownModel: the name is none of these; close matches are named.
        UnusableModel: the name is a folder that cannot be used.
    """
    catalogue = tuple(catalogue)
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
    if _is_hub_id(wanted):
        return card_of_unseen_repository(wanted)
    names = {card.id.casefold(): card.id for card in cards.values()}
    names |= {card.label.casefold(): card.id for card in cards.values()}
    start = wanted[:200].casefold()
    near = [each for each in names if start and each.startswith(start)]
    near += difflib.get_close_matches(start, names, cutoff=0.5)
    meant = f" Did you mean {' or '.join(dict.fromkeys(names[each] for each in near))}?" if near else ""
    raise UnknownModel(f"There is no model {wanted!r:.120}.{meant}", ways)


def _card_of_revision(name: str, catalogue: Iterable[ModelCard]) -> ModelCard | None:
    model, at, revision = name.partition("@")
    if not at or not _REVISION.fullmatch(revision) or ".." in revision or os.path.exists(name):
        return None
    if not _is_hub_id(model) and model.casefold() not in {card.id.casefold() for card in catalogue}:
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


def _is_hub_id(name: str) -> bool:
    """The Hub's rules for org/name (huggingface_hub's validate_repo_id)."""
    return _HUB_ID.fullmatch(name) is not None and "--" not in name and ".." not in name and not name.endswith(".git")
