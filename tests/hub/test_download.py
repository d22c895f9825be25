"""Models from the Hub, against a server that answers as it does: what is fetched, and what is told when it fails."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hub.fake_hub import GOOD_TOKEN, NOT_ACCEPTED_TOKEN, FakeHub, Repository
from tests.plain.folders import safetensors_bytes, shard_transformer, write_folder

ROOT = Path(__file__).parents[2]
MODEL = "org/tiny"
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
LARGE = 3_000_000

# A download as the engine drives it; it prints each event, and how long the cancel took.
SCRIPT = """
import json, sys, time
from dataclasses import asdict
from pathlib import Path
from tpu_ui.errors import JobCancelled
from tpu_ui.sources import Fetching, find_model

until, seen, asked = int(sys.argv[1]), [], []
def emit(progress):
    seen.append(progress)
    print(json.dumps(asdict(progress)), flush=True)
def cancelled():
    if seen and (seen[-1].bytes_done or 0) >= until:
        asked.append(time.monotonic())
    return bool(asked)
try:
    find_model("org/tiny", offline=False, fetching=Fetching(emit, cancelled))
except JobCancelled:
    print(json.dumps({"cancel_seconds": time.monotonic() - asked[0]}))
"""


class Machine:
    """A machine with a Hub cache of its own."""

    def __init__(self, hub: FakeHub, home: Path) -> None:
        self.hub = hub
        self.home = home
        self.cache = home / "hub"

    def environment(self, token: str | None = None, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TPU_UI_"))}
        own = {"HF_ENDPOINT": self.hub.endpoint, "HF_HOME": str(self.home), "PYTHONPATH": str(ROOT), "NO_PROXY": "*"}
        return kept | own | ({"HF_TOKEN": token} if token else {}) | more

    def run(self, *arguments: str, token: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], env=self.environment(token, **more), cwd=ROOT, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip

    def download(
        self, model: str = MODEL, *options: str, token: str | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "tpu_ui", "download", "--model", model, *options, token=token, **more)

    def find(self, offline: bool = True) -> str:
        """What the page is told of the model before a click."""
        code = (
            "from tpu_ui.errors import TpuUiError; from tpu_ui.sources import find_model\n"
            f"try: print(find_model({MODEL!r}, offline={offline}).revision)\n"
            "except TpuUiError as error: print(type(error).__name__, error)"
        )
        return self.run("-c", code, **({"HF_HUB_OFFLINE": "1"} if offline else {})).stdout.strip()

    def blobs(self) -> dict[str, int]:
        folder = self.cache / "models--org--tiny" / "blobs"
        return {path.name: path.stat().st_size for path in folder.iterdir()} if folder.is_dir() else {}

    def file(self, name: str) -> Path:
        (snapshot,) = (self.cache / "models--org--tiny" / "snapshots").iterdir()
        return snapshot / name


@pytest.fixture
def machine(hub: FakeHub, tmp_path: Path) -> Machine:
    return Machine(hub, tmp_path / "home")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = write_folder(tmp_path / "tiny")
    # Another content than the text encoder's: equal ones are one blob of the cache, and are fetched once.
    (root / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(safetensors_bytes({"vae": ("BF16", (4, 4))}))
    return root


@pytest.fixture
def repository(hub: FakeHub, folder: Path) -> Repository:
    """A repository with one large file."""
    (folder / WEIGHTS).write_bytes(safetensors_bytes({"transformer_blocks.0.x": ("F32", (LARGE // 4,))}))
    hub.repositories[MODEL] = Repository.of_folder(folder)
    return hub.repositories[MODEL]


def test_only_what_is_needed_is_fetched_and_the_commit_is_told(hub: FakeHub, machine: Machine, folder: Path):
    needed = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    for other in (
        "tiny.safetensors", "README.md", "transformer/diffusion_pytorch_model.fp16.safetensors", "flax_model.msgpack",
        "transformer/diffusion_pytorch_model.bin", "vae/model.onnx", "vae/diffusion_flax_model.msgpack",
        "text_encoder/pytorch_model.bin.index.json", "text_encoder/model.fp16.safetensors", "onnx/config.json",
        "tokenizer_3/tokenizer_config.json",
    ):  # fmt: skip
        (folder / other).parent.mkdir(exist_ok=True)
        (folder / other).write_bytes(b"not needed")
    hub.repositories[MODEL] = Repository.of_folder(folder)
    done = machine.download(MODEL, "--json")
    assert done.returncode == 0, done.stderr
    assert set(hub.fetched()) == needed
    assert len(hub.fetched()) == len(needed)
    report = json.loads(done.stdout)
    assert (report["model"], report["revision"]) == (MODEL, hub.repositories[MODEL].commit)
    assert Path(report["folder"]).is_relative_to(machine.cache)
    assert machine.find() == hub.repositories[MODEL].commit


def test_of_sharded_weights_all_shards_are_fetched(hub: FakeHub, machine: Machine, tmp_path: Path):
    folder = write_folder(tmp_path / "flux", "flux")
    shard_transformer(folder, ("diffusion_pytorch_model-00001-of-00002.safetensors",
                               "diffusion_pytorch_model-00002-of-00002.safetensors"))  # fmt: skip
    hub.repositories[MODEL] = Repository.of_folder(folder)
    assert machine.download().returncode == 0
    assert len(hub.fetched("-of-00002.safetensors")) == 2


def test_a_complete_model_is_used_without_a_request(hub: FakeHub, machine: Machine, repository: Repository):
    assert machine.download().returncode == 0
    hub.requests.clear()
    assert machine.find(offline=True) == repository.commit
    assert machine.run("-c", SCRIPT, str(LARGE * 9)).stdout == ""  # neither progress nor an error
    assert hub.requests == []
    # What the Hub changes is taken when it is asked for, not by surprise.
    old = repository.commit
    repository.change(readme=b"newer")
    assert machine.find(offline=False) == old
    _missing(machine.file(WEIGHTS))
    assert machine.run("-c", SCRIPT, str(LARGE * 9)).returncode == 0
    assert machine.find() == old
    assert repository.commit in machine.download().stdout
    assert machine.find() == repository.commit
    assert f"at commit {old}" in machine.download(f"{MODEL}@{old}").stdout


def test_a_newer_commit_that_does_not_arrive_leaves_the_older_usable(machine: Machine, repository: Repository):
    assert machine.download().returncode == 0
    old = repository.commit
    repository.files[WEIGHTS] = safetensors_bytes({"transformer_blocks.0.y": ("F32", (LARGE // 4,))})
    repository.spoilt = True
    assert machine.download().returncode == 1
    assert machine.find() == old


REFUSALS = {  # (what the server does, token, words of the sentence and of its remedy)
    "no token": ({"is_gated": True}, None, ("is gated", f"https://huggingface.co/{MODEL}", "HF_TOKEN")),
    "not accepted": ({"is_gated": True}, NOT_ACCEPTED_TOKEN,
                     ("licence was not accepted", f"https://huggingface.co/{MODEL}", "no restart")),
    "bad token": ({"is_gated": True}, "hf_TESTONLYwrongwrongwrong",
                  ("does not know this access token", "settings/tokens")),
    "too many requests": ({"status": 429}, None, ("fewer requests", "Wait 7 s")),
    "a fault of the Hub": ({"status": 503}, None, ("answered with an error (503)", "Try again")),
    "a login page": ({"is_hidden": True}, None, ("does not answer as the Hub does", "proxy")),
    "damaged on the way": ({"spoilt": True}, None, ("arrived damaged, twice",)),
    "disk": ({"told_bytes": {WEIGHTS: 24 * 10**15}}, None, ("needs 24000000.0 GB more", "free", "--hub-cache")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_are_sentences_of_their_own(name: str, machine: Machine, repository: Repository):
    faults, token, words = REFUSALS[name]
    for fault, value in faults.items():
        setattr(repository, fault, value)
    done = machine.download(MODEL, "--log-level", "debug", token=token)
    assert done.returncode == 1, done.stderr
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("tpu_ui: ")]
    for word in words:
        assert word in told
    assert "Traceback" not in done.stderr
    assert "TESTONLY" not in done.stderr + done.stdout


@pytest.mark.parametrize("token", [None, GOOD_TOKEN])
def test_a_misspelt_name_is_the_users_mistake(machine: Machine, token: str | None):
    done = machine.download("org/tinny", token=token)
    assert done.returncode == 2
    assert "the Hub has no repository org/tinny" in done.stderr
    assert ("private" in done.stderr) == (token is None)


def test_a_gated_model_comes_with_the_token_which_goes_to_the_hub_alone(
    hub: FakeHub, machine: Machine, repository: Repository
):
    repository.is_gated = True
    done = machine.download(MODEL, "--log-level", "debug", token=GOOD_TOKEN)
    assert done.returncode == 0, done.stderr
    assert GOOD_TOKEN not in done.stdout + done.stderr
    from_storage = [request for request in hub.requests if request.path.startswith("/storage/")]
    assert from_storage
    assert not any(request.authorization for request in from_storage)
    assert all(GOOD_TOKEN not in path.read_text(errors="replace") for path in machine.home.rglob("*") if path.is_file())


def test_a_login_is_a_token_too(machine: Machine, repository: Repository):
    repository.is_gated = True
    machine.home.mkdir()
    (machine.home / "token").write_text(GOOD_TOKEN)  # as `hf auth login` writes it
    assert machine.download().returncode == 0


def test_no_network(machine: Machine, hub: FakeHub):
    done = machine.download(HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 1
    assert "the connection to the Hub (http://127.0.0.1:9) failed" in done.stderr
    assert hub.requests == []


def test_a_cache_that_cannot_be_written(machine: Machine, repository: Repository, tmp_path: Path):  # noqa: ARG001
    (tmp_path / "file").touch()
    done = machine.download(MODEL, "--hub-cache", str(tmp_path / "file" / "hub"))
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert "--hub-cache" in done.stderr


def test_an_unknown_revision(machine: Machine, repository: Repository):  # noqa: ARG001
    done = machine.download(f"{MODEL}@v9")
    assert done.returncode == 2
    assert "has no revision 'v9'" in done.stderr


USELESS = {
    "only fp16": ({WEIGHTS: "transformer/diffusion_pytorch_model.fp16.safetensors"}, "only as variant fp16"),
    "only pickles": ({WEIGHTS: "transformer/diffusion_pytorch_model.bin"}, "only as pickle"),
    "no pipeline": ({"model_index.json": "other.json"}, "has no model_index.json"),
    "own code": ({"vae/config.json": "vae/diffusers.py"}, "brings its own code"),
}


@pytest.mark.parametrize("name", USELESS)
def test_what_could_not_be_loaded_is_refused_before_its_weights_are_fetched(
    name: str, hub: FakeHub, machine: Machine, repository: Repository
):
    renamed, word = USELESS[name]
    for old, new in renamed.items():
        repository.files[new] = repository.files.pop(old)
    done = machine.download()
    assert done.returncode == 2, done.stderr
    assert word in done.stderr
    assert set(hub.fetched()) <= {"model_index.json"}


def test_progress_tells_bytes_speed_and_file(machine: Machine, repository: Repository):
    repository.bytes_per_second = LARGE // 3
    done = machine.run("-c", SCRIPT, str(LARGE * 9))
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert {event["phase"] for event in events} == {"downloading"}
    sized = [event for event in events if event["bytes_total"]]
    assert [event["bytes_done"] for event in sized] == sorted(event["bytes_done"] for event in sized)
    total = sum(len(content) for content in repository.files.values())
    assert {event["bytes_total"] for event in sized} == {total}
    assert sized[-1]["bytes_done"] == total
    middle = [event for event in sized if event["detail"] == WEIGHTS and 0.3 < event["bytes_done"] / total < 0.9]
    assert middle
    assert (middle[0]["file"], middle[0]["files"]) == (len(repository.files), len(repository.files))
    assert 0.3 < middle[-1]["bytes_per_second"] / repository.bytes_per_second < 1.5


@pytest.mark.parametrize("is_stalled", [False, True])
def test_a_cancelled_download_ends_at_once_and_goes_on_where_it_was(
    is_stalled: bool, hub: FakeHub, machine: Machine, repository: Repository
):
    repository.bytes_per_second = LARGE // 2
    repository.is_stalled = is_stalled
    done = machine.run("-c", SCRIPT, str(LARGE // 3))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["cancel_seconds"] < 1
    assert "only in part" in machine.find()
    partial = machine.blobs()[f"{repository.describe(WEIGHTS)['lfs']['oid']}.incomplete"]
    assert LARGE // 3 < partial < LARGE
    repository.bytes_per_second, repository.is_stalled = 0, False
    hub.requests.clear()
    assert machine.download().returncode == 0
    assert [r.range for r in hub.requests if r.path == f"/storage/{MODEL}/{WEIGHTS}"] == [f"bytes={partial}-"]
    assert not any(name.endswith(".incomplete") for name in machine.blobs())
    assert machine.find() == repository.commit


def test_ctrl_c_ends_the_command_at_once(machine: Machine, repository: Repository):
    repository.is_stalled = True
    command = [sys.executable, "-m", "tpu_ui", "download", "--model", MODEL]
    with subprocess.Popen(command, env=machine.environment(), cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not any(size > LARGE // 3 for size in machine.blobs().values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        asked = time.monotonic()
        assert process.wait(timeout=30) == 130
        assert time.monotonic() - asked < 2
        assert "cancelled" in process.stderr.read()


def test_a_broken_connection_is_taken_up_again(hub: FakeHub, machine: Machine, repository: Repository):
    repository.cuts, repository.cut_after = 1, LARGE // 2
    done = machine.download()
    assert done.returncode == 0, done.stderr
    starts = [r.range for r in hub.requests if r.path == f"/storage/{MODEL}/{WEIGHTS}"]
    assert starts == ["", f"bytes={LARGE // 2}-"]
    assert machine.find() == repository.commit


@pytest.mark.slow
def test_a_connection_that_stays_broken_fails_and_leaves_one_partial_file(machine: Machine, repository: Repository):
    repository.cuts, repository.cut_after = 10**6, 0
    partials = []
    for _ in range(2):
        done = machine.download()
        assert done.returncode == 1
        assert "what arrived is kept" in done.stderr
        partials.append(sorted(name for name in machine.blobs() if name.endswith(".incomplete")))
    assert partials[0] == partials[1]
    repository.cuts = 0
    assert machine.download().returncode == 0


def test_a_partial_file_with_a_wrong_beginning_is_fetched_anew(machine: Machine, repository: Repository):
    digest = repository.describe(WEIGHTS)["lfs"]["oid"]
    blobs = machine.cache / "models--org--tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{digest}.incomplete").write_bytes(b"\0" * 1000)
    (blobs / f"{digest}.0123abcd.incomplete").write_bytes(b"left by a program that was killed")
    assert machine.download().returncode == 0
    assert machine.find() == repository.commit
    assert not any(name.endswith(".incomplete") for name in machine.blobs())


def _missing(path: Path) -> None:
    blob = path.resolve()
    path.unlink()
    blob.unlink()


def _cut(path: Path) -> None:
    os.truncate(path.resolve(), path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path.resolve(), 0)


def _spoilt(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8:12] = b"\0\0\0\0"  # in the header: its size stays
    path.resolve().write_bytes(content)


DAMAGE = {"missing": _missing, "cut": _cut, "empty": _empty, "spoilt": _spoilt}


@pytest.mark.parametrize("name", [WEIGHTS, "model_index.json", "tokenizer/tokenizer_config.json"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_named_and_fetched_again_alone(
    kind: str, name: str, hub: FakeHub, machine: Machine, repository: Repository
):
    assert machine.download().returncode == 0
    DAMAGE[kind](machine.file(name))
    told = machine.find(offline=True)
    assert told.startswith(("NotDownloaded", "UnusableModel"))
    assert name in told or (kind, name) == ("missing", "model_index.json")
    hub.requests.clear()
    before_a_click = machine.find(offline=False)
    assert before_a_click.startswith("NotDownloaded")
    assert "fetched with the next request" in before_a_click
    assert hub.requests == []
    done = machine.run("-c", SCRIPT, str(LARGE * 9))
    assert done.returncode == 0, done.stderr
    assert set(hub.fetched()) == {name}
    assert machine.find(offline=True) == repository.commit


def test_offline_with_nothing_half_and_all(hub: FakeHub, machine: Machine, repository: Repository):
    assert machine.find(offline=True).startswith(f"NotDownloaded {MODEL} is not on this machine.")
    assert machine.download(HF_HUB_OFFLINE="1").returncode == 1
    assert hub.requests == []
    repository.spoilt = True
    assert machine.download().returncode == 1
    told = machine.find(offline=True)
    assert re.search(r"only in part: of 9 files \d missing, the first [a-z_]+/", told), told
    repository.spoilt = False
    assert machine.download().returncode == 0
    hub.requests.clear()
    assert machine.find(offline=True) == repository.commit
    assert hub.requests == []


def test_a_cache_that_another_program_filled_is_used_and_completed(
    hub: FakeHub, machine: Machine, repository: Repository
):
    code = f"import huggingface_hub; huggingface_hub.snapshot_download({MODEL!r})"
    machine.run("-c", code)
    shutil.rmtree(machine.cache / "models--org--tiny" / "trees")  # as older versions of huggingface_hub leave it
    hub.requests.clear()
    assert machine.find(offline=True) == repository.commit
    _missing(machine.file(WEIGHTS))
    assert WEIGHTS in machine.find(offline=True)
    assert machine.download().returncode == 0
    assert hub.fetched() == [WEIGHTS]


def test_the_cache_can_be_moved(machine: Machine, repository: Repository, tmp_path: Path):  # noqa: ARG001
    elsewhere = tmp_path / "elsewhere"
    assert str(elsewhere) in machine.download(MODEL, "--hub-cache", str(elsewhere)).stdout
    assert str(tmp_path / "third") in machine.download(TPU_UI_HUB_CACHE=str(tmp_path / "third")).stdout
    assert not machine.cache.exists()
