"""Replicas before Ray is there: which one runs a request, what is refused, and a queue with several engines."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tpu_ui import engine, hardware, lanes
from tpu_ui.errors import DeviceUnavailable, InvalidRequest, TpuUiError, WorkerLost
from tpu_ui.events import Phase, Progress, ProgressListener
from tpu_ui.forecast import Forecast
from tpu_ui.graphs import WarmupState
from tpu_ui.hardware import DeviceChoice, TpuHost, find_chip
from tpu_ui.job import Choice, Job, JobKind, JobState
from tpu_ui.jobs import JobQueue
from tpu_ui.page.options import parse_options
from tpu_ui.replicas.bench import Throughput
from tpu_ui.replicas.choice import Offer, choose_offer
from tpu_ui.replicas.starting import parse_replicas, replica_starter
from tpu_ui.report import GenerationResult, Report
from tpu_ui.request import GenerationRequest
from tpu_ui.settings import Settings
from tpu_ui.waiting import Waiting

PATIENCE = 30.0
V6E_4 = DeviceChoice("tpu", "for the test", TpuHost(find_chip("v6e"), 4))
CPU = DeviceChoice("cpu", "for the test")


# -- which one --------------------------------------------------------------------------------------------------------


def offer(
    place: int,
    state: str = "cold",
    wait: float | None = 0.0,
    warmup: float | None = None,
    run: float | None = None,
    load: float | None = 0.0,
) -> Offer:
    if state == "warm":
        warmup = 0.0
    return Offer(place, wait, load, Forecast(WarmupState(state), None, warmup, run, 0, 0))


WARM_BUSY = offer(0, "warm", wait=5.0, run=2.0)


@pytest.mark.parametrize(
    ("offers", "place", "why"),
    [
        ([offer(0), offer(1)], 0, "all alike: the first"),
        ([offer(0), offer(1, "warm")], 1, "warm comes first, whatever is known of times"),
        ([offer(0, "on_disk"), offer(1, "cold")], 0, "on disk before cold"),
        ([offer(0, "cold"), offer(1, "on_disk")], 1, "on disk before cold, in any place"),
        ([offer(0, load=None), offer(1, load=0.0)], 1, "the one that has the model loaded"),
        ([offer(0, load=9.0), offer(1, load=0.0)], 1, "the one that has the model loaded"),
        ([WARM_BUSY, offer(1, warmup=6.0, run=2.0)], 0, "5 + 2 s is sooner than 6 + 2 s"),
        ([WARM_BUSY, offer(1, warmup=5.0, run=2.0)], 0, "no later is worth it: nothing is compiled"),
        ([WARM_BUSY, offer(1, warmup=4.0, run=2.0)], 1, "5 + 2 s is later than 4 + 2 s"),
        ([WARM_BUSY, offer(1, warmup=4.0, run=2.0, load=3.0)], 0, "loading counts too"),
        ([WARM_BUSY, offer(1)], 1, "nobody knows what the idle one takes"),
        ([WARM_BUSY, offer(1, warmup=60.0, run=2.0, load=None)], 1, "nobody knows what loading takes"),
        ([offer(0, "warm", wait=None, run=2.0), offer(1, warmup=60.0, run=2.0)], 1, "nor how long the busy one is"),
        ([offer(0, "warm", wait=5.0), offer(1, warmup=60.0, run=2.0)], 1, "nor what it takes where it is warm"),
        ([offer(0, "on_disk", wait=0.1, warmup=1.0, run=1.0), offer(1, warmup=60.0, run=1.0)], 1, "busy and not warm"),
        ([WARM_BUSY, offer(1, "warm", wait=3.0, run=2.0), offer(2, warmup=9.0, run=2.0)], 1, "the sooner of two busy"),
        ([WARM_BUSY, offer(1, wait=1.0)], 0, "none idle: the warm one"),
        ([offer(0, wait=None), offer(1, wait=1.0)], 1, "none idle, none warm: the one that is free first"),
    ],
)
def test_the_choice_of_a_replica(offers: list[Offer], place: int, why: str):
    assert choose_offer(offers).place == place, why
    assert choose_offer(offers[::-1]).place == place, why


# -- what is refused --------------------------------------------------------------------------------------------------


def test_replicas_are_read_as_a_user_writes_them():
    assert (parse_replicas("2"), parse_replicas(" Auto ")) == (2, None)
    for wrong in ("0", "-1", "1.5", "257", "many", "", "²"):
        with pytest.raises(InvalidRequest, match=r"replicas: .* Give auto, or 1 to 256"):
            parse_replicas(wrong)
    given = parse_options(["--replicas", "auto", "--ray-address", "10.0.0.1:6379"], {})
    assert (given.replicas, given.ray_address) == ("auto", "10.0.0.1:6379")
    of_environment = parse_options([], {"TPU_UI_REPLICAS": "2", "TPU_UI_RAY_ADDRESS": "auto"})
    assert (of_environment.replicas, of_environment.ray_address) == ("2", "auto")
    with pytest.raises(InvalidRequest, match="replicas: 'x'"):
        parse_options(["--replicas", "x"], {})


@pytest.mark.parametrize(
    ("choice", "wanted", "address", "sentence"),
    [
        (CPU, "auto", None, "auto is one for each TPU chip, and the device is cpu. Give a number"),
        (V6E_4, "5", None, "5 were asked for, and there are 4 chips here. Give auto, or at most 4"),
        (CPU, "2", "ray://10.0.0.1:10001", "is not the address of a cluster. Give HOST:6379, or auto"),
    ],
)
def test_what_cannot_be_started_is_refused(tmp_path: Path, choice, wanted, address, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        replica_starter(choice, Settings(tmp_path), "demo", wanted, address)


def test_they_are_not_started_before_their_thread_asks(tmp_path: Path):
    for choice, wanted, address in ((CPU, "2", None), (V6E_4, "auto", None), (V6E_4, "5", "10.0.0.1:6379")):
        assert callable(replica_starter(choice, Settings(tmp_path), "demo", wanted, address))


def test_without_ray_the_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "is_installed", lambda package: package != "ray")
    with pytest.raises(
        DeviceUnavailable, match=r'not installed\. Install it with: pip install "ray==2\.60\.0"'
    ) as told:
        engine.engine_starter("cpu", Settings(tmp_path), replicas="2")
    assert told.value.is_users_mistake


def test_the_version_is_the_one_that_is_tested():
    from tpu_ui.replicas.starting import RAY_REQUIREMENT

    root = Path(__file__).resolve().parents[2]
    assert RAY_REQUIREMENT in (root / "tests" / "requirements.txt").read_text().splitlines()
    assert f'replicas = ["{RAY_REQUIREMENT}"]' in (root / "pyproject.toml").read_text()


def test_options_that_exclude_each_other(tmp_path: Path):
    with pytest.raises(InvalidRequest, match=r"--tensor-parallel splits one\. Give one of the two"):
        engine.engine_starter("cpu", Settings(tmp_path), tensor_parallel="2", replicas="2")
    with pytest.raises(InvalidRequest, match=r"ray-address: it is for replicas\. Give --replicas"):
        engine.engine_starter("cpu", Settings(tmp_path), ray_address="auto")


def test_the_ratio_of_the_bench_is_the_median_of_its_rounds():
    told = Throughput(2, 8, 32, one=(2.0, 1.0, 4.0), all=(4.0, 1.0, 12.0)).as_dict()
    names = ("throughput_ratio_min", "throughput_ratio", "throughput_ratio_max")
    assert [told[name] for name in names] == [1.0, 2.0, 3.0]


# -- a queue with several engines -------------------------------------------------------------------------------------


@dataclass
class ScriptedMember:
    """Runs each prompt until its gate opens; dies where it is told to.

    Attributes:
        deaths: prompts at which it is lost, once each.
        refusals: how often it cannot be opened.
    """

    name: str
    gates: dict[str, threading.Event]
    deaths: set[str] = field(default_factory=set)
    refusals: int = 0
    calls: list[str] = field(default_factory=list)
    opened: int = 0
    is_lost: bool = True

    def open(self, cancelled: Callable[[], bool]) -> None:
        assert not cancelled()
        if self.refusals:
            self.refusals -= 1
            raise DeviceUnavailable(f"{self.name} cannot be opened.")
        self.opened += 1
        self.is_lost = False

    def generate(
        self, request: GenerationRequest, emit: ProgressListener, cancelled: Callable[[], bool]
    ) -> GenerationResult:
        if self.is_lost:
            self.open(cancelled)
        self.calls.append(request.prompt)
        emit(Progress(Phase.DENOISING, step=1, steps=1))
        assert self.gates.setdefault(request.prompt, _opened()).wait(PATIENCE)
        if request.prompt in self.deaths:
            self.deaths.remove(request.prompt)
            self.is_lost = True
            raise WorkerLost(f"{self.name} has ended.", "It is started again.")
        return GenerationResult((), request, Report(ok=True, new_compiles=1))

    warm_up = generate

    def close(self) -> None: ...


def _opened() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass
class ScriptedPool:
    """Takes the first idle member, or the one that a prompt is bound to."""

    members: list[ScriptedMember]
    bound: dict[str, int] = field(default_factory=dict)
    reserved: list[dict[int, float]] = field(default_factory=list)
    closed: int = 0

    def choose(self, request: GenerationRequest, idle: Collection[int], reserved: Mapping[int, float]) -> Choice:
        self.reserved.append(dict(reserved))
        if request.prompt == "no choice":
            raise ValueError("the choice broke")
        return Choice(self.bound.get(request.prompt, min(idle)), 2.0)

    def statuses(self) -> list:
        return []

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def pool() -> ScriptedPool:
    gates: dict[str, threading.Event] = {}
    return ScriptedPool([ScriptedMember(f"Replica {number}", gates) for number in (1, 2)])


@pytest.fixture
def queue(pool: ScriptedPool) -> Iterator[JobQueue]:
    queue = JobQueue(lambda: pool)
    wait_for(lambda: queue.lanes == 2 and not any(member.is_lost for member in pool.members))
    yield queue
    for gate in pool.members[0].gates.values():
        gate.set()
    queue.close()
    assert pool.closed == 1


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def ask(queue: JobQueue, prompt: str, owner: str = "a", kind: JobKind = JobKind.GENERATE) -> Job:
    return queue.submit(GenerationRequest(prompt=prompt), owner, kind)


def hold(queue: JobQueue, pool: ScriptedPool, *prompts: str) -> list[Job]:
    """Let jobs of owners of their own occupy members until their gates are opened."""
    for prompt in prompts:
        pool.members[0].gates[prompt] = threading.Event()
    jobs = [ask(queue, prompt, f"owner of {prompt}") for prompt in prompts]
    wait_for(lambda: all(job.state is JobState.RUNNING for job in jobs))
    return jobs


def finish(*jobs: Job) -> list[JobState]:
    for job in jobs:
        assert job.wait(PATIENCE), f"{job.request.prompt} never ended"
    return [job.state for job in jobs]


def test_members_run_at_once_and_positions_count_what_has_to_end(queue: JobQueue, pool: ScriptedPool):
    held = hold(queue, pool, "x")
    assert ask(queue, "goes by").wait(PATIENCE)
    held += hold(queue, pool, "y")
    waiting = [ask(queue, f"w{number}") for number in range(3)]
    assert [queue.position(job) for job in (*held, *waiting)] == [0, 0, 1, 2, 3]
    assert queue.ahead_of(waiting[1]) == [*held, waiting[0]]
    pool.members[0].gates["x"].set()
    assert finish(*waiting) == [JobState.DONE] * 3
    assert held[1].state is JobState.RUNNING
    assert [job.places for job in held] == [{0}, {1}]


def test_owners_take_turns_on_all_members(queue: JobQueue, pool: ScriptedPool):
    hold(queue, pool, "x", "y")
    jobs = [ask(queue, prompt, prompt[0]) for prompt in ("a1", "a2", "a3", "b1", "b2")]
    pool.members[0].gates["x"].set()
    finish(*jobs)
    assert pool.members[0].calls[1:] == ["a1", "b1", "a2", "b2", "a3"]


def test_who_waits_for_a_busy_member_lets_others_pass(queue: JobQueue, pool: ScriptedPool):
    hold(queue, pool, "x")
    pool.bound |= {"bound": 0, "bound too": 0}
    waits = [ask(queue, "bound"), ask(queue, "bound too", "b")]
    assert finish(ask(queue, "free", "c")) == [JobState.DONE]
    assert [job.state for job in waits] == [JobState.QUEUED] * 2
    assert {0: 2.0} in pool.reserved  # the second was told that the first waits there
    pool.members[0].gates["x"].set()
    assert finish(*waits) == [JobState.DONE] * 2
    assert pool.members[0].calls == ["x", "bound", "bound too"]
    assert pool.members[1].calls == ["free"]


def test_the_job_of_a_lost_member_runs_once_elsewhere_before_others(queue: JobQueue, pool: ScriptedPool):
    pool.members[0].deaths.add("x")
    (first, _) = hold(queue, pool, "x", "y")
    others = [ask(queue, "other", "b"), ask(queue, "mine too", "owner of x")]
    pool.bound["other"] = 1  # else the member that is started again may have it first
    pool.members[0].gates["x"].set()
    wait_for(lambda: first.state is JobState.QUEUED)
    pool.members[0].gates["y"].set()
    assert finish(first, *others) == [JobState.DONE] * 3
    assert first.places == {0, 1}
    assert pool.members[1].calls[:2] == ["y", "x"]
    told = [event.detail for event in first.events() if event.phase is Phase.QUEUED]
    assert told == ["", "Replica 1 has ended. The job runs again."]
    assert pool.members[0].opened == 2


def test_at_the_second_loss_the_job_fails_and_names_the_member(queue: JobQueue, pool: ScriptedPool):
    for member in pool.members:
        member.deaths.add("deadly")
    job = ask(queue, "deadly")
    assert finish(job) == [JobState.FAILED]
    assert isinstance(job.error, WorkerLost)
    assert str(job.error) == "Replica 2 has ended. It is started again."
    assert finish(ask(queue, "next")) == [JobState.DONE]


def test_a_lost_job_that_was_cancelled_does_not_run_again(queue: JobQueue, pool: ScriptedPool):
    pool.members[0].deaths.add("x")
    (job,) = hold(queue, pool, "x")
    queue.cancel(job.id, job.owner)
    pool.members[0].gates["x"].set()
    assert finish(job) == [JobState.CANCELLED]
    assert queue.waiting_count == 0


@pytest.mark.usefixtures("queue")
def test_a_member_lost_while_idle_is_opened_again(pool: ScriptedPool):
    pool.members[1].is_lost = True
    wait_for(lambda: pool.members[1].opened == 2)


def test_where_no_member_can_be_opened_the_job_has_the_sentence(queue: JobQueue, pool: ScriptedPool):
    for member in pool.members:
        member.refusals, member.is_lost = 2, True  # once by itself, once for the job
    wait_for(lambda: [member.refusals for member in pool.members] == [1, 1])
    job = ask(queue, "x")
    assert finish(job) == [JobState.FAILED]
    assert "cannot be opened" in str(job.error)
    assert finish(ask(queue, "y")) == [JobState.DONE]


def test_a_warm_up_covers_all_members_after_the_pictures(queue: JobQueue, pool: ScriptedPool):
    hold(queue, pool, "x", "y")
    warm = ask(queue, "warm", kind=JobKind.WARM_UP)
    picture = ask(queue, "picture")
    pool.members[0].gates["x"].set()
    assert finish(picture) == [JobState.DONE]
    pool.members[0].gates["y"].set()
    assert finish(warm) == [JobState.DONE]
    assert pool.members[0].calls == ["x", "picture", "warm"]
    assert pool.members[1].calls == ["y", "warm"]
    assert warm.result.report.new_compiles == 2
    assert pool.reserved  # pictures are chosen for; a warm-up goes wherever it has not been


def test_a_warm_up_goes_on_where_a_member_is_lost(queue: JobQueue, pool: ScriptedPool):
    pool.members[0].deaths.add("warm")
    warm = ask(queue, "warm", kind=JobKind.WARM_UP)
    assert finish(warm) == [JobState.DONE]
    assert pool.members[1].calls == ["warm"]
    assert pool.members[0].calls == ["warm", "warm"], "it started again with nothing warm"


@pytest.mark.parametrize("fault", [DeviceUnavailable("It cannot be opened."), ValueError("a fault of Ray's")])
def test_a_member_that_could_not_be_opened_is_tried_again(queue, pool, monkeypatch, fault):
    monkeypatch.setattr(lanes, "_TRY_AGAIN_SECONDS", 0.02)
    opened, first = pool.members[1].open, [fault]

    def open_at_last(cancelled: Callable[[], bool]) -> None:
        if first:
            raise first.pop()
        opened(cancelled)

    pool.members[1].open, pool.members[1].is_lost = open_at_last, True
    wait_for(lambda: not pool.members[1].is_lost)
    assert not first
    assert finish(ask(queue, "x")) == [JobState.DONE]


def test_a_job_that_was_just_given_counts_for_the_next_one(pool: ScriptedPool):
    """In one look at the queue: its member's thread has not begun yet."""
    begun: list[Job] = []
    lock, waiting = threading.Condition(), Waiting()
    handing = lanes.Lanes(pool, lock, waiting, lambda job: (waiting.take(job), begun.append(job)), None, lambda: False)
    handing._idle.update({0, 1})
    for member in pool.members:
        member.is_lost = False
    for number in range(2):
        waiting.add(Job(str(number), str(number), JobKind.GENERATE, GenerationRequest(prompt=str(number))))
    handing._hand_out(waiting.order(), {0, 1})
    assert len(begun) == 2
    assert pool.reserved == [{}, {0: 2.0}]


def test_a_choice_that_breaks_harms_nobody(queue: JobQueue, caplog: pytest.LogCaptureFixture):
    assert finish(ask(queue, "no choice")) == [JobState.DONE]
    assert "no member could be chosen" in caplog.text


def test_close_ends_all_members_and_what_waits(pool: ScriptedPool):
    queue = JobQueue(lambda: pool)
    running = hold(queue, pool, "x", "y")
    waiting = ask(queue, "w")
    closer = threading.Thread(target=queue.close)
    closer.start()
    wait_for(lambda: waiting.state is JobState.CANCELLED)
    assert closer.is_alive()
    for gate in pool.members[0].gates.values():
        gate.set()
    closer.join(PATIENCE)
    assert finish(*running) == [JobState.DONE] * 2
    assert pool.closed == 1


def test_a_pool_that_does_not_start_gives_every_job_the_sentence():
    def start() -> ScriptedPool:
        raise TpuUiError("Ray cannot be started.")

    queue = JobQueue(start)
    job = ask(queue, "x")
    assert finish(job) == [JobState.FAILED]
    assert str(job.error) == "Ray cannot be started."
    assert (queue.lanes, queue.statuses()) == (1, [])
    queue.close()
