"""The named endpoints. Values reach them as JSON gave them: nothing is rounded or coerced before it is checked."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import gradio as gr

from tpu_ui import wording
from tpu_ui.catalogue import find_card
from tpu_ui.errors import InvalidRequest, TpuUiError
from tpu_ui.jobs import Job, JobKind, JobState
from tpu_ui.page.desk import Desk
from tpu_ui.page.uploads import uploaded

_POLL_SECONDS = 0.1


def _owner(request: gr.Request | None) -> str:
    """An API client's jobs belong to its session, whose hash only this client knows."""
    session = request.session_hash if request is not None else None
    if not session:
        raise InvalidRequest("session_hash", "is missing.", "Send one of your own with every call.")
    return f"api-{session}"


def _as_error(error: TpuUiError, desk: Desk) -> gr.Error:
    return gr.Error(desk.without_paths(str(error)), print_exception=False)


def _file(desk: Desk, path: str) -> dict[str, Any]:
    """A copy of a picture, in the form in which clients download it."""
    copy = desk.picture(path)
    return {"path": str(copy), "orig_name": copy.name, "mime_type": "image/png", "meta": {"_type": "gradio.FileData"}}


def _state(desk: Desk, job: Job) -> dict[str, Any]:
    """Everything about a job, for its owner. The pictures are there once it is done."""
    event = job.last_event
    report = desk.report_of(job) if job.state.is_final else None
    made = job.result.report.images if job.result is not None else ()
    return {
        "job": job.id,
        "kind": job.kind.value,
        "state": job.state.value,
        "position": desk.queue.position(job),
        "wait_seconds": desk.wait_seconds(job) if job.state is JobState.QUEUED else None,
        "progress": None if event is None else {name: v for name, v in vars(event).items() if name != "preview"},
        "cancel_requested": job.cancel_requested,
        "report": None if report is None else report.as_dict(),
        "pictures": [_file(desk, path) for path in made],
    }


def add_endpoints(desk: Desk) -> None:
    """Add all endpoints to the page that is being built."""
    for endpoint in (
        _generate(desk),
        _verdict(desk),
        _warmup(desk),
        _status(desk),
        _cancel(desk),
        _models(desk),
    ):
        gr.api(endpoint, api_name=endpoint.__name__, concurrency_limit=None)


def _generate(desk: Desk) -> Callable:
    async def generate(
        prompt: str = "",
        negative_prompt: str = "",
        model: str | None = None,
        mode: str | None = None,
        placement: str = "auto",
        width: int | None = None,
        height: int | None = None,
        steps: int | None = None,
        guidance: float | None = None,
        seed: int | None = None,
        batch: int = 1,
        loras: list[str] | None = None,
        image: dict | None = None,
        strength: float | None = None,
        wait: bool = True,
        request: gr.Request = None,
    ) -> tuple[list[dict], dict]:
        """Make pictures. Returns the PNG files and the report (the same as --json of the command line).

        `image` is an uploaded file to start from (gradio_client.handle_file), `strength` how far from it to go.
        With wait=False it returns at once: no files, and {"job": id, ...} in the place of the report, to be asked for
        with /status and ended with /cancel.
        """
        given = {
            "prompt": prompt, "negative_prompt": negative_prompt, "model": model, "mode": mode, "placement": placement,
            "width": width, "height": height, "steps": steps, "guidance": guidance, "seed": seed, "batch": batch,
            "loras": loras, "strength": strength,
        }  # fmt: skip
        try:
            owner = _owner(request)
            given["image"] = uploaded(image)
            job = await asyncio.to_thread(lambda: desk.submit(desk.read(given), owner))
        except TpuUiError as error:
            raise _as_error(error, desk) from error
        if not wait:
            return [], await asyncio.to_thread(_state, desk, job)
        await _ended(job)
        if job.state is JobState.CANCELLED:
            raise gr.Error("The job was cancelled.", print_exception=False)
        if job.state is JobState.FAILED:
            raise _as_error(job.error or TpuUiError(wording.failure(None)), desk)
        pictures = [_file(desk, path) for path in job.result.report.images]
        return pictures, {"job": job.id} | desk.report_of(job).as_dict()

    return generate


async def _ended(job: Job) -> None:
    while not job.state.is_final:
        await asyncio.sleep(_POLL_SECONDS)


