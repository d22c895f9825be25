"""Where pictures go: one folder, whose PNGs are themselves the history; beside them only an index that can be rebuilt.

The index keeps a keyed hash of each maker's secret. A picture of unknown maker is seen only where history is shared.
"""

import contextlib
import errno
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import sqlite3
import stat
import threading
import time
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from tpu_ui.errors import InvalidRequest, TpuUiError
from tpu_ui.recipe import Recipe, read_recipe
from tpu_ui.report import GenerationResult

log = logging.getLogger(__name__)

MAX_LISTED = 1000
_INDEX_NAME = ".tpu_ui-history.sqlite3"
_UNFINISHED = ".saving-"  # names of files that are being written
_UNFINISHED_KEPT_SECONDS = 3600
_PLAIN_NAME = re.compile(r"[^./\\:\x00-\x1f\ud800-\udfff][^/\\:\x00-\x1f\ud800-\udfff]{0,250}\.png", re.IGNORECASE)
_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);
INSERT OR IGNORE INTO secrets VALUES ('owners', randomblob(32));
CREATE TABLE IF NOT EXISTS owners (name TEXT PRIMARY KEY, mark TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS pictures (name TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL, bytes INTEGER NOT NULL,
    created_ms INTEGER NOT NULL, fields TEXT, searched TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS pictures_by_time ON pictures (created_ms, name);
PRAGMA user_version = 1;
COMMIT;
"""
_NO_SUCH_PICTURE = ("picture", "there is no such picture in this history.", "Reload the list.")


def save_as(image: Image.Image, recipe: Recipe, path: Path, overwrite: bool = True) -> Path:
    """Save a picture where the user says, whole or not at all; missing folders are made.

    Raises:
        InvalidRequest: not a .png name, a folder, or the file exists and `overwrite` is off.
        TpuUiError: it cannot be written.
    """
    (path,) = numbered_paths(path, 1)
    if os.path.isdir(path):
        raise InvalidRequest("out", f"{path} is a folder.", "Name a file that ends in .png.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _written_aside(path.parent, image, recipe) as unfinished:
            (os.replace if overwrite else _publish)(unfinished, path)
    except OSError as error:
        if not overwrite and os.path.lexists(path):
            raise InvalidRequest("out", f"{path} exists.", "Name another file.") from error
        raise _as_fault(error, str(path)) from error
    return path


def numbered_paths(path: Path, count: int) -> tuple[Path, ...]:
    """Where `count` pictures go when the user names one file: x.png, or x-1.png, x-2.png and so on.

    Raises:
        InvalidRequest: the name does not end in .png.
    """
    if path.suffix.lower() != ".png" or "\0" in str(path):
        raise InvalidRequest("out", f"{path.name!r} does not end in .png.", "Pictures are saved as PNG only.")
    if count == 1:
        return (path,)
    return tuple(path.with_name(f"{path.stem}-{i}{path.suffix}") for i in range(1, count + 1))


@dataclass(frozen=True)
class HistoryEntry:
    """One picture of the history.

    Attributes:
        name: of the file in the output folder; ASCII without separators if we named it.
        created_ms: milliseconds since 1970, UTC.
        fields: values for `GenerationRequest.from_mapping` that make it again.
        mine: made by the owner who asks.
    """

    name: str
    created_ms: int
    fields: dict[str, Any]
    mine: bool

    @property
    def cursor(self) -> str:
        """For `before`: the next page begins behind this entry."""
        return f"{self.created_ms}/{self.name}"


class OutputFolder:
    """The output folder and its history. Thread-safe; several processes may share a folder.

    Args:
        root: made if it is missing.
        shared: everyone sees every picture, and may delete those that are nobody's.

    Raises:
        TpuUiError: the folder cannot be made or its index cannot be used.
    """

    def __init__(self, root: Path, *, shared: bool = False) -> None:
        self.root = root
        self.shared = shared
        self._lock = threading.RLock()
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._database = _open_index(root)
        except OSError as error:
            raise _as_fault(error, f"the output folder {root}") from error
        except sqlite3.Error as error:
            raise _index_fault(error) from error
        with self._index() as database:
            (self._key,) = database.execute("SELECT value FROM secrets WHERE name = 'owners'").fetchone()

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def save(self, result: GenerationResult, owner: str) -> tuple[Path, ...]:
        """Save the pictures of a result, each with its recipe, under new names; those before a failure are kept.

        `owner` is the secret of whoever asked. If it is empty, the pictures are nobody's.

        Raises:
            TpuUiError: a picture could not be written.
        """
        mark = self._mark(owner)
        created_ms = time.time_ns() // 1_000_000
        second = time.strftime("%Y%m%dT%H%M%S", time.gmtime(created_ms // 1000))
        stem = f"{second}{created_ms % 1000:03}-{secrets.token_hex(8)}"
        paths: list[Path] = []
        for i, image in enumerate(result.images):
            recipe = Recipe.of(result.request, result.report, i, created_ms)
            path = self.root / f"{stem}-{recipe.request.seed}-{i}.png"
            try:
                with _written_aside(self.root, image, recipe) as unfinished:
                    if mark is not None:  # before the picture appears: it is never anyone else's
                        with self._index() as database:
                            database.execute("INSERT INTO owners VALUES (?, ?)", (path.name, mark))
                    _publish(unfinished, path)
            except OSError as error:
                raise _as_fault(error, f"the output folder (picture {i + 1} of {len(result.images)})") from error
            paths.append(path)
        self._follow_folder()
        return tuple(paths)

    def entries(
        self, owner: str | None = None, search: str = "", limit: int = 60, before: str | None = None
    ) -> list[HistoryEntry]:
        """The pictures that `owner` may see, newest first.

        Args:
            search: words that must all stand in the prompt, or be the model or seed; case does not matter.
            before: the `cursor` of the last entry of the page before.

        Raises:
            InvalidRequest: a wrong limit or cursor.
            TpuUiError: the folder or its index cannot be read.
        """
        if not 1 <= limit <= MAX_LISTED:
            raise InvalidRequest("limit", f"{limit} is out of range.", f"Give 1 to {MAX_LISTED}.")
        words = _folded(search[:500]).split()[:20]
        mark = self._mark(owner)
        conditions = ["fields IS NOT NULL", "(? OR mark = ?)", *["instr(searched, ?)"] * len(words)]
        values = [self.shared, mark, *words]
        if before is not None:
            created_ms, _, name = before.partition("/")
            if not re.fullmatch(r"[0-9]{1,15}", created_ms) or not _PLAIN_NAME.fullmatch(name):
                raise InvalidRequest("before", "is not a place in this history.", "Reload the list.")
            conditions.append("(created_ms, name) < (?, ?)")
            values += [int(created_ms), name]
        query = f"""SELECT name, created_ms, fields, mark FROM pictures LEFT JOIN owners USING (name)
                    WHERE {" AND ".join(conditions)} ORDER BY created_ms DESC, name DESC LIMIT ?"""
        self._follow_folder()
        with self._index() as database:
            rows = database.execute(query, [*values, limit]).fetchall()
        return [HistoryEntry(row[0], row[1], json.loads(row[2]), mark is not None and row[3] == mark) for row in rows]

    def path_of(self, name: str, owner: str | None) -> Path:
        """The file of a picture that `owner` may see.

        Raises:
            InvalidRequest: there is none of this name, or it is another's: told apart by nothing.
        """
        return self._find(name, owner)[0]

    def delete(self, name: str, owner: str | None) -> None:
        """Delete a picture of the owner's, or, where history is shared, one that is nobody's.

        Raises:
            InvalidRequest: there is none of this name, or it is another's.
            TpuUiError: it cannot be deleted.
        """
        path, maker = self._find(name, owner)
        if maker is not None and maker != self._mark(owner):
            raise InvalidRequest("picture", "only who made it can delete it.")
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _as_fault(error, "the output folder") from error
        with self._index() as database:
            _forget(database, [name])

    def _find(self, name: str, owner: str | None) -> tuple[Path, str | None]:
        """The path, and the mark of its maker."""
        path = self.root / name
        if not _PLAIN_NAME.fullmatch(name) or not os.path.isfile(path) or path.resolve() != self.root.resolve() / name:
            raise InvalidRequest(*_NO_SUCH_PICTURE)
        query = """SELECT mark FROM pictures LEFT JOIN owners USING (name)
                   WHERE name = ? AND fields IS NOT NULL AND (? OR mark = ?)"""
        with self._index() as database:
            row = database.execute(query, (name, self.shared, self._mark(owner))).fetchone()
        if row is None:
            raise InvalidRequest(*_NO_SUCH_PICTURE)
        return path, row[0]

    def _mark(self, owner: str | None) -> str | None:
        if not owner:
            return None
        return hmac.new(self._key, owner.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def _follow_folder(self) -> None:
        """Bring the index to what lies in the folder now."""
        with self._index() as database:  # before looking: what is saved meanwhile must not count as gone
            known = {row[0]: row[1:] for row in database.execute("SELECT name, mtime_ns, bytes FROM pictures")}
        seen = {}
        try:
            for item in os.scandir(self.root):
                with contextlib.suppress(FileNotFoundError):
                    status = item.stat(follow_symlinks=False)
                    if item.name.startswith(_UNFINISHED) and time.time() - status.st_mtime > _UNFINISHED_KEPT_SECONDS:
                        os.unlink(item.path)  # of a process that was killed
                    elif stat.S_ISREG(status.st_mode) and _PLAIN_NAME.fullmatch(item.name):
                        seen[item.name] = (status.st_mtime_ns, status.st_size)
        except OSError as error:
            raise _as_fault(error, "the output folder") from error
        news = [_row(self.root / name, *seen[name]) for name in seen if known.get(name) != seen[name]]
        gone = known.keys() - seen.keys()
        if news or gone:
            with self._index() as database:
                database.executemany("INSERT OR REPLACE INTO pictures VALUES (?, ?, ?, ?, ?, ?)", news)
                _forget(database, gone)

    @contextlib.contextmanager
    def _index(self) -> Iterator[sqlite3.Connection]:
        """The index, in a transaction of this thread."""
        with self._lock:
            try:
                with self._database:
                    yield self._database
            except sqlite3.Error as error:
                raise _index_fault(error) from error


def _forget(database: sqlite3.Connection, names: Iterable[str]) -> None:
    for table in ("pictures", "owners"):
        database.executemany(f"DELETE FROM {table} WHERE name = ?", [(name,) for name in names])


def _row(path: Path, mtime_ns: int, size: int) -> tuple:
    """What the index keeps of a file; of one that is not ours, only that it has been looked at."""
    with contextlib.suppress(InvalidRequest):
        read = read_recipe(path)
        if read.source == "tpu_ui":
            searched = " ".join(str(read.fields.get(name, "")) for name in ("prompt", "model", "seed"))
            created_ms = mtime_ns // 1_000_000 if read.created_ms is None else read.created_ms
            return (path.name, mtime_ns, size, created_ms, json.dumps(read.fields), _folded(searched))
    return (path.name, mtime_ns, size, 0, None, "")


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text.encode("utf-8", "ignore").decode()).casefold()


def _open_index(root: Path) -> sqlite3.Connection:
    """The index of a folder; a damaged one is set aside, and a new one begun."""
    path = root / _INDEX_NAME
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))
    database = sqlite3.connect(path, check_same_thread=False, timeout=30)
    try:
        database.executescript(_SCHEMA)
    except sqlite3.DatabaseError as error:
        database.close()
        if isinstance(error, sqlite3.OperationalError):
            raise  # locked or no room: the file itself may be whole
        aside = path.with_name(f"{path.stem}.unreadable-{secrets.token_hex(4)}{path.suffix}")
        path.rename(aside)
        log.warning("The history's index was damaged (%s). It was kept as %s; owners are lost.", error, aside.name)
        return _open_index(root)
    return database


def _index_fault(error: sqlite3.Error) -> TpuUiError:
    return TpuUiError(f"The index of the output folder cannot be used ({error}).", "Look whether its disk is full.")


@contextlib.contextmanager
def _written_aside(folder: Path, image: Image.Image, recipe: Recipe) -> Iterator[Path]:
    """A PNG in `folder`, whole on the disk, under a name that is gone afterwards; meanwhile, give it another."""
    path = folder / f"{_UNFINISHED}{secrets.token_hex(8)}"
    try:
        with open(path, "xb") as file:
            image.save(file, "PNG", pnginfo=recipe.to_png_info())
            file.flush()
            os.fsync(file.fileno())
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _publish(unfinished: Path, path: Path) -> None:
    """Give a finished file its name, never another file's."""
    try:
        os.link(unfinished, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK) or os.path.lexists(path):
            raise
        os.rename(unfinished, path)  # a file system without links; that our names hold 64 random bits must do there


def _as_fault(error: OSError, what: str) -> TpuUiError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return TpuUiError(f"{what}: the disk is full.", "Free some room and generate again.")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return TpuUiError(f"{what}: writing there is not allowed.", "Choose another folder or change its permissions.")
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST):
        return TpuUiError(f"{what}: there is no such folder.", "It was moved or deleted, or a file is in its place.")
    return TpuUiError(f"{what}: {error.strerror or 'it cannot be written'}.")
