"""app.py with a grace of seconds for a closed page, so that a test need not wait for a minute."""

import sys

from app import main
from tpu_ui.page import desk
from tpu_ui.page.sessions import Presence

GRACE_SECONDS = 2.0

if __name__ == "__main__":
    desk._SWEEP_SECONDS = 0.2
    desk.Presence = lambda _seconds: Presence(GRACE_SECONDS)
    sys.exit(main())
