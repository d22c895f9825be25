"""What fits where: estimates against the compiler's figures, decisions, sentences, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.plain.folders import write_folder
from tpu_ui.catalogue import CATALOGUE
from tpu_ui.errors import DoesNotFit, NotDownloaded, UnknownModel, UnusableModel
from tpu_ui.hardware import GIB, find_chip
from tpu_ui.placement import Placement
from tpu_ui.planner import published
from tpu_ui.planner.activations import Load, activation_bytes
from tpu_ui.planner.models import find_known_model, plan_of
from tpu_ui.planner.moves import parts_to_drop
from tpu_ui.planner.parts import Part, published_parts
from tpu_ui.planner.plan import PROGRAM_BYTES, Decision, Plan, Target, gib
from tpu_ui.planner.published import PUBLISHED
from tpu_ui.request import GenerationRequest
from tpu_ui.resolver import Resolver
from tpu_ui.settings import Settings

SD3_5_MEDIUM = "stabilityai/stable-diffusion-3.5-medium"
SCHNELL = "black-forest-labs/FLUX.1-schnell"
FLUX2_DEV = "black-forest-labs/FLUX.2-dev"


def plan_for(repo_id: str, chip: str = "v6e", chips: int = 1, side: int = 1024, batch: int = 1) -> Plan:
    known = find_known_model(repo_id, "tpu")
    request = GenerationRequest(width=side, height=side, batch=batch)
    guidance_on = known.card.guidance_kind == "classifier_free"
    target = Target.of_chips(find_chip(chip), chips)
    return plan_of(known.card, known.parts, known.dtype, target, request, guidance_on)


def plan_of_parts(gibs: dict[str, float], memory_gib: float, **target: object) -> Plan:
    """Parts by name with so many GiB of weights, and next to no activations."""
    parts = tuple(Part(name, "FluxTransformer2DModel", int(size * GIB), {}) for name, size in gibs.items())
    load = Load(16, 16, 1, 1, 1, 1, 1, 4, 2)
    return Plan("A model", parts, load, Target("one chip", int(memory_gib * GIB), **target))


# -- estimates --------------------------------------------------------------------------------------------------------

# GiB of weights and inputs, scratch and peak, as libtpu 0.0.52 reports them of the real configurations in bfloat16,
# compiled for v6e without a chip.
COMPILED = {
    "SD 3.5 Medium, 512": (published.SD3_5_MEDIUM, 512, 2, 333, 4.61, 0.10, 4.69),
    "SD 3.5 Medium, 1024": (published.SD3_5_MEDIUM, 1024, 2, 333, 4.61, 0.34, 4.89),
    "SD 3.5 Large, 1024": (published.SD3_5_LARGE, 1024, 2, 333, 15.18, 0.425, 15.55),
    "FLUX.1-schnell, 512": (published.SCHNELL, 512, 1, 256, 22.15, 0.133, 22.25),
    "FLUX.1-schnell, 1024": (published.SCHNELL, 1024, 1, 256, 22.15, 0.39, 22.46),
    "FLUX.2-klein 4B, 1024": (published.KLEIN_4B, 1024, 1, 512, 7.23, 0.624, 7.81),
    "SDXL's UNet, 1024": (published.SDXL_UNET, 1024, 2, 77, 4.79, 0.328, 4.99),
}


@pytest.mark.parametrize("name", COMPILED)
def test_denoisers_meet_the_compilers_figures_within_a_tenth(name):
    component, side, passes, text, weights_gib, scratch_gib, peak_gib = COMPILED[name]
    kind = "unet" if component.class_name.startswith("UNet") else "transformer"
    part = Part(kind, component.class_name, component.parameters * 2, component.config)
    load = Load(side, side, 1, passes, (side // 16) ** 2, text, text, (side // 8) ** 2, 2)
    # Stable Diffusion 3.5's parameters include its table of positions; rounding of the figures is in the tolerance.
    assert part.weight_bytes / GIB == pytest.approx(weights_gib, rel=0.02)
    assert activation_bytes(part, load) / GIB == pytest.approx(scratch_gib, rel=0.1)
    assert (part.weight_bytes + activation_bytes(part, load)) / GIB == pytest.approx(peak_gib, rel=0.05)


@pytest.mark.parametrize(("side", "scratch_gib"), [(512, 0.634), (1024, 2.515)])
def test_the_decoder_meets_the_compilers_figures_within_a_tenth(side, scratch_gib):
    part = Part("vae", published.VAE_16.class_name, 0, published.VAE_16.config)
    load = Load(side, side, 1, 1, 1, 1, 1, 1, 2)
    assert activation_bytes(part, load) / GIB == pytest.approx(scratch_gib, rel=0.1)
    assert activation_bytes(part, replace(load, batch=3)) == 3 * activation_bytes(part, load)


def test_the_text_encoder_meets_the_compilers_figure_within_a_tenth():
    part = Part("text_encoder_2", published.T5_XXL.class_name, 0, published.T5_XXL.config)
    assert activation_bytes(part, Load(1, 1, 1, 1, 1, 256, 256, 1, 2)) / GIB == pytest.approx(0.058, rel=0.1)


@pytest.mark.parametrize("repo_id", PUBLISHED)
def test_every_estimate_grows_with_size_and_batch(repo_id):
    small, large, more = plan_for(repo_id, side=512), plan_for(repo_id, side=1024), plan_for(repo_id, batch=2)
    for name in ("transformer", "unet", "vae"):
        if name in large.activations:
            assert 0 < small.activations[name] < large.activations[name] < more.activations[name]
    assert more.weight_bytes == small.weight_bytes


NONSENSE = {
    "num_attention_heads": [1, 2], "attention_head_dim": "many", "mlp_ratio": [4], "block_out_channels": "wide",
    "layers_per_block": [1], "decoder_block_out_channels": [None], "text_config": 3, "hidden_size": -1, "dim_mult": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", ["transformer", "unet", "vae", "text_encoder"])
def test_a_configuration_may_hold_anything(name):
    """A folder's configuration is read before anybody vouches for it: no value of it may break the page."""
    load = Load(64, 64, 1, 1, 16, 77, 77, 64, 2)
    usual = activation_bytes(Part(name, "Qwen3Model", 1, {}), load)
    assert activation_bytes(Part(name, "Qwen3Model", 1, NONSENSE), load) == usual > 0
    plan = Plan("A model", (Part(name, "Qwen3Model", 2**40, NONSENSE),), load, Target("one chip", 1))
    assert plan.decision is Decision.NOT_POSSIBLE


