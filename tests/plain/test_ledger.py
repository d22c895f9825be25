"""The ledger: its states, what it keeps, and that nothing which happens to its file makes it lie or lose."""

import json
import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.plain.graph_examples import KEY, TOOLCHAIN, compiled, key, stages, steady, with_version
from tpu_ui import ledger as ledger_module
from tpu_ui.compile_cache import CompileCache
from tpu_ui.errors import InvalidRequest
from tpu_ui.graphs import GraphKey, WarmupState
from tpu_ui.ledger import GraphLedger, StageOutcome

COLD, ON_DISK, COMPILING, WARM, FAILED = (
    WarmupState.COLD, WarmupState.ON_DISK, WarmupState.COMPILING, WarmupState.WARM, WarmupState.FAILED,
)  # fmt: skip
HERE = Path(__file__).parent
Open = Callable[[], GraphLedger]


@pytest.fixture
def cache(tmp_path: Path) -> CompileCache:
    (tmp_path / "compiled").mkdir()
    return CompileCache(tmp_path / "compiled")


@pytest.fixture
def open_ledger(tmp_path: Path, cache: CompileCache) -> Iterator[Open]:
    """Opens the same file again, as another process would."""
    opened: list[GraphLedger] = []

    def open_it() -> GraphLedger:
        opened.append(GraphLedger(tmp_path / "ledger.sqlite3", cache))
        return opened[-1]

    yield open_it
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(open_ledger: Open) -> GraphLedger:
    return open_ledger()


def write(cache: CompileCache, **sizes: int) -> dict[str, int]:
    """Files as the compiler would leave them."""
    for name, size in sizes.items():
        (cache.root / name).write_bytes(b"x" * size)
    return sizes


def make_warm(ledger: GraphLedger, *keys: GraphKey, files: dict[str, int] | None = None) -> None:
    """A pass that compiles, and one that proves; the files belong to the first key."""
    with ledger.compiling(keys):
        ledger.record_pass({each: compiled(files=files if each is keys[0] else None) for each in keys}, whole=False)
        ledger.record_pass(dict.fromkeys(keys, steady()), whole=True)


# -- states -----------------------------------------------------------------------------------------------------------


def test_from_cold_to_warm(ledger: GraphLedger):
    assert ledger.state(KEY) is COLD
    with ledger.compiling([KEY]):
        assert ledger.state(KEY) is COMPILING
        ledger.record_pass({KEY: compiled()}, whole=False)
        assert ledger.state(KEY) is COMPILING
    assert ledger.state(KEY) is COLD  # nothing has proven it
    ledger.record_pass({KEY: steady()}, whole=True)
    assert ledger.state(KEY) is WARM
    assert ledger.state(key(batch=2)) is COLD


def test_a_compiling_that_breaks_off_leaves_the_key_cold(ledger: GraphLedger):
    with pytest.raises(RuntimeError, match="the device is gone"), ledger.compiling([KEY]):
        raise RuntimeError("the device is gone")
    assert ledger.state(KEY) is COLD
    assert ledger.records() == []


def test_warm_keys_do_not_count_as_compiling(ledger: GraphLedger):
    make_warm(ledger, KEY)
    with ledger.compiling([KEY, key(batch=2)]):
        assert ledger.state(KEY) is WARM
        assert ledger.state(key(batch=2)) is COMPILING
        assert ledger.state_of_request([KEY, key(batch=2)]) is COMPILING


def test_a_new_process_finds_it_on_disk(open_ledger: Open, cache: CompileCache):
    make_warm(open_ledger(), KEY, files=write(cache, a=10, b=20))
    second = open_ledger()
    assert second.state(KEY) is ON_DISK
    with second.compiling([KEY]):
        assert second.state(KEY) is ON_DISK
    second.record_pass({KEY: StageOutcome(0, 3, 1.0, 0.5)}, whole=True)
    assert second.state(KEY) is WARM


