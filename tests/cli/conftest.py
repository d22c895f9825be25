"""The command line as a user runs it: a process of its own, with a cache folder of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


class CommandLine:
    """Runs `python -m tpu_ui`; `cache` is its TPU_UI_CACHE_DIR."""

    def __init__(self, cache: Path, folder: Path) -> None:
        self.cache = cache
        self.folder = folder
        # Errors of Python and of the program only: what the libraries log must not be mistaken for them.
        self.environment = os.environ | {"TPU_UI_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
        self.environment.pop("TORCH_TPU_DEFER_AND_FUSE", None)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tpu_ui", *arguments]

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), input=stdin, env=self.environment, cwd=self.folder, capture_output=True, text=True
        )

    def requests(self, *requests: dict[str, Any], device: str = "tpu-emulated") -> list[dict[str, Any]]:
        """Run many requests in one process; their reports."""
        lines = "\n".join(json.dumps(request) for request in requests)
        done = self.run("generate", "--device", device, "--requests", "-", stdin=lines)
        reports = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(reports) == len(requests), done.stderr
        return reports


@pytest.fixture
def command_line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path / "cache", tmp_path)


@pytest.fixture
def small(tiny_models: Path) -> Callable[..., dict[str, Any]]:
    """A small request given by what differs; `model` is the name of a tiny pipeline."""

    def build(model: str = "sd3", **fields: Any) -> dict[str, Any]:
        values = {"prompt": "a red cat", "width": 64, "height": 64, "steps": 2, "seed": 1, "mode": "fused"}
        return values | {"model": str(tiny_models / model)} | fields

    return build
