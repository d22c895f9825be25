"""Model folders that were inspected already: the page asks at each change of a control."""

from functools import lru_cache
from pathlib import Path

from tpu_ui.model_folder import ModelFolder, inspect_folder


def inspected(path: str | Path) -> ModelFolder:
    """`inspect_folder`, done again only when a file of the folder changes.

    Raises:
        UnusableModel: see `inspect_folder`.
    """
    path = Path(path)
    return _inspect(path, _signature(path))


def _signature(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of a folder's files."""
    try:
        stats = [(file.as_posix(), file.stat()) for file in sorted(path.rglob("*")) if file.is_file()]
    except OSError:
        return ()  # the inspection says what is wrong with it
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


@lru_cache(maxsize=16)
def _inspect(path: Path, _signature: tuple) -> ModelFolder:
    return inspect_folder(path)