def test_without_proof_nothing_is_on_disk(open_ledger: Open, cache: CompileCache):
    first = open_ledger()
    with first.compiling([KEY]):
        first.record_pass({KEY: compiled(files=write(cache, a=10))}, whole=False)
    assert open_ledger().state(KEY) is COLD


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"x" * 9),
        lambda path: path.write_bytes(b"x" * 11),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["missing", "empty", "cut", "longer", "a folder"],
)
def test_a_damaged_file_makes_its_key_cold(open_ledger: Open, cache: CompileCache, damage: Callable[[Path], object]):
    first, other = open_ledger(), key(batch=2)
    make_warm(first, KEY, files=write(cache, a=10, b=20))
    damage(cache.root / "a")
    assert first.state(KEY) is WARM  # in memory it still is
    second = open_ledger()
    assert second.state(KEY) is COLD
    make_warm(second, other, files=write(cache, c=5))
    assert open_ledger().state(other) is ON_DISK


def test_a_missing_file_of_what_it_depends_on_makes_a_key_cold(open_ledger: Open, cache: CompileCache):
    first, dependent = open_ledger(), key(stage="decoder")
    make_warm(first, KEY, files=write(cache, a=10))
    make_warm(first, dependent, files=write(cache, b=10))
    assert first.record(dependent.digest).depends == (KEY.digest,)
    assert first.record(KEY.digest).depends == ()
    (cache.root / "a").unlink()
    second = open_ledger()
    assert second.state(KEY) is COLD
    assert second.state(dependent) is COLD
    write(cache, a=10)
    assert second.state(dependent) is ON_DISK


def test_what_a_key_depends_on_is_known_over_processes(open_ledger: Open, cache: CompileCache):
    """The second key used graphs of the first; later processes run the second alone, and then a third."""
    second, third = key(height=512), key(height=768)
    ledger = open_ledger()
    make_warm(ledger, KEY, files=write(cache, first=10))
    make_warm(ledger, second, files=write(cache, second=10))
    later = open_ledger()
    later.record_pass({second: StageOutcome(0, 3, 0.0, 1.0)}, whole=True)
    make_warm(later, third, files=write(cache, third=10))
    assert [open_ledger().state(key) for key in (KEY, second, third)] == [WarmupState.ON_DISK] * 3
    cache.remove(["first"])
    assert [open_ledger().state(key) for key in (KEY, second, third)] == [WarmupState.COLD] * 3


def test_a_graph_that_did_not_reach_the_disk_makes_its_key_cold_in_the_next_process(open_ledger: Open):
    ledger = open_ledger()
    with ledger.compiling([KEY]):
        ledger.record_pass({KEY: StageOutcome(3, 0, 1.0, 1.0, unsaved=1)}, whole=False)
        ledger.record_pass({KEY: StageOutcome(0, 0, 0.0, 1.0)}, whole=True)
    assert ledger.state(KEY) is WarmupState.WARM
    assert open_ledger().state(KEY) is WarmupState.COLD


def test_keys_proven_together_may_use_each_others_graphs(ledger: GraphLedger):
    keys = stages()
    make_warm(ledger, *keys)
    for each in keys:
        assert set(ledger.record(each.digest).depends) == {other.digest for other in keys if other != each}
    assert ledger.state_of_request(keys) is WARM


def test_recompiling_what_was_lost_keeps_what_was_not(open_ledger: Open, cache: CompileCache):
    """Of two files one is lost: the next pass makes it again and reads the other, which must still be watched."""
    make_warm(open_ledger(), KEY, files=write(cache, a=10, b=20))
    (cache.root / "a").unlink()
    second = open_ledger()
    with second.compiling([KEY]):
        second.record_pass({KEY: StageOutcome(1, 1, 5.0, 0.5, new_files=write(cache, a2=12))}, whole=False)
        second.record_pass({KEY: steady()}, whole=True)
    assert open_ledger().state(KEY) is ON_DISK
    (cache.root / "b").unlink()
    assert open_ledger().state(KEY) is COLD


def test_a_file_made_again_with_another_size_is_whole_for_all_its_keys(open_ledger: Open, cache: CompileCache):
    first, other = open_ledger(), key(batch=2)
    make_warm(first, KEY, files=write(cache, shared=10))
    make_warm(open_ledger(), other, files=write(cache, shared=12))
    third = open_ledger()
    assert third.expected_files() == {"shared": 12}
    assert third.state(KEY) is third.state(other) is ON_DISK
    assert cache.remove_damaged(third.expected_files()) == []