def test_parts_that_are_no_known_kind_take_no_room_beside_their_weights():
    assert activation_bytes(Part("image_encoder", "X", 5, {}), Load(64, 64, 1, 1, 16, 77, 77, 64, 2)) == 0


# -- the guide's statements -------------------------------------------------------------------------------------------


def test_schnell_is_not_whole_on_one_v6e_chip_and_runs_by_offload():
    plan = plan_for("flux.1-schnell")
    assert plan.weight_bytes > plan.target.bytes
    assert (plan.decision, plan.placement) == (Decision.CPU_OFFLOAD, Placement.CPU_OFFLOAD)
    assert plan.sentence == (
        "weights 31.4 GiB > 31.25 GiB of one v6e chip; "
        "with CPU offload the largest component is 22.15 GiB (transformer)"
    )
    parts = {part.name: part.weight_bytes for part in plan.parts}
    assert parts["transformer"] / 1e9 == pytest.approx(23.8, abs=0.05)
    assert parts["text_encoder_2"] / 1e9 == pytest.approx(9.5, abs=0.05)


def test_stable_diffusion_3_5_medium_is_whole_on_one_v6e_chip():
    plan = plan_for("sd3.5-medium")
    assert plan.decision is Decision.SINGLE
    assert plan.weight_bytes / GIB == pytest.approx(15, abs=0.5)
    assert plan.sentence == "weights 15.15 GiB and 2.5 GiB for activations fit 31.25 GiB of one v6e chip"


