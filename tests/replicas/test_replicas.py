"""Jobs on two replicas: both work, both make the same pictures, and the loss of one loses no job."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from tests.page.server import free_port
from tests.replicas.conftest import PATIENCE, REQUEST, wait_until_idle
from tpu_ui.cli.bench import _replicas_table
from tpu_ui.cli.main import main
from tpu_ui.errors import DeviceUnavailable, JobCancelled
from tpu_ui.graphs import WarmupState
from tpu_ui.hardware import DeviceChoice
from tpu_ui.job import Job, JobKind, JobState
from tpu_ui.page import system_tab
from tpu_ui.page.metrics import Metrics
from tpu_ui.replicas.bench import measure
from tpu_ui.replicas.starting import replica_starter
from tpu_ui.request import GenerationRequest
from tpu_ui.settings import Settings
from tpu_ui.translations import ENGLISH


def finish(*jobs: Job) -> set[JobState]:
    for job in jobs:
        assert job.wait(PATIENCE), f"{job.id} never ended"
    return {job.state for job in jobs}


def test_jobs_run_at_once_and_both_replicas_make_the_same_picture(ask):
    jobs = [ask(owner=f"owner{number}", steps=8) for number in range(8)]
    assert finish(*jobs) == {JobState.DONE}
    places = [job.places for job in jobs]
    assert {0} in places
    assert {1} in places
    first, *others = [job.result.images[0].tobytes() for job in jobs]
    assert set(others) == {first}
    overlap = [job for job in jobs[1:] if job.started < jobs[0].finished]
    assert overlap
    steps = [event.step for event in jobs[0].events() if event.step]
    assert steps == list(range(1, 9))


def test_cancel_ends_one_job_and_leaves_the_replica(queue, ask):
    pids = [status.pid for status in queue.statuses()]
    job = ask(steps=150)
    while not (job.last_event and job.last_event.step):
        time.sleep(0.01)
    queue.cancel(job.id, "ann")
    assert finish(job) == {JobState.CANCELLED}
    assert job.last_event.step < 150
    assert finish(ask()) == {JobState.DONE}
    assert [status.pid for status in queue.statuses()] == pids


def test_a_mistake_is_told_as_by_one_process(ask):
    job = ask(width=65)
    assert finish(job) == {JobState.FAILED}
    assert "65" in str(job.error)
    assert job.error.is_users_mistake


def test_a_warm_up_covers_all_replicas(ask):
    job = ask(kind=JobKind.WARM_UP)
    assert finish(job) == {JobState.DONE}
    assert job.places == {0, 1}
    assert [event.detail for event in job.events() if "follow" in event.detail] == ["The other replicas follow."]


def test_the_kill_of_a_replica_under_load_loses_no_job(queue, ask):
    before = [status.pid for status in queue.statuses()]
    jobs = [ask(owner=f"owner{number % 8}", steps=12, seed=number) for number in range(16)]
    victim = 0
    while queue.statuses()[victim].state != "running":
        time.sleep(0.005)
    os.kill(before[victim], signal.SIGKILL)
    assert finish(*jobs) == {JobState.DONE}
    (again,) = [job for job in jobs if job.was_lost]
    assert again.places == {0, 1}
    told = " ".join(event.detail for event in again.events())
    assert f"Replica 1 (process {before[victim]} on " in told
    assert "has ended. The job runs again." in told
    assert [job.result.report.seeds for job in jobs] == [(number,) for number in range(16)]


def test_a_replica_that_dies_idle_is_started_again_and_costs_no_job_its_second_chance(queue, ask):
    before = [status.pid for status in queue.statuses()]  # of the one that was killed above: none yet, or a new one
    assert queue.statuses()[1].state == "idle"
    os.kill(before[1], signal.SIGKILL)
    while queue.statuses()[1].pid == before[1]:
        time.sleep(0.01)
    jobs = [ask(owner=f"owner{number}") for number in range(4)]
    assert finish(*jobs) == {JobState.DONE}
    assert not any(job.was_lost for job in jobs)
    wait_until_idle(queue)
    after = [status.pid for status in queue.statuses()]
    assert after[1] != before[1]
    assert all(psutil.pid_exists(pid) for pid in after)


def test_the_page_tells_of_each(queue):
    rows = [system_tab._replica(number, status, ENGLISH) for number, status in enumerate(queue.statuses(), 1)]
    assert [name for name, _ in rows] == ["Replica 1", "Replica 2"]
    for (_, told), status in zip(rows, queue.statuses(), strict=True):
        assert told.startswith(f"idle · process {status.pid} on ")
        assert " jobs done" in told or " job done" in told
    metrics = Metrics()
    metrics.watch(queue)
    text = metrics.text().decode()
    assert 'tpu_ui_replica_up{replica="2"} 1.0' in text
    assert 'tpu_ui_replica_jobs_total{replica="1"}' in text


@pytest.mark.slow
def test_the_bench_measures_one_and_all(queue):
    request = GenerationRequest.from_mapping(REQUEST | {"steps": 1})
    told = measure(queue.engine, request, rounds=1).as_dict()
    assert (told["replicas"], told["clients"], told["requests"]) == (2, 8, 32)
    (one,), (every,) = told["one"], told["all"]
    names = ("throughput_ratio", "throughput_ratio_min", "throughput_ratio_max")
    assert [told[name] for name in names] == pytest.approx([every / one] * 3)
    header, line, row = _replicas_table(told).splitlines()
    assert header.count("|") == line.count("|") == row.count("|")
    assert f"| {told['throughput_ratio']:.2f} (" in row


def test_wrong_options_of_the_bench_are_sentences(capsys):
    assert main(["bench", "--device", "cpu", "--replicas", "auto"]) == 2
    assert "the device is cpu. Give a number" in capsys.readouterr().err


def test_a_request_is_warm_where_its_replica_is(queue):
    pool = queue.engine
    request = GenerationRequest.from_mapping(REQUEST | {"mode": "compile"})
    _, keys = pool._resolve(request)
    digests = tuple(key.digest for key in keys)
    first, second = pool.members

    def tell(warm_in_first: bool, warm_in_second: bool) -> WarmupState:
        for member, is_warm in ((first, warm_in_first), (second, warm_in_second)):
            member.ledger.mirror(digests if is_warm else (), () if is_warm else digests)
        pool._mirror()
        assert {pool.ledger.state(key) for key in keys[:1]} == (
            {WarmupState.WARM} if warm_in_first or warm_in_second else {WarmupState.COMPILING}
        )
        return pool.foresee(request)[1].state

    assert tell(False, False) is WarmupState.COMPILING
    assert tell(False, True) is WarmupState.WARM
    assert pool.choose(request, {0, 1}, {}).place == 1
    second._busy_until = None  # it runs something, for nobody knows how long: the first will have the request
    try:
        assert pool.choose(request, {0}, {}).place == 0
        assert pool.foresee(request)[1].state is WarmupState.COMPILING
    finally:
        second._busy_until = 0.0
    assert tell(True, True) is WarmupState.WARM
    for member in pool.members:
        member.ledger.mirror((), ())
    pool._mirror()


class NeverOpen:
    """A replica whose device does not open."""

    def opened(self) -> None:
        threading.Event().wait()


@pytest.mark.usefixtures("queue")
def test_a_pool_that_nobody_waits_for_any_more_is_not_waited_for(tmp_path, monkeypatch):
    import ray  # as the fixture has prepared it

    from tpu_ui.replicas import pool

    actors = []

    def spawn(_name: str) -> ray.actor.ActorHandle:
        actors.append(ray.remote(NeverOpen).options(num_cpus=0, max_concurrency=2).remote())
        return actors[-1]

    monkeypatch.setattr(pool, "Cluster", lambda *_: SimpleNamespace(replicas=1, spawn=spawn, close=lambda: None))
    with pytest.raises(JobCancelled):
        pool.ReplicaPool(DeviceChoice("cpu", "for the test"), Settings(tmp_path), "demo", 1, None, lambda: True)
    (actor,) = actors
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.opened.remote(), timeout=20)


@pytest.mark.usefixtures("queue")
def test_where_no_cluster_is_the_sentence_says_how_to_start_one(tmp_path):
    """After the replicas of this file: Ray, once imported for a cluster that has no token, starts none that has one."""
    cpu, nowhere = DeviceChoice("cpu", "for the test"), f"127.0.0.1:{free_port()}"
    started = time.monotonic()
    with pytest.raises(DeviceUnavailable, match=rf"no Ray cluster .*{nowhere}.* ray start --head"):
        replica_starter(cpu, Settings(tmp_path), "demo", "1", nowhere)()
    assert time.monotonic() - started < 10
