"""Processes that are started and ended: no orphans, and no waiting for partners who do not come."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy
import psutil
import pytest
import torch
from gradio_client import Client
from PIL import Image

from tests.page.server import Server
from tests.parallel.conftest import LIMITS, RANK_MODULE, REQUEST, pixels_of
from tests.parallel.cpu_rank import IS_LAUNCHED_BY_ANOTHER
from tests.parallel.test_group import TOLERANCE_8_BIT
from tpu_ui.errors import DeviceUnavailable, JobCancelled
from tpu_ui.parallel import launch
from tpu_ui.parallel.engine import GroupEngine
from tpu_ui.parallel.setup import OuterLaunch, Setup
from tpu_ui.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.usefixtures("fault_file")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_no_rank_outlives_the_front(flux, tmp_path, end):
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-m", "tests.parallel.front", str(tmp_path), str(flux)]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as front:
        pids = json.loads(front.stdout.readline())
        ranks = [psutil.Process(pid) for pid in pids]
        os.kill(front.pid, end)
        front.wait(20)
    _, alive = psutil.wait_procs(ranks, timeout=10)
    assert len(ranks) == 2
    assert not alive


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_world_whose_partners_do_not_come_is_refused():
    outer = OuterLaunch(0, 2, 0, "127.0.0.1", free_port(), has_agent=False)
    store = launch.open_store(outer, 1.0)
    with pytest.raises(DeviceUnavailable, match=r"WORLD_SIZE=2 .* after 1 s only 1 came \(rank 0\)\. Start all"):
        launch.meet(store, outer, 1.0)
    with pytest.raises(JobCancelled):
        launch.meet(store, outer, 600.0, cancelled=lambda: True)


def test_a_start_that_nobody_waits_for_any_more_leaves_no_rank(flux, tmp_path):
    this = psutil.Process()
    before = set(this.children())
    started: set[psutil.Process] = set()

    def cancelled() -> bool:
        started.update(set(this.children()) - before)
        return len(started) >= 2

    setup = Setup("cpu", Settings(cache_dir=tmp_path), str(flux), 2, LIMITS)
    with pytest.raises(JobCancelled):
        GroupEngine(setup, rank_module=RANK_MODULE, cancelled=cancelled)
    assert not psutil.wait_procs(started, timeout=10)[1]


@pytest.mark.usefixtures("fault_file")
@pytest.mark.slow
def test_ranks_of_another_launcher_meet(flux, request_for, expected_pixels, tmp_path, monkeypatch):
    """As on two hosts: this process has the page and starts rank 0, the launcher has started rank 1."""
    setup = Setup("cpu", Settings(cache_dir=tmp_path), str(flux), 2, replace(LIMITS, partners=60.0))
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in (world | {"RANK": "0", "LOCAL_RANK": "0"}).items():
        monkeypatch.setenv(name, value)
    launched = {"RANK": "1", "LOCAL_RANK": "1", IS_LAUNCHED_BY_ANOTHER: "1"} | setup.to_environment()
    command = [sys.executable, "-m", RANK_MODULE]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | launched) as partner:
        try:
            engine = GroupEngine(setup, OuterLaunch.find(), RANK_MODULE)
            result = engine.generate(request_for(), lambda _: None, lambda: False)
            assert abs(pixels_of(result) - expected_pixels).max() <= TOLERANCE_8_BIT
            assert len(engine.pids) == 1
            engine.close()
            assert partner.wait(15) == 0
        finally:
            partner.kill()


def test_a_meeting_place_that_is_taken_or_not_there_is_named():
    with contextlib.closing(socket.socket()) as holder:
        holder.bind(("0.0.0.0", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(DeviceUnavailable, match=rf"127\.0\.0\.1:{port}, where the processes meet, is taken"):
            launch.open_store(OuterLaunch(0, 2, 0, "127.0.0.1", port, has_agent=False), 1.0)
    with pytest.raises(DeviceUnavailable, match="was not to be reached within 1 s"):
        launch.open_store(OuterLaunch(1, 2, 1, "127.0.0.1", free_port(), has_agent=False), 1.0)


@pytest.mark.usefixtures("fault_file")
@pytest.mark.slow
def test_four_ranks(tiny_models, request_for, alone, tmp_path):
    model = str(tiny_models / "flux-4-heads")
    engine = GroupEngine(Setup("cpu", Settings(cache_dir=tmp_path), model, 4, LIMITS), rank_module=RANK_MODULE)
    try:
        result = engine.generate(request_for(model=model), lambda _: None, lambda: False)
        assert len(engine.pids) == 4
    finally:
        engine.close()
    assert abs(pixels_of(result) - alone(request_for(model=model))).max() <= TOLERANCE_8_BIT


def refuses(nproc_per_node: int) -> None:
    raise ValueError(f"no topology for {nproc_per_node} processes")


@pytest.mark.parametrize(
    ("distributed", "sentence"),
    [
        (
            SimpleNamespace(singlehost_wrapper=None),
            r"before 0\.2 have only an internal launcher \(singlehost_wrapper\)",
        ),
        (SimpleNamespace(set_tpu_launch_env=refuses), r"5 devices could not be set up \(no topology for 5 processes\)"),
    ],
)
def test_a_torch_tpu_that_cannot_launch_is_named(monkeypatch, distributed, sentence):
    monkeypatch.setattr("tpu_ui.environment.prepare_launcher", lambda _: None)
    monkeypatch.setattr(torch, "tpu", SimpleNamespace(distributed=distributed), raising=False)
    with pytest.raises(DeviceUnavailable, match=sentence):
        launch.prepare("tpu", 5, None)


@pytest.mark.emulated
def test_app_py_over_one_emulated_device(flux, expected_pixels, tmp_path):
    """The true path from the page: tpu_dist, a mesh of TPUs, the split transformer compiled whole; and Ctrl+C."""
    arguments = ("--device", "tpu-emulated", "--model", str(flux), "--tensor-parallel", "auto", "--mode", "compile")
    server = Server(tmp_path / "cache", *arguments)
    try:
        server.wait_until_ready()
        ranks = psutil.Process(server.process.pid).children()
        client = Client(server.url, verbose=False)
        assert client.predict(width=64, height=64, api_name="/verdict")["state"] == "cold"
        pictures, report = client.predict(**REQUEST, api_name="/generate")
        with Image.open(pictures[0]) as picture:
            assert abs(numpy.asarray(picture).astype(int) - expected_pixels).max() <= TOLERANCE_8_BIT
        assert (report["placement"], report["new_compiles"] > 0) == ("tensor_parallel", True)
        assert client.predict(width=64, height=64, api_name="/verdict")["state"] == "warm"
        report = client.predict(**REQUEST | {"steps": 6, "seed": 5, "prompt": "x"}, api_name="/generate")[1]
        assert (report["was_warm"], report["new_compiles"]) == (True, 0)
        server.process.send_signal(signal.SIGINT)
        server.process.wait(30)
        _, alive = psutil.wait_procs(ranks, timeout=10)
        assert (len(ranks), alive) == (1, [])
    finally:
        server.stop()
