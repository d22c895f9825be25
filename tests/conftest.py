"""What all tests share: one emulated TPU for the whole session, its compile cache kept between sessions."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub.fake_hub import FakeHub
from tpu_ui.settings import Settings

TESTS = Path(__file__).parent
WITHOUT_TORCH = (TESTS / "plain", TESTS / "hub")
TEST_CACHE = Path(os.environ.get("TPU_UI_TEST_CACHE_DIR") or Path.home() / ".cache" / "tpu_ui_tests")


def pytest_configure(config: pytest.Config) -> None:
    # The device's environment must be set before any test module imports torch. Tests of the plain rooms need no torch.
    wanted = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    if not all(any(path.is_relative_to(folder) for folder in WITHOUT_TORCH) for path in wanted):
        from tpu_ui import environment

        # Most of the time of a run is LLVM's, and the pictures are tiny: no optimisation of the emulated TPU's code.
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
        environment.prepare("tpu-emulated", Settings(cache_dir=TEST_CACHE))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The fast ones first: plain rooms, then those on the emulated device, the browser last."""
    order = ("plain", "hub", "demo", "emulated", "parallel", "replicas", "cli", "page")

    items.sort(key=lambda item: order.index(item.path.relative_to(TESTS).parts[0]))


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one small pipeline of each class, by name."""
    from tests import tiny_pipelines

    folder = tmp_path_factory.mktemp("models")
    for name in tiny_pipelines.BUILDERS:
        tiny_pipelines.save(name, folder)
    return folder


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub().running() as running:
        yield running
