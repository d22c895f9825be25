"""Errors of torch, XLA and the pipelines, told as sentences. The one border at which foreign errors are mapped."""

import re
import uuid
from typing import TYPE_CHECKING

from torch._dynamo.exc import TorchDynamoException

from tpu_ui.errors import CompileFailed, DoesNotFit, GenerationFailed, TpuUiError

if TYPE_CHECKING:
    from tpu_ui.resolution import ResolvedRequest

_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|out of memory|can't allocate memory|bad_alloc", re.IGNORECASE)
_COMPILE = re.compile(r"INVALID_ARGUMENT|UNIMPLEMENTED|StableHLO|failed to compile|Mosaic", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or bool(_OUT_OF_MEMORY.search(str(error)))


def as_user_error(error: Exception, resolved: "ResolvedRequest") -> TpuUiError:
    """The sentence for an error that a run raised."""
    request = resolved.request
    what = (
        f"{resolved.card.label} at {request.width}×{request.height}, batch {resolved.run_batch}, {request.mode.value}"
    )
    if is_out_of_memory(error):
        return DoesNotFit(
            f"{what}: the device ran out of memory. What was loaded has been freed.",
            "Try a smaller size, one picture at a time, or the placement cpu_offload.",
        )
    if isinstance(error, TorchDynamoException) or _COMPILE.search(str(error)):
        return CompileFailed(f"{what}: the compiler refused a graph ({_first_line(error)}).", "Try the mode strict.")
    fault = uuid.uuid4().hex[:8]
    return GenerationFailed(
        f"{what}: the pipeline failed ({type(error).__name__}, fault {fault}).",
        "The log has the details under that number.",
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
