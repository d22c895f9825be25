"""What page and API have in common: requests are read, judged, queued, kept and shown to their owner only."""

import heapq
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpu_ui.catalogue import CATALOGUE, find_card
from tpu_ui.errors import InvalidRequest, ModeNotAllowed, TpuUiError
from tpu_ui.graphs import Stage
from tpu_ui.hardware import DeviceChoice
from tpu_ui.jobs import Job, JobKind, JobQueue, JobState
from tpu_ui.lora import Lora
from tpu_ui.lora_files import names_in
from tpu_ui.model_card import ModelCard
from tpu_ui.modes import ExecutionMode, check_mode_on_device, default_mode
from tpu_ui.outputs import OutputFolder
from tpu_ui.page.sessions import Presence
from tpu_ui.page.verdict import Judge, Verdict
from tpu_ui.placement import Placement
from tpu_ui.report import GenerationResult, Report
from tpu_ui.request import GenerationRequest
from tpu_ui.settings import Settings
from tpu_ui.tensor_parallel import check_group_mode
from tpu_ui.translations import ENGLISH, Language

log = logging.getLogger(__name__)

_SWEEP_SECONDS = 5.0
_WARMED_LAST = 3

WARM_OWNER = secrets.token_hex(16)
"""Owner of the warm-ups that were asked for on the command line: nobody on the page."""


