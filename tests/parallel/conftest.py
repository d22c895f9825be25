"""Groups of two ranks on the CPU, over gloo."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import psutil
import pytest

from tests.parallel.cpu_rank import FAULT_FILE
from tpu_ui.parallel.engine import GroupEngine
from tpu_ui.parallel.setup import Limits, Setup
from tpu_ui.report import GenerationResult
from tpu_ui.request import GenerationRequest
from tpu_ui.settings import Settings

REQUEST = {"prompt": "a red cat", "width": 64, "height": 64, "steps": 4, "seed": 0}
RANK_MODULE = "tests.parallel.cpu_rank"
LIMITS = Limits(partners=1.0, joining=60.0, beat=0.2, silent=15.0, stall=30.0, warm_stall=6.0, fault=2.0, ending=5.0)


@pytest.fixture(scope="session")
def flux(tiny_models: Path) -> Path:
    return tiny_models / "flux"


@pytest.fixture(scope="session")
def fault_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("faults") / "fault"
    os.environ[FAULT_FILE] = str(file)
    return file


@pytest.fixture(scope="session")
def group(flux: Path, fault_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupEngine]:
    setup = Setup("cpu", Settings(cache_dir=tmp_path_factory.mktemp("cache")), str(flux), 2, LIMITS)
    assert not fault_file.exists()
    engine = GroupEngine(setup, rank_module=RANK_MODULE)
    yield engine
    pids = engine.pids.values()
    engine.close()
    assert not any(map(psutil.pid_exists, pids))


@pytest.fixture
def request_for() -> Callable[..., GenerationRequest]:
    def build(**fields: object) -> GenerationRequest:
        return GenerationRequest.from_mapping(REQUEST | {"mode": "strict"} | fields)

    return build


def pixels_of(result: GenerationResult) -> numpy.ndarray:
    """Signed, so that two can be subtracted."""
    return numpy.asarray(result.images[0]).astype(int)


@pytest.fixture(scope="session")
def alone(flux: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[GenerationRequest], numpy.ndarray]:
    """The picture that one process makes of a request on the CPU."""
    from tpu_ui.manager import PipelineManager
    from tpu_ui.torch_runtime import TorchRuntime

    settings = Settings(cache_dir=tmp_path_factory.mktemp("alone"))

    def run(request: GenerationRequest) -> numpy.ndarray:
        manager = PipelineManager(TorchRuntime("cpu"), settings, str(flux))
        result = manager.generate(request, lambda _: None, lambda: False)
        manager.close()
        return pixels_of(result)

    return run


@pytest.fixture(scope="session")
def expected_pixels(alone: Callable[[GenerationRequest], numpy.ndarray]) -> numpy.ndarray:
    """What one process makes of `request_for()`."""
    return alone(GenerationRequest.from_mapping(REQUEST | {"mode": "strict"}))
