"""Devices are found by looking at files, in a pretended /sys and root."""

import subprocess
import sys
from pathlib import Path

import pytest

from tpu_ui.errors import DeviceUnavailable, InvalidRequest
from tpu_ui.hardware import (
    GIB,
    TFLOPS,
    TPU_CHIPS,
    Holder,
    TpuHost,
    choose_device,
    find_chip,
    find_cuda,
    find_tpu_holder,
    find_tpus,
    tcmalloc_status,
)

GVNIC = ("0x1ae0", "0x0042")
INTEL = ("0x8086", "0x1237")


def pci(sys_root: Path, *devices: tuple[str, str]) -> Path:
    """A /sys with these (vendor, device) pairs on the PCI bus."""
    for i, (vendor, device) in enumerate(devices):
        folder = sys_root / "bus" / "pci" / "devices" / f"0000:00:{i:02x}.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "device").write_text(f"{device}\n")
    return sys_root


def everything_installed(package: str) -> bool:
    return bool(package)


def nothing_installed(package: str) -> bool:
    return not package


def choose(wanted: str, tmp_path: Path, is_installed=everything_installed):
    return choose_device(wanted, sys_root=tmp_path / "sys", root=tmp_path, is_installed=is_installed)


@pytest.mark.parametrize(
    ("name", "hbm_gib", "tflops", "devices"),
    [("v4", 32, 275, 1), ("v5e", 16, 197, 1), ("v5p", 95, 459, 1), ("v6e", 32, 918, 1), ("v7x", 192, 2307, 2)],
)
def test_the_table_of_chips(name, hbm_gib, tflops, devices):
    chip = find_chip(name)
    assert (chip.hbm_bytes, chip.peak_bf16_flops, chip.devices_per_chip) == (hbm_gib * GIB, tflops * TFLOPS, devices)
    assert 0.95 < chip.available_hbm_bytes_per_device * devices / chip.hbm_bytes <= 1.01
    assert chip.source.startswith("https://cloud.google.com/tpu/docs/")


def test_chips_are_named_as_people_write_them():
    assert len({chip.pci_device_id for chip in TPU_CHIPS}) == len(TPU_CHIPS)
    assert find_chip("TPU v6e") is find_chip(" V6E ") is find_chip("tpu-v6e")
    with pytest.raises(InvalidRequest, match="v4, v5e, v5p, v6e, v7x"):
        find_chip("v3")


@pytest.mark.parametrize("chip", TPU_CHIPS, ids=lambda chip: chip.name)
@pytest.mark.parametrize("count", [1, 4])
def test_tpus_are_found_on_the_pci_bus(tmp_path, chip, count):
    pci(tmp_path, INTEL, GVNIC, *[("0x1ae0", chip.pci_device_id)] * count)
    assert find_tpus(tmp_path) == TpuHost(chip, count)
    assert find_tpus(tmp_path).generation == chip.name
    assert find_tpus(tmp_path).devices == count * chip.devices_per_chip


def test_googles_network_card_and_other_vendors_are_no_tpu(tmp_path):
    assert find_tpus(tmp_path) is None
    assert find_tpus(pci(tmp_path, GVNIC, INTEL, ("0x10de", "0x0063"))) is None


def test_devices_that_cannot_be_read_are_passed_over(tmp_path):
    pci(tmp_path, ("0x1ae0", "0x006f"), ("0x1ae0", "0x006f"), ("0x1ae0", "0x006f"))
    devices = tmp_path / "bus" / "pci" / "devices"
    (devices / "0000:00:00.0" / "device").unlink()
    (devices / "0000:00:01.0" / "vendor").write_bytes(b"\xff\xfe")
    assert find_tpus(tmp_path).chips == 1


@pytest.mark.parametrize("place", ["proc/driver/nvidia", "dev/nvidia0"])
def test_cuda_is_found_by_its_driver(tmp_path, place):
    assert not find_cuda(tmp_path)
    (tmp_path / place).mkdir(parents=True)
    assert find_cuda(tmp_path)


def test_auto_prefers_a_tpu_to_cuda_to_the_cpu(tmp_path):
    choice = choose("auto", tmp_path)
    assert (choice.kind, choice.reason) == ("cpu", "no TPU on the PCI bus and no NVIDIA driver")
    (tmp_path / "dev" / "nvidia0").mkdir(parents=True)
    assert choose("auto", tmp_path).kind == "cuda"
    pci(tmp_path / "sys", *[("0x1ae0", "0x006f")] * 4)
    choice = choose("auto", tmp_path)
    assert (choice.kind, choice.reason) == ("tpu", "4 TPU v6e chip(s) on the PCI bus")
    assert choice.tpu == TpuHost(find_chip("v6e"), 4)


