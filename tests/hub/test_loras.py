"""LoRAs of the Hub, against a server that answers as it does: which file is fetched, and what is told if it cannot."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hub.fake_hub import GOOD_TOKEN, FakeHub, Repository
from tests.plain.test_loras import LORA

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from pathlib import Path
from tpu_ui.errors import TpuUiError
from tpu_ui.hub_lora import find
from tpu_ui.lora import Lora
from tpu_ui.lora_files import find_loras
from tpu_ui.sources import Fetching

name, offline, fetches = sys.argv[1], sys.argv[2] == "offline", sys.argv[2] == "fetch"
def fetch(hub):
    return find(hub, offline=offline, hub_cache=None, fetching=Fetching() if fetches else None)
try:
    files, notices = find_loras((Lora.parse(name),), "FluxPipeline", Path("none"), fetch)
    print(*(f"{file.path.name} {file.path.stat().st_size} {file.weight}" for file in files), *notices)
except TpuUiError as error:
    print(type(error).__name__, error)
"""

Find = Callable[..., str]


@pytest.fixture
def find(hub: FakeHub, tmp_path: Path) -> Find:
    """What another process finds by a name; `how` is fetch, look or offline."""

    def run(name: str, how: str = "fetch", token: str = "") -> str:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TPU_UI_"))}
        own = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "NO_PROXY": "*"}
        own |= {"HF_TOKEN": token} if token else {}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, name, how], env=kept | own, capture_output=True, text=True, timeout=60
        )
        return done.stdout.strip() or done.stderr

    return run


def test_one_file_is_fetched_and_then_found_without_the_network(hub: FakeHub, find: Find):
    hub.repositories["org/style"] = Repository({"README.md": b"x", "style.safetensors": LORA, "old.bin": b"\x80"})
    absent = find("org/style:0.5", "look")
    assert absent == "loras: org/style is not on this machine. It is fetched with the next request."
    refused = find("org/style", "offline")
    assert refused.startswith("LoadFailed loras: org/style is not on this machine, and HF_HUB_OFFLINE is set. Unset it")
    assert hub.fetched() == []
    expected = f"style.safetensors {len(LORA)} 0.5"
    assert find("org/style:0.5") == expected
    assert set(hub.fetched()) == {"style.safetensors"}
    seen = len(hub.requests)
    for how in ("look", "offline", "fetch"):
        assert find("org/style:0.5", how) == expected
        assert find("org/style/style.safetensors:0.5", how) == expected
    assert len(hub.requests) == seen


def test_a_file_and_a_revision_are_named(hub: FakeHub, find: Find):
    repository = Repository({"a.safetensors": LORA, "sub/b.safetensors": LORA})
    hub.repositories["org/two"] = repository
    first = repository.commit
    repository.change(**{"a.safetensors": LORA.replace(b"\0\0\0\0", b"\0\0\1\0")})
    assert find("org/two/sub/b.safetensors") == f"b.safetensors {len(LORA)} 1.0"
    assert find(f"org/two/a.safetensors@{first}:2") == f"a.safetensors {len(LORA)} 2.0"
    assert "InvalidRequest loras: org/two has no file c.safetensors." in find("org/two/c.safetensors")


def test_what_the_hub_refuses(hub: FakeHub, find: Find):
    hub.repositories["org/gated"] = Repository({"x.safetensors": LORA}, is_gated=True)
    hub.repositories["org/many"] = Repository({"a.safetensors": LORA, "b.safetensors": LORA})
    hub.repositories["org/pickle"] = Repository({"a.bin": b"\x80"})
    assert find("org/none").startswith("InvalidRequest loras: the Hub has no repository org/none.")
    assert "InvalidRequest loras: org/many has no revision 'v9'" in find("org/many@v9")
    assert find("org/gated").startswith("NoAccess org/gated is gated")
    assert find("org/gated", token=GOOD_TOKEN).startswith("x.safetensors")
    assert "org/many holds 2 files: a.safetensors, b.safetensors. Name one: org/many/a.safetensors." in find("org/many")
    assert "org/pickle holds only a.bin pickle" in find("org/pickle")
