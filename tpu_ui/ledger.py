"""The ledger of compiled graphs: what is warm, what is on disk, what a cold shape will cost.

One SQLite file, so that a kill at any moment leaves it whole and several processes may share it. "Warm" is a fact of
this process and is never read from the file.
"""

import contextlib
import json
import logging
import sqlite3
import statistics
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpu_ui.compile_cache import CompileCache
from tpu_ui.graphs import GraphKey, WarmupState, worst
from tpu_ui.ledger_file import open_ledger_file

log = logging.getLogger(__name__)

_KEPT_SAMPLES = 15  # the median over these follows a machine whose speed changes
_STALE_AFTER_SECONDS = 30 * 86400  # records of other versions only serve to explain a compile; then they go


@dataclass(frozen=True)
class GraphRecord:
    """What is known about one key.

    Attributes:
        graphs: graphs compiled for it when it was cold; those it shares with earlier keys are not counted.
        compile_seconds: what compiling them took.
        disk_seconds: what the first run from disk took longer than a warm one, if that has been seen.
        proven: a whole pass compiled nothing, once, in some process.
        runs: passes that are in the samples' history.
        run_seconds, step_seconds: medians of warm passes; seconds a stage, and a denoising step.
        disk_bytes: size of the files made for it.
        depends: digests of the records whose graphs were in memory when this one was proven; it may use them.
    """

    key: GraphKey
    graphs: int
    compile_seconds: float
    disk_seconds: float | None
    proven: bool
    runs: int
    run_seconds: float | None
    step_seconds: float | None
    last_used: float
    error: str | None
    disk_bytes: int
    depends: tuple[str, ...]


@dataclass(frozen=True)
class StageOutcome:
    """What one stage of one pass did.

    Attributes:
        compiles: graphs made by the compiler.
        from_disk: graphs read from disk.
        compile_seconds, run_seconds: wall time, told apart.
        step_seconds: the median step, for the denoiser.
        new_files: names in the compile cache that appeared meanwhile, with their sizes.
        unsaved: compiled graphs that did not reach the disk, so that a new process will compile them again.
        recalled: its result was kept from an earlier pass, so that its time tells nothing of later ones.
    """

    compiles: int
    from_disk: int
    compile_seconds: float
    run_seconds: float
    step_seconds: float | None = None
    new_files: dict[str, int] | None = None
    unsaved: int = 0
    recalled: bool = False

    def __add__(self, later: "StageOutcome") -> "StageOutcome":
        """A pass comes to a stage twice where, say, the pipeline encodes the negative prompt in a call of its own."""
        return StageOutcome(
            compiles=self.compiles + later.compiles,
            from_disk=self.from_disk + later.from_disk,
            compile_seconds=self.compile_seconds + later.compile_seconds,
            run_seconds=self.run_seconds + later.run_seconds,
            step_seconds=later.step_seconds or self.step_seconds,
            new_files=(self.new_files or {}) | (later.new_files or {}),
            unsaved=self.unsaved + later.unsaved,
            recalled=self.recalled or later.recalled,
        )


