"""A program with replicas on the CPU and no page: tells the processes of Ray's below it, and ends as app.py ends."""

import json
import os
import sys
import threading
import time
from pathlib import Path

from tests.replicas.conftest import replica_processes
from tpu_ui.hardware import choose_device
from tpu_ui.jobs import JobQueue
from tpu_ui.page.serve import wait_for_end
from tpu_ui.replicas.starting import replica_starter
from tpu_ui.settings import Settings


def main(cache: Path, model: str, replicas: str, address: str | None = None) -> None:
    queue = JobQueue(replica_starter(choose_device("cpu"), Settings(cache_dir=cache), model, replicas, address))

    def tell() -> None:
        while len(found := replica_processes()) < int(replicas) and queue.engine_error is None:
            time.sleep(0.05)
        told = {"pids": [process.pid for process in found], "error": str(queue.engine_error or "")}
        print(json.dumps(told), flush=True)

    threading.Thread(target=tell, daemon=True).start()
    wait_for_end()
    queue.close()


if __name__ == "__main__":
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    main(Path(sys.argv[1]), *sys.argv[2:])
