"""One replica as the front sees it."""

import logging
import time
from collections.abc import Callable

import ray
from ray.actor import ActorHandle
from ray.exceptions import ObjectLostError, RayActorError, RayError, RaySystemError

from tpu_ui.errors import DeviceUnavailable, JobCancelled, TpuUiError, WorkerLost
from tpu_ui.events import ProgressListener
from tpu_ui.job import JobKind, MemberStatus
from tpu_ui.ledger import GraphLedger
from tpu_ui.parallel.messages import Ask, Ended, Known, Ready, Told
from tpu_ui.parallel.mirror import MirroredLedger
from tpu_ui.replicas.actor import Failed
from tpu_ui.report import GenerationResult, Report
from tpu_ui.request import GenerationRequest
from tpu_ui.runtime import DeviceMemory

log = logging.getLogger(__name__)

RESTART = "It is started again."

_POLL_SECONDS = 0.1
_STARTING_SECONDS = 600.0
_ENDING_SECONDS = 10.0
_LOSSES = (RayActorError, ObjectLostError, RaySystemError)


class ReplicaEngine:
    """See `job.Member`. What the page asks for may be asked from any thread.

    Args:
        number: counted from 1, for people.
        spawn: starts the replica's process.
        expect: seconds that a request will take on this replica, if they are known.
        on_known: told on the replica's thread whenever `ledger` or `memory` has changed.
        on_report: told of each request that ended well.
    """

    def __init__(
        self,
        number: int,
        spawn: Callable[[str], ActorHandle],
        ledger: MirroredLedger,
        expect: Callable[["ReplicaEngine", GenerationRequest], float | None],
        on_known: Callable[[], None],
        on_report: Callable[["ReplicaEngine", Report], None],
    ) -> None:
        self.name = f"Replica {number}"
        self.ledger: GraphLedger = ledger
        self.memory = DeviceMemory(0, 0)
        self.ready: Ready | None = None
        self.loaded_model: str | None = None
        """The model that it ran last; others may be in its memory too."""
        self._mirror = ledger.mirror
        self._spawn = spawn
        self._expect = expect
        self._on_known = on_known
        self._on_report = on_report
        self._actor: ActorHandle | None = None
        self._alive: ray.ObjectRef | None = None  # comes with the end of the process
        self._left: ray.ObjectRef | None = None
        self._pid: int | None = None
        self._node = ""
        self._busy_until: float | None = 0.0  # by time.monotonic; 0 where it is idle, None where nobody knows
        self._jobs = 0
        self._asks = 0

    # -- any thread ---------------------------------------------------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        alive = self._alive
        return alive is None or bool(ray.wait([alive], timeout=0)[0])

    @property
    def wait_seconds(self) -> float | None:
        """Until it is free: 0 where it is, None where nobody knows."""
        until = self._busy_until
        # One that is late by so much is taken to need as much again.
        return until if not until else max(0.001, abs(until - time.monotonic()))

    def status(self) -> MemberStatus:
        if self.is_lost:
            state = "starting" if self._actor is not None and self._alive is None else "lost"
        else:
            state = "idle" if self._busy_until == 0 else "running"
        memory = self.memory
        return MemberStatus(
            self.name, state, self._pid, self._node, memory.used_bytes, memory.total_bytes, self._jobs
        )  # fmt: skip

    # -- the replica's thread -----------------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Start the process, without waiting for it."""
        if self._actor is None:
            self._actor = self._spawn(self.name)

    def open(self, cancelled: Callable[[], bool] = lambda: False) -> None:
        """See `job.Member.open`.

        Raises:
            WorkerLost: its process ended meanwhile.
            DeviceUnavailable: there is no chip for it, or the device cannot be opened.
        """
        if self._alive is not None:
            self._drop()
        self.spawn()
        actor, deadline = self._actor, time.monotonic() + _STARTING_SECONDS
        answer = actor.opened.remote()
        try:
            while not ray.wait([answer], timeout=_POLL_SECONDS)[0]:
                if cancelled():
                    raise JobCancelled
                if time.monotonic() > deadline:
                    raise DeviceUnavailable(
                        f"{self.name} was not ready after {_STARTING_SECONDS:.0f} s.",
                        "Look whether Ray has free chips.",
                    )
            opened = ray.get(answer)
            if isinstance(opened, Failed):
                raise opened.error.unpacked()
        except RayError as error:
            log.info("%s: %s", self.name, error)
            self._drop()
            raise WorkerLost(f"{self.name} ended while it started.", "The log has the details.") from error
        except (TpuUiError, JobCancelled):
            self._drop()
            raise
        self._pid, self._node, self.ready = opened.pid, opened.node, opened.ready
        self._know(opened.ready.known)
        self._alive = actor.alive.remote()

    def generate(
        self, request: GenerationRequest, emit: ProgressListener, cancelled: Callable[[], bool]
    ) -> GenerationResult:
        """See `PipelineManager.generate`.

        Raises:
            WorkerLost: the replica is lost; the sentence names it.
        """
        return self._run(Ask(JobKind.GENERATE, request), emit, cancelled)

    def warm_up(
        self, request: GenerationRequest, emit: ProgressListener, cancelled: Callable[[], bool]
    ) -> GenerationResult:
        """See `PipelineManager.warm_up`; raises as `generate` does."""
        return self._run(Ask(JobKind.WARM_UP, request), emit, cancelled)

    def leave(self) -> None:
        """Ask the process to give its device back, without waiting for it. Nothing may run."""
        if not self.is_lost:
            self._left = self._actor.leave.remote()

    def close(self) -> None:
        """End the process; one that was asked to leave is waited for."""
        if self._left is not None:
            try:
                ray.get(self._left, timeout=_ENDING_SECONDS)
            except RayError as error:
                log.info("%s did not end by itself: %s", self.name, error)
        self._drop()
        self.ledger.close()

    def _run(self, ask: Ask, emit: ProgressListener, cancelled: Callable[[], bool]) -> GenerationResult:
        if self.is_lost:
            self.open(cancelled)
        expected = self._expect(self, ask.request)
        self._busy_until = None if expected is None else time.monotonic() + expected
        try:
            ended = self._follow(ask, emit, cancelled)
        except _LOSSES as error:
            log.info("%s: %s", self.name, error)
            where = f"{self.name} (process {self._pid} on {self._node})"
            self._drop()
            raise WorkerLost(f"{where} has ended.", RESTART) from error
        finally:
            self._busy_until = 0.0
        result = ended.unpacked()
        self._jobs += 1
        self._on_report(self, result.report)
        self.loaded_model = result.report.model
        return result

    def _follow(self, ask: Ask, emit: ProgressListener, cancelled: Callable[[], bool]) -> Ended:
        self._asks += 1
        told_cancel = False
        stream = self._actor.run.options(num_returns="streaming").remote(self._asks, ask)
        while True:
            if cancelled() and not told_cancel:
                self._actor.cancel.remote(self._asks)
                told_cancel = True
            if not ray.wait([stream], timeout=_POLL_SECONDS, fetch_local=False)[0]:
                continue
            known, message = ray.get(next(stream))
            self._know(known)
            match message:
                case Told():
                    emit(message.progress)
                case Ended():
                    return message

    def _know(self, known: Known) -> None:
        self.memory = known.memory
        self._mirror(known.warm, known.compiling)
        self._on_known()

    def _drop(self) -> None:
        """End what is left of the process."""
        actor, self._actor, self._alive, self._pid = self._actor, None, None, None
        self.loaded_model = None
        self._mirror((), ())
        self._on_known()
        if actor is not None:
            ray.kill(actor)
