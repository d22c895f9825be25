"""The version of our own code that is part of every graph key."""

from pathlib import Path

import tpu_ui
from tpu_ui import code_version

ROOM = Path(tpu_ui.__file__).parent


def test_every_module_that_gives_the_device_work_counts():
    with_torch = {path.stem for path in ROOM.glob("*.py") if "import torch" in path.read_text()}
    others = {"bench", "device_errors", "emulation", "environment", "lora_weights", "residency", "runtime"}
    assert with_torch - others <= set(code_version._DECIDING)


def test_another_source_is_another_version(tmp_path, monkeypatch):
    for name in code_version._DECIDING:
        (tmp_path / f"{name}.py").write_bytes((ROOM / f"{name}.py").read_bytes())
    monkeypatch.setattr(code_version, "__file__", str(tmp_path / "code_version.py"))
    before = code_version.graph_code_version()
    assert before == code_version.graph_code_version()
    with (tmp_path / "schedule.py").open("a") as source:
        source.write("# another\n")
    assert code_version.graph_code_version() != before