def test_dropped_graphs_are_on_disk(ledger: GraphLedger, cache: CompileCache):
    other = key(batch=2)
    make_warm(ledger, KEY, files=write(cache, a=1))
    make_warm(ledger, other, files=write(cache, b=1))
    ledger.graphs_dropped([KEY])
    assert (ledger.state(KEY), ledger.state(other)) == (ON_DISK, WARM)
    ledger.graphs_dropped()
    assert ledger.state_of_request([KEY, other]) is ON_DISK
    (cache.root / "a").unlink()
    assert ledger.state(KEY) is COLD


def test_failure_and_recovery(open_ledger: Open):
    first = open_ledger()
    first.record_failure([KEY], "No room for it.")
    assert first.state(KEY) is FAILED
    second = open_ledger()
    assert second.state(KEY) is FAILED
    assert second.record(KEY.digest).error == "No room for it."
    with second.compiling([KEY]):
        assert second.state(KEY) is COMPILING
        second.record_pass({KEY: compiled()}, whole=False)
        second.record_pass({KEY: steady()}, whole=True)
    assert second.state(KEY) is WARM
    assert second.record(KEY.digest).error is None
    assert open_ledger().state(KEY) is ON_DISK


def test_a_failure_is_that_of_the_graphs_that_were_being_compiled(ledger: GraphLedger):
    """The text encoder is shared with sizes that work: it must not be called failed with the one that does not."""
    small, huge = stages(), stages(height=4096, width=4096)
    make_warm(ledger, *small)
    with ledger.compiling(huge):
        ledger.record_failure(huge, "No room for it.")
    assert ledger.state_of_request(huge) is FAILED
    assert ledger.state_of_request(small) is WARM


def test_a_warm_key_that_fails_is_not_warm(ledger: GraphLedger):
    make_warm(ledger, KEY)
    with ledger.compiling([KEY]):
        ledger.record_failure([KEY], "The compiler refused.")
    assert ledger.state(KEY) is FAILED


# -- figures ----------------------------------------------------------------------------------------------------------


def test_graphs_and_seconds_of_all_compiling_passes_are_added(ledger: GraphLedger):
    with ledger.compiling([KEY]):
        ledger.record_pass({KEY: compiled(3, 30.0)}, whole=False)
        ledger.record_pass({KEY: compiled(2, 12.0)}, whole=False)
        ledger.record_pass({KEY: steady()}, whole=True)
    record = ledger.record(KEY.digest)
    assert (record.graphs, record.compile_seconds, record.proven, record.runs) == (5, 42.0, True, 1)


def test_compiling_again_replaces_what_was_known(open_ledger: Open, cache: CompileCache):
    make_warm(open_ledger(), KEY, files=write(cache, a=10))
    (cache.root / "a").unlink()
    second = open_ledger()
    with second.compiling([KEY]):
        second.record_pass({KEY: compiled(2, 20.0, write(cache, a=11))}, whole=False)
        second.record_pass({KEY: steady()}, whole=True)
    record = second.record(KEY.digest)
    assert (record.graphs, record.compile_seconds, record.disk_bytes) == (2, 20.0, 11)


def test_medians_of_the_last_warm_passes(ledger: GraphLedger):
    ledger.record_pass({KEY: compiled()}, whole=False)  # compiled: no sample
    ledger.record_pass({KEY: StageOutcome(0, 2, 1.0, 99.0, 9.0)}, whole=True)  # read from disk: no sample
    assert ledger.record(KEY.digest).run_seconds is None
    for seconds in (100.0, 1.0, 2.0):
        ledger.record_pass({KEY: steady(seconds, seconds / 10)}, whole=True)
    record = ledger.record(KEY.digest)
    assert (record.run_seconds, record.step_seconds, record.runs) == (2.0, 0.2, 3)
    for _ in range(20):
        ledger.record_pass({KEY: steady(7.0)}, whole=True)
    record = ledger.record(KEY.digest)
    assert (record.run_seconds, record.step_seconds, record.runs) == (7.0, 0.2, 23)


