"""What the front knows of processes that have the devices and the graphs."""

import time

from tpu_ui.ledger import GraphLedger
from tpu_ui.runtime import DeviceMemory


class MirroredLedger(GraphLedger):
    """The ledger's file, with what processes elsewhere say is warm there."""

    def mirror(self, warm: tuple[str, ...], compiling: tuple[str, ...]) -> None:
        with self._lock:
            self._warm = dict.fromkeys(warm)
            self._compiling = dict.fromkeys(compiling, time.time())


class MirroredRuntime:
    """Of a runtime elsewhere, what a page asks for."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.known = DeviceMemory(0, 0)

    def memory(self) -> DeviceMemory:
        """Of one device, as its process told last."""
        return self.known
