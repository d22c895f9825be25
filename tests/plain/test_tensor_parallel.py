"""Tensor parallel before torch is there: what can be split, what is refused, which rank is named as lost."""

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Client
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpu_ui.errors import DeviceUnavailable, InvalidRequest, ModeNotAllowed, NotANumber, WorkerLost
from tpu_ui.hardware import DeviceChoice, TpuHost, find_chip
from tpu_ui.job import JobKind
from tpu_ui.page.desk import PageOptions
from tpu_ui.page.options import parse_options
from tpu_ui.parallel.heartbeat import Beat
from tpu_ui.parallel.messages import Ask, Cancel, Ended, Leave, PackedError
from tpu_ui.parallel.rank import Front
from tpu_ui.parallel.setup import Limits, OuterLaunch, Setup
from tpu_ui.parallel.starting import group_setup, group_starter
from tpu_ui.parallel.watch import Watch
from tpu_ui.placement import Placement
from tpu_ui.planner.parts import published_parts
from tpu_ui.report import GenerationResult, Report
from tpu_ui.request import GenerationRequest
from tpu_ui.resolver import Resolver
from tpu_ui.settings import Settings
from tpu_ui.tensor_parallel import allowed_devices, check_group_request, parse_devices

FLUX = published_parts("black-forest-labs/FLUX.1-dev", "bfloat16")  # 24 heads
FLUX2 = published_parts("black-forest-labs/FLUX.2-dev", "bfloat16")  # 48 heads
SD3 = published_parts("stabilityai/stable-diffusion-3.5-medium", "bfloat16")
V6E_8 = DeviceChoice("tpu", "for the test", TpuHost(find_chip("v6e"), 8))


def test_devices_are_read_as_a_user_writes_them():
    assert (parse_devices("8"), parse_devices(" auto ")) == (8, None)
    for wrong in ("0", "-1", "1.5", "257", "many", ""):
        with pytest.raises(InvalidRequest, match="Give auto, or 1 to 256"):
            parse_devices(wrong)
    assert parse_options(["--tensor-parallel", "4"], {}).tensor_parallel == "4"
    assert parse_options([], {"TPU_UI_TENSOR_PARALLEL": "auto"}).tensor_parallel == "auto"
    assert parse_options([], {}).tensor_parallel is None
    with pytest.raises(InvalidRequest, match="tensor-parallel: '0'"):
        parse_options(["--tensor-parallel", "0"], {})


def test_a_device_gets_whole_heads():
    assert allowed_devices(FLUX) == (1, 2, 3, 4, 6, 8, 12, 24)
    assert allowed_devices(FLUX2, most=8) == (1, 2, 3, 4, 6, 8)
    assert allowed_devices(SD3) == ()


@pytest.mark.parametrize(
    ("changes", "parts", "error", "sentence"),
    [
        ({"placement": "cpu_offload"}, FLUX, ModeNotAllowed, "cpu_offload is for one device"),
        ({"mode": "fused"}, FLUX, ModeNotAllowed, "wait for one another for ever.*Choose compile or strict"),
        ({}, SD3, ModeNotAllowed, "it cannot be split: .*FLUX.1, FLUX.2 and Qwen-Image"),
        ({}, FLUX, InvalidRequest, "5 devices do not divide the 24 attention heads of it. Start with 2 or 3 or 4 or 6"),
    ],
)
def test_what_a_group_cannot_run_is_refused(changes, parts, error, sentence):
    with pytest.raises(error, match=sentence):
        check_group_request(GenerationRequest(**changes), "it", parts, 5)


def test_auto_means_tensor_parallel_in_a_group_and_never_outside(tmp_path: Path):
    settings, request = Settings(tmp_path, defer_and_fuse=True), GenerationRequest(model="flux.2-dev")
    resolved = Resolver("tpu", settings, "flux.2-dev", lambda: 32 * 2**30, group_devices=8).foresee_unseen(request)
    assert resolved is not None
    assert (resolved.request.placement, resolved.devices) == (Placement.TENSOR_PARALLEL, 8)
    assert resolved.request.mode == "compile"  # though the environment asks for fused eager
    alone = Resolver("tpu", settings, "flux.2-dev")
    with pytest.raises(ModeNotAllowed, match=r"Start app\.py with --tensor-parallel"):
        alone.foresee_unseen(replace(request, placement=Placement.TENSOR_PARALLEL))


