"""Who owns what: a browser's secret token, and which browsers still have a page open."""

import re
import secrets
import threading
import time
from collections.abc import Callable

_TOKEN = re.compile(r"[0-9a-f]{32}")


def new_token() -> str:
    return secrets.token_hex(16)


def is_token(value: object) -> bool:
    """Whether a value from a browser has the form of a token. Anyone may invent one: it opens nothing but his own."""
    return isinstance(value, str) and _TOKEN.fullmatch(value) is not None


class Presence:
    """Which owners have a page open. Thread-safe.

    Args:
        grace_seconds: how long an owner without a page still counts as present; a reload takes a moment.
    """

    def __init__(self, grace_seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._owners: dict[str, str] = {}  # by page session
        self._left: dict[str, float] = {}  # owners without a page, since when

    def seen(self, session: str | None, owner: str) -> None:
        """A page has called."""
        if session is None:
            return
        with self._lock:
            self._owners[session] = owner
            self._left.pop(owner, None)

    def closed(self, session: str | None) -> None:
        """A page was closed, or its connection was lost."""
        with self._lock:
            owner = self._owners.pop(session or "", None)
            if owner is not None and owner not in self._owners.values():
                self._left[owner] = self._clock()

    def gone(self) -> list[str]:
        """Owners whose grace is over since the last call; each is told once."""
        with self._lock:
            limit = self._clock() - self._grace_seconds
            over = [owner for owner, since in self._left.items() if since <= limit]
            for owner in over:
                del self._left[owner]
            return over

    @property
    def pages(self) -> int:
        """How many pages are open."""
        with self._lock:
            return len(self._owners)