def test_both_large_parts_of_flux_2_dev_exceed_one_v6e_chip():
    plan = plan_for(FLUX2_DEV)
    parts = {part.name: part.weight_bytes for part in plan.parts}
    assert parts["text_encoder"] / 1e9 == pytest.approx(48, abs=0.5)
    assert parts["transformer"] / 1e9 == pytest.approx(64, abs=0.5)
    assert min(parts["text_encoder"], parts["transformer"]) > plan.target.bytes
    assert (plan.decision, plan.placement, plan.devices_needed) == (Decision.NOT_POSSIBLE, None, 4)
    assert plan.sentence == (
        "transformer alone: weights 60.02 GiB > 31.25 GiB of one v6e chip; it needs tensor parallel over 4 chips"
    )
    four = plan_for(FLUX2_DEV, chips=4)
    assert four.decision is Decision.TENSOR_PARALLEL
    assert "tensor parallel over 4 chips takes" in four.sentence
    assert four.tensor_parallel_bytes(4) <= four.target.bytes < four.tensor_parallel_bytes(2)


# What each chip decides on; a v7x chip shows two devices, of which one process uses one.
BY_CHIP = {
    "v4": ("single", "cpu_offload", "not_possible"),
    "v5e": ("cpu_offload", "not_possible", "not_possible"),
    "v5p": ("single", "single", "cpu_offload"),
    "v6e": ("single", "cpu_offload", "not_possible"),
    "v7x": ("single", "single", "tensor_parallel"),
}


def test_by_offload_schnell_moves_nothing_for_a_repeated_prompt_and_its_two_large_parts_for_a_new_one():
    """On a v6e chip the T5 encoder and the transformer have no room together; the small parts stay in any case."""
    plan = plan_for("flux.1-schnell")
    weights = {part.name: part.weight_bytes for part in plan.parts}
    order = ("text_encoder", "text_encoder_2", "transformer", "vae")  # its model_cpu_offload_seq
    on_device: set[str] = set()

    def moved(*parts: str) -> set[str]:
        came = set()
        for part in parts:
            if part not in on_device:
                room = plan.weight_room_bytes[part]
                on_device.difference_update(parts_to_drop(order, weights, on_device, part, room))
                on_device.add(part)
                came.add(part)
            assert sum(weights[name] for name in on_device) <= plan.weight_room_bytes[part]
        return came

    assert moved(*order) == set(order)
    assert moved("transformer", "vae") == set()
    assert moved(*order) == {"text_encoder_2", "transformer"}
    assert sum(weights[name] for name in ("text_encoder_2", "transformer")) / GIB == pytest.approx(31.0, abs=0.1)


def test_a_host_that_is_the_device_holds_the_weights_twice():
    plan = plan_of_parts({"transformer": 2, "text_encoder": 1}, 8, is_host=True)
    assert plan.weight_room_bytes["transformer"] == 5 * GIB - plan.activations["transformer"]


@pytest.mark.parametrize("chip", BY_CHIP)
def test_decisions_by_chip(chip):
    plans = [plan_for(repo_id, chip) for repo_id in (SD3_5_MEDIUM, SCHNELL, FLUX2_DEV)]
    assert tuple(plan.decision.value for plan in plans) == BY_CHIP[chip]


# -- decisions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory_gib", "devices", "decision"),
    [(3.1, 1, "single"), (2.9, 1, "cpu_offload"), (2.1, 2, "tensor_parallel"), (1.9, 1, "not_possible")],
)
def test_the_decision_is_the_first_that_fits(memory_gib, devices, decision):
    plan = plan_of_parts({"transformer": 2, "text_encoder": 1}, memory_gib, devices=devices)
    assert plan.decision == decision


