"""The manager's other promises: cancel, not-a-number, memory, faults, and the ledger's honesty about them."""

import gc
import math

import psutil
import pytest

from tests.conftest import TEST_CACHE
from tpu_ui.errors import (
    DoesNotFit,
    GenerationFailed,
    InvalidRequest,
    JobCancelled,
    ModeNotAllowed,
    NotANumber,
    UnusableModel,
)
from tpu_ui.events import Phase
from tpu_ui.request import GenerationRequest
from tpu_ui.settings import Settings


@pytest.fixture
def request_for(tiny_models):
    def build(model="sd3", **fields):
        values = {"prompt": "a red cat", "width": 64, "height": 64, "steps": 3, "seed": 0, "mode": "compile", **fields}
        return GenerationRequest.from_mapping(values | {"model": str(tiny_models / model)})

    return build


def test_progress_comes_in_order_and_counts_the_steps(manager, request_for):
    events = []
    manager.generate(request_for(steps=4), events.append, lambda: False)
    phases = [event.phase for event in events]
    wanted = [Phase.PLACING, Phase.ENCODING, Phase.DENOISING, Phase.DECODING, Phase.DONE]
    assert [phase for phase in dict.fromkeys(phases) if phase in wanted] == wanted
    steps = [event for event in events if event.step and event.phase is Phase.DENOISING]
    assert [event.step for event in steps] == [1, 2, 3, 4]
    assert all(event.steps == 4 and event.seconds_per_step > 0 for event in steps)


def test_loading_tells_its_bytes(manager, request_for):
    manager._residency.evict_all()
    events = []
    manager.generate(request_for(mode="fused"), events.append, lambda: False)
    loading = [(event.bytes_done, event.bytes_total) for event in events if event.phase is Phase.LOADING]
    done, totals = zip(*loading, strict=True)
    assert list(done) == sorted(done)
    assert set(totals) == {done[-1]}
    assert len(set(done)) > 2
    assert events.index(next(e for e in events if e.phase is Phase.PLACING)) > events.index(
        next(e for e in events if e.phase is Phase.LOADING)
    )


@pytest.mark.parametrize("placement", ["single", "cpu_offload"])
def test_cancel_ends_between_steps_and_leaves_the_pipeline_whole(manager, request_for, placement):
    request = request_for(steps=10, placement=placement)
    expected = manager.generate(request, lambda _: None, lambda: False).images[0]
    steps = []

    def emit(event):
        if event.step:
            steps.append(event.step)

    with pytest.raises(JobCancelled):
        manager.generate(request, emit, lambda: len(steps) >= 3)
    assert steps == [1, 2, 3]
    steps.clear()
    after = manager.generate(request, emit, lambda: False)
    assert steps == list(range(1, 11)), "each of its own, none of the run that was cut"
    assert after.images[0].tobytes() == expected.tobytes()
    assert after.report.was_warm


@pytest.mark.parametrize("mode", [pytest.param("fused", marks=pytest.mark.slow), "compile"])
def test_a_cancelled_compile_is_entered_and_serves_the_next_process(another_manager, request_for, mode):
    """What a pass compiled before it was cut short belongs to its keys: what is proven later rests on these files."""
    manager = another_manager()
    request = request_for(mode=mode, width=112, height=48)
    manager.generate(request, lambda _: None, lambda: False)
    keys = list(manager.foresee(request)[0].graph_keys(manager.toolchain).values())
    digests = {key.digest for key in keys}

    def delete_files() -> None:
        for name, digest in manager.ledger._database.execute("SELECT name, digest FROM files").fetchall():
            if digest in digests:
                (manager.cache.root / name).unlink(missing_ok=True)

    def end_process() -> None:
        manager.runtime.drop_graphs()
        manager.ledger.graphs_dropped()

    delete_files()
    manager.ledger.forget(digests)
    end_process()
    steps = []
    with pytest.raises(JobCancelled):
        manager.generate(request, lambda event: steps.append(event.step) if event.step else None, lambda: bool(steps))
    cut_short = {key.stage: manager.ledger.record(key.digest) for key in keys}
    assert cut_short["denoiser"].graphs > 0
    assert cut_short["denoiser"].disk_bytes > 0
    assert not any(record.proven or record.runs for record in cut_short.values() if record)
    manager.generate(request, lambda _: None, lambda: False)
    end_process()
    again = manager.generate(request, lambda _: None, lambda: False).report
    assert (again.state_before, again.new_compiles) == ("on_disk", 0)
    delete_files()
    end_process()
    assert manager.foresee(request)[1].state.value == "cold"


def test_cancel_before_the_first_step(manager, request_for):
    with pytest.raises(JobCancelled):
        manager.generate(request_for(), lambda _: None, lambda: True)


