"""CPU offload in which no weights move twice, and no promise depends on what is on the device already."""

from dataclasses import replace

import pytest

from tests.emulated.test_catalogue_classes import SIZE
from tpu_ui import offload
from tpu_ui.errors import DoesNotFit
from tpu_ui.placement import Placement
from tpu_ui.resolver import Resolver


@pytest.fixture
def room(manager, tiny_models, monkeypatch):
    """Let the planner give the weights so much room on the device; None as it would by itself."""

    class WithRoom(Resolver):
        def resolve(self, request, fetching=None):
            resolved, source = super().resolve(request, fetching)
            if room_bytes is None:
                return resolved, source
            return replace(resolved, weight_room_bytes=dict.fromkeys(source.folder.components, room_bytes)), source

    def give(count: int | None) -> None:
        nonlocal room_bytes
        room_bytes = count

    room_bytes = None
    name = str(tiny_models / "sd3")
    monkeypatch.setattr(manager, "resolver", WithRoom(manager.runtime.kind, manager.settings, name))
    return give


@pytest.fixture
def offloaded(generate, manager):
    """The models of a pipeline that is placed by CPU offload now, with their bytes."""

    def find(model: str):
        generate(model=model, **SIZE, placement="cpu_offload", mode="strict", steps=1)
        # Each request moves its pipeline to the end.
        models = list(manager._residency._pipelines.values())[-1].offloaded
        models.leave_all()
        return models, dict(models._weight_bytes)

    return find


def moved_by(models, run) -> int:
    before = models.bytes_to_device
    run()
    return models.bytes_to_device - before


# Three structures, each in another mode.
@pytest.mark.parametrize(("model", "mode"), [("sd3", "strict"), ("flux2", "compile"), ("sdxl", "fused")])
def test_no_bit_and_no_graph_depends_on_what_is_on_the_device(generate, offloaded, room, model, mode):
    models, sizes = offloaded(model)
    fixed = {"model": model, **SIZE, "mode": mode, "placement": "cpu_offload"}
    wanted = generate(**fixed, prompt="two dogs").images[0].tobytes()
    for room_bytes in (0, sum(sizes.values()), sum(sizes.values()) - 1, max(sizes.values()), 0):
        room(room_bytes)
        for changes in ({"prompt": "two dogs"}, {"prompt": f"{room_bytes} cats", "steps": 4}, {"prompt": "two dogs"}):
            result = generate(**fixed, **changes)
            assert (result.report.state_before, result.report.new_compiles) == ("warm", 0), (room_bytes, changes)
        assert result.images[0].tobytes() == wanted
    models.leave_all()
    assert generate(**fixed, prompt="two dogs").images[0].tobytes() == wanted


def test_with_room_for_all_nothing_moves_again(generate, offloaded, room):
    models, sizes = offloaded("flux")
    room(sum(sizes.values()))
    fixed = {"model": "flux", **SIZE, "mode": "fused", "placement": "cpu_offload"}
    assert moved_by(models, lambda: generate(**fixed, prompt="one")) == sum(sizes.values())
    assert moved_by(models, lambda: generate(**fixed, prompt="another")) == 0


