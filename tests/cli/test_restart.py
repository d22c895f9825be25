"""What was warm is warm again after a restart, and no accident to the files on disk costs more than a compile."""

import io
import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from PIL import Image


def test_a_second_process_compiles_nothing_of_what_the_first_one_ran(command_line, small):
    shared_memory = Path("/dev/shm/torch_tpu_cache")
    segments = set(shared_memory.glob("tpu_ui-*"))
    chance = random.Random(2)
    requests = [
        small(
            chance.choice(("sd3", "flux", "sdxl")),
            mode=chance.choice(("strict", "fused", "compile")),
            height=chance.choice((64, 80)),
            placement=chance.choice(("single", "cpu_offload")),
            steps=chance.randint(1, 5),
            guidance=chance.choice((3.0, 4.5)),
            prompt=chance.choice(("a", "two dogs on a hill")),
            out=f"first-{number}.png",
        )
        for number in range(4)
    ]
    first = command_line.requests(*requests)
    assert all(report["ok"] for report in first)
    assert first[0]["state_before"] == "cold"
    assert first[0]["new_compiles"] > 0
    again = [request | {"out": request["out"].replace("first", "second")} for request in requests]
    second = command_line.requests(*again)
    assert [report["new_compiles"] for report in second] == [0] * len(second)
    assert {report["state_before"] for report in second} <= {"on_disk", "warm"}
    for before, after in zip(first, second, strict=True):
        pictures = [(command_line.folder / report["images"][0]).read_bytes() for report in (before, after)]
        assert _pixels(pictures[0]) == _pixels(pictures[1])
    assert set(shared_memory.glob("tpu_ui-*")) <= segments, "left behind"


@pytest.mark.slow
def test_damage_to_the_cache_costs_a_compile_and_nothing_else(command_line, small):
    request = small()
    (first,) = command_line.requests(request)
    picture = (command_line.folder / first["images"][0]).read_bytes()
    files = sorted((command_line.cache / "compiled").rglob("*.bin"))
    assert len(files) >= 5
    files[0].write_bytes(b"")
    files[1].write_bytes(files[1].read_bytes()[:100])
    files[2].unlink()
    done = command_line.run("generate", "--device", "tpu-emulated", "--requests", "-", stdin=json.dumps(request))
    report = json.loads(done.stdout)
    assert "2 damaged file(s) were removed" in done.stderr
    assert (report["ok"], report["state_before"]) == (True, "cold")
    assert 0 < report["new_compiles"] < first["new_compiles"]
    assert _pixels((command_line.folder / report["images"][0]).read_bytes()) == _pixels(picture)
    (third,) = command_line.requests(request)
    assert (third["state_before"], third["new_compiles"]) == ("on_disk", 0)


@pytest.mark.slow
def test_a_cache_folder_deleted_under_a_running_process_is_no_accident(command_line, small):
    process = subprocess.Popen(
        command_line.command("generate", "--device", "tpu-emulated", "--requests", "-"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=command_line.environment, cwd=command_line.folder,
    )  # fmt: skip
    process.stdin.write(json.dumps(small()) + "\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["ok"]
    shutil.rmtree(command_line.cache / "compiled")
    output, errors = process.communicate(json.dumps(small(height=80)) + "\n" + json.dumps(small()) + "\n", timeout=300)
    other_size, same = (json.loads(line) for line in output.splitlines())
    assert other_size["ok"], errors
    assert (same["ok"], same["state_before"], same["new_compiles"]) == (True, "warm", 0), errors


@pytest.mark.slow
def test_killed_in_the_middle_of_a_compile(command_line, small):
    """Nothing is lost but the job: the next process opens the ledger and makes the picture."""
    process = subprocess.Popen(
        command_line.command("generate", "--device", "tpu-emulated", "--requests", "-"),
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=command_line.environment, cwd=command_line.folder,
    )  # fmt: skip
    process.stdin.write(json.dumps(small()) + "\n")
    process.stdin.close()
    for line in process.stderr:
        if line.startswith("compiling"):
            break
    process.kill()
    assert process.wait() == -signal.SIGKILL
    (report,) = command_line.requests(small())
    assert report["ok"]
    assert report["state_before"] == "cold"


def test_ctrl_c_cancels_and_says_so(command_line, small, tmp_path):
    request = small(steps=200)
    arguments = [f"--{name}={value}" for name, value in request.items() if name not in ("width", "height")]
    process = subprocess.Popen(
        command_line.command("generate", "--device", "tpu-emulated", "--size", "64x64", *arguments, "--out", "x.png"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=command_line.environment, cwd=tmp_path,
    )  # fmt: skip
    for line in process.stderr:
        if line.startswith("step"):
            break
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "cancelled" in errors
    assert not (tmp_path / "x.png").exists()


def _pixels(png: bytes) -> bytes:
    return Image.open(io.BytesIO(png)).tobytes()