def test_programs_take_room_too():
    plan = plan_of_parts({"transformer": 2}, 2.5, program_bytes=PROGRAM_BYTES)
    assert plan.decision is Decision.NOT_POSSIBLE
    assert "weights 2 GiB" in plan.sentence
    assert "1 GiB for programs > 2.5 GiB of one chip" in plan.sentence


def test_nothing_is_offloaded_from_the_host_to_the_host():
    plan = plan_of_parts({"transformer": 2, "text_encoder": 1}, 2.5, is_host=True)
    assert (plan.decision, plan.devices_needed) == (Decision.NOT_POSSIBLE, None)
    assert plan.sentence == "weights 3 GiB > 2.5 GiB of one chip"
    with pytest.raises(DoesNotFit, match="Choose a smaller model") as refused:
        plan.check(Placement.SINGLE)
    assert "offload" not in str(refused.value)


def test_heads_that_cannot_be_divided_are_not_split():
    part = Part("transformer", "FluxTransformer2DModel", 40 * GIB, {"num_attention_heads": 6})
    load = Load(16, 16, 1, 1, 1, 1, 1, 4, 2)
    plan = Plan("A model", (part,), load, Target("one chip", 21 * GIB, devices=8))
    assert plan.devices_needed == 2
    assert replace(plan, target=replace(plan.target, bytes=15 * GIB)).devices_needed is None
    other = Plan("A model", (replace(part, class_name="SD3Transformer2DModel"),), load, plan.target)
    assert other.devices_needed is None
    assert "tensor parallel does not make it fit" in other.sentence


def test_what_was_asked_for_and_cannot_fit_is_refused_with_the_figures_and_a_way():
    plan = plan_for(SCHNELL)
    plan.check(Placement.AUTO)
    plan.check(Placement.CPU_OFFLOAD)
    with pytest.raises(DoesNotFit) as refused:
        plan.check(Placement.SINGLE)
    assert str(refused.value) == "Does not fit: needs 34.9 GiB of 31.25 GiB of one v6e chip. Try CPU offload."
    for placement in (Placement.AUTO, Placement.SINGLE, Placement.CPU_OFFLOAD):
        with pytest.raises(DoesNotFit, match=r"or start app\.py with --tensor-parallel 4"):
            plan_for(FLUX2_DEV, chips=4).check(placement)
    with pytest.raises(DoesNotFit, match=r"FLUX\.2 dev does not fit: transformer alone: weights 60\.02 GiB > 31\.25"):
        plan_for(FLUX2_DEV).check(Placement.AUTO)


def test_the_largest_batch_fits_and_one_more_does_not():
    for repo_id in (SD3_5_MEDIUM, SCHNELL, "stabilityai/stable-diffusion-xl-base-1.0"):
        plan = plan_for(repo_id)
        most = plan.largest_batch(plan.placement)
        assert 1 <= most < 16
        assert plan_for(repo_id, batch=most).placement is not None
        assert plan_for(repo_id, batch=most + 1).placement is not plan.placement


def test_the_largest_batch_keeps_to_the_limits_of_a_request():
    assert plan_for("sdxl", "v7x", side=512).largest_batch(Placement.SINGLE) == 16
    assert plan_for("sdxl", "v7x", side=2048).largest_batch(Placement.SINGLE) == 4
    assert plan_for(FLUX2_DEV).largest_batch(Placement.CPU_OFFLOAD) == 0


def plan_where_so_many_fit(most: int, pictures: int) -> Plan:
    """On the host, whose memory holds the weights and the activations of `most` pictures."""
    plan = plan_of_parts({"transformer": 0.001}, 1, is_host=True)
    one = replace(plan, parts=(*plan.parts, Part("vae", "AutoencoderKL", 0, {"block_out_channels": [8]})))
    room = replace(one, load=replace(one.load, batch=most)).single_bytes
    return replace(one, load=replace(one.load, batch=pictures), target=replace(one.target, bytes=room))


