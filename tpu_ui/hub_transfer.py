"""One file from the Hub: resumed where it ended, checked when it is whole.

huggingface_hub itself throws a file away that did not arrive whole (2.4: over HTTP and with hf_xet alike), and cannot
be cancelled while it waits for the network.
"""

import errno
import hashlib
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx2
import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from tpu_ui.errors import JobCancelled, LoadFailed
from tpu_ui.model_card import ModelCard

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
_TRIES_WITHOUT_A_BYTE = 4


@dataclass(frozen=True)
class HubFile:
    """A file of a repository at one commit.

    Raises:
        ValueError: the digest is none.

    Attributes:
        name: its path in the repository.
        digest: SHA-256 of a large file (Git LFS), git's SHA-1 of a small one. The cache's blobs are named by it.
    """

    name: str
    file_bytes: int
    digest: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", str(self.digest)):  # it becomes a path
            raise ValueError(f"{self.digest!r:.80} is no digest of a file")

    def is_held_by(self, path: Path) -> bool:
        """Whether the file at `path` has this content. Reads all of it."""
        digest = hashlib.sha256() if len(self.digest) == 64 else hashlib.sha1(b"blob %d\0" % self.file_bytes)
        with path.open("rb", buffering=0) as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest() == self.digest


# (file, its bytes on disk now, bytes that came over the network since the last call)
ByteListener = Callable[[HubFile, int, int], None]


def receive(
    card: ModelCard, commit: str, file: HubFile, partial: Path, stop: threading.Event, on_bytes: ByteListener
) -> None:
    """Make `partial` the whole file; what it holds already is kept, if it is right.

    Raises:
        JobCancelled: `stop` was set.
        LoadFailed: it arrived with other contents than the repository says.
        httpx2.HTTPError, OSError: refused by the Hub, no connection, or the disk is full.
    """
    for _ in range(2):  # the first time its beginning may have been wrong
        _receive_rest(card, commit, file, partial, stop, on_bytes)
        if file.is_held_by(partial):
            return
        partial.unlink()
    raise LoadFailed(
        f"{card.label}: {file.name} arrived damaged, twice.", "Try again; if a proxy lies between, go around it."
    )


def _receive_rest(
    card: ModelCard, commit: str, file: HubFile, partial: Path, stop: threading.Event, on_bytes: ByteListener
) -> None:
    """Fetch what is missing, over several connections if one breaks."""
    failures = 0
    while True:
        before = partial.stat().st_size if partial.exists() else 0
        try:
            _receive_once(card, commit, file, partial, stop, on_bytes)
            return
        except (httpx2.TransportError, HfHubHTTPError) as error:
            if isinstance(error, HfHubHTTPError) and error.response.status_code < 500:
                raise
            failures = 0 if partial.stat().st_size > before else failures + 1
            if failures >= _TRIES_WITHOUT_A_BYTE:
                raise
            log.info("%s: %s; the download goes on", file.name, type(error).__name__)
            if stop.wait(0.5 + failures):
                raise JobCancelled from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                partial.unlink(missing_ok=True)  # a disk that this file filled is not left full
            raise


def _receive_once(
    card: ModelCard, commit: str, file: HubFile, partial: Path, stop: threading.Event, on_bytes: ByteListener
) -> None:
    with partial.open("ab") as sink:
        have = sink.tell()
        if have > file.file_bytes:
            have = sink.truncate(0)
        if have == file.file_bytes:
            return
        headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        # The address in the repository, not that of the storage to which it leads: those expire. The client sends no
        # token along to another host.
        url = huggingface_hub.hf_hub_url(card.repo_id, file.name, revision=commit)
        with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_SECONDS) as response:
            hf_raise_for_status(response)
            if have and response.status_code != httpx2.codes.PARTIAL_CONTENT:
                have = sink.truncate(0)
            for chunk in response.iter_bytes():
                if stop.is_set():
                    raise JobCancelled
                sink.write(chunk)
                have += len(chunk)
                on_bytes(file, have, len(chunk))
        if have != file.file_bytes:
            raise httpx2.RemoteProtocolError(f"{have} bytes of {file.file_bytes}")
