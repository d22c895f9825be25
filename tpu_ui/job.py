"""A job: one request on its way, what has been told of it, what became of it; and the engines that run jobs."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tpu_ui.errors import TpuUiError
from tpu_ui.events import Progress, ProgressListener
from tpu_ui.report import GenerationResult
from tpu_ui.request import GenerationRequest

if TYPE_CHECKING:
    from tpu_ui.preview import LatentPreview


class Engine(Protocol):
    """What the worker thread drives."""

    def generate(
        self, request: GenerationRequest, emit: ProgressListener, cancelled: Callable[[], bool]
    ) -> GenerationResult: ...

    def warm_up(
        self, request: GenerationRequest, emit: ProgressListener, cancelled: Callable[[], bool]
    ) -> GenerationResult: ...

    def close(self) -> None: ...


class Member(Engine, Protocol):
    """One of the engines of a pool. `generate`, `warm_up` and `open` belong to a thread that the queue gives it."""

    @property
    def is_lost(self) -> bool:
        """It has no process. It gets one by `open`, or by the next request that it is given."""
        ...

    def open(self, cancelled: Callable[[], bool]) -> None:
        """Start it, or start it again.

        Raises:
            TpuUiError: it cannot be started.
            JobCancelled: `cancelled` said so.
        """
        ...


@dataclass(frozen=True)
class Choice:
    """Where a request should run.

    Attributes:
        place: of the member; one that is busy is worth waiting for.
        seconds: that the request will take there; None if it is not known.
    """

    place: int
    seconds: float | None


@dataclass(frozen=True)
class MemberStatus:
    """What the page tells of a member.

    Attributes:
        state: starting, idle, running or lost.
        node: address of its host.
        memory_used_bytes, memory_total_bytes: of its device.
        jobs: requests that it has run.
    """

    name: str
    state: str
    pid: int | None
    node: str
    memory_used_bytes: int
    memory_total_bytes: int
    jobs: int


@runtime_checkable
class Pool(Protocol):
    """Several engines behind one queue. `choose` and `statuses` may be called from any thread."""

    members: Sequence[Member]

    def choose(self, request: GenerationRequest, idle: Collection[int], reserved: Mapping[int, float]) -> Choice:
        """The member that should run a request: one of those that are idle, or a busy one for which it should wait.

        Args:
            idle: places of the members that may be taken now, at least one.
            reserved: seconds of other requests that wait for a busy member already, by its place.
        """
        ...

    def statuses(self) -> list[MemberStatus]: ...

    def close(self) -> None: ...


class EngineStarter(Protocol):
    """Opens what runs the jobs, on the thread that will own it."""

    def __call__(self, cancelled: Callable[[], bool] = ...) -> Engine | Pool:
        """Open it.

        Args:
            cancelled: whether nobody waits for it any more; asked again and again while other processes are waited for.

        Raises:
            TpuUiError: it cannot be opened.
            JobCancelled: `cancelled` said so.
        """
        ...


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
        places: the members of a pool that have had it.
        was_lost: a member of a pool was lost while it ran.
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
    places: set[int] = field(default_factory=set)
    was_lost: bool = False
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
