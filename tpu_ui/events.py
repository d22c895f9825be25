"""What the engine tells while it works. Faces render these; they decide nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy and Pillow are not needed to tell progress
    from tpu_ui.preview import LatentPreview


class Phase(StrEnum):
    QUEUED = "queued"
    DOWNLOADING = "downloading"
    LOADING = "loading"
    PLACING = "placing"
    COMPILING = "compiling"
    ENCODING = "encoding"
    DENOISING = "denoising"
    DECODING = "decoding"
    VERIFYING = "verifying"  # a short second pass that proves the shape warm
    DONE = "done"


@dataclass(frozen=True)
class Progress:
    """One line of progress. Fields that do not belong to the phase are None.

    Attributes:
        elapsed_seconds: since the phase began.
        bytes_done, bytes_total: downloading and loading.
        bytes_per_second, file, files: downloading; `file` counts from 1, and `detail` is its name.
        graphs, graphs_expected: compiled so far in this request, and how many the ledger expects if it knows.
        step, steps, seconds_per_step: denoising.
        position: places before this job in the queue.
        detail: what exactly, for example a component's name.
        preview: what the picture looks like so far.
    """

    phase: Phase
    elapsed_seconds: float = 0.0
    bytes_done: int | None = None
    bytes_total: int | None = None
    bytes_per_second: float | None = None
    file: int | None = None
    files: int | None = None
    graphs: int | None = None
    graphs_expected: int | None = None
    step: int | None = None
    steps: int | None = None
    seconds_per_step: float | None = None
    position: int | None = None
    detail: str = ""
    preview: "LatentPreview | None" = None


ProgressListener = Callable[[Progress], None]
