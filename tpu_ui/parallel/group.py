"""A rank's side of the group: where it meets the others, and how all end each command in step."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import IntEnum
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from tpu_ui.errors import DeviceUnavailable, GenerationFailed, JobCancelled
from tpu_ui.parallel import launch
from tpu_ui.parallel.heartbeat import Heart
from tpu_ui.parallel.messages import Command
from tpu_ui.parallel.setup import OuterLaunch, Setup

log = logging.getLogger(__name__)

T = TypeVar("T")

# Ranks wait for the next command as long as nobody asks for a picture. Who waits for a lost rank is ended by the front.
_FOREVER = timedelta(days=3650)
_BACKENDS = {"tpu": "tpu_dist", "tpu-emulated": "tpu_dist", "cpu": "gloo"}


class Vote(IntEnum):
    """What a rank says between two steps; the group's decision is the largest."""

    GO_ON = 0
    DONE = 1
    CANCEL = 2
    FAILED = 3


class PartnerFailed(Exception):
    """Raised inside a command that has failed on another rank: this one ends it too. No fault of this rank."""


class GroupBroken(SystemExit):
    """A rank is gone, or has ended a command in which another goes on. The group is of no use any more: the process
    ends, and the front tells which rank was the cause.
    """


@contextmanager
def _ends_with_the_group() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # what torch.distributed raises where a connection is lost
        raise GroupBroken(f"tpu_ui: another rank is gone ({_first_line(error)})") from error


class Group:
    """One for a process. All calls belong to the device thread.

    Args:
        outer: see `rank.run_rank`.
    """

    def __init__(self, setup: Setup, outer: OuterLaunch | None = None) -> None:
        self._outer = outer
        self.rank = int(os.environ["RANK"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.size = setup.devices
        self.limits = setup.limits
        self._setup = setup
        self._heart: Heart | None = None
        self._control: dist.ProcessGroup | None = None

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def join(self) -> None:
        """Meet the others. Before the device is opened: the chips of a slice come up together.

        Raises:
            DeviceUnavailable: the others did not come.
        """
        if self._outer is not None:
            launch.meet(launch.open_store(self._outer, self.limits.partners), self._outer, self.limits.partners)
        try:
            self._heart = Heart(self._connect(), self.rank, self.limits)
            store = dist.PrefixStore("ranks", self._connect())
            dist.init_process_group(
                _BACKENDS[self._setup.device_kind],
                store=store,
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=self.limits.joining),
            )
            self._control = dist.new_group(backend="gloo", timeout=_FOREVER)
        except (RuntimeError, ValueError) as error:
            raise DeviceUnavailable(
                f"tensor-parallel: rank {self.rank} could not join the others ({_first_line(error)}).",
                "The log of the other ranks tells why they did not come.",
            ) from error

    def _connect(self) -> dist.TCPStore:
        return dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=self.limits.joining),
        )

    def mesh(self) -> DeviceMesh:
        """All devices in one row, over which weights are split."""
        device_type = self._setup.device_kind.removesuffix("-emulated")
        return DeviceMesh(device_type, list(range(self.size)), mesh_dim_names=("tp",))

    # -- commands -----------------------------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Rank 0 tells the others what all do next."""
        with _ends_with_the_group():
            dist.broadcast_object_list([command], src=0, group=self._control)
        self.go_on()

    def receive(self) -> Command:
        """The other ranks wait for what all do next."""
        box: list[Command | None] = [None]
        with _ends_with_the_group():
            dist.broadcast_object_list(box, src=0, group=self._control)
        self.go_on()
        return box[0]

    def vote(self, mine: Vote) -> Vote:
        """Say how it stands here, and hear how it stands with all. Every rank takes part as often as the others.

        Raises:
            GroupBroken: see there.
        """
        votes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with _ends_with_the_group():
            dist.all_gather(votes, torch.tensor([int(mine)]), group=self._control)
        self.go_on()
        said = {Vote(int(vote)) for vote in votes}
        if Vote.DONE in said and said & {Vote.GO_ON, Vote.CANCEL} and Vote.FAILED not in said:
            raise GroupBroken(f"tpu_ui: ranks say {sorted(vote.name for vote in said)} at one time")
        return max(said)

    def gather(self, text: str) -> list[str]:
        """A text of each rank."""
        texts: list[str | None] = [None] * self.size
        with _ends_with_the_group():
            dist.all_gather_object(texts, text, group=self._control)
        return [text or "" for text in texts]

    def go_on(self, patience_seconds: float | None = None) -> None:
        if self._heart is not None:
            self._heart.go_on(patience_seconds)

    def leave(self) -> None:
        """The last call."""
        dist.destroy_process_group()

    def tell_fault(self, fault: str) -> None:
        if self._heart is not None:
            self._heart.tell_fault(fault)


class Together:
    """One command that all ranks carry out. It ends in the same way on all of them, and they know how.

    Args:
        wants_cancel: asked on each rank between steps; one that says so ends the command on all.
    """

    def __init__(self, group: Group, wants_cancel: Callable[[], bool] = lambda: False) -> None:
        self._group = group
        self._wants_cancel = wants_cancel
        self._decision = Vote.GO_ON

    def cancelled(self) -> bool:
        """Between two steps: whether all end the command here. Called equally often on every rank.

        Raises:
            PartnerFailed: it has failed elsewhere.
        """
        self._decide(Vote.CANCEL if self._wants_cancel() else Vote.GO_ON)
        if self._decision is Vote.FAILED:
            raise PartnerFailed
        return self._decision is Vote.CANCEL

    def run(self, action: Callable[[], T]) -> T:
        """Carry it out.

        Raises:
            JobCancelled: on all ranks.
            GenerationFailed: it failed on another rank; if it failed here, what `action` raised.
        """
        error: Exception | None = None
        result: T | None = None
        try:
            result = action()
        except Exception as raised:  # the ranks' border: whatever it is, the others must hear of it
            log.debug("rank %d failed", self._group.rank, exc_info=True)
            error = raised
        own = None if isinstance(error, PartnerFailed | JobCancelled) else error
        fault = f"{type(own).__name__}: {_first_line(own)}" if own is not None else ""
        if self._decision is Vote.GO_ON:
            self._group.tell_fault(fault)
            self._decide(Vote.DONE if error is None else Vote.FAILED)
        if self._decision is Vote.FAILED:
            faults = self._group.gather(fault)
            self._group.tell_fault("")
            if own is not None:
                raise own
            rank, cause = next((rank, text) for rank, text in enumerate(faults) if text)
            raise GenerationFailed(f"Rank {rank} failed ({cause}).", "All ranks are ready again; its log has more.")
        if error is not None:
            raise error
        return result

    def _decide(self, mine: Vote) -> None:
        self._decision = self._group.vote(mine)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
