"""Pictures are saved whole or not at all, under names that nobody chose, and shown to whom they belong."""

import contextlib
import errno
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from tpu_ui.errors import InvalidRequest, TpuUiError
from tpu_ui.outputs import OutputFolder, numbered_paths, save_as
from tpu_ui.recipe import Recipe, read_recipe
from tpu_ui.report import GenerationResult, Report
from tpu_ui.request import GenerationRequest

ANA, BEN = "secret-of-ana-1234", "secret-of-ben-5678"
CHECKOUT = Path(__file__).resolve().parents[2]


def result(prompt: str = "a fox", batch: int = 1, seed: int = 7, side: int = 16) -> GenerationResult:
    request = GenerationRequest(
        prompt=prompt, model="demo", mode="compile", placement="single", batch=batch, seed=seed,
        width=side, height=side, steps=2, guidance=1.0,
    )  # fmt: skip
    report = Report(ok=True, seeds=request.seeds, model="demo", revision="0a1b", device="tpu-emulated")
    images = tuple(Image.effect_noise((side, side), 90).convert("RGB") for _ in range(batch))
    return GenerationResult(images, request, report)


@pytest.fixture
def folder(tmp_path):
    with contextlib.closing(OutputFolder(tmp_path / "out")) as opened:
        yield opened


@pytest.fixture
def everyones(folder):
    with contextlib.closing(OutputFolder(folder.root, shared=True)) as opened:
        yield opened


def names(entries) -> list[str]:
    return [entry.name for entry in entries]


def visible(root: Path) -> list[str]:
    return sorted(name for name in os.listdir(root) if not name.startswith(".tpu_ui-history"))


def test_a_batch_is_saved_with_each_pictures_own_seed_and_settings(folder):
    made = result(batch=3)
    paths = folder.save(made, ANA)
    for i, path in enumerate(paths):
        read = read_recipe(path)
        assert read.source == "tpu_ui"
        alone = GenerationRequest.from_mapping(read.fields)
        assert (alone.seed, alone.batch, alone.prompt, alone.mode) == (7 + i, 1, "a fox", made.request.mode)
        with Image.open(path) as saved:
            assert saved.tobytes() == made.images[i].tobytes()
    newest = folder.entries(ANA)[0]
    assert (newest.name, newest.fields, newest.mine) == (paths[2].name, read.fields, True)
    assert abs(newest.created_ms / 1000 - time.time()) < 60


@pytest.mark.parametrize("prompt", ["🦊" * 300, "../../tmp/x", "CON", "a/b\\c:d", "x" * 20_000, "\n", ""])
@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_names_do_not_depend_on_the_prompt(folder, prompt, seed):
    (path,) = folder.save(result(prompt, seed=seed), ANA)
    assert path.parent == folder.root
    assert re.fullmatch(rf"\d{{8}}T\d{{9}}-[0-9a-f]{{16}}-{seed}-0\.png", path.name)
    assert len(path.name.encode()) <= 120
    assert folder.entries(ANA)[0].fields["prompt"] == prompt


def test_forty_saves_at_once_give_forty_files(folder):
    made = result("the same", seed=1)
    with ThreadPoolExecutor(20) as pool:
        paths = list(pool.map(lambda _: folder.save(made, ANA)[0], range(40)))
    assert len({*paths}) == 40
    assert visible(folder.root) == sorted(path.name for path in paths)
    assert len(folder.entries(ANA)) == 40


