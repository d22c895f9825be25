"""A rank ends with the process that started it, however that ends."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PARENT_VARIABLE = "TPU_UI_RANK_PARENT"


def parent_environment() -> dict[str, str]:
    """Tells a child of this process whose child it is."""
    return {_PARENT_VARIABLE: str(os.getpid())}


def end_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends; at once if that has happened already.

    Ctrl+C at the terminal is the parent's to handle.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(os.environ.pop(_PARENT_VARIABLE)):
        sys.exit("the process that started this rank has ended")