@pytest.mark.parametrize(
    ("pictures", "most", "size"),
    [(1, 1, 1), (4, 4, 4), (4, 16, 4), (4, 3, 2), (5, 4, 1), (6, 5, 3), (9, 8, 3), (16, 7, 4), (7, 6, 1)],
)
def test_runs_are_equal_and_as_large_as_fits(pictures: int, most: int, size: int):
    plan = plan_where_so_many_fit(most, pictures)
    assert plan.largest_batch(Placement.SINGLE) == most
    assert plan.run_batch(Placement.SINGLE) == size


def test_a_run_has_a_picture_even_where_none_fits():
    assert plan_for(FLUX2_DEV, batch=4).run_batch(Placement.CPU_OFFLOAD) == 1


def test_too_many_pictures_are_refused_with_the_number_that_fits():
    plan = plan_for("sdxl", batch=16)
    most = plan_for("sdxl").largest_batch(Placement.SINGLE)
    assert f"{plan.largest_batch(Placement.SINGLE)} of the 16 pictures fit in one run" in plan.sentence
    with pytest.raises(DoesNotFit, match=rf"Ask for at most {most} picture\(s\) in one run"):
        plan.check(Placement.SINGLE)


def test_bytes_are_written_in_the_unit_of_a_chips_memory():
    assert [gib(count) for count in (32 * GIB, int(31.25 * GIB), 10 * 2**20)] == ["32 GiB", "31.25 GiB", "10 MiB"]


# -- what is known of a model -----------------------------------------------------------------------------------------


def test_a_model_of_the_catalogue_is_known_without_its_files():
    for card in CATALOGUE:
        assert card.repo_id is None or card.repo_id in PUBLISHED, card.id


def test_published_configurations_give_a_card_to_what_is_not_in_the_catalogue():
    card = find_known_model(FLUX2_DEV, "tpu").card
    assert (card.pipeline_class, card.size_rule.multiple, card.text_length) == ("Flux2Pipeline", 16, 512)


def test_weights_of_a_folder_are_those_of_its_headers_in_the_running_data_type(tmp_path: Path):
    known = find_known_model(str(write_folder(tmp_path / "model", "sd3")), "tpu")
    assert known.known_from == "the headers of its weights"
    numbers = {"transformer": 68, "text_encoder": 20, "vae": 20}
    assert {part.name: part.weight_bytes for part in known.parts} == {n: 2 * count for n, count in numbers.items()}
    on_cpu = find_known_model(str(tmp_path / "model"), "cpu")
    assert {part.name: part.weight_bytes for part in on_cpu.parts} == {n: 4 * count for n, count in numbers.items()}


def test_what_is_not_known_is_an_error(tmp_path: Path):
    with pytest.raises(NotDownloaded):
        find_known_model("nobody/knows-this", "tpu")
    with pytest.raises(UnknownModel):
        find_known_model("nonsense", "tpu")
    with pytest.raises(UnusableModel, match="there is no such folder"):
        find_known_model(str(tmp_path / "missing"), "tpu")


# -- in the resolver --------------------------------------------------------------------------------------------------


def resolver_with(device_bytes: int | None, kind: str = "cuda") -> Resolver:
    return Resolver(kind, Settings(Path("unused"), offline=True), "demo", lambda: device_bytes)


