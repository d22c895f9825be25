"""One rank: a process with one device. Started by `launch`, or by a launcher outside."""

import logging
import os
import queue
import sys
import threading
from dataclasses import replace
from multiprocessing.connection import Connection, Listener

from tpu_ui.errors import TpuUiError
from tpu_ui.events import Progress
from tpu_ui.parallel.answering import answer
from tpu_ui.parallel.messages import Ask, Cancel, Ended, Known, Leave, Ready, Told
from tpu_ui.parallel.orphans import end_with_parent
from tpu_ui.parallel.setup import OuterLaunch, Setup
from tpu_ui.runtime import start_runtime


def run_rank(setup: Setup, outer: OuterLaunch | None = None) -> None:
    """Join the group, open the device, and serve until the end.

    Args:
        outer: this process was started by an outer launcher, not by a front.

    Raises:
        TpuUiError: the others did not come, or the device cannot be opened.
    """
    rank = int(os.environ["RANK"])
    settings = setup.settings
    if rank:  # the ledger tells of rank 0's graphs; those of another rank must not be taken for them
        settings = replace(settings, cache_dir=settings.cache_dir / "ranks" / str(rank))
    front = Front(setup) if rank == 0 else None
    joined = []

    def join() -> None:
        from tpu_ui.parallel.group import Group  # imports torch, which the runtime has prepared by now

        group = Group(setup, outer)
        group.join()
        joined.append(group)

    runtime = start_runtime(setup.device_kind, settings, before_opening=join, may_fuse=False)
    (group,) = joined
    from tpu_ui.parallel.ranks import Follower, LeadingManager

    if front is None:
        Follower(runtime, settings, setup.model, group).serve()
    else:
        manager = LeadingManager(runtime, settings, setup.model, group)
        front.serve(manager)
        manager.close()
    group.leave()


class Front:
    """Rank 0's connection to the front, which has the page and the queue. The process ends when it is gone."""

    def __init__(self, setup: Setup) -> None:
        with Listener(setup.front, "AF_UNIX", authkey=setup.front_key) as listener:
            self._connection: Connection = listener.accept()
        self._sending = threading.Lock()
        self._asked: queue.SimpleQueue[Ask | Leave] = queue.SimpleQueue()
        self._cancel = threading.Event()
        self._reader = threading.Thread(target=self._read, name="front", daemon=True)

    def serve(self, manager) -> None:
        """Run what the front asks for, until it says the end."""
        self._manager = manager
        self._reader.start()
        self._send(Ready(manager.toolchain, self._known()))
        while isinstance(message := self._asked.get(), Ask):
            self._send_end(answer(self._manager, message, self._tell, self._cancel.is_set))

    def _send_end(self, ended: Ended) -> None:
        self._send(self._known())
        self._send(ended)

    def _tell(self, progress: Progress) -> None:
        self._send(self._known())
        self._send(Told(replace(progress, preview=None)))

    def _known(self) -> Known:
        return Known(*self._manager.ledger.in_this_process(), self._manager.runtime.memory())

    def _send(self, message: object) -> None:
        with self._sending:
            self._connection.send(message)

    def _read(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                os._exit(1)
            if isinstance(message, Cancel):
                self._cancel.set()
            else:
                self._cancel.clear()  # what came too late for the request before
                self._asked.put(message)


def main() -> int:
    """The entry of a rank that `launch` started; 0 after a quiet end, 1 for a fault, told on standard error."""
    end_with_parent()
    setup = Setup.from_environment()
    logging.basicConfig(level=os.environ.get("TPU_UI_RANK_LOG_LEVEL", "WARNING"), format="%(levelname)s %(message)s")
    try:
        run_rank(setup)
    except TpuUiError as error:
        print(f"tpu_ui: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