def test_a_tpu_without_torch_tpu_is_no_reason_to_run_on_the_cpu_in_silence(tmp_path):
    pci(tmp_path / "sys", ("0x1ae0", "0x006f"))
    for wanted in ("auto", "tpu"):
        with pytest.raises(DeviceUnavailable, match="pip install torch_tpu"):
            choose(wanted, tmp_path, nothing_installed)


def test_a_tpu_that_is_not_there_is_refused_with_what_to_choose(tmp_path):
    with pytest.raises(DeviceUnavailable, match=r"no TPU is in this machine\. Choose tpu-emulated .* or cpu"):
        choose("tpu", tmp_path)


def test_googles_unknown_devices_are_named(tmp_path):
    pci(tmp_path / "sys", ("0x1ae0", "0x0083"))
    with pytest.raises(DeviceUnavailable, match="no known TPU: 0x0083"):
        choose("tpu", tmp_path)


def test_the_emulated_tpu_names_the_package_that_it_lacks(tmp_path):
    assert choose("tpu-emulated", tmp_path).kind == "tpu-emulated"
    with pytest.raises(DeviceUnavailable, match=r'pip install "lammps-jax-pjrt-cpu==0\.11\.2"'):
        choose("tpu-emulated", tmp_path, nothing_installed)
    with pytest.raises(DeviceUnavailable, match="pip install torch_tpu"):
        choose("tpu-emulated", tmp_path, lambda package: package == "lammps_jax_pjrt_cpu")


def test_cuda_and_cpu_by_name(tmp_path):
    assert choose("cpu", tmp_path, nothing_installed).kind == "cpu"
    with pytest.raises(DeviceUnavailable, match="no NVIDIA driver"):
        choose("cuda", tmp_path)
    (tmp_path / "proc" / "driver" / "nvidia").mkdir(parents=True)
    assert choose("cuda", tmp_path, nothing_installed).kind == "cuda"


@pytest.mark.parametrize("wanted", ["gpu", "", "TPU", None, 3])
def test_other_devices_are_refused_with_the_list(tmp_path, wanted):
    with pytest.raises(InvalidRequest, match="auto, tpu, tpu-emulated, cuda, cpu"):
        choose(wanted, tmp_path)


def test_finding_a_device_imports_no_torch():
    program = (
        "import sys; from tpu_ui import hardware as h; h.choose_device('auto', is_installed=bool); h.tcmalloc_status();"
        "h.is_installed('torch_tpu'); print([name for name in ('torch', 'torch_tpu') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_tcmalloc_loaded(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 0 08:01 42    /usr/lib/libc.so.6\n7f02-7f03 r-xp 0 08:01 43    /opt/libtcmalloc.so.4\n"
    )
    status = tcmalloc_status(maps, (tmp_path,))
    assert (status.loaded, status.library, status.advice) == (True, Path("/opt/libtcmalloc.so.4"), "")


def test_tcmalloc_on_this_machine_but_not_loaded(tmp_path):
    folder = tmp_path / "x86_64-linux-gnu"
    folder.mkdir()
    for name in ("libtcmalloc_minimal_debug.so.4", "libtcmalloc_minimal.so.4.5.10", "libtcmalloc_minimal.so.4"):
        (folder / name).touch()
    (tmp_path / "maps").write_text("7f00-7f01 r-xp 0 08:01 42    /usr/lib/libc.so.6\n")
    status = tcmalloc_status(tmp_path / "maps", (tmp_path,))
    assert (status.loaded, status.library) == (False, folder / "libtcmalloc_minimal.so.4")
    assert f"LD_PRELOAD={status.library}" in status.advice


def test_tcmalloc_nowhere(tmp_path):
    status = tcmalloc_status(tmp_path / "no-maps", (tmp_path,))
    assert (status.loaded, status.library) == (False, None)
    assert "apt install libtcmalloc-minimal4" in status.advice


def test_the_process_that_holds_a_chip_is_found(tmp_path):
    for pid, target in (("17", "/dev/null"), ("23", "/dev/vfio/0")):
        (tmp_path / pid / "fd").mkdir(parents=True)
        (tmp_path / pid / "fd" / "5").symlink_to(target)
        (tmp_path / pid / "comm").write_text("python3\n")
    assert find_tpu_holder(tmp_path) == Holder(23, "python3")
    (tmp_path / "23" / "fd" / "5").unlink()
    assert find_tpu_holder(tmp_path) is None
