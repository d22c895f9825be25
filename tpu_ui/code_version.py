"""Which edition of this program's own code decides what graphs a request runs."""

import hashlib
from pathlib import Path

_DECIDING = (
    "affine_step",
    "compiled_modules",
    "device_scalar",
    "dynamo",
    "fixed_text",
    "image_to_image",
    "kept_text",
    "loaded_pipeline",
    "loading",
    "manager",
    "offload",
    "passes",
    "resolution",
    "runs",
    "schedule",
    "sharding",
    "torch_runtime",
    "tpu_runtime",
)
"""The modules that give the device work, or say where one stage ends and the next begins."""


def graph_code_version() -> str:
    """8 hex digits of the sources of these modules: promises that another edition made are not taken over."""
    sources = b"".join(Path(__file__).with_name(f"{name}.py").read_bytes() for name in _DECIDING)
    return hashlib.sha256(sources).hexdigest()[:8]
