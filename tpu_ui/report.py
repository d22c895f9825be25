"""What came of a request: the one report that page, API and command line show."""

from dataclasses import asdict, dataclass, field
from typing import Any

from PIL import Image

from tpu_ui.request import GenerationRequest


@dataclass(frozen=True)
class Timings:
    """Seconds of wall time. `compile` is told apart: encode, denoise and decode hold run time only.

    Attributes:
        load: downloading and reading weights and placing them; 0 when the pipeline was loaded already.
        compile: Dynamo's tracing and XLA's compiling, and reading compiled graphs from disk.
        encode: text encoders, and the preparation of the latents.
        denoise: all steps.
        decode: the VAE, and the transfer of the pictures to the host.
        total: from the start of the work to the pictures in host memory, queueing and saving not included.
    """

    load: float = 0.0
    compile: float = 0.0
    encode: float = 0.0
    denoise: float = 0.0
    decode: float = 0.0
    total: float = 0.0


@dataclass(frozen=True)
class Report:
    """Everything that is known about a finished request; the field names are a contract with the users of --json.

    Attributes:
        ok, error: whether pictures came, and the sentence if not.
        images: paths of the saved pictures, in the order of `seeds`.
        loras: as NAME:WEIGHT.
        strength, image_sha256: of the picture that it started from; None where it started from noise.
        state_before: the ledger's word before the run (cold, on_disk, warm, failed).
        was_warm: the ledger said warm and nothing was compiled.
        new_compiles: graphs that the device's compiler made during this request, by its own counter.
        why_compiled: the differences to the nearest known keys; empty when nothing was compiled.
        seconds_per_step: run time of a denoising step, compile time taken out.
        peak_memory_bytes: device memory where the device tells it, else the process's resident memory.
        moved_bytes: weights copied to the device while the pictures were made, under CPU offload.
        notices: what the user should know although the request succeeded.
    """

    ok: bool
    error: str | None = None
    images: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    model: str | None = None
    revision: str | None = None
    device: str | None = None
    mode: str | None = None
    placement: str | None = None
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    guidance: float | None = None
    loras: tuple[str, ...] = ()
    strength: float | None = None
    image_sha256: str | None = None
    state_before: str | None = None
    was_warm: bool = False
    new_compiles: int = 0
    why_compiled: tuple[str, ...] = ()
    timings: Timings = field(default_factory=Timings)
    seconds_per_step: float | None = None
    peak_memory_bytes: int | None = None
    moved_bytes: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    @classmethod
    def of_failure(cls, error: Exception, request: GenerationRequest | None = None) -> "Report":
        """The report of a request that made no pictures."""
        if request is None:
            return cls(ok=False, error=str(error))
        return cls(
            ok=False,
            error=str(error),
            model=request.model,
            mode=request.mode and request.mode.value,
            placement=request.placement.value,
            width=request.width,
            height=request.height,
            steps=request.steps,
            guidance=request.guidance,
            loras=tuple(map(str, request.loras)),
            strength=request.strength,
            image_sha256=request.image_sha256,
            notices=request.notices,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class GenerationResult:
    """Pictures and everything that is known of how they came to be.

    `request` is the request as it ran, with nothing left open; `images` are in the order of `report.seeds`.
    """

    images: tuple[Image.Image, ...]
    request: GenerationRequest
    report: Report
