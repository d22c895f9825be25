"""Which rank is lost, and why: by how its process ended, by its silence, by its standing still."""

import time
from collections.abc import Mapping

from tpu_ui.errors import WorkerLost
from tpu_ui.parallel.heartbeat import Beat
from tpu_ui.parallel.setup import Limits


class Watch:
    """Belongs to one thread. Times are of the reader's own monotonic clock."""

    def __init__(self, limits: Limits, remedy: str, clock=time.monotonic) -> None:
        self._limits = limits
        self._remedy = remedy
        self._clock = clock
        self._heard: dict[int, tuple[int, float]] = {}  # number of the last beat, and when it came
        self._positions: dict[int, int] = {}
        self._moved_at = clock()
        self._fault: tuple[dict[int, int], float] | None = None  # where all were when it was told, and when

    def begin(self) -> None:
        """A request begins: until now nothing had to move."""
        self._moved_at = self._clock()

    def check(self, beats: Mapping[int, Beat]) -> None:
        """Look at the ranks while a request runs.

        Raises:
            WorkerLost: a rank is silent, stands still, or has failed where the others cannot follow.
        """
        now = self._clock()
        self._check_silence(beats, now)
        positions = {rank: beat.position for rank, beat in beats.items()}
        if positions != self._positions:
            self._positions, self._moved_at = positions, now
        self._check_faults(beats, now)
        if not beats:
            return
        patience = max(beat.patience_seconds for beat in beats.values())
        if now - self._moved_at > patience:
            raise self._lost(*_standing_still(beats), f"has not gone on for {patience:.0f} s", beats)

    def _check_silence(self, beats: Mapping[int, Beat], now: float) -> None:
        for rank, beat in beats.items():
            if self._heard.get(rank, (-1, 0.0))[0] != beat.number:
                self._heard[rank] = (beat.number, now)
        silent = [rank for rank, (_, heard_at) in self._heard.items() if now - heard_at > self._limits.silent]
        if silent:
            raise WorkerLost(
                f"{_named(silent, beats)} gave no sign of life for {self._limits.silent:.0f} s.", self._remedy
            )

    def _check_faults(self, beats: Mapping[int, Beat], now: float) -> None:
        failed = [rank for rank, beat in beats.items() if beat.fault]
        if not failed:
            self._fault = None
            return
        if self._fault is None or self._fault[0] != self._positions:
            self._fault = (self._positions, now)
        if now - self._fault[1] > self._limits.fault:
            raise WorkerLost(
                f"{_named(failed, beats)} failed where the others could not follow: {beats[failed[0]].fault}.",
                self._remedy,
            )

    def _lost(self, ranks: list[int], place: str, what: str, beats: Mapping[int, Beat]) -> WorkerLost:
        where = f" (in {place})" if place else ""
        return WorkerLost(f"{_named(ranks, beats)} {what}{where}.", self._remedy)


def _standing_still(beats: Mapping[int, Beat]) -> tuple[list[int], str]:
    """Those that keep the others waiting, and where the first of them is."""
    least = min(beat.position for beat in beats.values())
    behind = [rank for rank, beat in beats.items() if beat.position == least]
    busy = [rank for rank in behind if not beats[rank].waits] or behind
    return busy, beats[busy[0]].place


def _named(ranks: list[int], beats: Mapping[int, Beat]) -> str:
    return " and ".join(f"rank {rank} (process {beats[rank].pid})" for rank in ranks)
