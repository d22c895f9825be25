"""The folder of compiled graphs on disk: what is in it, what of it is whole, and its byte budget."""

import contextlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from stat import S_ISREG

log = logging.getLogger(__name__)

_LOCK_SUFFIX = ".lock"  # Inductor's, always empty: no graph, and another process may hold it


class CompileCache:
    """A view of the folder that the backend writes. Names are paths relative to it. Missing files are no error."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def files(self) -> dict[str, int]:
        """Names and sizes, in bytes, of all files there are now."""
        return {name: size for name, (size, _) in self._stats().items()}

    def _stats(self) -> dict[str, tuple[int, int]]:
        """Size in bytes and time of writing in nanoseconds, by name."""
        found = {}
        for folder, _, names in os.walk(self.root):  # skips folders that another process deletes meanwhile
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(OSError):
                    stat = path.stat()
                    if S_ISREG(stat.st_mode) and path.suffix != _LOCK_SUFFIX:
                        found[path.relative_to(self.root).as_posix()] = (stat.st_size, stat.st_mtime_ns)
        return found

    def files_since(self, unix_seconds: float) -> dict[str, int]:
        """Names and sizes of the files written since then."""
        limit = int(unix_seconds * 1e9)
        return {name: size for name, (size, written) in self._stats().items() if written >= limit}

    def has(self, name: str, size: int) -> bool:
        """Whether the file is there with the size it was written with. A cut file would be compiled again."""
        try:
            return os.stat(f"{self.root}/{name}").st_size == size  # asked of thousands of files: no Path for each
        except OSError:
            return False

    def total_bytes(self) -> int:
        return sum(self.files().values())

    def remove(self, names: Iterable[str]) -> int:
        """Delete files; returns the bytes that came free."""
        freed = 0
        for name in names:
            path = self.root / name
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                path.unlink()
                freed += size
        return freed

    def remove_damaged(self, expected: dict[str, int]) -> list[str]:
        """Delete files whose size is not the one they were written with, so that the backend makes them anew."""
        present = self.files()
        damaged = [name for name, size in expected.items() if name in present and present[name] != size]
        damaged += [name for name, size in present.items() if size == 0 and name not in damaged]
        if damaged:
            self.remove(damaged)
            log.warning(
                "%d damaged file(s) were removed from the compile cache; they will be compiled again.", len(damaged)
            )
        return damaged

    def prune(self, budget_bytes: int, last_use: dict[str, float]) -> tuple[int, int]:
        """Delete files, the least recently used first, until the folder is within its budget.

        Args:
            budget_bytes: what may stay.
            last_use: Unix seconds by name; files that are not named belong to no known key and go first.

        Returns:
            Files removed and bytes freed.
        """
        present = self.files()
        excess = sum(present.values()) - budget_bytes
        chosen: list[str] = []
        for name in sorted(present, key=lambda name: last_use.get(name, 0.0)):
            if excess <= 0:
                break
            chosen.append(name)
            excess -= present[name]
        return len(chosen), self.remove(chosen)
