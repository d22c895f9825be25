"""The process of one replica: a device, a manager, and the thread that owns both. Ray makes an actor of the class."""

import logging
import os
import queue
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tpu_ui.environment import shared_memory_cache_dir
from tpu_ui.errors import DeviceUnavailable, TpuUiError
from tpu_ui.events import Progress
from tpu_ui.parallel.answering import answer
from tpu_ui.parallel.messages import Ask, Ended, Known, PackedError, Ready, Told
from tpu_ui.runtime import start_runtime
from tpu_ui.settings import Settings

log = logging.getLogger(__name__)

CONCURRENT_CALLS = 4  # `alive`, `run`, `cancel` and one more


@dataclass(frozen=True)
class Opened:
    """The device is open, in this process on this host."""

    pid: int
    node: str
    ready: Ready


@dataclass(frozen=True)
class Failed:
    """It could not be opened."""

    error: PackedError


class Replica:
    """Its methods are called on threads of Ray's, several at once; the device's own thread does the work."""

    def __init__(self, device_kind: str, settings: Settings, model: str) -> None:
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
        self._asked: queue.SimpleQueue[tuple[int, Ask] | None] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[tuple[Known, Told | Ended]] = queue.SimpleQueue()
        self._opened: queue.SimpleQueue[Opened | Failed] = queue.SimpleQueue()
        self._cancelled = 0
        self._ended = threading.Event()
        self._device = threading.Thread(target=self._work, args=(device_kind, settings, model), name="device")
        self._device.start()

    def opened(self) -> Opened | Failed:
        """Wait until the device is open. To be called once."""
        return self._opened.get()

    def alive(self) -> None:
        """Return at the replica's end: whoever waits for it also learns of a sudden one."""
        self._ended.wait()

    def run(self, number: int, ask: Ask) -> Iterator[tuple[Known, Told | Ended]]:
        """Run a request, one at a time; tells what happens as it happens, the end last.

        Args:
            number: of the request, for `cancel`; each has a higher one than that before.
        """
        self._asked.put((number, ask))
        while True:
            known, message = self._told.get()
            yield known, message
            if isinstance(message, Ended):
                return

    def cancel(self, number: int) -> None:
        """End this request, if it has not ended, at its next step."""
        self._cancelled = max(self._cancelled, number)

    def leave(self) -> None:
        """Give the device back. No request may run."""
        self._asked.put(None)
        self._device.join()
        shutil.rmtree(shared_memory_cache_dir(), ignore_errors=True)  # Ray ends a process without Python's clean-up
        self._ended.set()

    def _work(self, device_kind: str, settings: Settings, model: str) -> None:
        try:
            runtime = start_runtime(device_kind, settings)
            from tpu_ui.manager import PipelineManager  # imports torch, which the runtime has prepared

            self._manager = PipelineManager(runtime, settings, model)
        except TpuUiError as error:
            self._opened.put(Failed(PackedError.of(error)))
            return
        except Exception as error:  # the process's border: the front must hear of it
            log.exception("the device could not be opened")
            sentence = f"device: {device_kind} could not be opened in a replica ({type(error).__name__})."
            fault = DeviceUnavailable(sentence, "The log has the details.")
            self._opened.put(Failed(PackedError.of(fault)))
            return
        self._opened.put(Opened(os.getpid(), socket.gethostname(), Ready(self._manager.toolchain, self._known())))
        while (asked := self._asked.get()) is not None:
            number, ask = asked
            ended = answer(self._manager, ask, self._tell, lambda number=number: self._cancelled >= number)
            self._told.put((self._known(), ended))
        self._manager.close()

    def _tell(self, progress: Progress) -> None:
        self._told.put((self._known(), Told(replace(progress, preview=None))))

    def _known(self) -> Known:
        return Known(*self._manager.ledger.in_this_process(), self._manager.runtime.memory())
