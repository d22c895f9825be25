"""Loading holds the weights in host memory once. Measured in a process of its own, on some hundred megabytes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from diffusers import FluxTransformer2DModel
from transformers import T5Config, T5EncoderModel

from tests import tiny_pipelines

ROOT = Path(__file__).parents[2]

# RssAnon: memory that only this process has. Pages of the weight files, which the system takes back when it needs them,
# are not in it.
SCRIPT = """
import json, sys, threading
import torch
from tpu_ui.loading import load_pipeline, weight_bytes
from tpu_ui.model_folder import inspect_folder

def private_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

def sample():
    while not over.wait(0.002):
        seen.append(private_bytes())

folder, order = inspect_folder(sys.argv[1]), []
over, seen, before = threading.Event(), [], private_bytes()
sampler = threading.Thread(target=sample)
sampler.start()
pipeline = load_pipeline(folder, getattr(torch, sys.argv[2]), lambda done, total, name: order.append(name))
over.set()
sampler.join()
weights = weight_bytes(pipeline)
print(json.dumps({"weights": weights, "peak": (max(seen) - before) / weights, "order": [n for n in order if n]}))
"""


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pipeline = tiny_pipelines.flux()
    config = T5Config(
        vocab_size=len(pipeline.tokenizer_2), d_model=768, d_kv=64, d_ff=3072, num_layers=6, num_heads=12,
        is_encoder_decoder=False,
    )  # fmt: skip
    pipeline.text_encoder_2 = T5EncoderModel(config)
    pipeline.transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=64, num_attention_heads=16,
        joint_attention_dim=768, pooled_projection_dim=32, axes_dims_rope=(16, 24, 24),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("large")
    pipeline.save_pretrained(folder, max_shard_size="100MB")
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])  # as it is on disk, and converted
def test_weights_are_held_once_while_they_load(large_folder: Path, dtype: str):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(large_folder), dtype], cwd=ROOT, capture_output=True, text=True, check=True
    )
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured["weights"] > 200e6
    assert measured["peak"] < 1.3
    # The largest first: what loading one needs besides its weights is needed while the least is held.
    sizes = {
        name: sum(file.stat().st_size for file in (large_folder / name).glob("*.safetensors"))
        for name in measured["order"]
    }
    assert set(sizes) == {"transformer", "text_encoder", "text_encoder_2", "vae"}
    assert list(sizes.values()) == sorted(sizes.values(), reverse=True)
