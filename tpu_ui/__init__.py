"""tpu_ui: pictures from Hugging Face diffusers pipelines on Google TPUs, through TorchTPU.

Importing the package starts nothing: no torch, no device, no folder is made.
"""

__version__ = "0.1.0"