def test_several_processes_share_a_folder(folder):
    script = """
        import sys
        from pathlib import Path
        from test_outputs import ANA, OutputFolder, result
        for _ in range(5):
            OutputFolder(Path(sys.argv[1])).save(result(), ANA)
    """
    running = [start(script, folder.root) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert len(folder.entries(ANA)) == 15


def test_a_file_is_never_overwritten(folder, monkeypatch):
    monkeypatch.setattr("secrets.token_hex", lambda n: "00" * n)
    monkeypatch.setattr("time.time_ns", lambda: 10**18)
    (path,) = folder.save(result(), "")
    before = path.read_bytes()
    with pytest.raises(TpuUiError):
        folder.save(result(), "")
    assert path.read_bytes() == before
    assert visible(folder.root) == [path.name]


@pytest.mark.parametrize("existing", [False, True])
def test_without_hard_links_a_name_is_taken_only_when_free(tmp_path, monkeypatch, existing):
    def refuse(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr("os.link", refuse)
    path = tmp_path / "x.png"
    if existing:
        path.write_bytes(b"mine")
        with pytest.raises(InvalidRequest, match="exists"):
            save_as(result().images[0], Recipe(result().request), path, overwrite=False)
        assert path.read_bytes() == b"mine"
    else:
        save_as(result().images[0], Recipe(result().request), path, overwrite=False)
        assert read_recipe(path).source == "tpu_ui"
    assert visible(tmp_path) == ["x.png"]


# -- failures ---------------------------------------------------------------------------------------------------------


def start(script: str, *arguments) -> subprocess.Popen:
    path = os.pathsep.join([str(CHECKOUT), str(Path(__file__).parent)])
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE)


def test_a_kill_leaves_no_half_picture_under_a_final_name(folder):
    script = """
        import sys
        from pathlib import Path
        from test_outputs import ANA, OutputFolder, result
        folder, made = OutputFolder(Path(sys.argv[1])), result(side=512)
        while True:
            folder.save(made, ANA)
            print("saved", flush=True)
    """
    for delay in (0.01, 0.03, 0.05, 0.07):
        process = start(script, folder.root)
        assert process.stdout.readline() == b"saved\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    listed = folder.entries(ANA, limit=1000)
    assert listed
    for name in visible(folder.root):
        if not name.startswith(".saving-"):
            with Image.open(folder.root / name) as saved:
                saved.load()  # raises on a cut file
    old = time.time() - 7200
    leftover = folder.root / ".saving-0"
    leftover.write_bytes(b"half")
    os.utime(leftover, (old, old))
    folder.entries(ANA)
    assert not leftover.exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_when_the_disk_fails_earlier_pictures_stay_and_halves_go(folder, monkeypatch, code):
    calls = []

    def fsync(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(TpuUiError, match="picture 2 of 3") as caught:
        folder.save(result(batch=3), ANA)
    assert ("disk is full" if code == errno.ENOSPC else "Input/output error") in str(caught.value)
    assert str(folder.root) not in str(caught.value)
    assert len(visible(folder.root)) == 1
    assert len(folder.entries(ANA)) == 1


def test_a_disk_that_is_really_full(folder):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.raises(TpuUiError, match="disk is full"):
            folder.save(result(side=512), ANA)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert visible(folder.root) == []


def test_a_folder_that_has_gone(folder):
    shutil.rmtree(folder.root)
    for attempt in (lambda: folder.save(result(), ANA), lambda: folder.entries(ANA)):
        with pytest.raises(TpuUiError) as caught:
            attempt()
        assert str(folder.root) not in str(caught.value)
    assert not folder.root.exists()


@pytest.fixture
def unwritable():
    """A folder that this process may only read, even if root runs the tests."""
    root = Path(tempfile.mkdtemp())
    folder = OutputFolder(root)
    folder.save(result(), ANA)
    (root / ".tpu_ui-history.sqlite3").chmod(0o644)
    root.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(user)
    folder.close()
    root.chmod(0o755)
    shutil.rmtree(root)


def test_a_folder_that_cannot_be_written_to(unwritable):
    before = visible(unwritable.root)
    for attempt in (
        lambda: unwritable.save(result(), ANA),
        lambda: OutputFolder(unwritable.root),
        lambda: OutputFolder(unwritable.root / "below"),
        lambda: save_as(result().images[0], Recipe(result().request), unwritable.root / "x.png"),
        lambda: unwritable.delete(before[0], ANA),
    ):
        with pytest.raises(TpuUiError, match="not allowed"):
            attempt()
    assert visible(unwritable.root) == before
    assert len(unwritable.entries(ANA)) == 1


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TpuUiError, match="no such folder"):
            OutputFolder(path)


# -- the command line's own file --------------------------------------------------------------------------------------


def test_save_as_makes_folders_and_replaces_whole_files(tmp_path):
    path = tmp_path / "a" / "b" / "x.PNG"
    for seed in (1, 2):
        made = result(seed=seed)
        assert save_as(made.images[0], Recipe.of(made.request, made.report), path) == path
        assert read_recipe(path).fields["seed"] == seed
    assert visible(path.parent) == ["x.PNG"]
    with pytest.raises(InvalidRequest, match="exists"):
        save_as(made.images[0], Recipe(made.request), path, overwrite=False)


@pytest.mark.parametrize("name", ["x.jpg", "x", ".png", "x.png.webp", "x\0.png", ""])
def test_only_png_is_written(tmp_path, name):
    with pytest.raises(InvalidRequest, match="png"):
        save_as(result().images[0], Recipe(result().request), tmp_path / name)
    assert visible(tmp_path) == []


def test_save_as_says_what_is_in_the_way(tmp_path):
    (tmp_path / "dir.png").mkdir()
    (tmp_path / "file").write_text("")
    image, recipe = result().images[0], Recipe(result().request)
    with pytest.raises(InvalidRequest, match="is a folder"):
        save_as(image, recipe, tmp_path / "dir.png")
    with pytest.raises(TpuUiError, match="no such folder"):
        save_as(image, recipe, tmp_path / "file" / "x.png")
    with pytest.raises(TpuUiError, match="name too long"):
        save_as(image, recipe, tmp_path / f"{'x' * 300}.png")


def test_a_batch_numbers_the_named_file():
    assert numbered_paths(Path("o/x.png"), 1) == (Path("o/x.png"),)
    assert numbered_paths(Path("o/x.y.png"), 2) == (Path("o/x.y-1.png"), Path("o/x.y-2.png"))
    with pytest.raises(InvalidRequest):
        numbered_paths(Path("x.gif"), 2)


# -- history ----------------------------------------------------------------------------------------------------------


def test_history_is_newest_first_and_in_pages(folder):
    saved = [folder.save(result(seed=seed, batch=2), ANA) for seed in range(5)]
    expected = [path.name for paths in saved for path in paths]
    assert sorted(names(folder.entries(ANA))) == sorted(expected)
    times = [entry.created_ms for entry in folder.entries(ANA)]
    assert times == sorted(times, reverse=True)
    pages, before = [], None
    while page := folder.entries(ANA, limit=3, before=before):
        pages += names(page)
        folder.delete(page[-1].name, ANA)  # the place stays right when the picture has gone
        before = page[-1].cursor
    assert sorted(pages) == sorted(expected)
    for wrong in ("", "x", "1", "1/../x.png", "-1/a.png", "9" * 40 + "/a.png", "1/\ud800.png"):
        with pytest.raises(InvalidRequest):
            folder.entries(ANA, before=wrong)
    for limit in (0, -1, 10**9):
        with pytest.raises(InvalidRequest):
            folder.entries(ANA, limit=limit)


def test_search_looks_for_all_words_in_any_case(folder):
    folder.save(result("Ein GROSSER Fuß im Schnee, 100% 🦊"), ANA)
    folder.save(result("a cat", seed=4242), ANA)
    for words in ("fuss", "schnee gross", "FUẞ", "🦊", "100%", "  ein\tim "):
        assert [e.fields["seed"] for e in folder.entries(ANA, words)] == [7]
    assert [e.fields["seed"] for e in folder.entries(ANA, "4242")] == [4242]
    assert len(folder.entries(ANA, "demo")) == 2
    for words in ("dog", "fuss cat", "%", "_", "' OR 1=1 --", "\ud800x", "z" * 10_000):
        assert folder.entries(ANA, words) == [] or words == "%"


def test_sessions_do_not_see_each_other(folder, everyones):
    (of_ana,) = folder.save(result("of ana"), ANA)
    (of_ben,) = folder.save(result("of ben"), BEN)
    (of_none,) = folder.save(result("of none"), "")
    assert names(folder.entries(ANA)) == [of_ana.name]
    assert names(folder.entries(BEN, "of")) == [of_ben.name]
    assert folder.entries() == folder.entries("") == folder.entries("someone else") == []
    assert folder.path_of(of_ana.name, ANA) == of_ana
    for owner in (BEN, None, "", "secret", "\ud800"):
        for attempt in (folder.path_of, folder.delete):
            with pytest.raises(InvalidRequest, match="no such picture"):
                attempt(of_ana.name, owner)
    assert sorted(names(everyones.entries())) == sorted(p.name for p in (of_ana, of_ben, of_none))
    assert [entry.mine for entry in everyones.entries(ANA, "ana")] == [True]
    assert [entry.mine for entry in everyones.entries(BEN, "ana")] == [False]
    assert everyones.path_of(of_ana.name, None) == of_ana
    with pytest.raises(InvalidRequest, match="only who made it"):
        everyones.delete(of_ana.name, BEN)
    everyones.delete(of_none.name, BEN)
    assert sorted(visible(folder.root)) == sorted([of_ana.name, of_ben.name])


def test_delete_deletes_once(folder):
    (path,) = folder.save(result(), ANA)
    folder.delete(path.name, ANA)
    assert not path.exists()
    assert folder.entries(ANA) == []
    with pytest.raises(InvalidRequest, match="no such picture"):
        folder.delete(path.name, ANA)


def test_secrets_are_nowhere_on_the_disk(folder):
    folder.save(result(batch=2), ANA)
    folder.entries(ANA)
    for path in folder.root.iterdir():
        content = path.read_bytes()
        assert ANA.encode() not in content, path
        assert str(folder.root).encode() not in content, path
        assert str(Path.home()).encode() + b"/" not in content, path
    index = folder.root / ".tpu_ui-history.sqlite3"
    assert index.stat().st_mode & 0o077 == 0


def test_history_survives_a_restart_and_follows_the_folder(folder, everyones):
    kept, lost = folder.save(result("kept"), ANA)[0], folder.save(result("lost"), ANA)[0]
    with contextlib.closing(OutputFolder(folder.root)) as again:
        assert len(again.entries(ANA)) == 2
        lost.unlink()
        assert names(again.entries(ANA)) == [kept.name]
        shutil.copy(kept, folder.root / "copied by hand é.png")
        assert names(again.entries(ANA)) == [kept.name]  # whose the copy is, nobody knows
    assert sorted(names(everyones.entries())) == sorted(["copied by hand é.png", kept.name])


def test_foreign_files_are_passed_over(folder, everyones):
    (path,) = folder.save(result(), ANA)
    root = folder.root
    (root / "notes.txt").write_text("x")
    (root / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (root / "empty.png").touch()
    (root / "dir.png").mkdir()
    Image.new("RGB", (4, 4)).save(root / "plain.png")
    shutil.copy(path, root / ".hidden.png")
    shutil.copy(path, os.fsencode(root) + b"/\xff.png")
    os.mkfifo(root / "pipe.png")
    for owner, opened in ((ANA, folder), (None, everyones)):
        assert names(opened.entries(owner)) == [path.name]
        for name in os.listdir(root):
            if name != path.name:
                with pytest.raises(InvalidRequest, match="no such picture"):
                    opened.path_of(name, owner)


@pytest.mark.parametrize("shared", [False, True])
def test_no_way_leads_out_of_the_folder(tmp_path, shared):
    outside = tmp_path / "outside"
    made = result()
    target = save_as(made.images[0], Recipe.of(made.request, made.report), outside / "x.png")
    (tmp_path / ".env").write_text("HF_TOKEN=hf_TESTONLY123")
    with contextlib.closing(OutputFolder(tmp_path / "out", shared=shared)) as folder:
        (mine,) = folder.save(made, ANA)
        (folder.root / "link.png").symlink_to(target)
        (folder.root / "deep").symlink_to(outside, target_is_directory=True)
        (folder.root / "passwd.png").symlink_to("/etc/passwd")
        os.rename(mine, folder.root / "aside.png")
        mine.symlink_to(target)  # a name that the index knows as ANA's
        with pytest.raises(InvalidRequest, match="no such picture"):
            folder.path_of(mine.name, ANA)
        listed = names(folder.entries(ANA))
        assert listed == (["aside.png"] if shared else [])
        wrong = [
            "link.png", "passwd.png", "deep/x.png", mine.name, "../outside/x.png", "..\\outside\\x.png", "../.env",
            "..%2f.env", ".env", str(target), "", ".", "..", "/", "x\0.png", "\ud800.png", ".tpu_ui-history.sqlite3",
            "a.png\n", "é" * 200 + ".png", "C:x.png", "x.png" * 1000, f"./{mine.name}",
        ]  # fmt: skip
        for name in wrong:
            for attempt in (folder.path_of, folder.delete):
                with pytest.raises(InvalidRequest, match="no such picture"):
                    attempt(name, ANA)
    assert target.exists()


def test_an_index_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".tpu_ui-history.sqlite3").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TpuUiError):
        OutputFolder(tmp_path / "out")
    assert not (tmp_path / "elsewhere").exists()