def test_seconds_from_disk_are_told_apart(open_ledger: Open):
    first = open_ledger()
    make_warm(first, KEY)
    assert first.record(KEY.digest).disk_seconds is None
    second = open_ledger()
    second.record_pass({KEY: StageOutcome(0, 3, 2.0, 0.75)}, whole=True)
    assert second.record(KEY.digest).disk_seconds == pytest.approx(2.25)


def test_promises_are_counted_over_processes(open_ledger: Open):
    first = open_ledger()
    assert first.promises() == {"kept": 0, "broken": 0}
    for kept in (True, True, False):
        first.record_promise(kept)
    second = open_ledger()
    second.record_promise(kept=True)
    assert first.promises() == second.promises() == {"kept": 3, "broken": 1}


def test_records_are_sorted_by_last_use(ledger: GraphLedger, monkeypatch: pytest.MonkeyPatch):
    clock = iter(range(1000, 2000))
    monkeypatch.setattr(ledger_module.time, "time", lambda: float(next(clock)))
    keys = [key(batch=batch) for batch in (1, 2, 3)]
    for each in (*keys, keys[0]):
        ledger.record_pass({each: steady()}, whole=True)
    ledger.record_failure([keys[1]], "no")
    assert [record.key.batch for record in ledger.records()] == [2, 1, 3]


def test_a_shared_file_has_the_last_use_of_any_key_that_may_need_it(
    open_ledger: Open, cache: CompileCache, monkeypatch: pytest.MonkeyPatch
):
    now = 0.0
    monkeypatch.setattr(ledger_module.time, "time", lambda: now)
    old, new, alone = (key(batch=batch) for batch in (1, 2, 3))
    for now, each, files in (  # noqa: B007
        (300.0, new, write(cache, shared=1, own=1)),
        (100.0, old, write(cache, shared=1, lonely=1)),
        (200.0, alone, write(cache, single=1)),
    ):
        make_warm(open_ledger(), each, files=files)
    uses = open_ledger().files_by_last_use()
    assert len(uses) == 4
    assert dict(uses) == {"shared": 300.0, "own": 300.0, "lonely": 100.0, "single": 200.0}


# -- other versions ---------------------------------------------------------------------------------------------------


def test_other_versions_are_forgotten_after_a_month(
    open_ledger: Open, cache: CompileCache, monkeypatch: pytest.MonkeyPatch
):
    upgraded = key(toolchain=with_version("torch_tpu", "0.3.0"))
    start = time.time()
    make_warm(open_ledger(), KEY, files=write(cache, a=10))
    second = open_ledger()
    make_warm(second, upgraded, files=write(cache, b=10))
    second.record_failure([key(toolchain=with_version("torch", "9"))], "no")
    second.forget_other_versions(upgraded.toolchain)
    assert len(second.records()) == 3  # they still explain why something compiles
    assert open_ledger().state(KEY) is ON_DISK

    monkeypatch.setattr(ledger_module.time, "time", lambda: start + 31 * 86400)
    third = open_ledger()
    third.forget_other_versions(upgraded.toolchain)
    assert [record.key for record in third.records()] == [upgraded]
    assert third.state(KEY) is COLD
    assert third.state(upgraded) is ON_DISK
    assert third.expected_files() == {"b": 10}


def test_rows_of_another_program_version_are_passed_over_and_forgotten(open_ledger: Open, tmp_path: Path):
    first = open_ledger()
    make_warm(first, KEY)
    values = json.loads(KEY.to_json())
    strange = ["{}", "7", json.dumps(values | {"colour": "red"}), "not json", json.dumps({**values, "toolchain": 3})]
    with sqlite3.connect(tmp_path / "ledger.sqlite3") as database:
        for number, text in enumerate(strange):
            database.execute("INSERT INTO records (digest, key) VALUES (?, ?)", (f"strange{number}", text))
    database.close()
    second = open_ledger()
    assert [record.key for record in second.records()] == [KEY]
    assert second.files_by_last_use() == []
    second.forget_other_versions(TOOLCHAIN)
    with sqlite3.connect(tmp_path / "ledger.sqlite3") as database:
        assert database.execute("SELECT digest FROM records").fetchall() == [(KEY.digest,)]
    database.close()


