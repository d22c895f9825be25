"""What can go wrong, as one small tree. Every error is a sentence for a person, with the remedy in it."""


class TpuUiError(Exception):
    """A fault that can be told to a user.

    `message` says what is wrong and what is allowed; `remedy` says what to do. Both are plain text without markup.
    `is_users_mistake` decides the exit code of the command line: 2 for a mistake, 1 for a fault.
    """

    is_users_mistake = False

    def __init__(self, message: str, remedy: str = "") -> None:
        self.message = message.strip()
        self.remedy = remedy.strip()
        super().__init__(f"{self.message} {self.remedy}".strip())


class InvalidRequest(TpuUiError):
    """A field of a request is wrong; `field` names it."""

    is_users_mistake = True

    def __init__(self, field: str, message: str, remedy: str = "") -> None:
        self.field = field
        super().__init__(f"{field}: {message}", remedy)


class UnknownModel(TpuUiError):
    """The model is neither in the catalogue, nor a folder, nor a repository of the Hub."""

    is_users_mistake = True


class UnusableModel(TpuUiError):
    """The model was found, but is not a complete, safe text-to-image pipeline in diffusers' folder format."""

    is_users_mistake = True


class ModeNotAllowed(TpuUiError):
    """This execution mode or placement does not exist on this device or for this pipeline."""

    is_users_mistake = True


class DeviceUnavailable(TpuUiError):
    """The chosen device is not in this machine, or what it needs is not installed."""

    is_users_mistake = True


class DoesNotFit(TpuUiError):
    """The request needs more memory than there is."""


class LoadFailed(TpuUiError):
    """The weights or the configuration could not be loaded."""


class NotDownloaded(LoadFailed):
    """The model is on the Hub but not on this machine, and no download was asked for, or none is possible."""


class NoAccess(LoadFailed):
    """The Hub refused: no login, a wrong token, or a licence that was not accepted."""


class DiskFull(LoadFailed):
    """The model's files are larger than the space that is free for them."""


class CompileFailed(TpuUiError):
    """The compiler refused a graph."""


class UnexpectedCompile(TpuUiError):
    """A compile was met where none is allowed. Caught by the manager: it becomes a broken promise, never a failure."""


class NotANumber(TpuUiError):
    """NaN or infinity in the denoiser's or the VAE's result; `stage` names which."""

    def __init__(self, stage: str, message: str, remedy: str = "") -> None:
        self.stage = stage
        super().__init__(message, remedy)


class GenerationFailed(TpuUiError):
    """The pipeline raised an error of its own; the traceback is in the log."""


class WorkerLost(TpuUiError):
    """A worker process ended or hung."""


class QueueFull(TpuUiError):
    """Too many jobs are waiting."""

    is_users_mistake = True


class JobCancelled(Exception):
    """Raised inside a job whose owner cancelled it. Not a TpuUiError: it is not a fault."""


def shown(value: object) -> str:
    """A wrong value as it may stand in a sentence, however large it is."""
    try:
        return f"{value!r:.60}"
    except (ValueError, RecursionError):  # Python refuses to write out numbers of thousands of digits
        return f"the {type(value).__name__} given"
