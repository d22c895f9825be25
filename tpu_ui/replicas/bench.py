"""Throughput of all replicas against one of them, in the same run, with the same clients."""

import itertools
import statistics
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from tpu_ui.errors import TpuUiError
from tpu_ui.job import Choice, JobKind, JobState, MemberStatus, Pool
from tpu_ui.jobs import JobQueue
from tpu_ui.request import GenerationRequest

CLIENTS = 8
_REQUESTS_OF_CLIENT = 4  # each sends its next one when it has the last


@dataclass(frozen=True)
class Throughput:
    """Requests a second, round by round; one and all replicas take turns.

    Attributes:
        replicas: how many `all` stands for.
        requests: of a round.
        one, all: with one replica, and with all.
    """

    replicas: int
    clients: int
    requests: int
    one: tuple[float, ...]
    all: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        return [every / one for one, every in zip(self.one, self.all, strict=True)]

    def as_dict(self) -> dict:
        ratios = sorted(self.ratios)
        return asdict(self) | {
            "throughput_ratio": statistics.median(ratios),
            "throughput_ratio_min": ratios[0],
            "throughput_ratio_max": ratios[-1],
        }


def measure(pool: Pool, request: GenerationRequest, rounds: int) -> Throughput:
    """Warm a request up on all replicas and measure; the pool is left open.

    Raises:
        TpuUiError: a request failed.
    """
    with_all, with_one = _Some(pool, len(pool.members)), _Some(pool, 1)
    seeds = itertools.count()
    # Twice: a replica that was started last has run nothing but the warm-up, whose steps are few.
    _run(with_all, [[replace(request, seed=0)]], JobKind.WARM_UP)
    _round(with_all, request, seeds)
    one, every = [], []
    for number in range(rounds):
        sides = [(with_one, one), (with_all, every)]
        for some, measured in sides[:: 1 if number % 2 else -1]:
            measured.append(_round(some, request, seeds))
    return Throughput(len(pool.members), CLIENTS, CLIENTS * _REQUESTS_OF_CLIENT, tuple(one), tuple(every))


class _Some:
    """The first of a pool's members; its end is not theirs."""

    def __init__(self, pool: Pool, number: int) -> None:
        self.members = pool.members[:number]
        self._pool = pool

    def choose(self, request: GenerationRequest, idle: Collection[int], reserved: Mapping[int, float]) -> Choice:
        return self._pool.choose(request, idle, reserved)

    def statuses(self) -> list[MemberStatus]:
        return self._pool.statuses()[: len(self.members)]

    def close(self) -> None: ...


def _round(some: _Some, request: GenerationRequest, seeds: Iterator[int]) -> float:
    asked = [[replace(request, seed=next(seeds)) for _ in range(_REQUESTS_OF_CLIENT)] for _ in range(CLIENTS)]
    return CLIENTS * _REQUESTS_OF_CLIENT / _run(some, asked)


def _run(some: _Some, asked: list[list[GenerationRequest]], kind: JobKind = JobKind.GENERATE) -> float:
    """Seconds until all clients have their results, each with a list of requests."""
    queue = JobQueue(lambda: some)
    errors: list[TpuUiError] = []

    def use(owner: str, requests: list[GenerationRequest]) -> None:
        for one in requests:
            job = queue.submit(one, owner, kind)
            job.wait()
            if job.state is not JobState.DONE:
                errors.append(job.error or TpuUiError("A request was cancelled."))
                return

    clients = [
        threading.Thread(target=use, args=(f"client {number}", requests)) for number, requests in enumerate(asked)
    ]
    try:
        started = time.perf_counter()
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        seconds = time.perf_counter() - started
    finally:
        queue.close()
    if errors:
        raise errors[0]
    return seconds
