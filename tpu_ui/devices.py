"""What `devices` and the System tab tell about this machine. Never starts a runtime."""

import importlib.metadata
import os
from typing import Any

import psutil

from tpu_ui import __version__, hardware
from tpu_ui.compile_cache import CompileCache
from tpu_ui.settings import Settings

_PACKAGES = ("torch", "torch_tpu", "libtpu", "diffusers", "transformers", "gradio")


def describe_devices(settings: Settings) -> dict[str, Any]:
    """Facts by name, in the order in which they are shown; plain JSON types."""
    choice = hardware.choose_device("auto")
    facts: dict[str, Any] = {"device": choice.kind, "why": choice.reason}
    if choice.tpu is not None:
        chip = choice.tpu.chip
        facts |= {
            "chip": chip.name,
            "chips": choice.tpu.chips,
            "devices_per_chip": chip.devices_per_chip,
            "memory_per_chip_bytes": chip.hbm_bytes,
            "peak_bf16_flops_per_chip": chip.peak_bf16_flops,
            "source": chip.source,
        }
    facts |= {
        "cpu_cores": os.cpu_count(),
        "host_memory_bytes": psutil.virtual_memory().total,
        "tpu_emulated": "available" if hardware.is_installed("lammps_jax_pjrt_cpu") else "not installed",
        "tpu_ui": __version__,
    }
    facts |= {name: _version(name) for name in _PACKAGES}
    tcmalloc = hardware.tcmalloc_status()
    facts |= {
        "tcmalloc": "loaded" if tcmalloc.loaded else f"not loaded. {tcmalloc.advice}",
        "compile_cache": str(settings.compile_cache_dir),
        "compile_cache_bytes": CompileCache(settings.compile_cache_dir).total_bytes(),
        "compile_cache_budget_bytes": settings.cache_budget_bytes,
    }
    return facts


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
