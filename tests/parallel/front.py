"""A program with a group of ranks and no page: tells their process ids, and ends as app.py ends."""

import json
import sys
from pathlib import Path

from tests.parallel.conftest import LIMITS, RANK_MODULE
from tpu_ui.jobs import JobQueue
from tpu_ui.page.serve import wait_for_end
from tpu_ui.parallel.engine import GroupEngine
from tpu_ui.parallel.setup import Setup
from tpu_ui.settings import Settings


def main(cache: Path, model: str) -> None:
    def start() -> GroupEngine:
        pids: list[int] = []
        try:
            engine = GroupEngine(Setup("cpu", Settings(cache_dir=cache), model, 2, LIMITS), rank_module=RANK_MODULE)
            pids = list(engine.pids.values())
        finally:
            print(json.dumps(pids), flush=True)
        return engine

    queue = JobQueue(start)
    wait_for_end()
    queue.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
