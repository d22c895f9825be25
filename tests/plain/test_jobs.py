"""The queue: who comes next, what can be cancelled by whom, and that one job's end is never another's."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from tpu_ui import jobs as jobs_module
from tpu_ui.errors import DeviceUnavailable, DoesNotFit, InvalidRequest, JobCancelled, QueueFull, TpuUiError
from tpu_ui.events import Phase, Progress, ProgressListener
from tpu_ui.jobs import Engine, Job, JobKind, JobQueue, JobState
from tpu_ui.report import GenerationResult, Report
from tpu_ui.request import GenerationRequest

PATIENCE = 60.0  # seconds before a test that hangs is called failed; nothing is measured against it


@dataclass
class ScriptedEngine:
    """An engine that does as it is told, by prompt, and remembers what it was asked.

    Attributes:
        gates: a run of this prompt waits for its gate, looking for a cancel meanwhile.
        faults: a run of this prompt raises this, after its gate.
        deaf: runs of these prompts do not look for a cancel.
    """

    gates: dict[str, threading.Event] = field(default_factory=dict)
    faults: dict[str, BaseException] = field(default_factory=dict)
    deaf: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    closed: int = 0
    _started: threading.Condition = field(default_factory=threading.Condition)

    def generate(
        self, request: GenerationRequest, emit: ProgressListener, cancelled: Callable[[], bool]
    ) -> GenerationResult:
        return self._run("generate", request, emit, cancelled)

    def warm_up(
        self, request: GenerationRequest, emit: ProgressListener, cancelled: Callable[[], bool]
    ) -> GenerationResult:
        return self._run("warm_up", request, emit, cancelled)

    def close(self) -> None:
        self.closed += 1

    def _run(
        self, kind: str, request: GenerationRequest, emit: ProgressListener, cancelled: Callable[[], bool]
    ) -> GenerationResult:
        prompt = request.prompt
        self.threads.add(threading.get_ident())
        with self._started:
            self.calls.append(prompt if kind == "generate" else f"warm:{prompt}")
            self._started.notify_all()
        emit(Progress(Phase.DENOISING, step=1, steps=2, detail=prompt))
        gate = self.gates.get(prompt)
        while gate is not None and not gate.wait(0.002):
            if cancelled() and prompt not in self.deaf:
                raise JobCancelled
        if prompt in self.faults:
            raise self.faults[prompt]
        emit(Progress(Phase.DONE, detail=prompt))
        return GenerationResult((), request, Report(ok=True, seeds=(request.seed or 0,)))

    def wait_until_started(self, prompt: str) -> None:
        with self._started:
            assert self._started.wait_for(lambda: prompt in self.calls, PATIENCE), f"{prompt} never started"


Queue = Callable[..., JobQueue]


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def new_queue(engine: ScriptedEngine) -> Iterator[Queue]:
    opened: list[JobQueue] = []

    def start(start_engine: Callable[[], Engine] = lambda: engine, **options: object) -> JobQueue:
        opened.append(JobQueue(start_engine, **options))
        return opened[-1]

    yield start
    for gate in engine.gates.values():
        gate.set()
    for queue in opened:
        queue.close()


@pytest.fixture
def queue(new_queue: Queue) -> JobQueue:
    return new_queue()


def ask(queue: JobQueue, prompt: str, owner: str = "a", kind: JobKind = JobKind.GENERATE, **fields: object) -> Job:
    return queue.submit(GenerationRequest(prompt=prompt, **fields), owner, kind)


def finish(*jobs: Job) -> list[JobState]:
    for job in jobs:
        assert job.wait(PATIENCE), f"{job.request.prompt} never ended"
    return [job.state for job in jobs]


@contextmanager
def held(queue: JobQueue, engine: ScriptedEngine, prompt: str = "first") -> Iterator[Job]:
    """While inside, a job of the owner "holder" occupies the device."""
    engine.gates[prompt] = threading.Event()
    job = ask(queue, prompt, "holder")
    engine.wait_until_started(prompt)
    yield job
    engine.gates[prompt].set()


# -- one job ----------------------------------------------------------------------------------------------------------


def test_a_job_from_the_queue_to_its_result(queue: JobQueue, engine: ScriptedEngine):
    job = ask(queue, "fox", seed=7)
    assert finish(job) == [JobState.DONE]
    assert job.result.request.prompt == "fox"
    assert job.result.report.seeds == (7,)
    assert job.error is None
    assert job.created <= job.started <= job.finished
    assert queue.find(job.id) is job
    assert queue.position(job) == 0
    assert queue.ahead_of(job) == []
    assert [event.phase for event in job.events()] == [Phase.QUEUED, Phase.DENOISING, Phase.DONE]
    assert job.last_event.phase is Phase.DONE
    assert engine.threads
    assert threading.get_ident() not in engine.threads


def test_kinds_of_jobs_reach_their_own_method(queue: JobQueue, engine: ScriptedEngine):
    finish(ask(queue, "x"), ask(queue, "x", kind=JobKind.WARM_UP))
    assert engine.calls == ["x", "warm:x"]


def test_results_are_kept_on_the_worker_before_the_job_is_done(new_queue: Queue, engine: ScriptedEngine):
    seen = []

    def keep(job: Job, result: GenerationResult) -> GenerationResult:
        seen.append((job.state, threading.get_ident()))
        return GenerationResult((), result.request, Report(ok=True, images=("saved.png",)))

    job = ask(new_queue(keep=keep), "x")
    assert finish(job) == [JobState.DONE]
    assert job.result.report.images == ("saved.png",)
    assert seen == [(JobState.RUNNING, *engine.threads)]


def test_a_result_that_cannot_be_kept_fails_its_job_only(new_queue: Queue):
    def keep(job: Job, result: GenerationResult) -> GenerationResult:
        if job.request.prompt == "bad":
            raise OSError("no room on the disk")
        return result

    queue = new_queue(keep=keep)
    assert finish(ask(queue, "bad"), ask(queue, "good")) == [JobState.FAILED, JobState.DONE]


# -- whose turn it is -------------------------------------------------------------------------------------------------


def test_one_owner_is_served_in_order(queue: JobQueue, engine: ScriptedEngine):
    prompts = [f"p{number}" for number in range(10)]
    finish(*[ask(queue, prompt) for prompt in prompts])
    assert engine.calls == prompts


def test_owners_take_turns(queue: JobQueue, engine: ScriptedEngine):
    """One who asks for many does not keep the others waiting for all of them."""
    with held(queue, engine):
        jobs = [ask(queue, f"a{number}", "a") for number in range(4)]
        jobs += [ask(queue, f"b{number}", "b") for number in range(2)]
        jobs += [ask(queue, "c0", "c")]
        promised = [job.request.prompt for job in queue.ahead_of(jobs[3])]
        assert [queue.position(job) for job in jobs] == [1, 4, 6, 7, 2, 5, 3]
    finish(*jobs)
    assert engine.calls == ["first", "a0", "b0", "c0", "a1", "b1", "a2", "a3"]
    assert promised == engine.calls[:-1]


def test_one_who_comes_late_waits_for_one_round_only(queue: JobQueue, engine: ScriptedEngine):
    for prompt in ("a0", "a1"):
        engine.gates[prompt] = threading.Event()
    jobs = [ask(queue, f"a{number}", "a") for number in range(4)]
    engine.wait_until_started("a0")
    jobs.append(ask(queue, "b0", "b"))
    engine.gates["a0"].set()
    engine.wait_until_started("a1")
    jobs.append(ask(queue, "c0", "c"))
    engine.gates["a1"].set()
    finish(*jobs)
    assert engine.calls.index("b0") == 2
    assert engine.calls.index("c0") <= 4


def test_warm_ups_wait_for_all_pictures(queue: JobQueue, engine: ScriptedEngine):
    with held(queue, engine):
        warm = [ask(queue, f"w{number}", "a", JobKind.WARM_UP) for number in range(2)]
        pictures = [ask(queue, f"p{number}", "b") for number in range(3)]
        assert [queue.position(job) for job in (*pictures, *warm)] == [1, 2, 3, 4, 5]
    finish(*warm, *pictures)
    assert engine.calls == ["first", "p0", "p1", "p2", "warm:w0", "warm:w1"]


def test_positions_are_told_on_entry_and_fall(queue: JobQueue, engine: ScriptedEngine):
    with held(queue, engine) as first:
        jobs = [ask(queue, f"p{number}") for number in range(3)]
        assert queue.waiting_count == 3
        assert queue.position(first) == 0
        assert [job.last_event.position for job in jobs] == [1, 2, 3]
        queue.cancel(jobs[0].id, "a")
        assert [queue.position(job) for job in jobs] == [0, 1, 2]
        assert queue.ahead_of(jobs[2]) == [first, jobs[1]]
    finish(*jobs)
    assert queue.waiting_count == 0


def test_jobs_of_an_owner(queue: JobQueue):
    mine, other = [ask(queue, f"p{number}", "me") for number in range(3)], ask(queue, "q", "you")
    assert queue.jobs_of("me") == mine
    assert queue.jobs_of("you") == [other]
    assert queue.jobs_of("nobody") == []


# -- cancelling -------------------------------------------------------------------------------------------------------


def test_cancel_while_queued(queue: JobQueue, engine: ScriptedEngine):
    with held(queue, engine):
        jobs = [ask(queue, "picture"), ask(queue, "warm", kind=JobKind.WARM_UP), ask(queue, "stays")]
        for job in jobs[:2]:
            assert queue.cancel(job.id, "a") is job
            assert job.state is JobState.CANCELLED  # at once
            assert job.finished is not None
    assert finish(*jobs) == [JobState.CANCELLED, JobState.CANCELLED, JobState.DONE]
    assert engine.calls == ["first", "stays"]


def test_cancel_while_running(queue: JobQueue, engine: ScriptedEngine):
    engine.gates["long"] = threading.Event()
    job, following = ask(queue, "long"), ask(queue, "next")
    engine.wait_until_started("long")
    queue.cancel(job.id, "a")
    assert job.cancel_requested
    assert finish(job, following) == [JobState.CANCELLED, JobState.DONE]
    assert job.result is None
    assert job.error is None
    assert not following.cancel_requested


def test_cancel_twice_and_after_the_end(queue: JobQueue, engine: ScriptedEngine):
    engine.gates["long"] = threading.Event()
    job = ask(queue, "long")
    engine.wait_until_started("long")
    for _ in range(2):
        queue.cancel(job.id, "a")
    assert finish(job) == [JobState.CANCELLED]
    assert queue.cancel(job.id, "a").state is JobState.CANCELLED
    done = ask(queue, "quick")
    finish(done)
    assert queue.cancel(done.id, "a").state is JobState.DONE
    assert done.result is not None


def test_a_cancel_that_comes_too_late_leaves_the_result(queue: JobQueue, engine: ScriptedEngine):
    engine.gates["long"] = threading.Event()
    engine.deaf.add("long")
    job = ask(queue, "long")
    engine.wait_until_started("long")
    queue.cancel(job.id, "a")
    engine.gates["long"].set()
    assert finish(job) == [JobState.DONE]
    assert job.result is not None


def test_another_owner_is_refused_as_if_there_were_no_such_job(queue: JobQueue, engine: ScriptedEngine):
    with held(queue, engine) as running:
        waiting = ask(queue, "waiting")
        sentences = set()
        for job_id, owner in (
            (running.id, "stranger"),
            (waiting.id, "stranger"),
            (waiting.id, ""),
            (waiting.id, "\ud800"),
            ("0" * 16, "a"),
            ("", ""),
        ):
            with pytest.raises(InvalidRequest) as refused:
                queue.cancel(job_id, owner)
            sentences.add(str(refused.value))
        assert len(sentences) == 1
        assert not waiting.cancel_requested
        assert not running.cancel_requested
    assert finish(running, waiting) == [JobState.DONE, JobState.DONE]


# -- events -----------------------------------------------------------------------------------------------------------


def test_events_can_be_read_again_from_anywhere_by_anyone(queue: JobQueue, engine: ScriptedEngine):
    engine.gates["fox"] = threading.Event()
    job, read = ask(queue, "fox"), {}

    def follow(name: str, start: int) -> None:
        read[name] = list(job.events(start))

    readers = [threading.Thread(target=follow, args=(f"{i}", start)) for i, start in enumerate((0, 0, 1, 2))]
    for reader in readers:
        reader.start()
    engine.wait_until_started("fox")
    engine.gates["fox"].set()
    finish(job)
    for reader in readers:
        reader.join(PATIENCE)
    whole = list(job.events())
    assert [event.phase for event in whole] == [Phase.QUEUED, Phase.DENOISING, Phase.DONE]
    assert [read[f"{i}"] for i in range(4)] == [whole, whole, whole[1:], whole[2:]]
    for start in range(5):
        assert list(job.events(start)) == whole[start:]
    assert list(job.events(-1)) == whole


def test_a_reader_with_little_patience_is_let_go_and_finds_back(queue: JobQueue, engine: ScriptedEngine):
    engine.gates["fox"] = threading.Event()
    job = ask(queue, "fox")
    engine.wait_until_started("fox")
    first = list(job.events(timeout=0.01))
    assert [event.phase for event in first] == [Phase.QUEUED, Phase.DENOISING]
    assert not job.state.is_final
    assert list(job.events(start=2, timeout=0.01)) == []
    assert not job.wait(0.01)
    engine.gates["fox"].set()
    assert [event.phase for event in job.events(start=2, timeout=PATIENCE)] == [Phase.DONE]


def test_a_change_of_state_does_not_end_a_reader_that_has_time(queue: JobQueue, engine: ScriptedEngine):
    """When a job begins to run, no event comes with it; the one who waits must go on waiting."""
    with held(queue, engine):
        job, read = ask(queue, "fox"), []
        reader = threading.Thread(target=lambda: read.extend(job.events(timeout=PATIENCE)))
        reader.start()
        job._move(JobState.QUEUED)  # wakes the reader without an event
    finish(job)
    reader.join(PATIENCE)
    assert [event.phase for event in read] == [Phase.QUEUED, Phase.DENOISING, Phase.DONE]


# -- faults -----------------------------------------------------------------------------------------------------------


def test_a_fault_with_a_sentence_is_the_jobs_error(queue: JobQueue, engine: ScriptedEngine):
    fault = DoesNotFit("It needs 3 GB more.", "Ask for a smaller size.")
    engine.faults["big"] = fault
    jobs = [ask(queue, "big"), ask(queue, "small")]
    assert finish(*jobs) == [JobState.FAILED, JobState.DONE]
    assert jobs[0].error is fault
    assert jobs[0].result is None


@pytest.mark.parametrize(
    "fault", [RuntimeError("/secret/path"), KeyError("x"), MemoryError(), RecursionError()], ids=repr
)
def test_an_unexpected_fault_fails_that_job_only(
    queue: JobQueue, engine: ScriptedEngine, fault: Exception, caplog: pytest.LogCaptureFixture
):
    engine.faults["bad"] = fault
    jobs = [ask(queue, prompt) for prompt in ("before", "bad", "after")]
    assert finish(*jobs) == [JobState.DONE, JobState.FAILED, JobState.DONE]
    sentence = str(jobs[1].error)
    assert jobs[1].id in sentence
    assert "secret" not in sentence
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert jobs[1].id in caplog.text
    assert type(fault).__name__ in caplog.text


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (DeviceUnavailable("device: there is no TPU.", "Choose cpu."), "device: there is no TPU. Choose cpu."),
        (RuntimeError("/secret/path"), "The engine could not be started. The log has the details."),
    ],
    ids=["with a sentence", "without"],
)
def test_an_engine_that_does_not_start_gives_every_job_the_sentence(new_queue: Queue, fault: Exception, sentence: str):
    may_fail = threading.Event()

    def start() -> Engine:
        may_fail.wait(PATIENCE)
        raise fault

    queue = new_queue(start)
    early = [ask(queue, "a"), ask(queue, "b", "other", JobKind.WARM_UP)]
    may_fail.set()
    assert finish(*early) == [JobState.FAILED, JobState.FAILED]
    late = ask(queue, "c")
    assert finish(late) == [JobState.FAILED]
    assert {str(job.error) for job in (*early, late)} == {sentence}
    assert str(queue.engine_error) == sentence
    assert queue.engine is None


def test_jobs_can_be_cancelled_while_the_engine_starts(new_queue: Queue, engine: ScriptedEngine):
    started = threading.Event()

    def start() -> Engine:
        started.wait(PATIENCE)
        return engine

    queue = new_queue(start)
    jobs = [ask(queue, "cancelled"), ask(queue, "kept")]
    queue.cancel(jobs[0].id, "a")
    started.set()
    assert finish(*jobs) == [JobState.CANCELLED, JobState.DONE]
    assert engine.calls == ["kept"]


def test_every_end_is_told_once(new_queue: Queue, engine: ScriptedEngine):
    told: list[tuple[str, JobState]] = []
    queue = new_queue(on_finished=lambda job: told.append((job.request.prompt, job.state)))
    engine.faults["bad"] = TpuUiError("no")
    with held(queue, engine):
        jobs = [ask(queue, prompt) for prompt in ("good", "bad", "cancelled")]
        queue.cancel(jobs[2].id, "a")
    finish(*jobs)
    queue.close()
    assert sorted(told) == [
        ("bad", JobState.FAILED), ("cancelled", JobState.CANCELLED), ("first", JobState.DONE), ("good", JobState.DONE),
    ]  # fmt: skip


def test_a_listener_that_raises_harms_nobody(
    new_queue: Queue, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
):
    def listen(_job: Job) -> None:
        raise ValueError("the counter broke")

    queue = new_queue(on_finished=listen)
    with held(queue, engine):
        jobs = [ask(queue, "waits"), ask(queue, "runs")]
        assert queue.cancel(jobs[0].id, "a").state is JobState.CANCELLED
    assert finish(*jobs) == [JobState.CANCELLED, JobState.DONE]
    assert "the counter broke" in caplog.text


# -- limits -----------------------------------------------------------------------------------------------------------


def test_an_owners_limit_counts_pictures_and_warm_ups(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jobs_module, "_MAX_WAITING_OF_OWNER", 3)
    with held(queue, engine):
        mine = [ask(queue, "p0"), ask(queue, "w0", kind=JobKind.WARM_UP), ask(queue, "p1")]
        for kind in JobKind:
            with pytest.raises(QueueFull) as refused:
                ask(queue, "too many", kind=kind)
            assert refused.value.is_users_mistake
        other = ask(queue, "other", "b")
        queue.cancel(mine[0].id, "a")
        mine.append(ask(queue, "p2"))
        assert len(queue.jobs_of("a")) == 4  # what was refused left no trace
    assert finish(*mine, other)[1:] == [JobState.DONE] * 4
    assert "too many" not in engine.calls


def test_the_limit_of_all(queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs_module, "_MAX_WAITING", 4)
    with held(queue, engine):
        jobs = [ask(queue, f"p{number}", f"owner{number}") for number in range(4)]
        with pytest.raises(QueueFull):
            ask(queue, "too many", "another")
    finish(*jobs)
    assert finish(ask(queue, "again", "another")) == [JobState.DONE]


def test_old_jobs_are_forgotten_but_none_that_waits(
    queue: JobQueue, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jobs_module, "_KEPT_FINISHED_JOBS", 3)
    old = [ask(queue, f"old{number}") for number in range(6)]
    finish(*old)
    with held(queue, engine) as running:
        waiting = [ask(queue, f"new{number}") for number in range(5)]
        assert queue.jobs_of("a") == old[3:] + waiting
        assert queue.find(running.id) is running
        with pytest.raises(InvalidRequest, match="no such job"):
            queue.find(old[0].id)
    assert finish(*waiting) == [JobState.DONE] * 5


# -- the end ----------------------------------------------------------------------------------------------------------


def test_close_cancels_what_waits_and_what_runs(new_queue: Queue, engine: ScriptedEngine):
    queue = new_queue()
    engine.gates["long"] = threading.Event()
    jobs = [ask(queue, "long"), ask(queue, "waits", "b"), ask(queue, "warm", kind=JobKind.WARM_UP)]
    engine.wait_until_started("long")
    queue.close()
    assert [job.state for job in jobs] == [JobState.CANCELLED] * 3
    assert engine.calls == ["long"]
    assert engine.closed == 1
    assert queue.waiting_count == 0
    queue.close()
    assert engine.closed == 1


def test_close_waits_for_a_job_that_cannot_be_stopped(new_queue: Queue, engine: ScriptedEngine):
    queue = new_queue()
    engine.gates["deaf"] = threading.Event()
    engine.deaf.add("deaf")
    job = ask(queue, "deaf")
    engine.wait_until_started("deaf")
    closer = threading.Thread(target=queue.close)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive()
    assert engine.closed == 0
    engine.gates["deaf"].set()
    closer.join(PATIENCE)
    assert job.state is JobState.DONE
    assert engine.closed == 1


def test_a_closed_queue_takes_nothing(new_queue: Queue):
    queue = new_queue()
    queue.close()
    with pytest.raises(QueueFull, match="the program is ending"):
        ask(queue, "late")
    assert queue.jobs_of("a") == []


def test_close_of_a_queue_whose_engine_never_started(new_queue: Queue):
    def start() -> Engine:
        raise TpuUiError("no device")

    queue = new_queue(start)
    queue.close()
    assert queue.engine is None
    assert str(queue.engine_error) == "no device"


# -- many at once -----------------------------------------------------------------------------------------------------


def test_each_result_belongs_to_its_request(queue: JobQueue, engine: ScriptedEngine):
    """Three owners with twenty jobs each, from three threads, some of them cancelled on the way."""
    owners, jobs, cancelled = ("a", "b", "c"), {}, set()
    barrier = threading.Barrier(len(owners))

    def use(owner: str) -> None:
        barrier.wait()
        for number in range(20):
            job = ask(queue, f"{owner}{number}", owner, seed=hash((owner, number)) % 2**32)
            jobs[owner, number] = job
            if number % 5 == 4:
                queue.cancel(job.id, owner)
                cancelled.add((owner, number))
            if number % 7 == 6:
                assert job.wait(PATIENCE)

    threads = [threading.Thread(target=use, args=(owner,)) for owner in owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(jobs) == 60
    finish(*jobs.values())
    for (owner, number), job in jobs.items():
        if job.state is JobState.CANCELLED:
            assert (owner, number) in cancelled
            assert job.result is None
            continue
        assert job.state is JobState.DONE
        assert job.result.request is job.request
        assert job.result.report.seeds == (job.request.seed,)
        assert {event.detail for event in job.events(1)} == {f"{owner}{number}"}
    assert len(engine.threads) == 1
    assert len(engine.calls) == len(set(engine.calls))
    for owner in owners:
        numbers = [int(prompt[1:]) for prompt in engine.calls if prompt[0] == owner]
        assert numbers == sorted(numbers)
        assert set(numbers) >= {number for number in range(20) if number % 5 != 4}
