"""The README's examples of the API, run as they stand there against a page that is up."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.page.server import Server
from tests.readme import blocks

ADDRESS = "http://127.0.0.1:7860/"
EXAMPLES = [block for block in blocks("python") if "gradio_client" in block]


def test_there_are_examples():
    assert EXAMPLES
    assert all(ADDRESS in example for example in EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(example: str, server: Server, tmp_path: Path):
    code = example.replace(ADDRESS, server.url)
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env=os.environ | {"GRADIO_TEMP_DIR": str(tmp_path / "downloads"), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    verdict, answer = (ast.literal_eval(line) for line in ran.stdout.splitlines() if line[:1] in "{([")
    assert set(verdict) == {
        "state", "sentence", "compiles_expected", "seconds_expected", "runs", "fits", "reason", "nearest_warm",
    }  # fmt: skip
    pictures, report = answer
    assert report["ok"]
    assert (report["steps"], report["seeds"]) == (8, [1])
    assert [Path(picture).read_bytes()[:4] for picture in pictures] == [b"\x89PNG"]
