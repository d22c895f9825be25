"""The folder of compiled graphs: what is in it, what is thrown out, and that it may vanish at any time."""

import contextlib
import logging
import os
import shutil
import threading
from pathlib import Path

import pytest

from tpu_ui.compile_cache import CompileCache


@pytest.fixture
def cache(tmp_path: Path) -> CompileCache:
    return CompileCache(tmp_path / "compiled")


def write(cache: CompileCache, **sizes: int) -> None:
    for name, size in sizes.items():
        path = cache.root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)


def test_files_are_named_by_their_path_in_the_folder(cache: CompileCache):
    write(cache, a=10, deep__er__b=20, empty=0)
    assert cache.files() == {"a": 10, "deep/er/b": 20, "empty": 0}
    assert cache.total_bytes() == 30
    assert cache.has("deep/er/b", 20)
    assert not cache.has("deep/er/b", 19)
    assert not cache.has("deep/er", 20)
    assert not cache.has("none", 0)


def test_a_missing_folder_is_empty(cache: CompileCache, caplog: pytest.LogCaptureFixture):
    assert cache.files() == cache.files_since(0) == {}
    assert cache.total_bytes() == 0
    assert not cache.has("a", 1)
    assert cache.remove(["a"]) == 0
    assert cache.remove_damaged({"a": 1}) == []
    assert cache.prune(0, {"a": 1.0}) == (0, 0)
    assert not cache.root.exists()
    assert caplog.records == []


def test_a_file_in_place_of_the_folder_is_empty(cache: CompileCache):
    cache.root.write_text("")
    assert cache.files() == {}
    assert not cache.has("a", 1)


def test_files_written_since(cache: CompileCache):
    write(cache, old=1, new=2)
    os.utime(cache.root / "old", (1000, 1000))
    os.utime(cache.root / "new", (2000, 2000))
    assert cache.files_since(1500) == {"new": 2}
    assert cache.files_since(2000) == {"new": 2}
    assert cache.files_since(0) == cache.files()


def test_what_is_no_file_or_only_a_lock_is_passed_over(cache: CompileCache):
    """Inductor keeps empty lock files in the folder; another process may hold them."""
    write(cache, a=10, **{"inductor__locks__x.lock": 0})
    os.mkfifo(cache.root / "pipe")
    (cache.root / "dangling").symlink_to(cache.root / "nowhere")
    (cache.root / "loop").symlink_to(cache.root / "loop")
    assert cache.files() == {"a": 10}
    assert cache.remove_damaged({}) == []
    assert cache.prune(0, {}) == (1, 10)
    assert (cache.root / "inductor/locks/x.lock").exists()


def test_links_to_folders_are_not_followed(cache: CompileCache, tmp_path: Path):
    write(cache, a=1)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("mine")
    (cache.root / "link").symlink_to(tmp_path / "outside")
    assert cache.files() == {"a": 1}
    assert cache.prune(0, {}) == (1, 1)
    assert (tmp_path / "outside" / "precious").read_text() == "mine"


def test_remove_tells_the_bytes_that_came_free(cache: CompileCache):
    write(cache, a=10, b=20, folder__c=5)
    assert cache.remove(["a", "none", "folder", "folder/c"]) == 15
    assert cache.files() == {"b": 20}


def test_damaged_files_are_removed_once_with_a_note(cache: CompileCache, caplog: pytest.LogCaptureFixture):
    write(cache, whole=10, cut=3, longer=12, empty=0, unknown=7, unknown_empty=0)
    expected = {"whole": 10, "cut": 10, "longer": 10, "empty": 10, "gone": 10}
    assert sorted(cache.remove_damaged(expected)) == ["cut", "empty", "longer", "unknown_empty"]
    assert cache.files() == {"whole": 10, "unknown": 7}
    assert [(r.levelno, r.getMessage()[:16]) for r in caplog.records] == [(logging.WARNING, "4 damaged file(s")]
    caplog.clear()
    assert cache.remove_damaged(expected) == []
    assert caplog.records == []


def test_the_least_recently_used_go_first_and_unknown_ones_before_them(cache: CompileCache):
    sizes = {"recent": 10, "old": 10, "unknown": 10, "oldest": 10}
    last_use = {"recent": 300.0, "old": 200.0, "oldest": 100.0, "not there": 1.0}
    for budget, kept in ((30, {"recent", "old", "oldest"}), (25, {"recent", "old"}), (10, {"recent"}), (9, set())):
        write(cache, **sizes)
        removed, freed = cache.prune(budget, last_use)
        assert set(cache.files()) == kept
        assert (removed, freed) == (4 - len(kept), 40 - 10 * len(kept))


def test_nothing_goes_while_the_folder_is_within_its_budget(cache: CompileCache):
    write(cache, a=10, b=10)
    assert cache.prune(20, {}) == (0, 0)
    assert cache.prune(2**62, {}) == (0, 0)
    assert cache.files() == {"a": 10, "b": 10}


def test_sixty_sizes_stay_under_the_cap(cache: CompileCache):
    """Files of one shape after another: the folder never holds more than its budget, and keeps the last ones."""
    budget, last_use = 1000, {}
    for number in range(60):
        name = f"graph{number}"
        write(cache, **{name: 100})
        last_use[name] = float(number)
        cache.prune(budget, last_use)
        assert cache.total_bytes() <= budget
    assert set(cache.files()) == {f"graph{number}" for number in range(50, 60)}


def test_another_process_deletes_the_folder_meanwhile(cache: CompileCache):
    stop = threading.Event()

    def rebuild_and_delete() -> None:
        while not stop.is_set():
            for number in range(20):
                with contextlib.suppress(FileNotFoundError):  # prune deletes in the same folder
                    write(cache, **{f"d{number % 5}__e__f{number}": 10})
            shutil.rmtree(cache.root, ignore_errors=True)

    other = threading.Thread(target=rebuild_and_delete)
    other.start()
    try:
        for _ in range(300):
            assert set(cache.files().values()) <= {0, 10}
            cache.remove_damaged({"d0/e/f0": 11})
            removed, freed = cache.prune(50, {})
            assert freed <= removed * 10
    finally:
        stop.set()
        other.join()


def test_a_folder_that_vanishes_between_listing_and_looking(cache: CompileCache, monkeypatch: pytest.MonkeyPatch):
    write(cache, a__b=1, c__d=1)
    real_walk = os.walk

    def walk_then_delete(root: Path):
        for place in real_walk(root):
            shutil.rmtree(cache.root / "c", ignore_errors=True)
            yield place

    monkeypatch.setattr(os, "walk", walk_then_delete)
    assert cache.files() == {"a/b": 1}
