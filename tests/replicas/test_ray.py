"""Processes that Ray starts: none outlives the program that asked for them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.page.server import free_port
from tpu_ui.errors import DeviceUnavailable
from tpu_ui.hardware import DeviceChoice
from tpu_ui.replicas.starting import replica_starter
from tpu_ui.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def front(folder: Path, sd3: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen, dict]]:
    command = [sys.executable, "-m", "tests.replicas.front", str(folder), str(sd3), *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            while not (line := process.stdout.readline()).startswith("{"):
                assert line, "the program ended"
            yield process, json.loads(line)
        finally:
            process.kill()


def test_no_process_outlives_a_front_that_is_killed(sd3, tmp_path, monkeypatch):
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))  # a path too long for the sockets of Ray
    with front(tmp_path, sd3, "1") as (process, told):
        started = psutil.Process(process.pid).children(recursive=True)
        assert set(told["pids"]) <= {child.pid for child in started}
        agents = [child for child in started if "agent" in f"{child.name()} {' '.join(child.cmdline())}".lower()]
        others = [child for child in started if child not in agents]
        assert len(others) > 3  # Ray's own
        os.kill(process.pid, signal.SIGKILL)
    assert not psutil.wait_procs(others, timeout=20)[1]
    for agent in agents:  # of a node that was killed: they end by themselves, but take a minute
        with suppress(psutil.NoSuchProcess):
            agent.kill()


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    command = [
        sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--head", "--block",
        "--node-ip-address=127.0.0.1", f"--port={address.rpartition(':')[2]}", "--include-dashboard=false",
        "--disable-usage-stats", "--num-cpus=1", f"--temp-dir={folder}", f"--object-store-memory={80 * 2**20}",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as head:
        try:
            yield address
        finally:
            children = psutil.Process(head.pid).children(recursive=True)
            head.terminate()
            head.wait(20)
            for child in psutil.wait_procs(children, timeout=10)[1]:
                child.kill()


def test_a_cluster_is_joined_and_left(sd3, tmp_path_factory, tmp_path):
    with cluster(tmp_path_factory.mktemp("r")) as address, front(tmp_path, sd3, "1", address) as (process, told):
        assert told["error"] == ""
        replicas = [psutil.Process(pid) for pid in told["pids"]]
        head = replicas[0].parent()  # its raylet
        assert process.pid not in [parent.pid for parent in replicas[0].parents()]
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(40) == 0  # Ray would have it abort
        assert not psutil.wait_procs(replicas, timeout=10)[1]
        assert head.is_running()


def test_where_no_cluster_is_the_sentence_says_how_to_start_one(tmp_path):
    cpu, nowhere = DeviceChoice("cpu", "for the test"), f"127.0.0.1:{free_port()}"
    started = time.monotonic()
    with pytest.raises(DeviceUnavailable, match=rf"no Ray cluster .*{nowhere}.* ray start --head"):
        replica_starter(cpu, Settings(tmp_path), "demo", "1", nowhere)()
    assert time.monotonic() - started < 10
