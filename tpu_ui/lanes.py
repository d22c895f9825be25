"""Which engine of a pool runs which job: a thread for each, and one that hands the jobs out."""

import logging
import math
import threading
from collections.abc import Callable
from functools import partial

from tpu_ui.errors import JobCancelled, TpuUiError
from tpu_ui.job import Choice, Job, JobKind, Member, Pool
from tpu_ui.waiting import Waiting

log = logging.getLogger(__name__)

_LOOK_AGAIN_SECONDS = 1.0  # a busy member may turn out to take longer than it was worth waiting for
_TRY_AGAIN_SECONDS = 60.0  # to open a member that could not be opened
_MOST_EXAMINED = 32  # jobs in one look: what became free meanwhile comes before the rest


class Lanes:
    """The threads of a pool's members.

    Args:
        lock, waiting: the queue's own.
        begin: called with a job that was given to a member, under the lock.
        run: called with a job, its member, and what tells whether others should have it too; on the member's thread.
        is_closing: whether everything should end.
    """

    def __init__(
        self,
        pool: Pool,
        lock: threading.Condition,
        waiting: Waiting,
        begin: Callable[[Job], None],
        run: Callable[[Job, Member, Callable[[], bool]], None],
        is_closing: Callable[[], bool],
    ) -> None:
        self._pool = pool
        self._lock = lock
        self._waiting = waiting
        self._begin = begin
        self._run = run
        self._is_closing = is_closing
        self._idle: set[int] = set()
        self._given: dict[int, Job] = {}

    def serve(self) -> None:
        """Hand jobs out until the end, on this thread."""
        places = range(len(self._pool.members))
        lanes = [
            threading.Thread(target=self._lane, args=(place,), name=f"replica-{place}", daemon=True) for place in places
        ]
        for lane in lanes:
            lane.start()
        while not self._is_closing():
            with self._lock:
                jobs, idle = self._waiting.order(), set(self._idle)
            self._hand_out(jobs, set(idle))
            with self._lock:
                if not self._is_closing() and (self._waiting.order(), self._idle) == (jobs, idle):
                    self._lock.wait(_LOOK_AGAIN_SECONDS if jobs and idle else None)
        for lane in lanes:
            lane.join()

    def _hand_out(self, jobs: list[Job], idle: set[int]) -> None:
        """Without the lock: what a request will cost is read from files."""
        reserved: dict[int, float] = {}
        known, examined = set(idle), 0
        for job in jobs:
            if not idle or self._idle - known or examined >= _MOST_EXAMINED:
                return
            allowed = self._allowed(job, idle)
            if not allowed:
                continue
            seconds = None
            if job.kind is JobKind.WARM_UP:
                place = min(allowed)
            else:
                examined += 1
                choice = self._choice(job, allowed, reserved)
                place, seconds = choice.place, choice.seconds
                if place not in allowed:
                    reserved[place] = reserved.get(place, 0.0) + (seconds or 0.0)
                    continue
            idle.discard(place)
            with self._lock:
                if self._is_closing():
                    return
                if job in self._waiting.order() and place in self._idle:  # else it was cancelled meanwhile
                    self._begin(job)
                    self._idle.discard(place)
                    self._given[place] = job
                    reserved[place] = math.inf if seconds is None else seconds  # its thread has not begun yet
                    self._lock.notify_all()

    def _choice(self, job: Job, allowed: set[int], reserved: dict[int, float]) -> Choice:
        try:
            return self._pool.choose(job.request, allowed, reserved)
        except Exception:  # as at the worker's border: the job runs all the same
            log.exception("no member could be chosen for job %s", job.id)
            return Choice(min(allowed), None)

    def _allowed(self, job: Job, idle: set[int]) -> set[int]:
        """The idle members that may run a job; one that is lost only where there is no other."""
        members = self._pool.members
        up = {place for place in idle if not members[place].is_lost}
        usable = up or (idle if len(idle) == len(members) else set())
        fresh = usable - job.places
        if fresh or self._others_of(job):
            return fresh
        return usable

    def _others_of(self, job: Job) -> bool:
        """Whether a member that is up, or starts, has not had the job yet."""
        return any(
            place not in job.places and not (member.is_lost and place in self._idle)
            for place, member in enumerate(self._pool.members)
        )

    def _lane(self, place: int) -> None:
        member = self._pool.members[place]
        while not self._is_closing():
            is_up = not member.is_lost or self._open(member)
            with self._lock:
                self._idle.add(place)
                self._lock.notify_all()
                # One that is lost while it is idle is opened again; one that cannot be opened a while later.
                self._lock.wait_for(
                    lambda: place in self._given or self._is_closing(),
                    _LOOK_AGAIN_SECONDS if is_up else _TRY_AGAIN_SECONDS,
                )
                job = self._given.pop(place, None)
                self._idle.discard(place)
            if job is not None:
                job.places.add(place)
                self._run(job, member, partial(self._others_of, job))

    def _open(self, member: Member) -> bool:
        try:
            member.open(self._is_closing)
            return True
        except JobCancelled:
            pass
        except TpuUiError as error:  # the next request that it is given tries again, and tells
            log.warning("%s", error)
        except Exception:  # as at the worker's border: the member is tried again
            log.exception("a member could not be opened")
        return False
