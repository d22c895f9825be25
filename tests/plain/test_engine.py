"""What keeps the device from being opened is said before torch is imported and before any page is up."""

from pathlib import Path

import pytest

from tpu_ui import engine, hardware
from tpu_ui.errors import DeviceUnavailable
from tpu_ui.settings import Settings


def test_a_world_without_partners_is_refused(tmp_path: Path):
    with pytest.raises(DeviceUnavailable, match=r"WORLD_SIZE=2 is set.*Unset RANK"):
        engine.engine_starter("cpu", Settings(tmp_path, world_size=2))


def test_a_held_tpu_names_its_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "choose_device", lambda _kind: hardware.DeviceChoice("tpu", "for the test"))
    monkeypatch.setattr(hardware, "find_tpu_holder", lambda: hardware.Holder(4711, "python"))
    with pytest.raises(DeviceUnavailable, match=r"held by process 4711 \(python\).*kill 4711.*tpu-emulated"):
        engine.engine_starter("tpu", Settings(tmp_path))


def test_the_device_is_opened_later(tmp_path: Path):
    assert callable(engine.engine_starter("cpu", Settings(tmp_path)))
    assert not list(tmp_path.iterdir())