def test_the_number_of_devices_is_in_every_key(tmp_path: Path):
    def keys(devices: int):
        resolver = Resolver("tpu", Settings(tmp_path), "flux.2-dev", group_devices=devices)
        resolved = resolver.foresee_unseen(GenerationRequest(model="flux.2-dev", seed=0))
        return resolver.graph_keys(resolved, {"chip": "TPU v6e"})

    four, eight = keys(4), keys(8)
    assert {key.digest for key in four.values()}.isdisjoint(key.digest for key in eight.values())
    assert all(eight[stage].differences(four[stage]) == ("tensor parallel over 4→8",) for stage in four)


def test_auto_takes_as_many_devices_as_divide_the_heads(tmp_path: Path):
    def devices(wanted: str, model: str = "flux.2-dev", chips: int = 8) -> int:
        choice = replace(V6E_8, tpu=TpuHost(find_chip("v6e"), chips))
        return group_setup(choice, Settings(tmp_path), model, wanted, None, {}).devices

    assert (devices("auto"), devices("4"), devices("auto", chips=7)) == (8, 4, 6)
    with pytest.raises(InvalidRequest, match=r"16 devices were asked for, and there are 8 here\. Give auto"):
        devices("16")
    with pytest.raises(InvalidRequest, match="5 devices do not divide the 48 attention heads"):
        devices("5")
    with pytest.raises(ModeNotAllowed, match="cannot be split"):
        devices("2", "sdxl")


def test_other_devices_are_refused(tmp_path: Path):
    with pytest.raises(DeviceUnavailable, match="runs on TPUs only, and the device is cpu"):
        group_setup(DeviceChoice("cpu", ""), Settings(tmp_path), "flux.2-dev", "2", None, {})


LAUNCHED = {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "host0", "MASTER_PORT": "29500"}


