"""The execution modes, and where each of them exists."""

from enum import StrEnum

from tpu_ui.errors import InvalidRequest, ModeNotAllowed, shown
from tpu_ui.translations import marked

DEVICE_KINDS = ("tpu", "tpu-emulated", "cuda", "cpu")


class ExecutionMode(StrEnum):
    """How the pipeline's operations reach the device. The value is the word used on the command line."""

    STRICT_EAGER = "strict"
    FUSED_EAGER = "fused"
    COMPILED = "compile"

    @property
    def label(self) -> str:
        return {
            "strict": marked("Strict eager"),
            "fused": marked("Fused eager"),
            "compile": marked("Compiled"),
        }[self.value]

    @property
    def explanation(self) -> str:
        """One line for the page and for --help."""
        return {
            "strict": "each operation runs at once (EagerMode.DEFER_NEVER): quickest to start, slowest to run",
            "fused": "operations are collected and fused into larger programs (EagerMode.DEFER_AND_FUSE)",
            "compile": "torch.compile with full graphs: the longest first run, the fastest pictures after it",
        }[self.value]


def parse_mode(value: object) -> ExecutionMode:
    """Read a mode from a request.

    Raises:
        InvalidRequest: `value` is none of the three words.
    """
    for mode in ExecutionMode:
        if mode == value:
            return mode
    allowed = ", ".join(mode.value for mode in ExecutionMode)
    raise InvalidRequest("mode", f"{shown(value)} is not an execution mode.", f"Choose one of {allowed}.")


def check_mode_on_device(mode: ExecutionMode, device_kind: str) -> None:
    """Refuse a mode that the device lacks.

    Raises:
        ModeNotAllowed: fused eager is TorchTPU's own mode; CUDA and CPU have no counterpart.
    """
    if mode is ExecutionMode.FUSED_EAGER and not device_kind.startswith("tpu"):
        raise ModeNotAllowed(
            f"mode: fused eager is TorchTPU's EagerMode.DEFER_AND_FUSE and exists only on a TPU, not on {device_kind}.",
            "Choose strict or compile.",
        )


def default_mode(device_kind: str, defer_and_fuse: bool) -> ExecutionMode:
    """The mode when a request names none: on a TPU compile, or fused if TORCH_TPU_DEFER_AND_FUSE=1; else strict."""
    if not device_kind.startswith("tpu"):
        return ExecutionMode.STRICT_EAGER
    return ExecutionMode.FUSED_EAGER if defer_and_fuse else ExecutionMode.COMPILED
