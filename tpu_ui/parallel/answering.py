"""The border of a process that runs the requests of a front: whatever a request does, it ends as a message."""

import logging
from collections.abc import Callable

from tpu_ui.errors import GenerationFailed, JobCancelled, TpuUiError
from tpu_ui.events import ProgressListener
from tpu_ui.job import Engine, JobKind
from tpu_ui.parallel.messages import Ask, Ended, PackedError

log = logging.getLogger(__name__)


def answer(engine: Engine, ask: Ask, emit: ProgressListener, cancelled: Callable[[], bool]) -> Ended:
    """Run what was asked; never raises."""
    run = engine.warm_up if ask.kind is JobKind.WARM_UP else engine.generate
    try:
        return Ended(run(ask.request, emit, cancelled))
    except JobCancelled:
        return Ended()
    except TpuUiError as error:
        return Ended(error=PackedError.of(error))
    except Exception:  # whatever happens, the next request runs
        log.exception("a request failed")
        return Ended(error=PackedError.of(GenerationFailed("The request failed.", "The log has the details.")))