@dataclass(frozen=True)
class PageOptions:
    """How this page was started.

    Attributes:
        device: the device that is opened.
        default_model: a name, a folder or a Hub id.
        served_dir: the folder that Gradio serves to anyone who knows a file's whole path. Only copies lie there.
        default_mode: None is the device's own default.
        is_private: only the user of this machine can reach the page. Then a request may name any folder or repository,
            and the cache may be pruned; otherwise a folder's name would tell whether it exists, and a download fill
            the disk.
        has_login: the page asks for one. Who has it need not be the user of the machine, and is shown no path of it.
        tab_grace_seconds: how long the queued jobs of a closed page are kept.
        group_devices: over how many devices each model is split; None is no tensor parallel.
    """

    device: DeviceChoice
    default_model: str
    served_dir: Path
    default_mode: ExecutionMode | None = None
    is_private: bool = False
    has_login: bool = False
    tab_grace_seconds: float = 60.0
    group_devices: int | None = None

    @property
    def modes(self) -> tuple[ExecutionMode, ...]:
        """Those that a request may name here."""

        def exists(mode: ExecutionMode) -> bool:
            try:
                check_mode_on_device(mode, self.device.kind)
                if self.group_devices is not None:
                    check_group_mode(mode)
            except ModeNotAllowed:
                return False
            return True

        return tuple(filter(exists, ExecutionMode))

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Those that a request may name here."""
        lone = (Placement.AUTO, Placement.SINGLE, Placement.CPU_OFFLOAD)
        return lone if self.group_devices is None else (Placement.AUTO,)


class Keeper:
    """Saves the pictures of a job before the job is done, on the device thread, and lets the pixels go."""

    def __init__(self, outputs: OutputFolder) -> None:
        self._outputs = outputs

    def __call__(self, job: Job, result: GenerationResult) -> GenerationResult:
        if job.kind is JobKind.WARM_UP:
            return replace(result, images=())
        paths = self._outputs.save(result, job.owner)
        return replace(result, images=(), report=replace(result.report, images=tuple(str(path) for path in paths)))


class Desk:
    """The services of one running page. Thread-safe."""

    def __init__(self, queue: JobQueue, outputs: OutputFolder, settings: Settings, options: PageOptions) -> None:
        self.queue = queue
        self.outputs = outputs
        self.settings = settings
        self.options = options
        self.judge = Judge(queue, options.device.kind, settings, options.default_model, options.group_devices)
        self.presence = Presence(options.tab_grace_seconds)
        self.started = time.time()
        self.run = secrets.token_hex(4)  # tells this run of the program from those before it
        self._default_card = self._card_or_none(options.default_model)
        self._names = {card.id: card.id for card in CATALOGUE}
        if self._default_card is not None:
            self._names[self._default_card.id] = options.default_model
        self._copies: dict[str, Path] = {}
        self._copies_lock = threading.Lock()
        self._stop = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="sweeper", daemon=True)
        self._sweeper.start()

    def close(self) -> None:
        self._stop.set()
        self.queue.close()
        self.outputs.close()

    @property
    def is_starting(self) -> bool:
        """The device is being opened."""
        return self.judge.engine is None and self.queue.engine_error is None

    @property
    def default_mode(self) -> ExecutionMode:
        """Of a request that names none."""
        fuses = self.settings.defer_and_fuse and self.options.group_devices is None
        return self.options.default_mode or default_mode(self.options.device.kind, fuses)

    # -- models -------------------------------------------------------------------------------------------------------

    @property
    def default_model_id(self) -> str:
        return self._default_card.id if self._default_card is not None else self.options.default_model

    def model_choices(self) -> list[tuple[str, str]]:
        """Labels and ids, the default model first."""
        cards = {card.id: card.label for card in CATALOGUE}
        first = {self.default_model_id: self._default_card.label} if self._default_card is not None else {}
        return [(label, model_id) for model_id, label in (first | cards).items()]

    def model_name(self, model: object) -> str:
        """The name under which the engine finds a model that a client named.

        Raises:
            InvalidRequest: the model is not on this page's list, and the page is open to others.
        """
        if model is None or model == "":
            return self.options.default_model
        if not isinstance(model, str):
            raise InvalidRequest("model", f"{model!r:.60} is not a model's name.")
        if model in self._names:
            return self._names[model]
        if self.options.is_private:
            find_card(model)
            return model
        raise InvalidRequest(
            "model", f"{model!r:.60} is not on this server's list.", f"Choose one of {', '.join(self._names)}."
        )

    def card(self, model: object) -> ModelCard:
        """The card of a model that a client named.

        Raises:
            TpuUiError: there is none, or it cannot be used.
        """
        return self.judge.card(self.model_name(model))

    @staticmethod
    def _card_or_none(model: str) -> ModelCard | None:
        try:
            return find_card(model)
        except TpuUiError as error:
            log.warning("the default model cannot be used: %s", error)
            return None

    # -- requests -----------------------------------------------------------------------------------------------------

    def read(self, values: Mapping[str, Any]) -> GenerationRequest:
        """A request from names and values, with the page's own defaults for model and mode.

        Raises:
            InvalidRequest: a value is wrong.
        """
        values = dict(values)
        values["model"] = self.model_name(values.get("model"))
        if values.get("mode") is None and self.options.default_mode is not None:
            values["mode"] = self.options.default_mode
        request = GenerationRequest.from_mapping(values)
        self._check_loras(request.loras)
        return request

    def _check_loras(self, loras: tuple[Lora, ...]) -> None:
        """On a page that others reach only those of the LoRA folder, for the reasons that hold for models."""
        if self.options.is_private:
            return
        offered = names_in(self.settings.lora_folder)
        for lora in loras:
            if lora.name not in offered:
                listed = f"Choose from {', '.join(offered):.300}." if offered else "There are none: leave it out."
                raise InvalidRequest("loras", f"{lora.name!r:.60} is not on this server's list.", listed)

    def submit(self, request: GenerationRequest, owner: str, kind: JobKind = JobKind.GENERATE) -> Job:
        """Check a request as far as it can be checked now, and put it into the queue. The seed is drawn here.

        Raises:
            TpuUiError: the request cannot run.
        """
        self.judge.check(request)
        return self.queue.submit(request.with_drawn_seed(), owner, kind)

    def verdict(self, request: GenerationRequest, say: Language = ENGLISH) -> Verdict:
        verdict = self.judge.verdict(request, say)
        reason = None if verdict.reason is None else self.without_paths(verdict.reason)
        return replace(verdict, sentence=self.without_paths(verdict.sentence), reason=reason)

    def warm_at_start(self, sizes: tuple[tuple[int, int], ...] | str) -> None:
        """Put warm-ups of the default model into the queue: these sizes, or "last" for those used last.

        Raises:
            TpuUiError: a size that the model cannot make.
        """
        if sizes == "last":
            threading.Thread(target=self._warm_last, name="warm-last", daemon=True).start()
            return
        for width, height in sizes:
            self.submit(self.read({"width": width, "height": height}), WARM_OWNER, JobKind.WARM_UP)

    def _warm_last(self) -> None:
        """The ledger tells the last sizes, once the device is open."""
        while self.judge.engine is None:
            if not self.is_starting or self._stop.wait(0.5):
                return
        keys = [record.key for record in self.judge.engine.ledger.records()]
        shapes = dict.fromkeys(
            (key.width, key.height, key.batch, key.mode, key.placement)
            for key in keys
            if key.model == self.default_model_id and key.stage == Stage.LATENTS
        )
        names = ("width", "height", "batch", "mode", "placement")
        for shape in list(shapes)[:_WARMED_LAST]:
            try:
                self.submit(self.read(dict(zip(names, shape, strict=True))), WARM_OWNER, JobKind.WARM_UP)
            except TpuUiError as error:
                log.warning("%d×%d is not warmed up: %s", *shape[:2], error)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def job(self, job_id: object, owner: str) -> Job:
        """A job of this owner.

        Raises:
            InvalidRequest: there is none; the answer is the same for another's job.
        """
        for job in self.queue.jobs_of(owner):
            if job.id == job_id:
                return job
        raise InvalidRequest("job", "there is no such job, or it ended long ago.", "Generate again.")

    def wait_seconds(self, job: Job) -> float | None:
        """Seconds until a queued job starts, compiles included; None if one of those before it is not known."""
        free_in = [0.0] * self.queue.lanes
        costs: dict[GenerationRequest, float | None] = {}  # asked often, and many requests cost the same
        for ahead in self.queue.ahead_of(job):
            alike = replace(ahead.request, prompt="", negative_prompt="", seed=None)
            if alike not in costs:
                costs[alike] = self.judge.seconds(ahead.request)
            if (seconds := costs[alike]) is None:
                return None
            ran = time.time() - ahead.started if ahead.started is not None else 0.0
            heapq.heapreplace(free_in, free_in[0] + max(0.0, seconds - ran))
        return free_in[0]

    def picture(self, path: str | Path) -> Path:
        """A copy of a kept picture, in the folder that Gradio serves, under a name that cannot be guessed."""
        name = Path(path).name
        with self._copies_lock:
            copy = self._copies.get(name)
            if copy is None or not copy.exists():
                folder = self.options.served_dir / secrets.token_hex(16)
                folder.mkdir(parents=True)
                copy = self._copies[name] = folder / name
                try:
                    os.link(path, copy)  # free on the same disk
                except OSError:
                    shutil.copyfile(path, copy)
            return copy

    def delete_picture(self, name: str, owner: str) -> None:
        """Delete a kept picture and its copy.

        Raises:
            TpuUiError: there is none of this name, or it is another's.
        """
        self.outputs.delete(name, owner)
        with self._copies_lock:
            copy = self._copies.pop(name, None)
        if copy is not None:
            copy.unlink(missing_ok=True)

    def report_of(self, job: Job) -> Report:
        """The report of a job that has ended, with names in the place of paths."""
        if job.result is None or job.state is not JobState.DONE:  # a warm-up may have failed on its second replica
            failed = Report.of_failure(job.error or TpuUiError("The job was cancelled."), job.request)
            return replace(failed, error=self.without_paths(failed.error or ""), model=self._public_model(job.request))
        report = job.result.report
        return replace(report, images=tuple(Path(path).name for path in report.images))

    def _public_model(self, request: GenerationRequest) -> str | None:
        ids = {name: model_id for model_id, name in self._names.items()}
        return ids.get(request.model or "", request.model and Path(request.model).name)

    def without_paths(self, sentence: str) -> str:
        """A sentence for clients: folders of this machine are named by their last part only."""
        private = {self.options.default_model, str(self.settings.cache_dir), str(self.outputs.root), str(Path.home())}
        private |= {str(self.settings.hub_cache_dir), str(self.settings.lora_folder)}
        for path in sorted((p for p in private if p.startswith(("/", "~", "."))), key=len, reverse=True):
            sentence = sentence.replace(path, "~" if path == str(Path.home()) else Path(path).name)
        return sentence

    def _sweep(self) -> None:
        """Drop the queued jobs of those who closed their page; a running one ends and is kept."""
        while not self._stop.wait(_SWEEP_SECONDS):
            for owner in self.presence.gone():
                for job in self.queue.jobs_of(owner):
                    if job.state is JobState.QUEUED and job.kind is JobKind.GENERATE:
                        log.info("job %s was dropped: its page was closed", job.id)
                        self.queue.cancel(job.id, owner)
