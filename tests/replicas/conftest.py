"""Two replicas on the CPU, run by a Ray of their own."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tpu_ui.hardware import choose_device
from tpu_ui.job import Job, JobKind
from tpu_ui.jobs import JobQueue
from tpu_ui.replicas.starting import replica_starter
from tpu_ui.request import GenerationRequest
from tpu_ui.settings import Settings

REQUEST = {"prompt": "a red cat", "width": 64, "height": 64, "steps": 4, "seed": 0, "mode": "strict"}
PATIENCE = 60.0  # seconds before a test that hangs is called failed


@pytest.fixture(scope="session")
def sd3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests import tiny_pipelines

    folder = tmp_path_factory.mktemp("replicas")
    tiny_pipelines.save("sd3", folder)
    return folder / "sd3"


@pytest.fixture(scope="session")
def queue(sd3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobQueue]:
    settings = Settings(cache_dir=tmp_path_factory.mktemp("cache"))
    queue = JobQueue(replica_starter(choose_device("cpu"), settings, str(sd3), "2"))
    wait_until_idle(queue)
    yield queue
    children = psutil.Process().children(recursive=True)
    of_ray = [child for child in children if "ray" in " ".join(child.cmdline())]
    queue.close()
    assert of_ray
    assert not psutil.wait_procs(of_ray, timeout=10)[1]
    assert not list(Path("/tmp").glob(f"tpu_ui-ray-{os.getpid()}-*"))


def wait_until_idle(queue: JobQueue) -> None:
    deadline = time.monotonic() + PATIENCE
    while not (states := [status.state for status in queue.statuses()]) or set(states) != {"idle"}:
        assert queue.engine_error is None, queue.engine_error
        assert time.monotonic() < deadline, states
        time.sleep(0.05)


Ask = Callable[..., Job]


@pytest.fixture
def ask(queue: JobQueue) -> Ask:
    def submit(owner: str = "ann", kind: JobKind = JobKind.GENERATE, **fields: object) -> Job:
        return queue.submit(GenerationRequest.from_mapping(REQUEST | fields), owner, kind)

    return submit
