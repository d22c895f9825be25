"""Files of requests and --json, where no request gets as far as the device."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plain.folders import write_folder

ROOT = Path(__file__).resolve().parents[2]
OUT_OF_HAND = {
    '{"seed": ' + "9" * 5000 + "}": "requests: a line is not JSON",
    "[" * 100_000: "requests: a line is not JSON",
    "[1]": "requests: a line is not a JSON object",
    '{"steps": NaN}': "steps: nan is not a whole number",
    '{"out": "a.jpg"}': "out: 'a.jpg' is not the name of a PNG file",
    json.dumps({"out": "x" * 100_000}): "out: 'xxx",
    json.dumps({"out": "x" * 300 + ".png"}): "is too long",
    '{"out": "a\\u0000.png"}': "has a character that no file name may have",
    '{"out": "\\ud800.png"}': "has a character that no file name may have",
    '{"out": "a-folder.png"}': "a-folder.png is a folder",
    '{"out": "a-file/below/a.png"}': "is no folder that can be written to",
    '{"out": 5}': "out: 5 is not the name",
    '{"width": 65}': "width: 65 is not a multiple",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "model", "sd3")
    (tmp_path / "a-folder.png").mkdir()
    (tmp_path / "a-file").write_text("")
    return tmp_path


def generate(folder: Path, *arguments: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tpu_ui", "generate", "--device", "cpu", "--model", "model", *arguments]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "TPU_UI_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(command, input=lines, cwd=folder, env=environment, capture_output=True, text=True)


def test_each_wrong_line_has_its_report_and_the_next_one_is_read(folder: Path):
    lines = [line if '"width"' not in line else '{"width": 65, "model": "model"}' for line in OUT_OF_HAND]
    done = generate(folder, "--requests", "-", lines="\n".join(lines))
    assert "Traceback" not in done.stderr
    assert done.returncode == 2
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(reports) == len(lines)
    for report, wanted in zip(reports, OUT_OF_HAND.values(), strict=True):
        assert wanted in report["error"]
        assert len(report["error"]) < 500
        assert not report["ok"]


@pytest.mark.parametrize(
    "wrong",
    [("--steps", "abc"), ("--seed", "9" * 5000), ("--width", "65"), ("--device", "moon"), ("--requests", "/nowhere")],
)
def test_json_ends_with_a_report_whatever_the_mistake(folder: Path, wrong: tuple[str, str]):
    done = generate(folder, *wrong, "--json")
    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    assert done.returncode == 2
    assert not report["ok"]
    assert len(report["error"]) < 500
    assert report["error"] in done.stderr
