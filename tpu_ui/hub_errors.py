"""What the Hub refuses, and what goes wrong on the way to it, as sentences. What the server says is not repeated."""

import errno

import httpx2  # the client of huggingface_hub, whose errors it lets through
import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.utils import parse_ratelimit_headers

from tpu_ui.errors import DiskFull, LoadFailed, NoAccess, NotDownloaded, TpuUiError, UnknownModel
from tpu_ui.model_card import ModelCard

FOREIGN_ERRORS = (OSError, httpx2.HTTPError, ValueError, KeyError)
"""What huggingface_hub and the file system raise; the last two where an answer is not the Hub's, as of a proxy."""

_LOG_IN = "log in with `hf auth login` or set HF_TOKEN"


def as_user_error(error: Exception, card: ModelCard) -> TpuUiError:
    """One of FOREIGN_ERRORS as an error of this program."""
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, errors.HfHubHTTPError):
        error = error.__cause__  # huggingface_hub looked into the cache after a refusal
    if isinstance(error, errors.HfHubHTTPError):
        return _of_answer(error, card)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return NotDownloaded(f"{card.label} is not on this machine, and HF_HUB_OFFLINE is set.", "Unset it.")
    if isinstance(error, httpx2.HTTPError | errors.LocalEntryNotFoundError | ConnectionError):
        return LoadFailed(
            f"{card.label}: the connection to the Hub ({_endpoint()}) failed ({type(error).__name__}).",
            "Check the network, then try again: what arrived is kept, and the download goes on from there.",
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"{card.label}: the disk is full.", "Free space, or move the cache with --hub-cache or HF_HOME; try again."
        )
    if isinstance(error, OSError) and error.filename:
        return LoadFailed(
            f"{card.label}: {error.filename!s:.300} cannot be written ({error.strerror}).",
            "Check its rights, or move the cache with --hub-cache or HF_HOME.",
        )
    return LoadFailed(
        f"{card.label}: {_endpoint()} does not answer as the Hub does ({type(error).__name__}), so nothing came.",
        "Check the network's proxy or login page, and HF_ENDPOINT.",
    )


def _of_answer(error: errors.HfHubHTTPError, card: ModelCard) -> TpuUiError:
    status = error.response.status_code
    page = f"https://huggingface.co/{card.repo_id}"
    has_token = huggingface_hub.get_token() is not None
    if status == 401 and has_token:
        # Whatever was asked for: the Hub answers so to a token that it does not know, even for an open repository.
        return NoAccess(
            "The Hub does not know this access token: it is wrong or has expired.",
            f"Make one at https://huggingface.co/settings/tokens, then {_LOG_IN}. Open models need none: without a "
            "token they can be downloaded.",
        )
    if isinstance(error, errors.GatedRepoError):
        if status == 401:
            return NoAccess(
                f"{card.label} is gated: the Hub gives it only to those who log in and accept its licence.",
                f"Accept the licence at {page}, then {_LOG_IN}.",
            )
        return NoAccess(
            f"{card.label} is gated, and this account may not download it: its licence was not accepted (or its "
            "authors have not agreed yet, or the token may not read gated repositories).",
            f"Accept the licence at {page}, then try again; no restart is needed.",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return UnknownModel(
            f"model: {card.repo_id} has no revision {card.revision!r:.80}.",
            f"See its branches and commits at {page}; `python -m tpu_ui download` fetches the newest.",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        private = "" if has_token else f" For a private one {_LOG_IN}."
        return UnknownModel(f"model: the Hub has no repository {card.repo_id}.", f"Check the name.{private}")
    if status == 403:
        return NoAccess(
            f"{card.label}: the Hub refuses this account or token (403).", "Check what the token may read, at "
            "https://huggingface.co/settings/tokens.",
        )  # fmt: skip
    if status == 429:
        return LoadFailed(
            f"{card.label}: the Hub asks for fewer requests (429).",
            f"Wait {_seconds_to_wait(error)}, then try again; with a login the limits are higher.",
        )
    return LoadFailed(f"{card.label}: the Hub answered with an error ({status}).", "Try again in some minutes.")


def _seconds_to_wait(error: errors.HfHubHTTPError) -> str:
    headers = error.response.headers
    told = headers.get("Retry-After", "")
    limit = parse_ratelimit_headers(headers)
    seconds = int(told) if told.isdigit() else limit.reset_in_seconds if limit is not None else None
    return "some minutes" if seconds is None else f"{seconds} s"


def _endpoint() -> str:
    return huggingface_hub.constants.ENDPOINT
