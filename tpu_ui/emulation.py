"""The real TorchTPU stack on XLA:CPU, for machines without a TPU.

TorchTPU talks to its device through a PJRT plugin. Here it is given XLA's own CPU plugin, as packaged by
`lammps-jax-pjrt-cpu`. Two things stand in the way, and this module moves them: TorchTPU passes a create option that the
CPU plugin refuses, and it counts chips on the PCI bus.
"""

import ctypes
import importlib.util
import os
from pathlib import Path

from tpu_ui.errors import DeviceUnavailable
from tpu_ui.hardware import EMULATION_PACKAGE, EMULATION_REQUIREMENT

# Layout of PJRT_Api in XLA's pjrt_c_api.h: struct_size, extension_start and the version (3 x 8 bytes), then one
# pointer a function. PJRT_Client_Create is the eleventh.
_FIRST_FUNCTION_OFFSET = 40
_CLIENT_CREATE_INDEX = 10
# PJRT_Client_Create_Args: struct_size, extension_start, create_options, num_options.
_CREATE_OPTIONS_OFFSET = 16
_NUM_OPTIONS_OFFSET = 24
_PJRT_NAMED_VALUE_INT64 = 1


class _PjrtNamedValue(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("int64_value", ctypes.c_int64),
        ("value_size", ctypes.c_size_t),
    )


_PjrtFunction = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_kept_alive: list[object] = []  # ctypes callbacks must outlive the plugin, that is, the process


def plugin_path() -> Path:
    """The CPU plugin's shared library.

    Raises:
        DeviceUnavailable: its package is not installed.
    """
    spec = importlib.util.find_spec(EMULATION_PACKAGE)
    if spec is None or spec.origin is None:
        raise DeviceUnavailable(
            "device: tpu-emulated needs XLA's CPU plugin, which is not installed.",
            f'Install it with: pip install "{EMULATION_REQUIREMENT}"',
        )
    return Path(spec.origin).parent / "pjrt_c_api_cpu_plugin.so"


def install_cpu_plugin() -> None:
    """Make TorchTPU load the CPU plugin. Call before torch_tpu is imported, once in a process."""
    path = plugin_path()
    os.environ["TPU_LIBRARY_PATH"] = str(path)
    # What torch.tpu.distributed.set_tpu_launch_env finds out on a real host: a group of this one process.
    os.environ.setdefault("TORCH_TPU_TOPOLOGY", "1,1,1")
    os.environ.setdefault("TORCH_TPU_SLICEBUILDER_ADDRESSES", "localhost:8070")
    library = ctypes.CDLL(str(path))
    library.GetPjrtApi.restype = ctypes.c_void_p
    slot = ctypes.c_void_p.from_address(library.GetPjrtApi() + _FIRST_FUNCTION_OFFSET + 8 * _CLIENT_CREATE_INDEX)
    original = _PjrtFunction(slot.value)
    option = _PjrtNamedValue(
        ctypes.sizeof(_PjrtNamedValue), None, b"cpu_device_count", 16, _PJRT_NAMED_VALUE_INT64, 0, 1, 1
    )

    def create_with_known_option(arguments: int) -> int | None:
        ctypes.c_void_p.from_address(arguments + _CREATE_OPTIONS_OFFSET).value = ctypes.addressof(option)
        ctypes.c_size_t.from_address(arguments + _NUM_OPTIONS_OFFSET).value = 1
        return original(arguments)

    replacement = _PjrtFunction(create_with_known_option)
    slot.value = ctypes.cast(replacement, ctypes.c_void_p).value
    _kept_alive.extend((library, original, replacement, option))


def pretend_one_chip() -> None:
    """Say that there is one chip: torch.accelerator and CPU offload ask for it. Call once torch_tpu is there."""
    import torch
    from torch_tpu._internal.utils import hardware

    hardware.get_tpu_device_count = lambda: 1
    # TorchTPU lowers flash attention to a TPU kernel (tpu_custom_call), which XLA:CPU does not have.
    torch.backends.cuda.enable_flash_sdp(False)
