"""torch.compile's front end: how long it traces, how many graphs it may keep, and how it is told to make no more."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator

import torch
from torch._dynamo import callback as dynamo_callback
from torch._dynamo import config as dynamo_config

from tpu_ui.errors import UnexpectedCompile

# Dynamo gives up after 8 shapes of one function, and with fullgraph=True that is an error. The manager bounds the
# number of graphs by memory instead.
_MANY_GRAPHS = 4096
_RECOMPILE_MESSAGE = re.compile(r"fail_on_recompile")


class DynamoClock:
    """Wall seconds in which Dynamo traced, its backend's work included. One for the process.

    Args:
        inner_seconds: a running total of compile seconds which the backend counts by itself; what it counts while
            Dynamo is at work is taken out, so that `outer + inner` counts nothing twice.
    """

    def __init__(self, inner_seconds: Callable[[], float]) -> None:
        self._inner_seconds = inner_seconds
        self._started_at: float | None = None
        self._inner_at_start = 0.0
        self._total = 0.0
        self.register()

    def register(self) -> None:
        """Torch forgets its callbacks in torch._dynamo.reset(), so this is called again after it."""
        dynamo_callback.on_compile_start(self._start)
        dynamo_callback.on_compile_end(self._end)

    def _start(self, _arguments: object) -> None:
        self._inner_at_start = self._inner_seconds()
        self._started_at = time.perf_counter()

    def _end(self, _arguments: object) -> None:
        if self._started_at is None:
            return
        self._total += self._elapsed(self._started_at)
        self._started_at = None

    def _elapsed(self, started_at: float) -> float:
        inside = self._inner_seconds() - self._inner_at_start
        return max(0.0, time.perf_counter() - started_at - inside)

    @property
    def seconds(self) -> float:
        """Seconds so far; grows while a trace runs. May be read from any thread."""
        started_at = self._started_at
        return self._total + (self._elapsed(started_at) if started_at is not None else 0.0)


def allow_many_graphs() -> None:
    dynamo_config.recompile_limit = _MANY_GRAPHS
    dynamo_config.accumulated_recompile_limit = _MANY_GRAPHS


def compile_full_graph(function: Callable, backend: str) -> Callable:
    """torch.compile as the project uses it everywhere: one graph, static shapes."""
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=False)


_forbidding = threading.Event()


def are_recompiles_forbidden() -> bool:
    """Whether the device thread is inside `recompiles_forbidden`."""
    return _forbidding.is_set()


@contextlib.contextmanager
def recompiles_forbidden() -> Iterator[None]:
    """Inside, a new graph raises instead of compiling.

    Raises:
        UnexpectedCompile: Dynamo met a graph that it had not traced.
    """
    try:
        _forbidding.set()
        with torch.compiler.set_stance("fail_on_recompile"):
            yield
    except RuntimeError as error:
        # Torch has no class of its own for this; the message names the stance.
        if _RECOMPILE_MESSAGE.search(str(error)):
            raise UnexpectedCompile("torch.compile met a graph that was called warm.") from error
        raise
    finally:
        _forbidding.clear()