def test_auto_is_what_the_plan_says_and_explicit_placements_are_checked(tmp_path: Path):
    model = str(write_folder(tmp_path / "model", "sd3"))
    request = GenerationRequest(model=model, width=64, height=64)
    known = find_known_model(model, "cuda")
    plan = plan_of(known.card, known.parts, known.dtype, Target("", 0), request, guidance_on=True)
    assert plan.offload_bytes < plan.single_bytes

    resolved, _ = resolver_with(plan.single_bytes).resolve(request)
    assert (resolved.request.placement, resolved.fits, resolved.placement_reason) == (Placement.SINGLE, True, "")
    resolved, _ = resolver_with(plan.offload_bytes).resolve(request)
    assert (resolved.request.placement, resolved.fits) == (Placement.CPU_OFFLOAD, True)
    assert resolved.placement_reason.startswith("Placed by CPU offload: weights")
    for memory, placement in ((plan.offload_bytes, "single"), (plan.offload_bytes - 1, "auto")):
        with pytest.raises(DoesNotFit):
            resolver_with(memory).resolve(replace(request, placement=placement))
    resolved, _ = resolver_with(None).resolve(request)
    assert (resolved.request.placement, resolved.fits) == (Placement.SINGLE, None)


def test_what_does_not_fit_at_once_runs_one_after_another(tmp_path: Path):
    """One picture decides whether and where a request runs; of several, only how many runs they take."""
    model = str(write_folder(tmp_path / "model", "sd3"))
    request = GenerationRequest(model=model, width=64, height=64, seed=5)
    known = find_known_model(model, "cuda")

    def plan(batch: int) -> Plan:
        asked = replace(request, batch=batch)
        return plan_of(known.card, known.parts, known.dtype, Target("", 0), asked, guidance_on=True)

    three = resolver_with(plan(3).single_bytes)
    resolved, _ = three.resolve(replace(request, batch=4))
    assert (resolved.request.batch, resolved.run_batch, resolved.runs) == (4, 2, 2)
    assert resolved.request.placement is Placement.SINGLE
    assert resolved.notices == ("2 runs of 2 pictures: 4 do not fit at once.",)
    assert [resolved.run(i).request.seeds for i in range(2)] == [(5, 6), (7, 8)]
    assert {key.batch for key in resolved.graph_keys({}).values()} == {2}
    assert resolved.run(1).graph_keys({}) == resolved.graph_keys({})
    two, _ = three.resolve(replace(request, batch=2))
    assert two.graph_keys({}) == resolved.graph_keys({}), "the same graphs as a request for so many pictures"

    resolved, _ = three.resolve(replace(request, batch=5))
    assert (resolved.run_batch, resolved.notices) == (1, ("5 runs of 1 picture: 5 do not fit at once.",))
    resolved, _ = three.resolve(replace(request, batch=3))
    assert (resolved.runs, resolved.notices) == (1, ())
    resolved, _ = resolver_with(None).resolve(replace(request, batch=4))
    assert (resolved.runs, resolved.fits) == (1, None)

    offloaded, _ = resolver_with(plan(2).offload_bytes).resolve(replace(request, batch=16, placement="cpu_offload"))
    assert (offloaded.run_batch, offloaded.runs) == (2, 8)


def test_a_device_in_the_hosts_memory_offloads_only_when_asked(tmp_path: Path):
    request = GenerationRequest(model=str(write_folder(tmp_path / "model", "sd3")), width=64, height=64)
    resolved, _ = resolver_with(None, "cpu").resolve(request)
    assert (resolved.request.placement, resolved.fits) == (Placement.SINGLE, True)
    resolved, _ = resolver_with(None, "tpu-emulated").resolve(replace(request, placement=Placement.CPU_OFFLOAD))
    assert resolved.request.placement is Placement.CPU_OFFLOAD
    with pytest.raises(DoesNotFit, match="this machine's memory"):
        resolver_with(100, "cpu").resolve(request)


def test_a_model_is_refused_before_it_is_downloaded():
    with pytest.raises(DoesNotFit, match="Try CPU offload"):
        resolver_with(12 * GIB).foresee_unseen(GenerationRequest(model="sd3.5-medium", placement="single"))
    assert resolver_with(12 * GIB).foresee_unseen(GenerationRequest(model="org/name")) is None
    assert published_parts("org/name", "bfloat16") is None