def _verdict(desk: Desk) -> Callable:
    def verdict(
        model: str | None = None,
        mode: str | None = None,
        placement: str = "auto",
        width: int | None = None,
        height: int | None = None,
        steps: int | None = None,
        guidance: float | None = None,
        batch: int = 1,
        prompt: str = "",
        negative_prompt: str = "",
        seed: int | None = None,
        loras: list[str] | None = None,
        image: dict | None = None,
        strength: float | None = None,
    ) -> dict:
        """What a request will cost, before it runs: state, compiles_expected, seconds_expected, runs, fits, reason,
        nearest_warm. None is: not known yet.
        """
        given = {
            "prompt": prompt, "negative_prompt": negative_prompt, "model": model, "mode": mode, "placement": placement,
            "width": width, "height": height, "steps": steps, "guidance": guidance, "seed": seed, "batch": batch,
            "loras": loras, "strength": strength,
        }  # fmt: skip
        try:
            given["image"] = uploaded(image)
            return desk.verdict(desk.read(given)).as_dict()
        except TpuUiError as error:
            raise _as_error(error, desk) from error

    return verdict


def _warmup(desk: Desk) -> Callable:
    def warmup(
        model: str | None = None,
        mode: str | None = None,
        placement: str = "auto",
        width: int | None = None,
        height: int | None = None,
        batch: int = 1,
        image: dict | None = None,
        request: gr.Request = None,
    ) -> dict:
        """Warm a shape up in the background; pictures that are waited for go first. Returns the job; ask /status.

        `image` is any uploaded file: the shape is then warmed for pictures that start from one.
        """
        given = {
            "model": model, "mode": mode, "placement": placement, "width": width, "height": height, "batch": batch,
        }  # fmt: skip
        try:
            given["image"] = uploaded(image)
            job = desk.submit(desk.read(given), _owner(request), JobKind.WARM_UP)
            return _state(desk, job)
        except TpuUiError as error:
            raise _as_error(error, desk) from error

    return warmup


def _status(desk: Desk) -> Callable:
    def status(job: str | None = None, request: gr.Request = None) -> dict:
        """One of your jobs by its id; without an id the device, the queue, and the ids of your own jobs."""
        try:
            owner = _owner(request)
            if job is not None:
                return _state(desk, desk.job(job, owner))
        except TpuUiError as error:
            raise _as_error(error, desk) from error
        error = desk.queue.engine_error
        return {
            "device": desk.options.device.kind,
            "device_state": "failed" if error is not None else "starting" if desk.judge.engine is None else "ready",
            "device_error": None if error is None else desk.without_paths(str(error)),
            "waiting": desk.queue.waiting_count,
            "jobs": [own.id for own in desk.queue.jobs_of(owner)],
            "uptime_seconds": time.time() - desk.started,
        }

    return status


def _cancel(desk: Desk) -> Callable:
    def cancel(job: str, request: gr.Request = None) -> dict:
        """Cancel one of your jobs: at once while it waits, after the current step or compile while it runs."""
        try:
            owner = _owner(request)
            found = desk.job(job, owner)
            desk.queue.cancel(found.id, owner)
            return _state(desk, found)
        except TpuUiError as error:
            raise _as_error(error, desk) from error

    return cancel


def _models(desk: Desk) -> Callable:
    def models() -> list[dict]:
        """The models on offer: id, label, defaults, limits, sizes, and whether their files are on this machine."""
        return [_described(desk, model_id) for _, model_id in desk.model_choices()]

    return models


def _described(desk: Desk, model_id: str) -> dict[str, Any]:
    try:
        card = desk.card(model_id)
        is_local = desk.judge.is_local(card)
    except TpuUiError:
        card, is_local = find_card(model_id), False
    return {
        "id": card.id,
        "label": card.label,
        "is_default": card.id == desk.default_model_id,
        "is_local": is_local,
        "width": card.default_width,
        "height": card.default_height,
        "steps": card.default_steps,
        "guidance": card.default_guidance,
        "takes_negative_prompt": card.takes_negative_prompt,
        "takes_picture": card.takes_picture,
        "sizes": [f"{size.width}x{size.height}" for size in card.ladder],
        "multiple": card.size_rule.multiple,
        "max_side": card.size_rule.max_side,
        "max_pixels": card.size_rule.max_pixels,
        "licence": card.licence,
    }
