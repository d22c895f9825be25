"""The desk between faces and queue, with a scripted engine: nothing here needs torch or a device."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.plain.folders import write_folder
from tpu_ui.errors import DoesNotFit, InvalidRequest, JobCancelled, TpuUiError, UnknownModel
from tpu_ui.events import Phase, Progress
from tpu_ui.forecast import Forecast
from tpu_ui.graphs import WarmupState
from tpu_ui.hardware import DeviceChoice
from tpu_ui.jobs import JobKind, JobQueue, JobState
from tpu_ui.outputs import OutputFolder
from tpu_ui.page import desk as desk_module
from tpu_ui.page import following
from tpu_ui.page.desk import Desk, Keeper, PageOptions
from tpu_ui.page.following import Followed
from tpu_ui.page.verdict import Judge
from tpu_ui.preview import LatentColours, LatentPreview
from tpu_ui.report import GenerationResult, Report
from tpu_ui.settings import Settings

ANN, BOB = "a" * 32, "b" * 32


class ScriptedEngine:
    """Makes black pictures; `go` holds it back while it is cleared."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.made: list[str] = []
        self.preview: LatentPreview | None = None
        self.state, self.seconds = WarmupState.WARM, 2.0
        self.ledger = SimpleNamespace(records=list)
        self.runtime = SimpleNamespace(memory=lambda: SimpleNamespace(used_bytes=0, total_bytes=10**12))

    def generate(self, request, emit, cancelled) -> GenerationResult:
        emit(Progress(Phase.DENOISING, step=1, steps=2, seconds_per_step=1.0, preview=self.preview))
        while not self.go.wait(0.01):
            if cancelled():
                raise JobCancelled
        if request.prompt == "fault":
            raise TpuUiError("It broke.", "Try again.")
        self.made.append(request.prompt)
        images = tuple(Image.new("RGB", (8, 8)) for _ in request.seeds)
        return GenerationResult(images, request, Report(True, seeds=request.seeds, model="m"))

    warm_up = generate

    def foresee(self, request):
        resolved = SimpleNamespace(request=request)
        return resolved, Forecast(self.state, 0, 0.0, self.seconds, 3, 0)

    def close(self) -> None: ...


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def desk(tmp_path: Path, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(desk_module, "_SWEEP_SECONDS", 0.05)
    model = write_folder(tmp_path / "private" / "nice-model", "sd3")
    outputs = OutputFolder(tmp_path / "outputs")
    queue = JobQueue(lambda: engine, keep=Keeper(outputs))
    options = PageOptions(
        DeviceChoice("cpu", "asked for"), str(model), tmp_path / "served" / "pictures", tab_grace_seconds=0.1
    )
    made = Desk(queue, outputs, Settings(tmp_path / "cache", offline=True), options)
    while queue.engine is None:
        time.sleep(0.01)
    yield made
    engine.go.set()
    made.close()


def ask(desk: Desk, owner: str = ANN, **values: object):
    return desk.submit(desk.read({"prompt": "x"} | values), owner)


def test_pictures_are_kept_before_the_job_is_done_and_pixels_are_let_go(desk: Desk):
    job = ask(desk, batch=2)
    assert job.wait(10)
    assert job.state is JobState.DONE
    assert job.result.images == ()
    assert all(Path(path).is_file() for path in job.result.report.images)
    assert desk.report_of(job).images == tuple(Path(path).name for path in job.result.report.images)
    assert [entry.fields["prompt"] for entry in desk.outputs.entries(ANN)] == ["x", "x"]
    assert desk.outputs.entries(BOB) == []


def test_a_picture_is_copied_once_and_goes_with_the_original(desk: Desk):
    job = ask(desk)
    job.wait(10)
    path = job.result.report.images[0]
    copy = desk.picture(path)
    assert copy == desk.picture(path)
    assert len(copy.parent.name) == 32
    with pytest.raises(TpuUiError):
        desk.delete_picture(copy.name, BOB)
    assert copy.exists()
    desk.delete_picture(copy.name, ANN)
    assert not copy.exists()
    assert not Path(path).exists()


def test_warm_ups_keep_no_pictures(desk: Desk):
    job = desk.submit(desk.read({}), ANN, JobKind.WARM_UP)
    job.wait(10)
    assert job.result.images == ()
    assert desk.outputs.entries(ANN) == []


def test_only_the_owner_finds_a_job(desk: Desk):
    job = ask(desk)
    assert desk.job(job.id, ANN) is job
    for wrong in ((job.id, BOB), ("nothing", ANN), (None, ANN), ({}, ANN)):
        with pytest.raises(InvalidRequest, match="no such job"):
            desk.job(*wrong)


def test_a_closed_page_loses_its_queued_jobs_only(desk: Desk, engine: ScriptedEngine):
    engine.go.clear()
    desk.presence.seen("her page", ANN)
    running, queued, other = ask(desk, prompt="running"), ask(desk, prompt="queued"), ask(desk, BOB, prompt="other")
    while running.state is JobState.QUEUED:
        time.sleep(0.01)
    desk.presence.closed("her page")
    assert queued.wait(10)
    engine.go.set()
    assert running.wait(10)
    assert other.wait(10)
    assert (running.state, queued.state, other.state) == (JobState.DONE, JobState.CANCELLED, JobState.DONE)


def test_the_wait_is_honest(desk: Desk, engine: ScriptedEngine):
    engine.go.clear()
    ask(desk)
    second, third = ask(desk), ask(desk)
    assert 0 < desk.wait_seconds(second) <= 2.0
    assert 2.0 < desk.wait_seconds(third) <= 4.0
    engine.seconds = None
    assert desk.wait_seconds(third) is None


def test_models_of_a_public_page_are_those_on_its_list(desk: Desk, tmp_path: Path):
    assert desk.default_model_id == "nice-model"
    assert desk.model_choices()[0] == ("nice-model", "nice-model")
    other = write_folder(tmp_path / "another", "sd3")
    for name in (str(other), str(tmp_path / "missing"), "org/repository", "http://127.0.0.1/x", 5, "../x"):
        with pytest.raises(InvalidRequest, match="model"):
            desk.read({"model": name})


def test_a_private_page_takes_any_model_but_no_address(desk: Desk, tmp_path: Path):
    object.__setattr__(desk.options, "is_private", True)
    other = write_folder(tmp_path / "another", "sd3")
    assert desk.read({"model": str(other)}).model == str(other)
    with pytest.raises(UnknownModel, match="address"):
        desk.read({"model": "http://127.0.0.1/x"})


def test_sentences_name_no_folder(desk: Desk, tmp_path: Path):
    desk.settings = Settings(desk.settings.cache_dir, offline=True, hub_cache_dir=tmp_path / "downloads" / "hub")
    sentence = f"{desk.options.default_model}: broken; see {Path.home()}/x and {desk.outputs.root}/y"
    sentence += f" and {desk.settings.hub_cache_dir}/models--org--name/snapshots/1/vae"
    told = desk.without_paths(sentence)
    assert told.startswith("nice-model: broken")
    assert str(tmp_path) not in told
    assert str(Path.home()) not in told


def test_failed_jobs_report_their_sentence(desk: Desk):
    job = ask(desk, prompt="fault")
    job.wait(10)
    report = desk.report_of(job)
    assert (report.ok, report.error, report.model) == (False, "It broke. Try again.", "nice-model")


def test_a_request_that_cannot_fit_is_refused_before_the_queue(desk: Desk, engine: ScriptedEngine):
    desk.judge = Judge(desk.queue, "cuda", desk.settings, desk.options.default_model)
    request = desk.read({"placement": "single", "width": 512, "height": 512})
    engine.runtime.memory = lambda: SimpleNamespace(used_bytes=0, total_bytes=10**7)
    with pytest.raises(DoesNotFit):
        desk.submit(request, ANN)
    verdict = desk.verdict(request)
    assert (verdict.state, verdict.fits) == ("refused", False)
    assert verdict.reason.startswith("Does not fit: needs 0.63 GiB of 9.54 MiB of this device.")


def verdict_on(desk: Desk, engine: ScriptedEngine, memory_gib: float, **values: object):
    """On a GPU of this size, with downloads allowed."""
    settings = Settings(desk.settings.cache_dir, offline=False)
    desk.judge = Judge(desk.queue, "cuda", settings, desk.options.default_model)
    engine.runtime.memory = lambda: SimpleNamespace(used_bytes=0, total_bytes=int(memory_gib * 2**30))
    return desk.verdict(desk.read(values))


def test_the_verdict_on_a_model_that_is_not_here_yet_tells_where_it_fits(desk: Desk, engine: ScriptedEngine):
    whole = verdict_on(desk, engine, 24, model="sd3.5-medium")
    assert (whole.state, whole.fits, whole.reason) == ("absent", True, None)
    offload = verdict_on(desk, engine, 12, model="sd3.5-medium")
    assert (offload.state, offload.fits) == ("absent", True)
    assert offload.reason == (
        "Placed by CPU offload: weights 15.15 GiB > 12 GiB of this device; with CPU offload the largest component is "
        "8.87 GiB (text_encoder_3)."
    )
    assert offload.reason in offload.sentence
    single = verdict_on(desk, engine, 12, model="sd3.5-medium", placement="single")
    assert (single.state, single.fits) == ("refused", False)
    assert single.reason == "Does not fit: needs 17.65 GiB of 12 GiB of this device. Try CPU offload."
    neither = verdict_on(desk, engine, 8, model="sd3.5-medium")
    assert (neither.state, neither.fits) == ("refused", False)
    assert "text_encoder_3 alone: weights 8.87 GiB > 8 GiB" in neither.reason


def test_ignored_fields_are_told_before_the_click(desk: Desk):
    verdict = desk.verdict(desk.read({"negative_prompt": "blurry", "guidance": 1}))
    assert verdict.state == "warm"
    assert "negative_prompt: ignored" in verdict.sentence


def test_a_page_finds_its_jobs_again(desk: Desk, engine: ScriptedEngine):
    first = ask(desk)
    first.wait(10)
    engine.go.clear()
    second = ask(desk)
    again = following.find_again(desk, ANN, JobKind.GENERATE)
    assert again.jobs == (first.id, second.id)
    assert following.find_again(desk, BOB, JobKind.GENERATE) == Followed()
    while second.last_event.phase is Phase.QUEUED:
        time.sleep(0.01)
    sight = following.look(desk, ANN, again)
    assert "step 1 of 2" in sight.panel
    assert sight.can_cancel
    assert sight.finished is first
    desk.queue.cancel(second.id, ANN)
    assert "ends after the step" in following.look(desk, ANN, again).panel
    assert second.wait(10)
    assert "Cancelled" in following.look(desk, ANN, again).panel


def test_a_preview_is_its_owners_and_goes_with_the_end(desk: Desk, engine: ScriptedEngine, tmp_path: Path):
    latents = np.ones((1, 4, 8, 8), np.float32)
    colours = LatentColours(tmp_path / "colours.npz")
    engine.preview = LatentPreview(lambda: latents, 64, 64, colours)
    engine.go.clear()
    job = ask(desk)
    followed = Followed().with_job(job)
    while job.preview is None:
        time.sleep(0.01)
    assert following.preview(desk, ANN, followed) == "", "nothing was learnt yet"
    colours.learn(latents, [Image.new("RGB", (64, 64), "red")])
    engine.preview = LatentPreview(lambda: latents, 64, 64, colours)
    desk.queue.cancel(job.id, ANN)
    assert job.wait(10)
    assert job.preview is None

    job = ask(desk)
    followed = followed.with_job(job)
    while job.preview is None:
        time.sleep(0.01)
    shown = following.preview(desk, ANN, followed)
    assert shown.startswith('<img src="data:image/jpeg;base64,')
    assert following.preview(desk, BOB, followed) == ""
    assert following.preview(desk, ANN, Followed()) == "", "another page of hers follows other jobs"
    engine.go.set()
    assert job.wait(10)
    assert following.preview(desk, ANN, followed) == ""
    assert job.preview is None
    assert all(event.preview is None for event in job.events())


def test_the_last_sizes_are_warmed_at_the_start(desk: Desk):
    desk.warm_at_start(((64, 64),))
    job = desk.queue.jobs_of(desk_module.WARM_OWNER)[0]
    assert job.wait(10)
    assert (job.kind, job.request.width) == (JobKind.WARM_UP, 64)
    with pytest.raises(TpuUiError):
        desk.warm_at_start(((63, 64),))


def test_what_was_used_last_is_warmed_as_it_was_used(desk: Desk, engine: ScriptedEngine):
    def record(size: int, **changes: object) -> SimpleNamespace:
        key = {"model": "nice-model", "stage": "latents", "width": size, "height": 64, "batch": 1, "mode": "compile",
               "placement": "single"}  # fmt: skip
        return SimpleNamespace(key=SimpleNamespace(**(key | changes)))

    engine.ledger.records = lambda: [
        record(64, stage="text"), record(96, model="another"), record(128, batch=2, mode="strict"), record(128),
        record(128), record(63), record(192), record(256),
    ]  # fmt: skip
    desk.warm_at_start("last")
    limit = time.monotonic() + 10
    while len(jobs := desk.queue.jobs_of(desk_module.WARM_OWNER)) < 2 or not all(job.wait(1) for job in jobs):
        assert time.monotonic() < limit
    # The third of the last three is a size that the model can no longer make.
    assert [(job.request.width, job.request.batch, job.request.mode) for job in jobs] == [
        (128, 2, "strict"), (128, 1, "compile"),
    ]  # fmt: skip


def test_others_may_name_only_the_loras_of_the_folder(desk):
    folder = desk.settings.lora_folder
    folder.mkdir(parents=True)
    (folder / "star.safetensors").write_bytes(b"")
    assert [lora.name for lora in desk.read({"loras": ["star:0.5"]}).loras] == ["star"]
    for name in (str(folder / "star.safetensors"), "./star", "org/name", "../loras/star", "star.safetensors"):
        with pytest.raises(InvalidRequest, match=r"^loras: .* is not on this server's list. Choose from star.$"):
            desk.read({"loras": [name]})
    desk.options = replace(desk.options, is_private=True)
    desk.settings = replace(desk.settings, lora_dir=Path("/srv/own"))
    assert desk.without_paths("Name a file of /srv/own, a path") == "Name a file of own, a path"
    assert desk.read({"loras": ["org/name"]}).loras[0].name == "org/name"


def test_settings_of_another_device_leave_the_form_usable():
    """A picture made in fused mode, on a CPU; and a field that a picture was made without is emptied."""
    from tpu_ui.page import form, history_tab
    from tpu_ui.translations import ENGLISH

    options = PageOptions(DeviceChoice("cpu", "asked for"), "tiny", Path("served"))
    desk = SimpleNamespace(options=options, model_choices=list)
    controls = SimpleNamespace(**{name: name for name in form.FIELDS})
    changes = history_tab.restored(desk, controls, {"prompt": "a star", "mode": "fused", "model": "gone"}, ENGLISH)
    assert changes == {"prompt": "a star", "negative_prompt": "", "loras": "", "image": None}
    assert history_tab.restored(desk, controls, {"mode": "compile"}, ENGLISH)["mode"] == "compile"
    for placement, restored in {"single": "single", "tensor_parallel": "auto", "moon": "auto"}.items():
        assert history_tab.restored(desk, controls, {"placement": placement}, ENGLISH)["placement"] == restored
    group = SimpleNamespace(options=replace(options, group_devices=2), model_choices=list)
    assert history_tab.restored(group, controls, {"placement": "single"}, ENGLISH)["placement"] == "auto"


def test_a_job_of_a_run_that_has_ended_is_lost(desk: Desk, engine: ScriptedEngine):
    """Told until there is a new job; one that this run knows, or what is no job, is not."""
    kept = "0" * 16 + "/" + "0" * 8
    lost = following.find_again(desk, ANN, JobKind.GENERATE, kept)
    for _ in range(2):
        sight = following.look(desk, ANN, lost)
        assert "The program was restarted, and the job was lost" in sight.panel
        assert sight.followed.known == kept
        lost = sight.followed
    engine.go.clear()
    job = ask(desk)
    running = following.look(desk, ANN, lost.with_job(job)).followed
    assert running.known == f"{job.id}/{desk.run}"
    engine.go.set()
    assert job.wait(10)
    ended = following.look(desk, ANN, running)
    assert "Done" in ended.panel
    assert ended.followed.known == ""
    again = following.find_again(desk, ANN, JobKind.GENERATE, running.known)
    assert following.look(desk, ANN, again).followed.known == ""
    for other in (running.known, "", None, 5, ["x"], "../..", "x/y", kept + "\n", f"{'0' * 16}/{desk.run}"):
        assert not following.find_again(desk, ANN, JobKind.GENERATE, other).is_lost
