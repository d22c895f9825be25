"""app.py with replicas: what Ray starts for it, and that none of it outlives the page."""

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

from tests.page.server import Server, free_port
from tests.replicas.conftest import PATIENCE


@contextmanager
def page(cache: Path, sd3: Path, *arguments: str, **environ: str) -> Iterator[Server]:
    server = Server(cache, "--device", "cpu", "--model", str(sd3), "--replicas", "1", *arguments, **environ)
    try:
        yield server
    finally:
        server.process.kill()
        server.stop()


def replica_below(pid: int, server: Server) -> psutil.Process:
    """The process of a replica, as soon as there is one; its device may not be open yet."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and server.process.poll() is None:
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                if " ".join(child.cmdline()).startswith("ray::Replica"):  # of one just forked it is empty
                    return child
        time.sleep(0.05)
    raise AssertionError(server.log[-3000:])


def test_no_process_outlives_a_page_that_is_killed(sd3, tmp_path):
    long = tmp_path / ("long" * 30)  # too long for the sockets of Ray
    long.mkdir()
    with page(tmp_path / "cache", sd3, TMPDIR=str(long)) as server:
        replica = replica_below(server.process.pid, server)
        started = psutil.Process(server.process.pid).children(recursive=True)
        agents = [child for child in started if "agent" in f"{child.name()} {' '.join(child.cmdline())}".lower()]
        others = [child for child in started if child not in agents]
        assert replica in others
        assert len(others) > 3  # Ray's own
        os.kill(server.process.pid, signal.SIGKILL)
        assert not psutil.wait_procs(others, timeout=20)[1]
    for agent in agents:  # of a node that was killed: they end by themselves, but take a minute
        with suppress(psutil.NoSuchProcess):
            agent.kill()


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, int]]:
    """The address of a Ray cluster on this host, and the process that ends it."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--head", "--block",
        "--node-ip-address=127.0.0.1", f"--port={address.rpartition(':')[2]}", "--include-dashboard=false",
        "--disable-usage-stats", "--num-cpus=1", f"--temp-dir={folder}", f"--object-store-memory={80 * 2**20}",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as head:
        try:
            while "--block" not in (line := head.stdout.readline()):
                assert line, "Ray did not start"
            yield address, head.pid
        finally:
            children = psutil.Process(head.pid).children(recursive=True)
            head.terminate()
            head.wait(20)
            for child in psutil.wait_procs(children, timeout=10)[1]:
                child.kill()


@pytest.mark.slow
def test_a_page_joins_a_cluster_and_leaves_it(sd3, tmp_path_factory, tmp_path):
    with (
        cluster(tmp_path_factory.mktemp("r")) as (address, head),
        page(tmp_path / "cache", sd3, "--ray-address", address) as server,
    ):
        server.wait_until_ready()
        replica = replica_below(head, server)
        assert server.metric('tpu_ui_replica_up{replica="1"}') == 1
        assert not psutil.Process(server.process.pid).children()
        assert server.stop() == 0, server.log  # by SIGTERM, on which Ray would have it abort
        assert not psutil.wait_procs([replica], timeout=10)[1]
        assert psutil.pid_exists(head)
