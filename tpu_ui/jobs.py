"""Jobs: what waits, what runs, what became of it. One thread owns each device.

A job has an id, and its events can be read again from any position, so that a face that lost its connection finds back.
"""

import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from tpu_ui.errors import InvalidRequest, JobCancelled, QueueFull, TpuUiError, WorkerLost
from tpu_ui.events import Phase, Progress
from tpu_ui.job import Engine, Job, JobKind, JobState, MemberStatus, Pool
from tpu_ui.lanes import Lanes
from tpu_ui.report import GenerationResult
from tpu_ui.request import GenerationRequest
from tpu_ui.waiting import Waiting

log = logging.getLogger(__name__)

_KEPT_FINISHED_JOBS = 200
_MAX_WAITING = 500
_MAX_WAITING_OF_OWNER = 50


class JobQueue:
    """Fair between owners: each owner's oldest job comes up in turn; warm-up jobs wait for all others.

    Args:
        start_engine: called once, on the worker thread, before the first job. A pool has several engines, each of which
            gets a thread of its own.
        keep: called on the thread of the engine with a result before its job is done; what it returns is the job's
            result.
        on_finished: called when a job has its final state: on the thread of its engine, or on that of whoever cancels
            it while it waits. It must be quick.
    """

    def __init__(
        self,
        start_engine: Callable[[], Engine | Pool],
        on_finished: Callable[[Job], None] = lambda _job: None,
        keep: Callable[[Job, GenerationResult], GenerationResult] = lambda _job, result: result,
    ) -> None:
        self._start_engine = start_engine
        self._on_finished = on_finished
        self._keep = keep
        self._lock = threading.Condition()
        self._waiting = Waiting()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._running: list[Job] = []  # the oldest first
        self._closing = False
        self.engine: Engine | Pool | None = None
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
            order = self._waiting.order()
            if len(order) >= _MAX_WAITING or sum(other.owner == owner for other in order) >= _MAX_WAITING_OF_OWNER:
                raise QueueFull("queue: too many requests are waiting.", "Wait until some are done, or cancel some.")
            self._jobs[job.id] = job
            self._forget_oldest()
            self._waiting.add(job)
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
        """How many jobs have to end before this one begins; 0 when it runs or has ended."""
        with self._lock:
            return self._position(job)

    def ahead_of(self, job: Job) -> list[Job]:
        """The jobs that come before this one, the running ones first; none when it runs or has ended."""
        with self._lock:
            order = self._waiting.order()
            return self._running + order[: order.index(job)] if job in order else []

    @property
    def lanes(self) -> int:
        """How many jobs can run at once."""
        return len(self.engine.members) if isinstance(self.engine, Pool) else 1

    def statuses(self) -> list[MemberStatus]:
        """Of the members of a pool; empty where there is one engine."""
        return self.engine.statuses() if isinstance(self.engine, Pool) else []

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
                self._waiting.remove(job)
                self._end(job, JobState.CANCELLED)
        return job

    def jobs_of(self, owner: str) -> list[Job]:
        with self._lock:
            return [job for job in self._jobs.values() if job.owner == owner]

    @property
    def waiting_count(self) -> int:
        with self._lock:
            return len(self._waiting)

    def close(self) -> None:
        """Cancel everything, end the workers and close the engine."""
        with self._lock:
            self._closing = True
            for job in self._waiting.order():
                job._cancel.set()
                self._end(job, JobState.CANCELLED)
            self._waiting.clear()
            for job in self._running:
                job._cancel.set()
            self._lock.notify_all()
        self._worker.join()

    # -- the worker ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self.engine = self._start_engine()
        except TpuUiError as error:
            self.engine_error = error
        except Exception:  # as at the worker's border below: each request is told of it
            log.exception("the engine could not be started")
            self.engine_error = TpuUiError("The engine could not be started.", "The log has the details.")
        if isinstance(self.engine, Pool):
            Lanes(self.engine, self._lock, self._waiting, self._begin, self._run, lambda: self._closing).serve()
        else:
            while (job := self._next()) is not None:
                self._run(job, self.engine)
        if self.engine is not None:
            self.engine.close()

    def _next(self) -> Job | None:
        with self._lock:
            while not self._closing:
                if order := self._waiting.order():
                    self._begin(order[0])
                    return order[0]
                self._lock.wait()
            return None

    def _run(self, job: Job, engine: Engine | None, others: Callable[[], bool] = lambda: False) -> None:
        """Run a job to its end.

        Args:
            others: whether there are other engines that should have the job too, asked after a warm-up.
        """
        try:
            if engine is None:
                raise self.engine_error or TpuUiError("The engine is not running.")
            run = engine.warm_up if job.kind is JobKind.WARM_UP else engine.generate
            result = self._keep(job, run(job.request, job._emit, job._cancel.is_set))
            job.result = result if job.result is None else _with_graphs_of(job.result, result)
            state = JobState.DONE
        except JobCancelled:
            state = JobState.CANCELLED
        except WorkerLost as error:
            if isinstance(self.engine, Pool) and not job.was_lost:
                job.was_lost = True
                if job.kind is JobKind.WARM_UP:  # the one that starts again must have it too
                    job.places.discard(self.engine.members.index(engine))
                log.warning("job %s runs again: %s", job.id, error)
                self._put_back(job, f"{error.message} The job runs again.")
                return
            job.error, state = error, JobState.FAILED
        except TpuUiError as error:
            job.error, state = error, JobState.FAILED
        except Exception:  # the worker's border: whatever happens, the next job runs
            log.exception("job %s failed", job.id)
            job.error = TpuUiError(f"The request failed (job {job.id}).", "The log has the details under that number.")
            state = JobState.FAILED
        if state is JobState.DONE and job.kind is JobKind.WARM_UP and others():
            self._put_back(job, "The other replicas follow.")
            return
        with self._lock:
            self._running.remove(job)
        self._end(job, state)

    def _put_back(self, job: Job, why: str) -> None:
        """Let a job that ran run once more; not if it was cancelled meanwhile."""
        with self._lock:
            self._running.remove(job)
            if not job.cancel_requested:
                job.started = None
                job._move(JobState.QUEUED)
                self._waiting.put_back(job)
                job._emit(Progress(Phase.QUEUED, position=self._position(job), detail=why))
                self._lock.notify_all()
                return
        self._end(job, JobState.CANCELLED)

    def _end(self, job: Job, state: JobState) -> None:
        job.finished = time.time()
        job._move(state)
        try:
            self._on_finished(job)
        except Exception:  # it only listens: the job has ended, and the next one runs
            log.exception("what follows the end of job %s failed", job.id)

    # -- helpers that hold the lock -----------------------------------------------------------------------------------

    def _begin(self, job: Job) -> None:
        self._waiting.take(job)
        self._running.append(job)
        job.started = time.time()
        job._move(JobState.RUNNING)

    def _position(self, job: Job) -> int:
        if job.state is not JobState.QUEUED:
            return 0
        ahead = len(self._running) - (self.lanes - 1)
        order = self._waiting.order()
        return max(0, ahead + order.index(job)) if job in order else 0

    def _forget_oldest(self) -> None:
        ended = [job_id for job_id, job in self._jobs.items() if job.state.is_final]
        for job_id in ended[: max(0, len(ended) - _KEPT_FINISHED_JOBS)]:
            del self._jobs[job_id]


def _with_graphs_of(first: GenerationResult, later: GenerationResult) -> GenerationResult:
    """The result of a warm-up of several engines: that of the first, with the graphs compiled for all."""
    graphs = first.report.new_compiles + later.report.new_compiles
    return replace(first, report=replace(first.report, new_compiles=graphs))