@pytest.fixture
def spoilt_model(tiny_models, tmp_path):
    """A folder like the tiny SD3 with one wrong number in a part."""

    def build(part: str, tensor: str, value: float):
        import shutil

        from safetensors.torch import load_file, save_file

        folder = shutil.copytree(tiny_models / "sd3", tmp_path / f"nan-{part}")
        path = folder / part / "diffusion_pytorch_model.safetensors"
        weights = load_file(path)
        weights[tensor].view(-1)[0] = value
        save_file(weights, path, metadata={"format": "pt"})
        return folder

    return build


@pytest.mark.parametrize(
    ("part", "tensor", "value", "stage"),
    [
        ("transformer", "proj_out.bias", math.nan, "denoiser"),
        ("transformer", "proj_out.bias", math.inf, "denoiser"),
        ("vae", "decoder.conv_out.bias", math.nan, "VAE"),
        ("vae", "decoder.conv_out.bias", math.inf, "VAE"),
        ("vae", "decoder.conv_out.bias", -math.inf, "VAE"),
    ],
)
def test_not_a_number_is_a_failure_that_names_the_stage(manager, spoilt_model, part, tensor, value, stage):
    model = str(spoilt_model(part, tensor, value))
    request = GenerationRequest(prompt="x", model=model, width=64, height=64, steps=2)
    with pytest.raises(NotANumber, match=rf"{stage}.*float32") as caught:
        manager.generate(request, lambda _: None, lambda: False)
    assert caught.value.stage == stage


def test_a_spoilt_picture_of_a_batch_costs_only_itself(manager, request_for, monkeypatch):
    request = request_for(batch=3, seed=5, mode="strict")
    manager.generate(request, lambda _: None, lambda: False)
    (loaded,) = [p for i, p in manager._residency._pipelines.items() if i[0] == "sd3" and p.weight_bytes]
    decode = loaded.pipeline.vae.decode

    def spoil_the_second(latents, *args, **kwargs):
        latents = latents.clone()
        latents[1] = float("nan")
        return decode(latents, *args, **kwargs)

    monkeypatch.setattr(loaded.pipeline.vae, "decode", spoil_the_second)
    result = manager.generate(request, lambda _: None, lambda: False)
    assert result.report.seeds == (5, 7)
    assert len(result.images) == 2
    assert any("picture 2" in notice for notice in result.report.notices)


def test_out_of_memory_frees_and_says_what_would_fit(manager, request_for, monkeypatch):
    request = request_for(mode="strict")
    manager.generate(request, lambda _: None, lambda: False)
    (loaded,) = [p for i, p in manager._residency._pipelines.items() if i[0] == "sd3"]

    def exhaust(*_args, **_kwargs):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 99 bytes")

    monkeypatch.setattr(loaded.pipeline.vae, "decode", exhaust)
    with pytest.raises(DoesNotFit, match="smaller size"):
        manager.generate(request, lambda _: None, lambda: False)
    assert manager._residency.loaded_bytes == 0
    assert manager.generate(request, lambda _: None, lambda: False).report.ok


def test_a_fault_of_the_pipeline_has_a_number_and_the_next_request_runs(manager, request_for, monkeypatch, caplog):
    request = request_for(mode="strict")
    manager.generate(request, lambda _: None, lambda: False)
    (loaded,) = [p for i, p in manager._residency._pipelines.items() if i[0] == "sd3"]

    def fail(*_args, **_kwargs):
        raise IndexError("secret detail")

    with monkeypatch.context() as patch:
        patch.setattr(loaded.pipeline.vae, "decode", fail)
        with pytest.raises(GenerationFailed, match=r"fault [0-9a-f]{8}") as caught:
            manager.generate(request, lambda _: None, lambda: False)
    assert "secret detail" not in str(caught.value)
    assert "secret detail" in caplog.text
    assert manager.generate(request, lambda _: None, lambda: False).report.was_warm


def test_a_broken_promise_is_counted_told_and_mended(manager, request_for):
    """The device forgets its graphs behind the ledger's back, on disk as well."""
    request = request_for(mode="fused", width=80, height=48)
    manager.generate(request, lambda _: None, lambda: False)
    assert manager.foresee(request)[1].state.value == "warm"
    broken = manager.ledger.promises()["broken"]
    manager.runtime.drop_graphs()
    files = manager.cache.files()
    for name in files:
        (manager.cache.root / name).rename(manager.cache.root / f"{name}.aside")
    try:
        report = manager.generate(request, lambda _: None, lambda: False).report
    finally:
        for name in files:
            aside, place = manager.cache.root / f"{name}.aside", manager.cache.root / name
            if place.exists():  # compiled anew; the ledger knows this one
                aside.unlink()
            else:
                aside.rename(place)
    manager.ledger.graphs_dropped()
    assert (report.state_before, report.was_warm) == ("warm", False)
    assert report.new_compiles > 0
    assert any("broken promise" in reason for reason in report.why_compiled)
    assert manager.ledger.promises()["broken"] == broken + 1
    assert manager.generate(request, lambda _: None, lambda: False).report.new_compiles == 0
    assert manager.generate(request, lambda _: None, lambda: False).report.was_warm


