"""Requests for models of the Hub, from the first byte to the picture."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

from tests.hub.fake_hub import GOOD_TOKEN, FakeHub, Repository

REQUEST = {"prompt": "a red cat", "width": 64, "height": 64, "steps": 2, "seed": 1}


def start(command_line, hub: FakeHub, **more: str) -> subprocess.Popen[str]:
    environment = command_line.environment | {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(command_line.folder / "home")}
    return subprocess.Popen(
        command_line.command("generate", "--device", "cpu", "--requests", "-"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=command_line.folder,
        env=environment | {"NO_PROXY": "*"} | more,
    )  # fmt: skip


def ask(process: subprocess.Popen[str], model: str) -> dict[str, Any]:
    """One request of a process that goes on; its report."""
    process.stdin.write(json.dumps(REQUEST | {"model": model}) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def pixels(path: Path) -> numpy.ndarray:
    with Image.open(path) as picture:
        return numpy.asarray(picture).astype(int)


@pytest.mark.slow
def test_a_refusal_leaves_the_loaded_model_usable_and_a_retry_needs_no_restart(
    command_line, hub: FakeHub, tiny_models: Path
):
    repository = Repository.of_folder(tiny_models / "sd3", is_gated=True, accepted=set())
    hub.repositories["org/gated"] = repository
    local = str(tiny_models / "flux")
    with start(command_line, hub, HF_TOKEN=GOOD_TOKEN) as process:
        assert ask(process, local)["ok"]
        refused = ask(process, "org/gated")
        assert not refused["ok"]
        assert "https://huggingface.co/org/gated" in refused["error"]
        again = ask(process, local)
        assert again["ok"]
        assert again["timings"]["load"] < 0.1  # neither read again nor moved
        repository.accepted.add(GOOD_TOKEN)
        report = ask(process, "org/gated")
        assert report["ok"], report["error"]
        assert (report["model"], report["revision"]) == ("org/gated", repository.commit)
        process.stdin.close()
        told = process.stderr.read()
    assert process.returncode == 1
    assert GOOD_TOKEN not in told
    total = sum(len(content) for content in repository.files.values())
    assert f"{total / 1e6:.1f} MB" in told
    assert f"file {len(repository.files)} of {len(repository.files)}" in told


@pytest.mark.slow
def test_a_downloaded_model_makes_the_same_picture_offline_without_a_request(
    command_line, hub: FakeHub, tiny_models: Path
):
    hub.repositories["org/open"] = Repository.of_folder(tiny_models / "sd3")
    with start(command_line, hub) as process:
        first = ask(process, "org/open")
        process.stdin.close()
    assert first["ok"], first["error"]
    picture = pixels(command_line.folder / first["images"][0])
    hub.requests.clear()
    with start(command_line, hub, HF_HUB_OFFLINE="1") as process:
        second = ask(process, "org/open")
        process.stdin.close()
    assert second["ok"], second["error"]
    assert second["revision"] == first["revision"]
    assert hub.requests == []
    assert numpy.abs(pixels(command_line.folder / second["images"][0]) - picture).max() <= 2