class GraphLedger:
    """Thread-safe. Reading states never waits for the device."""

    def __init__(self, path: Path, cache: CompileCache) -> None:
        self._path = path
        self._cache = cache
        self._lock = threading.RLock()
        self._warm: dict[str, None] = {}  # proven in this process, in order
        self._compiling: dict[str, float] = {}
        self._rewritten: set[str] = set()  # cold keys under way: their next pass replaces what was known
        self._database = open_ledger_file(path)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    # -- states -------------------------------------------------------------------------------------------------------

    def state(self, key: GraphKey) -> WarmupState:
        digest = key.digest
        with self._lock:
            if digest in self._compiling:
                return WarmupState.COMPILING
            if digest in self._warm:
                return WarmupState.WARM
            record = self.record(digest)
            if record is None:
                return WarmupState.COLD
            if record.error:
                return WarmupState.FAILED
            if record.proven and self._files_are_whole((digest, *record.depends)):
                return WarmupState.ON_DISK
            return WarmupState.COLD

    def state_of_request(self, keys: Sequence[GraphKey]) -> WarmupState:
        return worst([self.state(key) for key in keys])

    def _files_are_whole(self, digests: Iterable[str]) -> bool:
        wanted = list(digests)
        marks = ",".join("?" * len(wanted))
        unsaved = self._database.execute(f"SELECT SUM(unsaved) FROM records WHERE digest IN ({marks})", wanted)
        if unsaved.fetchone()[0]:
            return False
        rows = self._database.execute(f"SELECT name, bytes FROM files WHERE digest IN ({marks})", wanted)
        return all(self._cache.has(name, size) for name, size in rows)

    # -- what passes did ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def compiling(self, keys: Sequence[GraphKey]) -> Iterator[None]:
        """While inside, those of `keys` that are neither warm nor on disk count as compiling."""
        with self._lock:
            started = {
                key.digest: time.time() for key in keys if self.state(key) in (WarmupState.COLD, WarmupState.FAILED)
            }
            self._compiling.update(started)
            self._rewritten.update(started)
        try:
            yield
        finally:
            with self._lock:
                for digest in started:
                    self._compiling.pop(digest, None)
                    self._rewritten.discard(digest)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction. A file that cannot be written costs its knowledge, never the pictures of a request."""
        with self._lock:
            try:
                with self._database:
                    yield
            except sqlite3.OperationalError as error:
                log.warning("The warm-up ledger could not be written (%s); what was learnt is not kept.", error)

    def record_pass(self, outcomes: dict[GraphKey, StageOutcome], whole: bool) -> None:
        """Enter a finished pass. `whole`: the pass ran every stage and compiled nothing, which proves its keys warm."""
        with self._lock:
            with self._writing():
                for key, outcome in outcomes.items():
                    self._record_stage(key, outcome)
                if whole:
                    self._record_proof([key.digest for key in outcomes])
            if whole:
                self._warm.update(dict.fromkeys(key.digest for key in outcomes))

    def _record_stage(self, key: GraphKey, outcome: StageOutcome) -> None:
        digest, database = key.digest, self._database
        database.execute("INSERT OR IGNORE INTO records (digest, key) VALUES (?, ?)", (digest, key.to_json()))
        if digest in self._rewritten:
            self._rewritten.discard(digest)
            database.execute(
                """UPDATE records SET graphs = 0, compile_seconds = 0, unsaved = 0, proven = 0, depends = '[]'
                   WHERE digest = ?""",
                (digest,),
            )
            self._forget_lost_files(digest)
        row = database.execute("SELECT run_samples, step_samples FROM records WHERE digest = ?", (digest,)).fetchone()
        runs, steps = _samples(row[0]), _samples(row[1])
        steady = outcome.compiles == 0 and outcome.from_disk == 0 and not outcome.recalled
        if steady:
            runs = [*runs, outcome.run_seconds][-_KEPT_SAMPLES:]
            steps = [*steps, outcome.step_seconds][-_KEPT_SAMPLES:] if outcome.step_seconds is not None else steps
        disk_seconds = None
        if outcome.from_disk and not outcome.compiles and runs:
            disk_seconds = max(0.0, outcome.run_seconds + outcome.compile_seconds - statistics.median(runs))
        database.execute(
            """UPDATE records SET graphs = graphs + ?, compile_seconds = compile_seconds + ?, unsaved = unsaved + ?,
               runs = runs + ?, run_samples = ?, step_samples = ?, last_used = ?, error = NULL,
               disk_seconds = COALESCE(?, disk_seconds) WHERE digest = ?""",
            (
                outcome.compiles,
                outcome.compile_seconds if outcome.compiles else 0.0,
                outcome.unsaved,
                int(steady),
                json.dumps(runs),
                json.dumps(steps),
                time.time(),
                disk_seconds,
                digest,
            ),
        )
        for name, size in (outcome.new_files or {}).items():
            database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", (name, size, digest))
            # Made anew, a file may have another size; every record that it belongs to must know.
            database.execute("UPDATE files SET bytes = ? WHERE name = ?", (size, name))

    def _record_proof(self, digests: list[str]) -> None:
        for digest in digests:
            if digest not in self._warm:
                depends = json.dumps(sorted(self._behind(*self._warm, *digests) - {digest}))
                self._database.execute("UPDATE records SET proven = 1, depends = ? WHERE digest = ?", (depends, digest))

    def _forget_lost_files(self, digest: str) -> None:
        """Those that are whole stay: a pass that reads them from disk does not name them again."""
        rows = self._database.execute("SELECT name, bytes FROM files WHERE digest = ?", (digest,)).fetchall()
        lost = [(name, digest) for name, size in rows if not self._cache.has(name, size)]
        self._database.executemany("DELETE FROM files WHERE name = ? AND digest = ?", lost)

    def _behind(self, *digests: str) -> set[str]:
        """These keys and those whose files they may have come from, which an earlier process wrote."""
        marks = ",".join("?" * len(digests))
        rows = self._database.execute(f"SELECT depends FROM records WHERE digest IN ({marks})", digests)
        return set(digests).union(*(json.loads(depends) for (depends,) in rows))

    def record_failure(self, keys: Sequence[GraphKey], sentence: str) -> None:
        """Compiling failed in a request with these keys: for those that were being compiled, or else for all."""
        with self._writing():
            for key in [key for key in keys if key.digest in self._compiling] or keys:
                self._database.execute(
                    "INSERT OR IGNORE INTO records (digest, key) VALUES (?, ?)", (key.digest, key.to_json())
                )
                self._database.execute(
                    "UPDATE records SET error = ?, last_used = ? WHERE digest = ?", (sentence, time.time(), key.digest)
                )
                self._warm.pop(key.digest, None)

    def record_promise(self, kept: bool) -> None:
        """A request that was called warm has ended: it compiled nothing (kept), or it did (broken)."""
        with self._writing():
            self._database.execute(
                "INSERT INTO promises VALUES (?, 1) ON CONFLICT(outcome) DO UPDATE SET count = count + 1",
                ("kept" if kept else "broken",),
            )

    def graphs_dropped(self, keys: Iterable[GraphKey] | None = None) -> None:
        """The executables in memory are gone (of all keys, or of some): what was warm is on disk now."""
        with self._lock:
            for digest in [key.digest for key in keys] if keys is not None else list(self._warm):
                self._warm.pop(digest, None)

    def in_this_process(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The digests of the keys that are warm, and of those being compiled."""
        with self._lock:
            return tuple(self._warm), tuple(self._compiling)

    # -- reading ------------------------------------------------------------------------------------------------------

    def record(self, digest: str) -> GraphRecord | None:
        found = self._records("WHERE records.digest = ?", (digest,))
        return found[0] if found else None

    def records(self) -> list[GraphRecord]:
        """Every key ever seen on this machine, the last used first."""
        return self._records("ORDER BY last_used DESC", ())

    def _records(self, clause: str, arguments: tuple) -> list[GraphRecord]:
        query = f"""SELECT key, graphs, compile_seconds, disk_seconds, proven, runs, run_samples, step_samples,
                    last_used, error, (SELECT COALESCE(SUM(bytes), 0) FROM files WHERE files.digest = records.digest),
                    depends FROM records {clause}"""
        with self._lock:
            rows = self._database.execute(query, arguments).fetchall()
        records = []
        for row in rows:
            try:
                key, depends = GraphKey.from_json(row[0]), tuple(json.loads(row[11]))
            except (ValueError, TypeError, KeyError):
                continue  # written by another version of this program, whose graphs are of no use here
            runs, steps = _samples(row[6]), _samples(row[7])
            records.append(
                GraphRecord(
                    key, row[1], row[2], row[3], bool(row[4]), row[5],
                    statistics.median(runs) if runs else None, statistics.median(steps) if steps else None,
                    row[8], row[9], row[10], depends,
                )
            )  # fmt: skip
        return records

    def promises(self) -> dict[str, int]:
        """Counts of warm-up promises kept and broken on this machine."""
        with self._lock:
            counts = dict(self._database.execute("SELECT outcome, count FROM promises").fetchall())
        return {"kept": counts.get("kept", 0), "broken": counts.get("broken", 0)}

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def files_by_last_use(self) -> list[tuple[str, float]]:
        """Each name of a file in the cache with the last use of any record that may need it."""
        last_use: dict[str, float] = {}
        for record in self.records():
            for digest in (record.key.digest, *record.depends):
                last_use[digest] = max(last_use.get(digest, 0.0), record.last_used)
        with self._lock:
            rows = self._database.execute("SELECT name, digest FROM files").fetchall()
        by_name: dict[str, float] = {}
        for name, digest in rows:
            by_name[name] = max(by_name.get(name, 0.0), last_use.get(digest, 0.0))
        return list(by_name.items())

    def expected_files(self) -> dict[str, int]:
        """Names in the compile cache and the sizes they were written with."""
        with self._lock:
            return dict(self._database.execute("SELECT name, bytes FROM files").fetchall())

    def forget(self, digests: Iterable[str]) -> None:
        with self._writing():
            for digest in digests:
                self._database.execute("DELETE FROM records WHERE digest = ?", (digest,))
                self._database.execute("DELETE FROM files WHERE digest = ?", (digest,))
                self._warm.pop(digest, None)

    def forget_other_versions(self, toolchain: tuple[tuple[str, str], ...]) -> None:
        """Drop records of other versions or chips that have not been used for a month."""
        limit = time.time() - _STALE_AFTER_SECONDS
        with self._lock:
            old = self._database.execute("SELECT digest FROM records WHERE last_used < ?", (limit,)).fetchall()
        own = {record.key.digest for record in self.records() if record.key.toolchain == toolchain}
        self.forget(digest for (digest,) in old if digest not in own)


def _samples(text: str) -> list[float]:
    """Seconds as they were written; none where the row is damaged."""
    try:
        return [float(seconds) for seconds in json.loads(text)]
    except (ValueError, TypeError):
        return []
