"""The ledger's file: opened whole, or set aside with all that belongs to it and begun anew."""

import itertools
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from tpu_ui.errors import InvalidRequest

log = logging.getLogger(__name__)

_SCHEMA_VERSION = 2
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS records (
    digest TEXT PRIMARY KEY, key TEXT NOT NULL, graphs INTEGER NOT NULL DEFAULT 0, compile_seconds REAL NOT NULL
    DEFAULT 0, disk_seconds REAL, proven INTEGER NOT NULL DEFAULT 0, runs INTEGER NOT NULL DEFAULT 0,
    run_samples TEXT NOT NULL DEFAULT '[]', step_samples TEXT NOT NULL DEFAULT '[]',
    last_used REAL NOT NULL DEFAULT 0, error TEXT, depends TEXT NOT NULL DEFAULT '[]',
    unsaved INTEGER NOT NULL DEFAULT 0)""",
    "CREATE TABLE IF NOT EXISTS files (name TEXT, bytes INTEGER NOT NULL, digest TEXT, PRIMARY KEY (name, digest))",
    "CREATE TABLE IF NOT EXISTS promises (outcome TEXT PRIMARY KEY, count INTEGER NOT NULL)",
)
_TABLES = ("records", "files", "promises")

_BUSY_SECONDS = 30.0
# With these results the file itself may be whole: another process holds it, or there is no room or no right to write.
_NOT_THE_FILES_FAULT = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOMEM,
)


def open_ledger_file(path: Path) -> sqlite3.Connection:
    """Open the ledger's file; one that is damaged or foreign is set aside, and a new one begun.

    Raises:
        InvalidRequest: the folder cannot be used.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # One process at a time: none may see tables half made, nor set aside what another has just begun anew.
        with FileLock(f"{path}.lock", timeout=_BUSY_SECONDS):
            try:
                return _connect(path)
            except sqlite3.DatabaseError as error:
                if _may_be_whole(path, error):
                    raise
                _set_aside(path, error)
                return _connect(path)
    except (OSError, sqlite3.DatabaseError) as error:
        log.error("the warm-up ledger %s cannot be opened", path, exc_info=error)
        why = str(error) if isinstance(error, sqlite3.Error) else error.strerror or type(error).__name__
        raise InvalidRequest(
            "cache folder",
            f"the warm-up ledger in it cannot be opened ({why}).",
            "Set TPU_UI_CACHE_DIR to a folder that can be written to and has room.",
        ) from error


def _connect(path: Path) -> sqlite3.Connection:
    if path.is_dir():
        raise sqlite3.DatabaseError("it is a folder")
    database = sqlite3.connect(path, check_same_thread=False, timeout=_BUSY_SECONDS)
    database.text_factory = _text
    try:
        with database:
            database.execute("BEGIN IMMEDIATE")
            _refuse_foreign(database)
            for statement in _SCHEMA:
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        # With a write-ahead log a commit need not wait for the disk, and a killed process still leaves the file whole.
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        database.close()
        raise
    return database


def _text(data: bytes) -> str:
    return data.decode(errors="replace")  # a damaged row must not make the others unreadable


def _refuse_foreign(database: sqlite3.Connection) -> None:
    """Raise DatabaseError unless the file is new or a whole ledger of this version."""
    if database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0:
        return
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version != _SCHEMA_VERSION:
        raise sqlite3.DatabaseError(f"its schema is version {version}, not {_SCHEMA_VERSION}")
    if _columns(database) != _own_columns():
        raise sqlite3.DatabaseError("its tables are not those of a ledger")
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict.splitlines()[-1])


def _columns(database: sqlite3.Connection) -> dict[str, list[str]]:
    return {name: [row[1] for row in database.execute(f"PRAGMA table_info({name})")] for name in _TABLES}


def _own_columns() -> dict[str, list[str]]:
    with sqlite3.connect(":memory:") as own:
        for statement in _SCHEMA:
            own.execute(statement)
        columns = _columns(own)
    own.close()
    return columns


def _may_be_whole(path: Path, error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    # Of a file that may be written, "read-only" says that it is of a format which this SQLite does not know.
    return code in _NOT_THE_FILES_FAULT or (code == sqlite3.SQLITE_READONLY and not os.access(path, os.W_OK))


def _set_aside(path: Path, error: sqlite3.DatabaseError) -> None:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (f"{path.stem}.unreadable-{stamp}{ending}{path.suffix}" for ending in _endings())
    aside = next(place for name in names if not (place := path.with_name(name)).exists())
    path.rename(aside)
    for ending in ("-wal", "-shm"):  # a program that has it open still keeps rows there
        if (companion := Path(f"{path}{ending}")).exists():
            companion.rename(f"{aside}{ending}")
    log.warning("The warm-up ledger could not be read (%s). It was kept as %s, and a new one begun.", error, aside.name)


def _endings() -> Iterator[str]:
    yield ""
    yield from (f"-{number}" for number in itertools.count(2))
