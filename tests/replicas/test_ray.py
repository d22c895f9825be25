"""Processes that Ray starts: none outlives the program that asked for them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.page.server import free_port

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


@pytest.mark.parametrize(("end", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)])
def test_no_process_outlives_the_front(sd3, tmp_path, monkeypatch, end, code):
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))  # a path too long for the sockets of Ray
    with front(tmp_path, sd3, "1") as (process, told):
        started = psutil.Process(process.pid).children(recursive=True)
        assert set(told["pids"]) <= {child.pid for child in started}
        assert len(started) > 3  # Ray's own
        agents = [child.pid for child in started if "Agent" in child.name() or "agent" in " ".join(child.cmdline())]
        os.kill(process.pid, end)
        assert process.wait(40) == code
    _, alive = psutil.wait_procs(started, timeout=10)
    left = [child for child in alive if child.pid not in agents]
    assert not psutil.wait_procs(left, timeout=15)[1]
    if end is signal.SIGTERM:
        assert not alive
    for agent in alive:  # of a node that was killed: they end by themselves within a minute or so
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


def test_a_cluster_is_joined_and_outlives_the_front(sd3, tmp_path_factory, tmp_path):
    with cluster(tmp_path_factory.mktemp("r")) as address, front(tmp_path, sd3, "2", address) as (process, told):
        assert told["error"] == ""
        replicas = [psutil.Process(pid) for pid in told["pids"]]
        head = replicas[0].parent()  # its raylet
        assert process.pid not in [parent.pid for parent in replicas[0].parents()]
        os.kill(process.pid, signal.SIGKILL)
        assert not psutil.wait_procs(replicas, timeout=20)[1]
        time.sleep(0.5)
        assert head.is_running()
