"""Fetches a model from the Hub into its cache: told file by file, cancelled at once, resumed where it ended."""

import logging
import queue
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import WeakFileLock, disable_progress_bars

from tpu_ui.errors import DiskFull, JobCancelled, LoadFailed, TpuUiError
from tpu_ui.events import Phase, Progress, ProgressListener
from tpu_ui.hub_cache import begun_snapshot, read_model_index
from tpu_ui.hub_errors import FOREIGN_ERRORS, as_user_error
from tpu_ui.hub_files import MODEL_INDEX, check_is_pipeline, needed_files
from tpu_ui.hub_transfer import TIMEOUT_SECONDS, HubFile, receive
from tpu_ui.model_card import ModelCard

log = logging.getLogger(__name__)

disable_progress_bars()  # they would run through ours

_CONNECTIONS = 4  # one does not fill the line of a TPU VM
_POLL_SECONDS = 0.1
_EVENT_SECONDS = 0.5
_SPEED_SECONDS = 5.0  # the speed is that of the last so many
_SMALL_BYTES = 1 << 20  # contents of files up to this size are always checked
_SPARE_DISK_BYTES = 256 * 10**6  # for what else is written while a model is fetched


class Download:
    """One download. `run` may be called once, from any thread.

    Args:
        cache_dir: the Hub's cache; None is huggingface_hub's own choice.
        check_contents: also fetch again what has the right size but not the right contents.
    """

    def __init__(self, card: ModelCard, cache_dir: Path | None, check_contents: bool = False) -> None:
        self._card = card
        self._check_contents = check_contents
        self._cache = Path(cache_dir or constants.HF_HUB_CACHE).expanduser()
        folder_name = repo_folder_name(repo_id=card.repo_id, repo_type="model")
        self._blobs = self._cache / folder_name / "blobs"
        self._locks = self._cache / ".locks" / folder_name
        self._stop = threading.Event()
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._snapshot: Path | None = None
        # Written by the workers, read by `run`.
        self._commit = ""
        self._files = 0
        self._total_bytes = 0
        self._bytes_of: dict[str, int] = {}  # on disk, by file
        self._fetched_bytes = 0  # over the network
        self._under_way: list[str] = []
        self._finished = 0

    def run(self, emit: ProgressListener, cancelled: Callable[[], bool]) -> Path:
        """Fetch what is missing; returns the folder of the files, named by their commit.

        The work is done by threads that nobody waits for when it is cancelled: they end with their next bytes.

        Raises:
            JobCancelled: within a moment after `cancelled` said so. What arrived is kept.
            NoAccess, UnknownModel, UnusableModel, DiskFull, LoadFailed: why there is no model.
        """
        started = last_event = time.monotonic()
        emit(Progress(Phase.DOWNLOADING, detail="asking the Hub"))
        seen = deque([(started, 0)])
        threading.Thread(target=self._work, name="download", daemon=True).start()
        try:
            while not self._done.wait(_POLL_SECONDS):
                if cancelled():
                    raise JobCancelled
                now = time.monotonic()
                if now - last_event >= _EVENT_SECONDS:
                    last_event = now
                    emit(self._progress(now - started, seen))
        finally:
            self._stop.set()
        if self._snapshot is None:
            error = self._error
            raise error if isinstance(error, TpuUiError) else as_user_error(error, self._card) from error
        emit(self._progress(time.monotonic() - started, seen))
        return self._snapshot

    def _progress(self, elapsed_seconds: float, seen: deque[tuple[float, int]]) -> Progress:
        with self._lock:
            if not self._files:
                return Progress(Phase.DOWNLOADING, elapsed_seconds=elapsed_seconds, detail="asking the Hub")
            now = time.monotonic()
            seen.append((now, self._fetched_bytes))
            while now - seen[0][0] > _SPEED_SECONDS and len(seen) > 2:
                seen.popleft()
            then, before = seen[0]
            return Progress(
                Phase.DOWNLOADING,
                elapsed_seconds=elapsed_seconds,
                bytes_done=sum(self._bytes_of.values()),
                bytes_total=self._total_bytes,
                bytes_per_second=(self._fetched_bytes - before) / (now - then) if now > then else None,
                file=min(self._finished + 1, self._files),
                files=self._files,
                detail=self._under_way[0] if self._under_way else "",
            )

    # -- on threads of its own ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._snapshot = self._fetch_all()
        except (TpuUiError, *FOREIGN_ERRORS) as error:
            self._error = self._error or error
        finally:
            self._error = self._error or RuntimeError("the download's thread ended")
            self._done.set()

    def _fetch_all(self) -> Path | None:
        """Fetch everything; None when it was cut short, by a worker's error or from outside."""
        revision = self._card.revision
        info = huggingface_hub.HfApi().model_info(
            self._card.repo_id, revision=revision, files_metadata=True, timeout=TIMEOUT_SECONDS
        )
        self._commit = info.sha
        files = {
            each.rfilename: HubFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else each.blob_id)
            for each in info.siblings
        }
        wanted = [files[name] for name in self._needed(files)]
        todo = self._plan(wanted)
        workers = [threading.Thread(target=self._fetch_from, args=(todo,), daemon=True) for _ in range(_CONNECTIONS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if self._stop.is_set():
            return None
        return self._snapshot_of([file.name for file in wanted], revision)

    def _needed(self, files: dict[str, HubFile]) -> tuple[str, ...]:
        """The names of the files that are wanted, of all that the repository has."""
        check_is_pipeline(self._card.repo_id, files)
        model_index = read_model_index(self._card, self._begin_snapshot(files[MODEL_INDEX]))
        return needed_files(self._card.repo_id, files, model_index)

    def _begin_snapshot(self, model_index: HubFile) -> Path:
        """Fetch model_index.json, so that the cache knows what the model is, whatever happens next.

        While an older commit is there, the branch keeps pointing to it until the newer one is whole.
        """
        self._is_there(model_index)
        has_older = begun_snapshot(self._card, self._cache) is not None
        folder = self._snapshot_of([MODEL_INDEX], self._commit if has_older else self._card.revision)
        if folder.name != self._commit:
            raise LoadFailed(f"{self._card.label} was changed on the Hub just now.", "Try again.")
        return folder

    def _snapshot_of(self, names: list[str], revision: str | None) -> Path:
        """Let huggingface_hub note the repository's files and link those named into a snapshot."""
        return Path(
            huggingface_hub.snapshot_download(
                self._card.repo_id,
                revision=revision,
                cache_dir=self._cache,
                allow_patterns=names,
                etag_timeout=TIMEOUT_SECONDS,
            )
        )

    def _plan(self, wanted: list[HubFile]) -> "queue.SimpleQueue[HubFile]":
        """Find out what is missing, and whether there is space for it; the small files come first."""
        missing = [file for file in wanted if not self._is_there(file)]
        on_disk = {file.name: file.file_bytes for file in wanted if file not in missing}
        on_disk |= {file.name: self._bytes_arrived(file) for file in missing}
        needed = sum(file.file_bytes - on_disk[file.name] for file in missing)
        existing = next(folder for folder in (self._blobs, *self._blobs.parents) if folder.exists())
        free = shutil.disk_usage(existing).free
        if needed + _SPARE_DISK_BYTES > free:
            raise DiskFull(
                f"{self._card.label} needs {needed / 1e9:.1f} GB more on the disk, and {self._cache} has "
                f"{free / 1e9:.1f} GB free.",
                "Free space, or move the cache with --hub-cache or HF_HOME.",
            )
        largest = max(wanted, key=lambda file: file.file_bytes)
        if largest.file_bytes > constants.MAX_HTTP_DOWNLOAD_SIZE:
            raise LoadFailed(
                f"{self._card.label}: {largest.name} has {largest.file_bytes / 1e9:.1f} GB, more than the Hub gives "
                f"over HTTP ({constants.MAX_HTTP_DOWNLOAD_SIZE / 1e9:.1f} GB).",
                f"Fetch the model with `hf download {self._card.repo_id}` first; it is found in the cache then.",
            )
        todo: queue.SimpleQueue[HubFile] = queue.SimpleQueue()
        for file in sorted(missing, key=lambda file: file.file_bytes):
            todo.put(file)
        with self._lock:
            self._bytes_of, self._total_bytes = on_disk, sum(file.file_bytes for file in wanted)
            self._files, self._finished = len(wanted), len(wanted) - len(missing)
        return todo

    def _is_there(self, file: HubFile) -> bool:
        """Whether the snapshot has a file. One that is wrong is removed, with its blob, so that it is fetched again."""
        linked, blob = self._blobs.parent / "snapshots" / self._commit / file.name, self._blobs / file.digest
        for path in (blob, linked):
            if path.is_file() and not self._is_right(file, path):
                log.warning("%s of %s is damaged in the cache; it is fetched again", file.name, self._card.repo_id)
                path.unlink()
        if linked.is_file():
            return True
        linked.unlink(missing_ok=True)  # a link to nothing
        return False

    def _is_right(self, file: HubFile, path: Path) -> bool:
        if path.stat().st_size != file.file_bytes:
            return False
        return file.is_held_by(path) if self._check_contents or file.file_bytes <= _SMALL_BYTES else True

    def _bytes_arrived(self, file: HubFile) -> int:
        if (self._blobs / file.digest).exists():
            return file.file_bytes
        partial = self._partial(file)
        return min(partial.stat().st_size, file.file_bytes) if partial.exists() else 0

    def _partial(self, file: HubFile) -> Path:
        """Where a file grows. One name for each content: a download that fails again and again leaves one file."""
        return self._blobs / f"{file.digest}.incomplete"

    def _fetch_from(self, todo: "queue.SimpleQueue[HubFile]") -> None:
        while not self._stop.is_set():
            try:
                file = todo.get_nowait()
            except queue.Empty:
                return
            with self._lock:
                self._under_way.append(file.name)
            try:
                self._fetch(file)
            except JobCancelled:
                return
            except (TpuUiError, *FOREIGN_ERRORS) as error:
                with self._lock:
                    self._error = self._error or error
                self._stop.set()
            finally:
                with self._lock:
                    self._under_way.remove(file.name)

    def _fetch(self, file: HubFile) -> None:
        blob = self._blobs / file.digest
        for folder in (self._locks, self._blobs):
            folder.mkdir(parents=True, exist_ok=True)
        # The lock that huggingface_hub takes too: no other process writes this file meanwhile.
        with WeakFileLock(self._locks / f"{file.digest}.lock"):
            if not blob.exists():
                partial = self._partial(file)
                receive(self._card, self._commit, file, partial, self._stop, self._note)
                partial.rename(blob)
            for left in self._blobs.glob(f"{file.digest}.*.incomplete"):  # of huggingface_hub, when it was killed
                left.unlink(missing_ok=True)
        huggingface_hub.hf_hub_download(  # finds the blob and links it
            self._card.repo_id, file.name, revision=self._commit, cache_dir=self._cache, etag_timeout=TIMEOUT_SECONDS
        )
        with self._lock:
            self._bytes_of[file.name] = file.file_bytes
            self._finished += 1

    def _note(self, file: HubFile, bytes_on_disk: int, bytes_received: int) -> None:
        with self._lock:
            self._bytes_of[file.name] = bytes_on_disk
            self._fetched_bytes += bytes_received