def test_forgotten_keys_are_cold(ledger: GraphLedger, cache: CompileCache):
    make_warm(ledger, KEY, files=write(cache, a=1))
    ledger.forget([KEY.digest])
    assert ledger.state(KEY) is COLD
    assert ledger.records() == []
    assert ledger.expected_files() == {}


# -- a file that cannot be used ---------------------------------------------------------------------------------------


def foreign_database(path: Path, version: int = 0, table: str = "bookmarks") -> None:
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE {table} (url TEXT)")
        database.execute(f"INSERT INTO {table} VALUES ('mine')")
        database.execute(f"PRAGMA user_version = {version}")
    database.close()


def later_schema(path: Path) -> None:
    GraphLedger(path, CompileCache(path.parent)).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 3")
    database.close()


def whole_header_damaged_inside(path: Path) -> None:
    ledger = GraphLedger(path, CompileCache(path.parent))
    for batch in range(1, 60):
        ledger.record_pass({key(batch=batch): steady()}, whole=True)
    ledger.close()
    data = bytearray(path.read_bytes())
    for start in range(4096, len(data), 4096):
        data[start : start + 200] = random.Random(start).randbytes(200)
    path.write_bytes(data)


def folder_with_a_file(path: Path) -> None:
    path.mkdir()
    (path / "mine.txt").write_text("mine")


UNUSABLE = {
    "garbage": lambda path: path.write_bytes(os.urandom(5000)),
    "text": lambda path: path.write_text('{"warm": true}'),
    "foreign database": foreign_database,
    "foreign database with our version": lambda path: foreign_database(path, version=1),
    "foreign table with our name": lambda path: foreign_database(path, version=1, table="records"),
    "later schema": later_schema,
    "damaged inside": whole_header_damaged_inside,
    "folder": folder_with_a_file,
    "cut": lambda path: (whole_header_damaged_inside(path), path.write_bytes(path.read_bytes()[:3000])),
}


def contents(path: Path) -> object:
    if path.is_dir():
        return {file.name: file.read_bytes() for file in path.iterdir()}
    return path.read_bytes()


