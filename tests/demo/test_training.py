"""The training stages on a handful of steps: they run, and a resumed run ends where an uninterrupted one ends."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from tpu_ui.demo import train, train_autoencoder, train_text  # noqa: E402
from tpu_ui.demo.components import new_autoencoder, new_text_encoders, new_transformer  # noqa: E402
from tpu_ui.demo.latents import Shard  # noqa: E402
from tpu_ui.demo.muon import orthogonalised  # noqa: E402
from tpu_ui.demo.scenes import sample_training_scene  # noqa: E402
from tpu_ui.demo.train_denoiser import Batches, WeightedAttention  # noqa: E402


def test_one_weighted_token_stands_for_many_zero_tokens():
    torch.manual_seed(0)
    model = new_transformer().eval()
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.05)
    latents, tokens = torch.randn(1, 16, 12, 12), torch.randn(1, 32, 192)
    pooled, time = torch.randn(1, 256), torch.tensor([500.0])
    with torch.no_grad():
        wanted = model(latents, torch.cat([tokens, torch.zeros(1, 256, 192)], 1), pooled, time).sample
        attention = WeightedAttention()
        attention.last_token_count = 256
        model.set_attn_processor(attention)
        got = model(latents, torch.cat([tokens, torch.zeros(1, 1, 192)], 1), pooled, time).sample
    assert torch.allclose(wanted, got, atol=1e-4)


def test_muon_updates_have_singular_values_near_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(2, 24, 40)))
    assert values.min() > 0.4
    assert values.max() < 1.4


@pytest.mark.parametrize("stage", [train_autoencoder, train_text])
def test_a_resumed_run_ends_where_an_uninterrupted_one_ends(stage, tmp_path, monkeypatch):
    if stage is train_autoencoder:
        monkeypatch.setattr(stage, "CROPS", ((64, 2, 1.0),))
    else:
        monkeypatch.setattr(stage, "BATCH", 8)

    def ends_at(folder, breaks):
        for _ in range(breaks):
            # A run that is killed after its first checkpoint: the log raises, as a kill would, at the third step.
            monkeypatch.setattr(stage, "Log", _Killed)
            with pytest.raises(KeyboardInterrupt):
                stage.train(folder, 3, 3, save_every=2)
        monkeypatch.setattr(stage, "Log", _Silent)
        result = stage.train(folder, 3, 3, save_every=2)
        modules = result if isinstance(result, tuple) else (result,)
        return [value for module in modules for value in module.state_dict().values()]

    whole, resumed = ends_at(tmp_path / "whole", 0), ends_at(tmp_path / "resumed", 1)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


class _Silent:
    def __init__(self, *args, **kwargs):
        pass

    def add(self, step, loss, note=""):
        pass


class _Killed(_Silent):
    def add(self, step, *_):
        if step == 2:
            raise KeyboardInterrupt


def test_batches_depend_on_seed_and_step_alone(monkeypatch):
    rng = np.random.default_rng(0)
    shard = Shard(tuple(sample_training_scene(rng, (256, 256)) for _ in range(64)), torch.randn(64, 16, 16, 16).half())

    class Store:
        def __getitem__(self, number):
            return shard

    torch.manual_seed(0)
    encoders = tuple(encoder.eval() for encoder in new_text_encoders())
    monkeypatch.setattr("tpu_ui.demo.train_denoiser.TOKENS_PER_STEP", 500)
    first = Batches(Store(), encoders, 0.0, 1.0, seed=0)(7)
    again = Batches(Store(), encoders, 0.0, 1.0, seed=0)(7)
    assert all(torch.equal(a, b) for a, b in zip(first[:3], again[:3], strict=True))
    assert first[3] == again[3]


def test_minutes_become_steps_and_old_checkpoints_are_not_overwritten(tmp_path):
    assert train.steps_of("denoiser", 73) > train.steps_of("denoiser", 10) > 2
    (tmp_path / "text.pt").write_bytes(b"")
    with pytest.raises(SystemExit, match="--resume"):
        train.main(["--out", str(tmp_path)])


def test_an_exported_folder_loads_as_the_plain_pipeline(tmp_path):
    from diffusers import StableDiffusion3Pipeline

    train.export(new_autoencoder(), new_text_encoders(), new_transformer(), tmp_path / "model")
    pipeline = StableDiffusion3Pipeline.from_pretrained(tmp_path / "model", use_safetensors=True)
    pipeline.set_progress_bar_config(disable=True)
    picture = pipeline("a red star", width=64, height=64, num_inference_steps=1, max_sequence_length=8).images[0]
    assert picture.size == (64, 64)
