"""What one open page shows of its jobs. Pure reading: called a few times a second for each page."""

import re
import time
from dataclasses import dataclass, replace

from tpu_ui import wording
from tpu_ui.events import Phase
from tpu_ui.jobs import Job, JobKind, JobState
from tpu_ui.page import render
from tpu_ui.page.desk import Desk
from tpu_ui.translations import ENGLISH, Language

_IDLE_SECONDS = 3.0
_BUSY_SECONDS = 0.5
_KNOWN = re.compile(r"[0-9a-f]{16}/(?P<run>[0-9a-f]{8})")


@dataclass(frozen=True)
class Followed:
    """What an open page knows between two calls.

    Attributes:
        jobs: ids of the jobs that were started here, or were found running when the page was opened.
        panel, preview: the status panel and the live preview as they were drawn last.
        shown: id of the job whose pictures are shown.
        phase, phase_since: where the running job is, and since when, so that time goes on between its events.
        stamp: changes when a verdict may have changed.
        known: the job that runs or is next, as `id/run of the program`, for the browser to keep.
        is_lost: the browser knew a job of a run of the program that has ended.
    """

    jobs: tuple[str, ...] = ()
    panel: str = ""
    preview: str = ""
    shown: str | None = None
    phase: str = ""
    phase_since: float = 0.0
    stamp: str = ""
    known: str = ""
    is_lost: bool = False

    def with_job(self, job: Job) -> "Followed":
        return replace(self, jobs=(*self.jobs[-49:], job.id))


@dataclass(frozen=True)
class Sight:
    """What a page should show now."""

    followed: Followed
    panel: str
    can_cancel: bool
    finished: Job | None
    poll_seconds: float


def find_again(desk: Desk, owner: str, kind: JobKind, known: object = "") -> Followed:
    """What a page that was opened anew follows: the owner's unfinished jobs, and the last one that made pictures.

    Args:
        known: the unfinished job that the browser kept; whatever stands there.
    """
    jobs = [job for job in desk.queue.jobs_of(owner) if job.kind is kind]
    last = [job for job in jobs if job.state is JobState.DONE][-1:]
    found = tuple(job.id for job in [*last, *(job for job in jobs if not job.state.is_final)])
    kept = _KNOWN.fullmatch(known) if isinstance(known, str) else None
    if kept is None:
        return Followed(jobs=found)
    return Followed(jobs=found, known=kept[0], is_lost=kept["run"] != desk.run)


def active_job(desk: Desk, owner: str, followed: Followed) -> Job | None:
    """The job that runs, or else is next."""
    open_jobs = [job for job in _jobs(desk, owner, followed) if not job.state.is_final]
    return min(open_jobs, key=lambda job: (job.state is not JobState.RUNNING, desk.queue.position(job)), default=None)


def look(desk: Desk, owner: str, followed: Followed, say: Language = ENGLISH) -> Sight:
    """Look at the jobs of a page."""
    jobs = _jobs(desk, owner, followed)
    ended = [job for job in jobs if job.state.is_final]
    active = active_job(desk, owner, followed)
    done = [job for job in ended if job.state is JobState.DONE]
    stamp = f"{_engine_state(desk)}/{len(ended)}/{active is None}"
    known = followed.known if followed.is_lost and not jobs else ""
    followed = replace(followed, stamp=stamp, known=known if active is None else f"{active.id}/{desk.run}")
    if active is not None:
        followed, panel = _active_panel(desk, followed, active, len([j for j in jobs if not j.state.is_final]) - 1, say)
    elif ended:
        panel = _ended_panel(desk, max(ended, key=lambda job: job.finished or 0.0), say)
    elif followed.is_lost:
        line = say("If its pictures are not in the history, generate again: the settings are still in the form.")
        panel = render.ended("failed", say("The program was restarted, and the job was lost"), line, say)
    else:
        panel = _idle_panel(desk, say)
    return Sight(
        followed=followed,
        panel=panel,
        can_cancel=active is not None and not active.cancel_requested,
        finished=max(done, key=lambda job: job.finished or 0.0, default=None),
        poll_seconds=_BUSY_SECONDS if active is not None else 1.0 if desk.is_starting else _IDLE_SECONDS,
    )


def preview(desk: Desk, owner: str, followed: Followed, say: Language = ENGLISH) -> str:
    """The picture that the running job is making, as far as it has come; empty where there is none to show."""
    job = active_job(desk, owner, followed)
    forming = None if job is None else job.preview
    image = None if forming is None else forming.image
    return "" if image is None else render.preview(image, say)


def _jobs(desk: Desk, owner: str, followed: Followed) -> list[Job]:
    return [job for job in desk.queue.jobs_of(owner) if job.id in followed.jobs]


def _engine_state(desk: Desk) -> str:
    if desk.queue.engine_error is not None:
        return "failed"
    return "ready" if desk.judge.engine is not None else "starting"


def _idle_panel(desk: Desk, say: Language) -> str:
    kind, error = desk.options.device.kind, desk.queue.engine_error
    if error is not None:
        return render.ended("failed", say("The device could not be started"), desk.without_paths(str(error)), say)
    if desk.judge.engine is None:
        line = wording.starting(kind, time.time() - desk.started, say)
        return render.running(say("Starting the device"), line, None, say=say)
    return render.idle(say("{device} is ready", device=kind), say)


def _active_panel(desk: Desk, followed: Followed, job: Job, others: int, say: Language) -> tuple[Followed, str]:
    also = ""
    if others > 0:
        also = say.counted(
            others, "{number} more job of yours in the queue", "{number} more jobs of yours in the queue"
        )
    if job.state is JobState.QUEUED:
        title = wording.phase(Phase.QUEUED, say)
        line = wording.waiting_line(desk.queue.position(job), desk.wait_seconds(job), say)
        if job.was_lost:
            line = f"{line} {say('Its replica was lost; it runs again.')}"
        return followed, render.running(title, line, None, also, say)
    event = job.last_event
    if event is None or event.phase is Phase.QUEUED:
        if desk.judge.engine is None:
            line = say("The job runs as soon as it is ready.")
            return followed, render.running(say("Starting the device"), line, None, also, say)
        return followed, render.running(say("Starting"), "", None, also, say)
    if (job.id + event.phase) != followed.phase:
        since = time.time() - event.elapsed_seconds
        followed = replace(followed, phase=job.id + event.phase, phase_since=since)
    note = wording.cancelling(event.phase is Phase.COMPILING, say) if job.cancel_requested else also
    return followed, render.progress(event, time.time() - followed.phase_since, note, say)


def _ended_panel(desk: Desk, job: Job, say: Language) -> str:
    report = desk.report_of(job)
    match job.state:
        case JobState.CANCELLED:
            return render.ended("cancelled", say("Cancelled"), say("Nothing was saved."), say)
        case JobState.FAILED:
            return render.ended("failed", say("Failed"), report.error or "", say)
    if job.kind is JobKind.WARM_UP:
        graphs, seconds = wording.graphs(report.new_compiles, say), wording.duration(report.timings.total, say)
        line = say("{graphs} compiled in {seconds}.", graphs=graphs, seconds=seconds)
        return render.ended("done", say("Warm"), line, say)
    return render.ended("done", say("Done"), wording.outcome(report, say), say)