def test_a_damaged_index_is_set_aside_and_built_again(folder, everyones, caplog):
    (path,) = folder.save(result(), ANA)
    folder.close()
    everyones.close()
    index = folder.root / ".tpu_ui-history.sqlite3"
    index.write_bytes(b"damaged" * 1000)
    with contextlib.closing(OutputFolder(folder.root, shared=True)) as again:
        assert names(again.entries(ANA)) == [path.name]
    assert "owners are lost" in caplog.text
    assert any("unreadable" in name for name in os.listdir(folder.root))


def test_an_index_that_stays_locked_is_a_sentence(folder):
    folder._database.execute("PRAGMA busy_timeout = 50")
    with contextlib.closing(sqlite3.connect(folder.root / ".tpu_ui-history.sqlite3")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TpuUiError, match="database is locked"):
            folder.save(result(), ANA)
    assert visible(folder.root) == []


def test_thousands_of_pictures_are_listed_quickly(folder):
    made = result()
    (path,) = folder.save(made, "")
    for i in range(3000):
        shutil.copy(path, folder.root / f"{i}.png")
    with contextlib.closing(OutputFolder(folder.root, shared=True)) as shared:
        assert len(shared.entries(limit=1000)) == 1000
    with contextlib.closing(OutputFolder(folder.root, shared=True)) as shared:
        started = time.perf_counter()
        assert len(shared.entries(search="fox", limit=60)) == 60
        assert time.perf_counter() - started < 0.5
