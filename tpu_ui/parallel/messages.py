"""What the front and rank 0 tell each other, and rank 0 the other ranks. Plain: the front has no diffusers."""

from dataclasses import dataclass
from typing import Any

from tpu_ui.errors import JobCancelled, TpuUiError
from tpu_ui.events import Progress
from tpu_ui.job import JobKind
from tpu_ui.report import GenerationResult
from tpu_ui.request import GenerationRequest
from tpu_ui.resolution import ResolvedRequest
from tpu_ui.runtime import DeviceMemory

# -- from the front to rank 0 ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ask:
    """Run a request."""

    kind: JobKind
    request: GenerationRequest


@dataclass(frozen=True)
class Cancel:
    """End the request that runs, at its next step."""


@dataclass(frozen=True)
class Leave:
    """End the group."""


# -- from rank 0 to the front ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """Progress of the request that runs."""

    progress: Progress


@dataclass(frozen=True)
class Known:
    """What only the process with the graphs knows: which keys are warm or being compiled, by digest; its memory."""

    warm: tuple[str, ...]
    compiling: tuple[str, ...]
    memory: DeviceMemory


@dataclass(frozen=True)
class Ready:
    """All ranks have their device open."""

    toolchain: dict[str, str]
    known: Known


@dataclass(frozen=True)
class Ended:
    """The request has its result, or its error; with neither it was cancelled."""

    result: GenerationResult | None = None
    error: "PackedError | None" = None

    def unpacked(self) -> GenerationResult:
        """The result.

        Raises:
            TpuUiError: the error.
            JobCancelled: there is neither.
        """
        if self.error is not None:
            raise self.error.unpacked()
        if self.result is None:
            raise JobCancelled
        return self.result


@dataclass(frozen=True)
class PackedError:
    """A TpuUiError on its way: most have constructors that pickle knows nothing of."""

    kind: type[TpuUiError]
    message: str
    remedy: str
    attributes: dict[str, Any]

    @classmethod
    def of(cls, error: TpuUiError) -> "PackedError":
        return cls(type(error), error.message, error.remedy, dict(vars(error)))

    def unpacked(self) -> TpuUiError:
        error = self.kind.__new__(self.kind)
        TpuUiError.__init__(error, self.message, self.remedy)
        vars(error).update(self.attributes)
        return error


# -- from rank 0 to the other ranks ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Acquire:
    """Have the pipeline of a request loaded and in its mode."""

    resolved: ResolvedRequest


@dataclass(frozen=True)
class RunPass:
    """Run the pipeline that was acquired last.

    Attributes:
        may_recall_text: see `PassObserver`.
        forbids_recompiles: a new graph is an error.
    """

    resolved: ResolvedRequest
    may_recall_text: bool
    forbids_recompiles: bool


@dataclass(frozen=True)
class EvictAll:
    """Drop all pipelines and graphs."""


@dataclass(frozen=True)
class DropGraphs:
    """Drop all graphs in memory."""


@dataclass(frozen=True)
class End:
    """Leave the group."""


Command = Acquire | RunPass | EvictAll | DropGraphs | End