@pytest.mark.parametrize("kind", UNUSABLE)
def test_an_unusable_file_is_set_aside_once_and_nothing_is_lost(
    kind: str, open_ledger: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "ledger.sqlite3"
    UNUSABLE[kind](path)
    before = contents(path)
    first = open_ledger()
    asides = list(tmp_path.glob("ledger.unreadable-*.sqlite3"))
    assert len(asides) == 1
    assert contents(asides[0]) == before
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert asides[0].name in caplog.text
    make_warm(first, KEY)

    caplog.clear()
    assert open_ledger().state(KEY) is ON_DISK
    assert list(tmp_path.glob("ledger.unreadable-*")) == asides
    assert caplog.records == []


def test_files_set_aside_within_one_second_do_not_overwrite_each_other(
    open_ledger: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(time, "strftime", lambda _format: "20260101-000000")
    path = tmp_path / "ledger.sqlite3"
    texts = [f"garbage {number} ".encode() * 100 for number in range(3)]
    for text in texts:
        path.write_bytes(text)
        open_ledger().close()
        path.unlink()
    assert sorted(file.read_bytes() for file in tmp_path.glob("ledger.unreadable-*.sqlite3")) == texts


def test_a_file_that_a_later_program_has_open_is_set_aside_with_its_log(open_ledger: Open, tmp_path: Path):
    later_schema(tmp_path / "ledger.sqlite3")
    later = sqlite3.connect(tmp_path / "ledger.sqlite3")
    with later:
        later.execute("INSERT INTO promises VALUES ('kept', 41)")
    make_warm(open_ledger(), KEY)
    with later:
        later.execute("UPDATE promises SET count = 42")
    later.close()
    (aside,) = tmp_path.glob("ledger.unreadable-*.sqlite3")
    with sqlite3.connect(aside) as database:
        assert database.execute("SELECT * FROM promises").fetchall() == [("kept", 42)]
    database.close()
    assert open_ledger().state(KEY) is ON_DISK


def test_the_log_of_a_file_that_was_lost_is_not_read_into_a_new_one(
    open_ledger: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path, log = tmp_path / "ledger.sqlite3", tmp_path / "ledger.sqlite3-wal"
    first = open_ledger()
    make_warm(first, KEY)
    rows = log.read_bytes()
    first.close()
    for garbage in (b"garbage" * 1000, None):
        path.unlink()
        log.write_bytes(rows)
        if garbage:
            path.write_bytes(garbage)
        second = open_ledger()
        assert second.records() == []
        make_warm(second, key(batch=2))
        second.close()
    assert caplog.text.count("could not be read") == 1


def test_an_empty_file_is_a_new_ledger(open_ledger: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "ledger.sqlite3").touch()
    make_warm(open_ledger(), KEY)
    assert open_ledger().state(KEY) is ON_DISK
    assert caplog.records == []


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path, cache: CompileCache):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "ledger.sqlite3", tmp_path / "file" / "deeper" / "ledger.sqlite3"):
        with pytest.raises(InvalidRequest, match=r"^cache folder: .*TPU_UI_CACHE_DIR") as caught:
            GraphLedger(path, cache)
        assert str(tmp_path) not in str(caught.value)


def test_single_bytes_that_change_never_stop_the_program(tmp_path: Path, cache: CompileCache):
    """Whatever one byte of the file becomes, the ledger opens, answers and learns."""
    whole = tmp_path / "whole.sqlite3"
    ledger = GraphLedger(whole, cache)
    for batch in range(1, 8):
        make_warm(ledger, *stages(batch=batch), files=write(cache, **{f"f{batch}": batch}))
    ledger.close()
    data = whole.read_bytes()
    chance = random.Random(7)
    for number in range(90):
        position = number * 2 if number < 50 else chance.randrange(len(data))  # the header, then anywhere
        changed = bytearray(data)
        changed[position] ^= 1 << chance.randrange(8)
        path = tmp_path / f"changed{number}" / "ledger.sqlite3"
        path.parent.mkdir()
        path.write_bytes(changed)
        ledger = GraphLedger(path, cache)
        assert ledger.state_of_request(stages(batch=3)) in (COLD, ON_DISK, FAILED)
        assert all(record.key.model for record in ledger.records())
        ledger.forget_other_versions(TOOLCHAIN)
        make_warm(ledger, *stages(batch=3))
        assert ledger.state_of_request(stages(batch=3)) is WARM
        assert isinstance(ledger.files_by_last_use(), list)
        ledger.close()


def test_a_ledger_that_cannot_be_written_costs_no_pictures(
    ledger: GraphLedger, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Another program holds the file, or the disk is full: the pass counts in this process all the same."""
    ledger._database.execute("PRAGMA busy_timeout = 20")
    other = sqlite3.connect(tmp_path / "ledger.sqlite3")
    other.execute("BEGIN IMMEDIATE")
    make_warm(ledger, KEY)
    ledger.record_promise(kept=True)
    assert ledger.state(KEY) is WARM
    assert "could not be written" in caplog.text
    other.rollback()
    other.close()
    ledger.record_promise(kept=True)
    assert ledger.promises()["kept"] == 1


# -- several at once --------------------------------------------------------------------------------------------------

WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.plain.graph_examples import KEY, compiled, steady
from tpu_ui.compile_cache import CompileCache
from tpu_ui.ledger import GraphLedger

path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
ledger = GraphLedger(path, CompileCache(path.parent / "compiled"))
print("open", flush=True)
for batch in range(1, count + 1) if count else iter(int, 1):
    key = replace(KEY, model=name, batch=batch) if count else replace(KEY, model=name)
    twin = replace(key, stage="decoder")
    ledger.record_pass({key: compiled(1, 1.0, {f"{name}-{batch}": 1}), twin: compiled(1, 1.0)}, whole=False)
    ledger.record_pass({key: steady(), twin: steady()}, whole=True)
    ledger.record_promise(kept=True)
"""


def start_writer(path: Path, name: str, count: int) -> subprocess.Popen:
    paths = os.pathsep.join(map(str, (HERE, HERE.parent.parent)))
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_share_one_file(open_ledger: Open, tmp_path: Path):
    """Both begin on a file that does not exist yet, and write at once; a third reads meanwhile."""
    path = tmp_path / "ledger.sqlite3"
    writers = [start_writer(path, name, 30) for name in ("one", "two")]
    reader = open_ledger()
    while any(writer.poll() is None for writer in writers):
        assert all(record.graphs == 1 for record in reader.records())
    for writer in writers:
        _, errors = writer.communicate()
        assert (writer.returncode, errors) == (0, "")
    records = reader.records()
    assert {name: sum(r.key.model == name for r in records) for name in ("one", "two")} == {"one": 60, "two": 60}
    assert all((r.graphs, r.runs, r.proven) == (1, 1, True) for r in records)
    assert reader.promises() == {"kept": 60, "broken": 0}
    assert len(reader.expected_files()) == 60
    assert list(tmp_path.glob("*unreadable*")) == []


@pytest.mark.parametrize("kind", ["new", "garbage"])
def test_many_open_one_file_at_once(kind: str, tmp_path: Path, cache: CompileCache):
    """Nobody may see a half-made file and call it foreign, nor set a new one aside in place of the damaged one."""
    for number in range(6):
        path = tmp_path / f"{kind}{number}" / "ledger.sqlite3"
        path.parent.mkdir()
        if kind == "garbage":
            path.write_bytes(b"garbage" * 1000)
        barrier, faults = threading.Barrier(6), []

        def open_and_write(path: Path = path, barrier: threading.Barrier = barrier, faults: list = faults) -> None:
            barrier.wait()
            try:
                ledger = GraphLedger(path, cache)
                ledger.record_promise(kept=True)
                ledger.close()
            except BaseException as error:
                faults.append(error)
                raise

        threads = [threading.Thread(target=open_and_write) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
        ledger = GraphLedger(path, cache)
        assert ledger.promises()["kept"] == 6
        ledger.close()
        assert len(list(path.parent.glob("*unreadable*.sqlite3"))) == (kind == "garbage")


def test_killed_in_the_middle_of_writing(open_ledger: Open, tmp_path: Path):
    """kill -9 at any moment: the file opens, and each transaction is in it wholly or not at all."""
    path = tmp_path / "ledger.sqlite3"
    chance = random.Random(3)
    promises = 0
    for number in range(12):
        writer = start_writer(path, "endless", 0)
        if number % 4:
            assert writer.stdout.readline() == "open\n"
        time.sleep(chance.random() * 0.05)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        assert writer.returncode == -signal.SIGKILL

        ledger = open_ledger()
        pair = [ledger.record(key(model="endless", stage=stage).digest) for stage in ("denoiser", "decoder")]
        if pair != [None, None]:
            first, second = pair
            assert (first.graphs, first.runs, first.proven) == (second.graphs, second.runs, second.proven)
            assert 0 <= first.graphs - first.runs <= number + 1  # kills between the two transactions of a round
        assert ledger.promises()["kept"] >= promises
        promises = ledger.promises()["kept"]
        ledger.close()
    assert promises > 0
    assert list(tmp_path.glob("*unreadable*")) == []
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database.close()


def test_threads_share_one_ledger(ledger: GraphLedger):
    """The device thread writes while faces ask: no state in between is seen, and no write is lost."""
    keys, seen, stop = stages(), set(), threading.Event()

    def ask() -> None:
        while not stop.is_set():
            seen.add(ledger.state_of_request(keys))
            assert len(ledger.records()) in (0, 4)

    faces = [threading.Thread(target=ask) for _ in range(3)]
    for face in faces:
        face.start()
    for _ in range(50):
        make_warm(ledger, *keys)
        ledger.graphs_dropped()
    stop.set()
    for face in faces:
        face.join()
    assert seen <= {COLD, COMPILING, WARM, ON_DISK}
    assert all(record.runs == 50 for record in ledger.records())
