"""A group that runs, as the front sees it: its processes, its store, and the connection to rank 0."""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Client, Connection
from pathlib import Path

from tpu_ui.errors import JobCancelled, WorkerLost
from tpu_ui.parallel import launch
from tpu_ui.parallel.heartbeat import read_beats
from tpu_ui.parallel.messages import Ask, Ended, Known, Leave, Ready, Told
from tpu_ui.parallel.setup import OuterLaunch, Setup
from tpu_ui.parallel.watch import Watch

RESTART = "The processes start again with the next request."
START_AGAIN = "Start the program again on all hosts; torchrun --max-restarts does it by itself."


class RunningGroup:
    """Belongs to the thread that makes it, and must not outlive it.

    Args:
        setup: without the way to the front, which is made here.
        outer: another launcher has started a process for each rank, this one for rank 0.
        rank_module: what the processes run.
        cancelled: whether nobody waits for the group any more; asked until it is ready.

    Raises:
        DeviceUnavailable: they could not be started, or did not find one another.
        WorkerLost: one ended before all had their device open. None is left.
        JobCancelled: `cancelled` said so. None is left.
    """

    def __init__(
        self, setup: Setup, outer: OuterLaunch | None, rank_module: str, cancelled: Callable[[], bool]
    ) -> None:
        self._limits = setup.limits
        self._devices = setup.devices
        self._remedy = RESTART if outer is None else START_AGAIN
        self._store = launch.open_store(outer, setup.limits.partners)
        if outer is not None:
            launch.meet(self._store, outer, setup.limits.partners, cancelled)
        self._folder = tempfile.mkdtemp(prefix="tpu_ui-")  # for this user only
        setup = replace(setup, front=str(Path(self._folder) / "rank0"), front_key=secrets.token_bytes(32))
        self._watch = Watch(setup.limits, self._remedy)
        self._looked_at = 0.0
        self._ranks = launch.Ranks(self._environments(setup, outer), rank_module)
        try:
            self._rank0 = self._connect(setup, cancelled)
            ready = self._await_ready(cancelled)
        except BaseException:
            self.stop()
            raise
        self.toolchain, self.known = ready.toolchain, ready.known

    @property
    def pids(self) -> dict[int, int]:
        return self._ranks.pids

    def begin(self, ask: Ask) -> None:
        """Hand a request to rank 0."""
        self._watch.begin()
        self.send(ask)

    def heard(self) -> None:
        """Rank 0 goes on, be it with a download that the others wait for."""
        self._watch.begin()

    def send(self, message: object) -> None:
        """Tell rank 0 something.

        Raises:
            WorkerLost: it is not there any more.
        """
        try:
            self._rank0.send(message)
        except OSError as error:
            raise self._loss() from error

    def receive(self) -> Told | Known | Ready | Ended | None:
        """What rank 0 tells next; None if it tells nothing for a moment.

        Raises:
            WorkerLost: a rank is lost.
        """
        try:
            if self._rank0.poll(launch.POLL_SECONDS):
                return self._rank0.recv()
        except (OSError, EOFError) as error:
            raise self._loss() from error
        self.check()
        return None

    def check(self) -> None:
        """Look at the processes and their signs of life.

        Raises:
            WorkerLost: one is lost.
        """
        self.check_processes()
        now = time.monotonic()
        if now - self._looked_at >= self._limits.beat:
            self._looked_at = now
            self._watch.check(read_beats(self._store, self._devices))

    def check_processes(self) -> None:
        """The part of it that holds also while nothing runs.

        Raises:
            WorkerLost: one has ended.
        """
        pids = self.pids
        if (ended := self._ranks.ended()) is not None:
            rank, how = ended
            raise WorkerLost(f"Rank {rank} (process {pids[rank]}) {how}.", self._remedy)

    def stop(self, ask_first: bool = False) -> None:
        """End all processes of this host. `ask_first`: rank 0 is idle, and ends the group by itself."""
        if ask_first:
            try:
                self._rank0.send(Leave())
                deadline = time.monotonic() + self._limits.ending
                while self._ranks.ended() is None and time.monotonic() < deadline:
                    time.sleep(launch.POLL_SECONDS)
            except OSError:
                pass  # it has ended already
        self._ranks.stop(self._limits.ending)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _environments(self, setup: Setup, outer: OuterLaunch | None) -> list[dict[str, str]]:
        if outer is not None:
            return [setup.to_environment()]  # the rest is the launcher's
        return [
            setup.to_environment()
            | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(setup.devices),
                "LOCAL_WORLD_SIZE": str(setup.devices),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._store.port),
            }
            for rank in range(setup.devices)
        ]

    def _connect(self, setup: Setup, cancelled: Callable[[], bool]) -> Connection:
        for _ in self._while_joining(cancelled):
            if os.path.exists(setup.front):
                try:
                    return Client(setup.front, "AF_UNIX", authkey=setup.front_key)
                except ConnectionRefusedError:
                    pass  # it is about to listen
            self.check_processes()
            time.sleep(launch.POLL_SECONDS)
        raise WorkerLost(f"Rank 0 was not ready after {self._limits.joining:.0f} s.", self._remedy)

    def _await_ready(self, cancelled: Callable[[], bool]) -> Ready:
        for _ in self._while_joining(cancelled):
            message = self.receive()
            if isinstance(message, Ready):
                return message
        raise WorkerLost(f"Not all ranks had their device open after {self._limits.joining:.0f} s.", self._remedy)

    def _while_joining(self, cancelled: Callable[[], bool]) -> Iterator[None]:
        deadline = time.monotonic() + self._limits.joining
        while time.monotonic() < deadline:
            if cancelled():
                raise JobCancelled
            yield

    def _loss(self) -> WorkerLost:
        """Rank 0 does not answer any more: who ended, once it can be told."""
        deadline = time.monotonic() + self._limits.fault
        while time.monotonic() < deadline:
            try:
                self.check_processes()
            except WorkerLost as lost:
                return lost
            time.sleep(launch.POLL_SECONDS)
        return WorkerLost("Rank 0 does not answer any more.", self._remedy)
