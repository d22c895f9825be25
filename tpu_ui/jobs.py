"""Jobs: what waits, what runs, what became of it. One worker thread owns the device.

A job has an id, and its events can be read again from any position, so that a face that lost its connection finds back.
"""

import itertools
import logging
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Protocol

from tpu_ui.errors import InvalidRequest, JobCancelled, QueueFull, TpuUiError
from tpu_ui.events import Phase, Progress, ProgressListener
from tpu_ui.report import GenerationResult
from tpu_ui.request import GenerationRequest

if TYPE_CHECKING:
    from tpu_ui.preview import LatentPreview

log = logging.getLogger(__name__)

_KEPT_FINISHED_JOBS = 200
_MAX_WAITING = 500
_MAX_WAITING_OF_OWNER = 50


class Engine(Protocol):
    """What the worker thread drives."""

    def generate(
        self, request: GenerationRequest, emit: ProgressListener, cancelled: Callable[[], bool]
    ) -> GenerationResult: ...

    def warm_up(
        self, request: GenerationRequest, emit: ProgressListener, cancelled: Callable[[], bool]
    ) -> GenerationResult: ...

    def close(self) -> None: ...


class JobKind(StrEnum):
    GENERATE = "generate"
    WARM_UP = "warm_up"  # runs only when no picture is waited for


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


@dataclass(eq=False)
class Job:
    """One request on its way. Read it from any thread; only the queue changes it.

    Attributes:
        owner: a secret of whoever asked; needed to cancel.
        error: what went wrong, when the state is FAILED.
        preview: what the picture looks like so far; None before its first step and after the job's end.
    """

    id: str
    owner: str
    kind: JobKind
    request: GenerationRequest
    state: JobState = JobState.QUEUED
    result: GenerationResult | None = None
    error: TpuUiError | None = None
    preview: "LatentPreview | None" = None
    created: float = field(default_factory=time.time)
    started: float | None = None
    finished: float | None = None
    _events: list[Progress] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _cancel: threading.Event = field(default_factory=threading.Event)

    @property
    def cancel_requested(self) -> bool:
        return self._cancel.is_set()

    def events(self, start: int = 0, timeout: float | None = None) -> Iterator[Progress]:
        """The job's progress from event number `start` on; ends when the job has ended.

        Args:
            timeout: seconds to wait for the next event before the iteration ends all the same.
        """
        position = max(0, start)
        while True:
            with self._changed:
                self._changed.wait_for(partial(self._has_event, position), timeout)
                new = self._events[position:]
                over = self.state.is_final or (not new and timeout is not None)
            yield from new
            position += len(new)
            if over and not new:
                return

    def _has_event(self, position: int) -> bool:
        return position < len(self._events) or self.state.is_final

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the job; False if it has not come within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self.state.is_final, timeout)

    @property
    def last_event(self) -> Progress | None:
        with self._changed:
            return self._events[-1] if self._events else None

    def _emit(self, progress: Progress) -> None:
        with self._changed:
            self.preview = progress.preview or self.preview
            self._events.append(replace(progress, preview=None))  # all events are kept, of the latents the last ones
            self._changed.notify_all()

    def _move(self, state: JobState) -> None:
        with self._changed:
            self.state = state
            if state.is_final:
                self.preview = None
            self._changed.notify_all()