def test_a_new_seed_moves_nothing_and_a_new_prompt_each_model_once(generate, offloaded, room):
    """As FLUX.1-schnell on a v6e chip: the large encoder and the transformer have no room together."""
    models, sizes = offloaded("flux")
    room(sum(sizes.values()) - min(sizes["text_encoder_2"], sizes["transformer"]) // 2)
    fixed = {"model": "flux", **SIZE, "mode": "fused", "placement": "cpu_offload"}
    generate(**fixed, prompt="the prompt of this test")
    assert moved_by(models, lambda: generate(**fixed, prompt="the prompt of this test", seed=1)) == 0
    assert moved_by(models, lambda: generate(**fixed, prompt="the prompt of this test", seed=2, steps=5)) == 0
    new_prompt = moved_by(models, lambda: generate(**fixed, prompt="a prompt of this test alone"))
    assert sizes["text_encoder_2"] < new_prompt <= sum(sizes.values())


def test_without_room_each_model_has_the_device_for_itself(generate, offloaded, room):
    models, _ = offloaded("flux")
    room(0)
    on_device = []
    handles = [
        module.register_forward_hook(lambda *_, name=name: on_device.append((name, set(models._on_host))))
        for name, module in models._modules.items()
    ]
    generate(model="flux", **SIZE, mode="strict", placement="cpu_offload", prompt="alone")
    for handle in handles:
        handle.remove()
    assert {name for name, _ in on_device} >= {"text_encoder", "text_encoder_2", "transformer"}
    assert all(there == {name} for name, there in on_device)


def test_the_hosts_copy_is_never_made_again(generate, offloaded):
    models, _ = offloaded("sd3")
    modules = models._modules.values()
    before = [tensor.data_ptr() for module in modules for tensor in (*module.parameters(), *module.buffers())]
    generate(**SIZE, placement="cpu_offload", mode="fused")
    assert any(tensor.device.type == "tpu" for module in modules for tensor in module.parameters())
    models.leave_all()
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    assert [tensor.data_ptr() for tensor in tensors] == before
    assert {tensor.device.type for tensor in tensors} == {"cpu"}


def test_tied_weights_come_once(generate, offloaded):
    """As the embeddings of a T5 encoder, which the module's own `to` copies twice."""
    generate(model="flux", mode="strict", placement="single")
    models, sizes = offloaded("flux")
    encoder = models._modules["text_encoder_2"]
    assert encoder.shared.weight is encoder.encoder.embed_tokens.weight
    assert moved_by(models, lambda: models.bring("text_encoder_2")) == sizes["text_encoder_2"]
    assert encoder.shared.weight is encoder.encoder.embed_tokens.weight
    assert encoder.shared.weight.device.type == "tpu"


def test_another_pipeline_gets_the_device(generate, offloaded):
    models, _ = offloaded("flux")
    generate(model="flux", **SIZE, placement="cpu_offload", mode="fused")
    assert models._on_host
    generate(model="sd3", mode="fused")
    assert not models._on_host
    assert {tensor.device.type for module in models._modules.values() for tensor in module.parameters()} == {"cpu"}


def test_placed_on_one_chip_and_back(generate, offloaded):
    models, _ = offloaded("sd3")
    first = generate(**SIZE, placement="cpu_offload", mode="fused").images[0].tobytes()
    generate(**SIZE, placement="single", mode="fused")
    assert {t.device.type for module in models._modules.values() for t in module.parameters()} == {"tpu"}
    assert not any(hasattr(module, "_hf_hook") for module in models._modules.values())
    assert generate(**SIZE, placement="cpu_offload", mode="fused").images[0].tobytes() == first


def test_a_move_that_fails_leaves_the_model_whole(generate, offloaded, monkeypatch):
    models, _ = offloaded("sd3")
    transformer = models._modules["transformer"]
    copied, copy = [], offload._on

    def exhausted(device, tensor):
        copied.append(tensor)
        if len(copied) > 3:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 99 bytes")
        return copy(device, tensor)

    with monkeypatch.context() as patch:
        patch.setattr(offload, "_on", exhausted)
        with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
            models.bring("transformer")
        assert {tensor.device.type for tensor in transformer.parameters()} == {"cpu"}
        with pytest.raises(DoesNotFit):
            generate(**SIZE, placement="cpu_offload", mode="fused", prompt="new")
    assert generate(**SIZE, placement="cpu_offload", mode="fused").report.ok


def test_what_has_grown_is_held_to_the_budget_of_its_placement(generate, manager, monkeypatch):
    """Beside a chip's memory, models under CPU offload may fill the host's."""
    residency = manager._residency
    for model in ("flux", "sd3"):
        generate(model=model, **SIZE, placement="cpu_offload", mode="strict")
    loaded = len(residency._pipelines)
    assert loaded >= 2
    monkeypatch.setattr(residency, "_shares_host_memory", False)
    monkeypatch.setattr(residency, "budget_bytes", 1)
    residency.shrink_to_budget(Placement.CPU_OFFLOAD)
    assert len(residency._pipelines) == loaded
    residency.shrink_to_budget(Placement.SINGLE)
    assert len(residency._pipelines) == 1
