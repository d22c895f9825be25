"""app.py with a device that waits for other processes, which never come."""

import sys
import time
from collections.abc import Callable

from app import main
from tpu_ui.errors import JobCancelled
from tpu_ui.page import serve


def wait_for_partners(cancelled: Callable[[], bool]) -> None:
    while not cancelled():
        time.sleep(0.05)
    print("nobody waits any more", flush=True)
    raise JobCancelled


if __name__ == "__main__":
    serve.engine_starter = lambda *_: wait_for_partners
    sys.exit(main())