def test_an_outer_launcher_is_recognised(tmp_path: Path):
    assert OuterLaunch.find({}) is None
    assert OuterLaunch.find({"WORLD_SIZE": "1"}) is None
    outer = OuterLaunch.find(LAUNCHED | {"TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert outer == OuterLaunch(1, 8, 1, "host0", 29500, has_agent=True)
    with pytest.raises(InvalidRequest, match=r"LOCAL_RANK and MASTER_ADDR and MASTER_PORT is missing.*torchrun"):
        OuterLaunch.find({"RANK": "0", "WORLD_SIZE": "2"})
    with pytest.raises(InvalidRequest, match="no number"):
        OuterLaunch.find(LAUNCHED | {"MASTER_PORT": "http"})
    with pytest.raises(InvalidRequest, match="8 of WORLD_SIZE=8"):
        OuterLaunch.find(LAUNCHED | {"RANK": "8"})
    launched = {"TORCH_TPU_SLICEBUILDER_ADDRESSES": "host0:8070"}
    assert group_setup(V6E_8, Settings(tmp_path), "flux.2-dev", "auto", outer, launched).devices == 8
    with pytest.raises(InvalidRequest, match="4 devices were asked for, and WORLD_SIZE says 8"):
        group_setup(V6E_8, Settings(tmp_path), "flux.2-dev", "4", outer, launched)
    with pytest.raises(DeviceUnavailable, match=r"python -m torch\.tpu\.distributed"):
        group_setup(V6E_8, Settings(tmp_path), "flux.2-dev", "auto", outer, {})


def test_a_setup_comes_to_a_child_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    setup = Setup("tpu", Settings(tmp_path), "flux.2-dev", 8, front="/x", front_key=b"secret")
    for name, value in setup.to_environment().items():
        monkeypatch.setenv(name, value)
    assert Setup.from_environment() == setup
    with pytest.raises(KeyError):
        Setup.from_environment()


@pytest.mark.parametrize("error", [InvalidRequest("seed", "wrong.", "Mend it."), NotANumber("VAE", "lost.", "Why?")])
def test_errors_come_over_as_they_were(error):
    unpacked = pickle.loads(pickle.dumps(PackedError.of(error))).unpacked()
    assert (type(unpacked), str(unpacked), vars(unpacked)) == (type(error), str(error), vars(error))


class Ranks:
    """Beats and a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.beats = {rank: Beat(pid=40 + rank, patience_seconds=50.0) for rank in range(3)}
        self.watch = Watch(Limits(silent=10.0, fault=5.0), "Do this.", lambda: self.now)
        self.watch.begin()

    def change(self, rank: int, **fields: object) -> None:
        self.beats[rank] = replace(self.beats[rank], **fields)

    def after(self, seconds: int, silent: int | None = None) -> None:
        for _ in range(seconds):
            self.now += 1.0
            for rank, beat in self.beats.items():
                if rank != silent:
                    self.change(rank, number=beat.number + 1)
            self.watch.check(self.beats)


def test_a_silent_rank_is_named():
    ranks = Ranks()
    ranks.after(30)
    with pytest.raises(WorkerLost, match=r"^rank 2 \(process 42\) gave no sign of life for 10 s\. Do this\.$"):
        ranks.after(12, silent=2)


def test_of_ranks_that_stand_still_those_that_keep_the_others_waiting_are_named():
    ranks = Ranks()
    for rank in (0, 2):
        ranks.change(rank, waits=True)
    ranks.change(1, place="sleep in x.py, line 3")
    with pytest.raises(WorkerLost, match=r"^rank 1 \(process 41\) has not gone on for 50 s \(in sleep in x\.py"):
        ranks.after(52)
    ranks = Ranks()
    for rank in (1, 2):
        ranks.change(rank, position=1, waits=True)
    ranks.change(0, waits=True)
    with pytest.raises(WorkerLost, match=r"^rank 0 "):
        ranks.after(52)


def test_one_that_goes_on_or_has_begun_late_is_not_lost():
    ranks = Ranks()
    for position in range(4):
        ranks.change(0, position=position)
        ranks.after(45)
    ranks.now += 1000.0  # nothing ran meanwhile
    ranks.watch = Watch(Limits(silent=10.0, fault=5.0), "Do this.", lambda: ranks.now)
    ranks.watch.begin()
    ranks.after(45)


def test_a_fault_is_fatal_only_where_the_others_do_not_follow():
    ranks = Ranks()
    ranks.change(1, fault="RuntimeError: no")
    ranks.after(4)
    ranks.change(1, fault="")
    ranks.after(20)
    ranks.change(1, fault="RuntimeError: no")
    with pytest.raises(WorkerLost, match=r"^rank 1 .* failed where the others could not follow: RuntimeError: no\."):
        ranks.after(8)


def test_a_page_of_a_group_offers_what_a_group_can_run():
    options = PageOptions(V6E_8, "flux.1-dev", Path("served"))
    assert len(options.modes) == len(options.placements) == 3
    group = replace(options, group_devices=8)
    assert (group.modes, group.placements) == (("strict", "compile"), ("auto",))
    starter = group_starter(V6E_8, Settings(Path("cache")), "flux.1-dev", "8", {})
    assert starter.setup.devices == 8


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_cancel_that_comes_too_late_does_not_end_the_next_job(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "_exit", sys.exit)  # at the end of the connection: here it is a thread that ends
    setup = Setup("cpu", Settings(tmp_path), "demo", 1, front=str(tmp_path / "front"), front_key=b"key")
    answers: list[bool] = []

    def generate(request: GenerationRequest, _emit: object, cancelled: Callable[[], bool]) -> GenerationResult:
        answers.append(cancelled())
        return GenerationResult((), request, Report(ok=True))

    ledger, runtime = SimpleNamespace(in_this_process=lambda: ((), ())), SimpleNamespace(memory=lambda: None)
    manager = SimpleNamespace(generate=generate, toolchain={}, ledger=ledger, runtime=runtime)
    fronts: list[Front] = []

    def serve() -> None:
        fronts.append(Front(setup))
        fronts[0].serve(manager)

    served = threading.Thread(target=serve, daemon=True)
    served.start()
    while not Path(setup.front).exists():
        time.sleep(0.01)
    with Client(setup.front, "AF_UNIX", authkey=setup.front_key) as front:
        for _ in range(2):
            front.send(Ask(JobKind.GENERATE, GenerationRequest()))
            while not isinstance(front.recv(), Ended):
                pass
            front.send(Cancel())
        front.send(Leave())
        served.join(10)
    fronts[0]._reader.join(10)
    assert not fronts[0]._reader.is_alive()
    assert answers == [False, False]
