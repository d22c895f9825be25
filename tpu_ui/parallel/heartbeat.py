"""Signs of life of the ranks, told in the store where they met, and read by the front."""

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from tpu_ui.parallel.setup import Limits

if TYPE_CHECKING:
    from torch.distributed import Store

_INNER_FRAMES = 4


@dataclass(frozen=True)
class Beat:
    """One sign of life.

    Attributes:
        number: counts up.
        position: how far the rank has come: commands and votes it took part in.
        patience_seconds: how long it may stay there.
        fault: what went wrong in the step it is in; empty if nothing has.
        waits: it waits for other ranks.
        place: the function that runs.
    """

    pid: int
    number: int = 0
    position: int = 0
    patience_seconds: float = 0.0
    fault: str = ""
    waits: bool = False
    place: str = ""


class Heart:
    """Tells the beats of this rank, from a thread of its own. Ends the process when the store is gone.

    Args:
        store: a connection of its own: one that waits for a value answers nobody else.
    """

    def __init__(self, store: "Store", rank: int, limits: Limits) -> None:
        self._store = store
        self._rank = rank
        self._limits = limits
        self._beat = Beat(os.getpid(), patience_seconds=limits.stall)
        self._device_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def go_on(self, patience_seconds: float | None = None) -> None:
        """This rank has come one step further."""
        patience = self._beat.patience_seconds if patience_seconds is None else patience_seconds
        self._beat = replace(self._beat, position=self._beat.position + 1, patience_seconds=patience)

    def tell_fault(self, fault: str) -> None:
        """What went wrong here, empty once all ranks know."""
        self._beat = replace(self._beat, fault=fault)

    def _run(self) -> None:
        number = 0
        while True:
            number += 1
            frame = sys._current_frames().get(self._device_thread)
            beat = replace(self._beat, number=number, waits=_waits(frame), place=_place(frame))
            try:
                self._store.set(_key(self._rank), json.dumps(asdict(beat)))
            except RuntimeError:  # the process that serves it is gone, and with it the group
                os._exit(1)
            time.sleep(self._limits.beat)


def read_beats(store: "Store", world_size: int) -> dict[int, Beat]:
    """The last beat of each rank that has told one.

    Raises:
        RuntimeError: the store is gone.
    """
    keys = {rank: _key(rank) for rank in range(world_size)}
    told = [rank for rank, key in keys.items() if store.check([key])]
    return {rank: Beat(**json.loads(store.get(keys[rank]))) for rank in told}


def _key(rank: int) -> str:
    return f"beat/{rank}"


def _frames(frame: FrameType | None) -> list[FrameType]:
    """The innermost ones, the innermost first."""
    found: list[FrameType] = []
    while frame is not None and len(found) < _INNER_FRAMES:
        found.append(frame)
        frame = frame.f_back
    return found


def _waits(frame: FrameType | None) -> bool:
    return any("/torch/distributed/" in inner.f_code.co_filename for inner in _frames(frame))


def _place(frame: FrameType | None) -> str:
    if frame is None:
        return ""
    return f"{frame.f_code.co_name} in {Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