@pytest.fixture
def another_manager(manager, runtime, tiny_models):
    """Build a manager that begins with no graph in memory, as in a process of its own."""
    from tpu_ui.manager import PipelineManager

    def forget():
        runtime.drop_graphs()
        manager.ledger.graphs_dropped()

    def build(**settings):
        forget()
        built.append(PipelineManager(runtime, Settings(cache_dir=TEST_CACHE, **settings), str(tiny_models / "sd3")))
        return built[-1]

    built = []
    yield build
    for each in built:
        each.close()
    forget()


@pytest.mark.slow
def test_memory_is_given_back_over_ten_switches(another_manager, tiny_models):
    """Two models in turn where only one fits: resident memory does not climb."""
    manager = another_manager()
    manager._residency.budget_bytes = 2_000_000  # room for one of the two
    resident = []
    requests = [
        GenerationRequest(prompt="x", model=str(tiny_models / model), width=64, height=64, steps=1, mode="fused")
        for model in ("sd3", "flux")
    ]
    for turn in range(10):
        manager.generate(requests[turn % 2], lambda _: None, lambda: False)
        assert len(manager._residency._pipelines) == 1
        states = [manager.foresee(request)[1].state.value for request in requests]
        assert states[turn % 2] == "warm"
        assert states[1 - turn % 2] != "warm", "its graphs went with it"
        gc.collect()
        resident.append(psutil.Process().memory_info().rss)
    assert max(resident[6:]) - max(resident[2:6]) < 40e6, [round(value / 1e6) for value in resident]


def test_graphs_in_memory_are_capped_and_come_back_from_disk(another_manager, request_for):
    manager = another_manager(max_graphs_in_memory=25)
    requests = [request_for(mode="fused", height=height) for height in (48, 64, 80, 96)]
    for request in requests:
        manager.generate(request, lambda _: None, lambda: False)
    states = [manager.foresee(request)[1].state.value for request in requests]
    assert "on_disk" in states
    again = manager.generate(requests[states.index("on_disk")], lambda _: None, lambda: False)
    assert again.report.new_compiles == 0


def test_a_model_above_the_budget_is_refused_and_nothing_is_dropped(manager, generate, request_for):
    generate()
    loaded, budget = manager._residency.loaded_bytes, manager._residency.budget_bytes
    manager._residency.budget_bytes = 100
    try:
        with pytest.raises(DoesNotFit, match="GB"):
            manager.generate(request_for("flux-guided", mode="strict"), lambda _: None, lambda: False)
    finally:
        manager._residency.budget_bytes = budget
    assert manager._residency.loaded_bytes == loaded


def test_another_revision_of_the_same_name_is_another_key(manager, request_for, tiny_models, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny_models / "sd3", tmp_path / "sd3")
    path = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    save_file({name: weight * 0.5 for name, weight in weights.items()}, path, metadata={"format": "pt"})
    request = request_for(mode="fused")
    first = manager.generate(request, lambda _: None, lambda: False)
    other = manager.generate(
        GenerationRequest.from_mapping(
            {"prompt": request.prompt, "model": str(folder), "width": 64, "height": 64, "steps": 3, "seed": 0}
            | {"mode": "fused"}
        ),
        lambda _: None,
        lambda: False,
    )
    assert other.report.revision != first.report.revision
    assert other.report.state_before != "warm"
    assert other.images[0].tobytes() != first.images[0].tobytes()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"width": 65}, InvalidRequest),
        ({"model": "nowhere"}, UnusableModel),
    ],
)
def test_mistakes_are_told_before_anything_runs(manager, request_for, fields, error):
    before = manager.runtime.counters()
    with pytest.raises(error):
        manager.generate(request_for(**fields), lambda _: None, lambda: False)
    assert manager.runtime.counters() == before


def test_a_pipeline_without_an_offload_order_says_so(manager, request_for, monkeypatch):
    from diffusers import StableDiffusion3Pipeline

    monkeypatch.setattr(StableDiffusion3Pipeline, "model_cpu_offload_seq", None)
    manager._residency.evict_all()
    with pytest.raises(ModeNotAllowed, match="single"):
        manager.generate(request_for(placement="cpu_offload"), lambda _: None, lambda: False)
    monkeypatch.undo()
    assert manager.generate(request_for(), lambda _: None, lambda: False).report.ok


def test_truncation_is_told_with_what_was_cut(generate):
    long = "a plain grey wall, " * 40 + "and one red bicycle"
    notices = generate(prompt=long).report.notices
    wanted = ("CLIPTextModelWithProjection reads 77 tokens", "red bicycle")
    assert any(all(words in notice for words in wanted) for notice in notices)
    assert generate(prompt="short").report.notices == ()
