"""Which device is in this machine, found without starting any runtime: only /sys, /proc and /dev are looked at."""

import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tpu_ui.errors import DeviceUnavailable, InvalidRequest
from tpu_ui.modes import DEVICE_KINDS

GIB = 2**30
TFLOPS = 10**12

_CHIP_FILE = re.compile(r"/dev/(vfio/\d+|accel\d+)$")
GOOGLE_PCI_VENDOR = "0x1ae0"
EMULATION_PACKAGE = "lammps_jax_pjrt_cpu"
EMULATION_REQUIREMENT = "lammps-jax-pjrt-cpu==0.11.2"


@dataclass(frozen=True)
class TpuChip:
    """One generation of TPU.

    Attributes:
        hbm_bytes: memory of one chip. Google's pages write GB or GiB for the same figure; it is GiB.
        available_hbm_bytes_per_device: what XLA leaves to programs and their data, of one device.
        peak_bf16_flops: FLOP/s of one chip, dense bfloat16.
        devices_per_chip: how many devices a chip shows to the runtime; they share its memory and its peak.
        pci_device_id: as in /sys/bus/pci/devices/*/device.
        source: the page with memory and peak.
    """

    name: str
    hbm_bytes: int
    available_hbm_bytes_per_device: int
    peak_bf16_flops: int
    devices_per_chip: int
    pci_device_id: str
    source: str

    @property
    def peak_bf16_flops_per_device(self) -> int:
        return self.peak_bf16_flops // self.devices_per_chip


# Memory and peak from the pages named; PCI device ids and devices a chip from torch_tpu 0.2.0
# (torch_tpu/_internal/utils/hardware.py). What is available is from the message with which libtpu 0.0.52 refuses a
# program that is too large for a chip of this kind; of a v4 from the same message on one ("of 30.75G hbm"), since the
# compiler alone takes half a chip for a device.
TPU_CHIPS: tuple[TpuChip, ...] = (
    TpuChip("v4", 32 * GIB, int(30.75 * GIB), 275 * TFLOPS, 1, "0x005e", "https://cloud.google.com/tpu/docs/v4"),
    TpuChip("v5e", 16 * GIB, int(15.75 * GIB), 197 * TFLOPS, 1, "0x0063", "https://cloud.google.com/tpu/docs/v5e"),
    TpuChip("v5p", 95 * GIB, int(95.73 * GIB), 459 * TFLOPS, 1, "0x0062", "https://cloud.google.com/tpu/docs/v5p"),
    TpuChip("v6e", 32 * GIB, int(31.25 * GIB), 918 * TFLOPS, 1, "0x006f", "https://cloud.google.com/tpu/docs/v6e"),
    TpuChip("v7x", 192 * GIB, int(94.75 * GIB), 2307 * TFLOPS, 2, "0x0076", "https://cloud.google.com/tpu/docs/tpu7x"),
)


@dataclass(frozen=True)
class TpuHost:
    """The TPU chips of this machine: `chips` of them, all of the generation `chip`."""

    chip: TpuChip
    chips: int

    def __post_init__(self) -> None:
        if self.chips < 1:
            raise ValueError("a TPU host has at least one chip")

    @property
    def generation(self) -> str:
        return self.chip.name

    @property
    def devices(self) -> int:
        """How many devices the runtime shows."""
        return self.chips * self.chip.devices_per_chip


@dataclass(frozen=True)
class DeviceChoice:
    """The device that will be used, one of modes.DEVICE_KINDS, and why in one sentence. `tpu` is set for kind tpu."""

    kind: str
    reason: str
    tpu: TpuHost | None = None


@dataclass(frozen=True)
class TcmallocStatus:
    """Whether the allocator that TorchTPU wants is in use.

    Attributes:
        loaded: libtcmalloc is mapped into this process.
        library: where it lies on this machine, loaded or not; None if it was not found.
        advice: what to do, one sentence; empty when it is loaded.
    """

    loaded: bool
    library: Path | None
    advice: str


def find_chip(name: str) -> TpuChip:
    """The generation with this name.

    Raises:
        InvalidRequest: no such generation.
    """
    for chip in TPU_CHIPS:
        if chip.name == name.strip().lower().removeprefix("tpu").strip(" -"):
            return chip
    raise InvalidRequest("chip", f"{name!r:.40} is no TPU.", f"Choose {', '.join(chip.name for chip in TPU_CHIPS)}.")


def find_tpus(sys_root: Path = Path("/sys")) -> TpuHost | None:
    """The TPU chips on the PCI bus, or None. Other devices of Google's (network, disk) have other device ids."""
    by_id = {chip.pci_device_id: chip for chip in TPU_CHIPS}
    found = [by_id[device] for device in _google_device_ids(sys_root) if device in by_id]
    return TpuHost(found[0], found.count(found[0])) if found else None


def find_cuda(root: Path = Path("/")) -> bool:
    """Whether NVIDIA's driver is loaded or its first device is there."""
    return any(os.path.exists(root / place) for place in ("proc/driver/nvidia", "dev/nvidia0"))


def is_installed(package: str) -> bool:
    """Whether a package can be imported, found out without importing it."""
    return importlib.util.find_spec(package) is not None