class JobQueue:
    """Fair between owners: each owner's oldest job comes up in turn; warm-up jobs wait for all others.

    Args:
        start_engine: called once, on the worker thread, before the first job.
        keep: called on the worker thread with a result before its job is done; what it returns is the job's result.
        on_finished: called when a job has its final state: on the worker thread, or on that of whoever cancels it
            while it waits. It must be quick.
    """

    def __init__(
        self,
        start_engine: Callable[[], Engine],
        on_finished: Callable[[Job], None] = lambda _job: None,
        keep: Callable[[Job, GenerationResult], GenerationResult] = lambda _job, result: result,
    ) -> None:
        self._start_engine = start_engine
        self._on_finished = on_finished
        self._keep = keep
        self._lock = threading.Condition()
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()  # by owner, the next in turn first
        self._warm_ups: deque[Job] = deque()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._running: Job | None = None
        self._closing = False
        self.engine: Engine | None = None
        self.engine_error: TpuUiError | None = None
        self._worker = threading.Thread(target=self._work, name="device", daemon=True)
        self._worker.start()

    # -- for faces ----------------------------------------------------------------------------------------------------

    def submit(self, request: GenerationRequest, owner: str, kind: JobKind = JobKind.GENERATE) -> Job:
        """Put a request in the queue.

        Raises:
            QueueFull: too many are waiting, in all or of this owner, or the queue was closed.
        """
        job = Job(secrets.token_hex(8), owner, kind, request)
        with self._lock:
            if self._closing:
                raise QueueFull("queue: the program is ending and takes no more requests.", "Start it again.")
            order = self._order()
            if len(order) >= _MAX_WAITING or sum(other.owner == owner for other in order) >= _MAX_WAITING_OF_OWNER:
                raise QueueFull("queue: too many requests are waiting.", "Wait until some are done, or cancel some.")
            self._jobs[job.id] = job
            self._forget_oldest()
            if kind is JobKind.WARM_UP:
                self._warm_ups.append(job)
            else:
                self._waiting.setdefault(owner, deque()).append(job)
            job._emit(Progress(Phase.QUEUED, position=self._position(job)))
            self._lock.notify_all()
        return job

    def find(self, job_id: str) -> Job:
        """A job by its id.

        Raises:
            InvalidRequest: there is none, or it ended long ago.
        """
        with self._lock:
            if job_id not in self._jobs:
                raise InvalidRequest("job", "there is no such job, or it ended long ago.", "Generate again.")
            return self._jobs[job_id]

    def position(self, job: Job) -> int:
        """How many jobs come before this one, the running one included; 0 when it runs or has ended."""
        with self._lock:
            return self._position(job)

    def ahead_of(self, job: Job) -> list[Job]:
        """The jobs that come before this one, the running one first; none when it runs or has ended."""
        with self._lock:
            order = self._order()
            if job not in order:
                return []
            running = [self._running] if self._running is not None else []
            return running + order[: order.index(job)]

    def cancel(self, job_id: str, owner: str) -> Job:
        """Cancel an owner's job: at once while it waits, at the next step while it runs. Cancelling twice is no error.

        Raises:
            InvalidRequest: there is no such job of this owner.
        """
        job = self.find(job_id)
        if not secrets.compare_digest(*(name.encode(errors="surrogatepass") for name in (job.owner, owner))):
            raise InvalidRequest("job", "there is no such job, or it ended long ago.", "Generate again.")
        with self._lock:
            job._cancel.set()
            if job.state is JobState.QUEUED:
                self._remove(job)
                self._end(job, JobState.CANCELLED)
        return job

    def jobs_of(self, owner: str) -> list[Job]:
        with self._lock:
            return [job for job in self._jobs.values() if job.owner == owner]

    @property
    def waiting_count(self) -> int:
        with self._lock:
            return sum(map(len, self._waiting.values())) + len(self._warm_ups)

    def close(self) -> None:
        """Cancel everything, end the worker and close the engine."""
        with self._lock:
            self._closing = True
            for job in [*itertools.chain.from_iterable(self._waiting.values()), *self._warm_ups]:
                job._cancel.set()
                self._end(job, JobState.CANCELLED)
            self._waiting.clear()
            self._warm_ups.clear()
            if self._running is not None:
                self._running._cancel.set()
            self._lock.notify_all()
        self._worker.join()

    # -- the worker ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self.engine = self._start_engine()
        except TpuUiError as error:
            self.engine_error = error
        except Exception:
            log.exception("the engine could not be started")
            self.engine_error = TpuUiError("The engine could not be started.", "The log has the details.")
        while (job := self._next()) is not None:
            self._run(job)
        if self.engine is not None:
            self.engine.close()

    def _next(self) -> Job | None:
        with self._lock:
            while not self._closing:
                if self._waiting:
                    owner, jobs = self._waiting.popitem(last=False)
                    job = jobs.popleft()
                    if jobs:
                        self._waiting[owner] = jobs  # to the end of the row
                elif self._warm_ups:
                    job = self._warm_ups.popleft()
                else:
                    self._lock.wait()
                    continue
                self._running = job
                job.started = time.time()
                job._move(JobState.RUNNING)
                return job
            return None

    def _run(self, job: Job) -> None:
        try:
            if self.engine is None:
                raise self.engine_error or TpuUiError("The engine is not running.")
            run = self.engine.warm_up if job.kind is JobKind.WARM_UP else self.engine.generate
            job.result = self._keep(job, run(job.request, job._emit, job._cancel.is_set))
            state = JobState.DONE
        except JobCancelled:
            state = JobState.CANCELLED
        except TpuUiError as error:
            job.error, state = error, JobState.FAILED
        except Exception:  # the worker's border: whatever happens, the next job runs
            log.exception("job %s failed", job.id)
            job.error = TpuUiError(f"The request failed (job {job.id}).", "The log has the details under that number.")
            state = JobState.FAILED
        with self._lock:
            self._running = None
        self._end(job, state)

    def _end(self, job: Job, state: JobState) -> None:
        job.finished = time.time()
        job._move(state)
        try:
            self._on_finished(job)
        except Exception:  # it only listens: the job has ended, and the next one runs
            log.exception("what follows the end of job %s failed", job.id)

    # -- helpers that hold the lock -----------------------------------------------------------------------------------

    def _position(self, job: Job) -> int:
        if job.state is not JobState.QUEUED:
            return 0
        ahead = 1 if self._running is not None else 0
        order = self._order()
        return ahead + order.index(job) if job in order else 0

    def _order(self) -> list[Job]:
        """All waiting jobs in the order in which they will run, as far as it is known now."""
        queues = [list(jobs) for jobs in self._waiting.values()]
        in_turn = itertools.chain.from_iterable(itertools.zip_longest(*queues))
        return [waiting for waiting in in_turn if waiting is not None] + list(self._warm_ups)

    def _remove(self, job: Job) -> None:
        if job in self._warm_ups:
            self._warm_ups.remove(job)
            return
        jobs = self._waiting[job.owner]
        jobs.remove(job)
        if not jobs:
            del self._waiting[job.owner]

    def _forget_oldest(self) -> None:
        ended = [job_id for job_id, job in self._jobs.items() if job.state.is_final]
        for job_id in ended[: max(0, len(ended) - _KEPT_FINISHED_JOBS)]:
            del self._jobs[job_id]
