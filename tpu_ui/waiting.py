"""The jobs that wait, and whose turn it is."""

import itertools
from collections import OrderedDict, deque

from tpu_ui.job import Job, JobKind


class Waiting:
    """Fair between owners: each owner's oldest job comes up in turn; warm-up jobs wait for all others.

    Not thread-safe: the queue holds its lock.
    """

    def __init__(self) -> None:
        self._rows: OrderedDict[str, deque[Job]] = OrderedDict()  # by owner, the next in turn first
        self._warm_ups: deque[Job] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._rows.values())) + len(self._warm_ups)

    def add(self, job: Job) -> None:
        """To the end of its owner's row."""
        if job.kind is JobKind.WARM_UP:
            self._warm_ups.append(job)
        else:
            self._rows.setdefault(job.owner, deque()).append(job)

    def put_back(self, job: Job) -> None:
        """To the front, of its owner's row and of all rows: its turn had come."""
        if job.kind is JobKind.WARM_UP:
            self._warm_ups.appendleft(job)
        else:
            self._rows.setdefault(job.owner, deque()).appendleft(job)
            self._rows.move_to_end(job.owner, last=False)

    def take(self, job: Job) -> None:
        """Take a job out to run it; its owner goes to the end of the rows, but for one whose first job waits on."""
        was_first = job.kind is not JobKind.WARM_UP and self._rows[job.owner][0] is job
        self.remove(job)
        if was_first and job.owner in self._rows:
            self._rows.move_to_end(job.owner)

    def remove(self, job: Job) -> None:
        if job.kind is JobKind.WARM_UP:
            self._warm_ups.remove(job)
            return
        row = self._rows[job.owner]
        row.remove(job)
        if not row:
            del self._rows[job.owner]

    def clear(self) -> None:
        self._rows.clear()
        self._warm_ups.clear()

    def order(self) -> list[Job]:
        """All in the order in which they will run, as far as it is known now."""
        in_turn = itertools.chain.from_iterable(itertools.zip_longest(*self._rows.values()))
        return [job for job in in_turn if job is not None] + list(self._warm_ups)
