"""The one device of the session, and managers on it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import TEST_CACHE
from tpu_ui.report import GenerationResult
from tpu_ui.request import GenerationRequest
from tpu_ui.settings import Settings

if TYPE_CHECKING:  # importing these imports torch, which pytest_configure must prepare first
    from tpu_ui.manager import PipelineManager
    from tpu_ui.tpu_runtime import TpuRuntime

# float32: XLA and the CPU round alike but sum in another order; the tiny random models multiply that by their steps.
TOLERANCE_8_BIT = 2

Generate = Callable[..., GenerationResult]


@pytest.fixture(scope="session")
def runtime() -> "TpuRuntime":
    from tpu_ui.tpu_runtime import TpuRuntime

    return TpuRuntime("tpu-emulated")


@pytest.fixture(scope="session")
def manager(runtime: "TpuRuntime", tiny_models: Path) -> Iterator["PipelineManager"]:
    from tpu_ui.manager import PipelineManager

    manager = PipelineManager(runtime, Settings(cache_dir=TEST_CACHE), str(tiny_models / "sd3"))
    yield manager
    manager.close()


@pytest.fixture(scope="session")
def generate(manager: "PipelineManager", tiny_models: Path) -> Generate:
    """Run a request given by its fields; `model` is the name of a tiny pipeline."""

    def run(model: str = "sd3", **fields: object) -> GenerationResult:
        values = {"prompt": "a red cat", "width": 64, "height": 64, "steps": 3, "seed": 0, **fields}
        request = GenerationRequest.from_mapping(values | {"model": str(tiny_models / model)})
        return manager.generate(request, lambda _: None, lambda: False)

    return run