def choose_device(
    wanted: str = "auto",
    *,
    sys_root: Path = Path("/sys"),
    root: Path = Path("/"),
    is_installed: Callable[[str], bool] = is_installed,
) -> DeviceChoice:
    """Decide on a device: "auto" takes a TPU if one is on the PCI bus, else CUDA, else the CPU.

    Raises:
        InvalidRequest: `wanted` is no device.
        DeviceUnavailable: the device is not in this machine, or its package is not installed.
    """
    match wanted:
        case "auto":
            tpu = find_tpus(sys_root)
            if tpu is not None:
                return _tpu_choice(tpu, is_installed)
            if find_cuda(root):
                return DeviceChoice("cuda", "no TPU on the PCI bus; NVIDIA's driver is there")
            return DeviceChoice("cpu", "no TPU on the PCI bus and no NVIDIA driver")
        case "tpu":
            tpu = find_tpus(sys_root)
            if tpu is None:
                raise DeviceUnavailable(
                    f"device: no TPU is in this machine{_unknown_google_devices(sys_root)}.",
                    "Choose tpu-emulated (TorchTPU on this CPU, for tests) or cpu.",
                )
            return _tpu_choice(tpu, is_installed)
        case "tpu-emulated":
            if not is_installed(EMULATION_PACKAGE):
                raise DeviceUnavailable(
                    "device: tpu-emulated needs XLA's CPU plugin, which is not installed.",
                    f'Install it with: pip install "{EMULATION_REQUIREMENT}"',
                )
            _require_torch_tpu("tpu-emulated", is_installed)
            return DeviceChoice("tpu-emulated", "asked for: TorchTPU on XLA's CPU plugin")
        case "cuda":
            if not find_cuda(root):
                raise DeviceUnavailable("device: no NVIDIA driver is on this machine.", "Choose auto or cpu.")
            return DeviceChoice("cuda", "asked for")
        case "cpu":
            return DeviceChoice("cpu", "asked for")
    raise InvalidRequest(
        "device", f"{wanted!r:.40} is not a device.", f"Choose one of {', '.join(('auto', *DEVICE_KINDS))}."
    )


@dataclass(frozen=True)
class Holder:
    """A process that has a TPU open."""

    pid: int
    name: str


def find_tpu_holder(proc_root: Path = Path("/proc")) -> Holder | None:
    """The process that has a chip's device file open, as far as this user may see; libtpu gives a chip to one only."""
    for link in proc_root.glob("[0-9]*/fd/*"):
        pid = int(link.parts[-3])
        try:
            if pid != os.getpid() and _CHIP_FILE.match(os.readlink(link)):
                return Holder(pid, (proc_root / str(pid) / "comm").read_text().strip())
        except OSError:
            continue  # it ended meanwhile, or belongs to another user
    return None


def tcmalloc_status(
    maps_file: Path = Path("/proc/self/maps"),
    library_roots: tuple[Path, ...] = (Path("/usr/lib"), Path("/usr/local/lib"), Path("/lib")),
) -> TcmallocStatus:
    """Whether tcmalloc is loaded in this process, and how to load it; TorchTPU is slower on the host without it."""
    try:
        maps = maps_file.read_text(errors="replace")
    except OSError:
        maps = ""
    mapped = re.search(r"(/\S*libtcmalloc[^\s/]*\.so[^\s/]*)", maps)
    if mapped:
        return TcmallocStatus(True, Path(mapped[1]), "")
    library = _find_tcmalloc(library_roots)
    if library is None:
        advice = "Install tcmalloc (Debian and Ubuntu: apt install libtcmalloc-minimal4), then start with LD_PRELOAD."
        return TcmallocStatus(False, None, advice)
    return TcmallocStatus(False, library, f"Start with: LD_PRELOAD={library} python -m tpu_ui")


def _google_device_ids(sys_root: Path) -> list[str]:
    ids = []
    for vendor_file in sorted((sys_root / "bus/pci/devices").glob("*/vendor")):
        try:
            if vendor_file.read_text().strip().lower() == GOOGLE_PCI_VENDOR:
                ids.append((vendor_file.parent / "device").read_text().strip().lower())
        except (OSError, UnicodeDecodeError):
            continue  # a device that vanished or cannot be read is none that could be used
    return ids


def _unknown_google_devices(sys_root: Path) -> str:
    ids = sorted(set(_google_device_ids(sys_root)))
    return f" (PCI devices of Google's that are no known TPU: {', '.join(ids)})" if ids else ""


def _tpu_choice(tpu: TpuHost, is_installed: Callable[[str], bool]) -> DeviceChoice:
    _require_torch_tpu("tpu", is_installed)
    return DeviceChoice("tpu", f"{tpu.chips} TPU {tpu.chip.name} chip(s) on the PCI bus", tpu)


def _require_torch_tpu(kind: str, is_installed: Callable[[str], bool]) -> None:
    if not is_installed("torch_tpu"):
        raise DeviceUnavailable(
            f"device: {kind} needs the package torch_tpu, which is not installed.",
            "Install it with: pip install torch_tpu",
        )


def _find_tcmalloc(roots: tuple[Path, ...]) -> Path | None:
    """The library, the minimal build first: profiling is not needed. Debug builds are left out."""
    for name in ("libtcmalloc_minimal.so*", "libtcmalloc.so*"):
        for root in roots:
            found = sorted([*root.glob(name), *root.glob(f"*/{name}")], key=lambda path: (len(path.name), path))
            if found:
                return found[0]
    return None
