"""What the Generate tab does. Every handler checks the caller's token itself: private endpoints answer posts too."""

import dataclasses
import logging
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from tpu_ui import wording
from tpu_ui.errors import TpuUiError
from tpu_ui.graphs import WarmupState
from tpu_ui.jobs import Job, JobKind
from tpu_ui.page import following, form, render
from tpu_ui.page.desk import Desk
from tpu_ui.page.following import Followed
from tpu_ui.page.generate_tab import GenerateTab, mode_choices, model_choices, offered_placement, placement_choices
from tpu_ui.page.labels import language_of
from tpu_ui.page.sessions import is_token
from tpu_ui.page.verdict import Verdict
from tpu_ui.request import GenerationRequest
from tpu_ui.shapes import parse_size
from tpu_ui.translations import Language, marked

log = logging.getLogger(__name__)

NO_SESSION = marked("This page has no session yet. Reload it.")
_NO_NEAREST = marked("No other size is warm yet")

_KEEP_CHOICE = """(on) => { try { localStorage.setItem("tpu_ui.live_preview", on ? "on" : "off") } catch {} }"""
KEPT_CHOICE = """() => { try { return localStorage.getItem("tpu_ui.live_preview") !== "off" } catch { return true } }"""
"""Whether this browser wants live previews."""
_KEEP_JOB = """(job) => {
    try { job ? localStorage.setItem("tpu_ui.job", job) : localStorage.removeItem("tpu_ui.job") } catch {}
}"""

# These answer at once, and a page asks them often: they go past Gradio's own queue.
QUICK: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
# What may be refused goes through it: only there Gradio shows an error as a message.
PRESS: dict[str, Any] = QUICK | {"queue": True, "concurrency_limit": None}


def as_toast(error: TpuUiError, desk: Desk) -> gr.Error:
    """An error for the page. The message of a toast is HTML."""
    return gr.Error(escape(desk.without_paths(str(error))), print_exception=False)


def state_labels(say: Language) -> dict[str, str]:
    """What stands on a size's chip, by the size's state."""
    return {state.value: f"{render.mark(state.value)} {wording.short_state(state, say)}" for state in WarmupState}


def wire(
    desk: Desk,
    tab: GenerateTab,
    greeted: gr.events.Dependency,
    browser: gr.Textbox,
    known: gr.Textbox,
    followed: gr.State,
    timer: gr.Timer,
) -> None:
    """Connect the controls."""
    # A hidden control whose change makes the page ask for the verdict anew.
    stamp = gr.Textbox("", visible="hidden", elem_id="stamp", label="stamp")

    def show(sight: following.Sight, before: Followed, say: Language) -> dict:
        """The parts of the page that have changed."""
        now = sight.followed
        changes: dict[Any, Any] = {
            tab.cancel: gr.Button(interactive=sight.can_cancel),
            timer: gr.Timer(sight.poll_seconds),
        }
        if sight.panel != before.panel:
            changes[tab.panel] = sight.panel
            now = dataclasses.replace(now, panel=sight.panel)
        if sight.finished is not None and sight.finished.id != before.shown:
            now = dataclasses.replace(now, shown=sight.finished.id)
            changes |= _pictures(desk, tab, sight.finished, say)
        if now.stamp != before.stamp:
            changes[stamp] = now.stamp
        if now.known != before.known:
            changes[known] = now.known
        changes[followed] = now
        return changes

    def tick(owner: Any, before: Followed, with_preview: Any, request: gr.Request) -> dict:
        if not is_token(owner):
            return {followed: before}
        desk.presence.seen(request.session_hash, owner)
        say = language_of(request)
        # Before the look, so that a preview never goes before its picture comes.
        preview = following.preview(desk, owner, before, say) if with_preview is True else ""
        changes = show(following.look(desk, owner, before, say), before, say)
        if preview != before.preview:
            changes[tab.preview] = preview
            changes[followed] = dataclasses.replace(changes[followed], preview=preview)
        return changes

    def first_words(request: gr.Request) -> dict:
        """What stands on the page before anything has happened."""
        say = language_of(request)
        return {
            tab.model: gr.Dropdown(choices=model_choices(desk, say)),
            tab.mode: gr.Dropdown(choices=mode_choices(desk, say)),
            tab.placement: gr.Dropdown(choices=placement_choices(desk, say)),
            tab.report: render.sentence(say("No picture yet.")),
        }

    def press_generate(owner: Any, before: Followed, request: gr.Request, *controls: Any) -> dict:
        say = language_of(request)
        if not is_token(owner):
            raise gr.Error(say(NO_SESSION), print_exception=False)
        desk.presence.seen(request.session_hash, owner)
        try:
            job = desk.submit(desk.read(form.values(*controls)), owner)
        except TpuUiError as error:
            raise as_toast(error, desk) from error
        after = before.with_job(job)
        return show(following.look(desk, owner, after, say), after, say)

    def press_cancel(owner: Any, before: Followed, request: gr.Request) -> dict:
        job = following.active_job(desk, owner, before) if is_token(owner) else None
        if job is None:
            return {followed: before}
        desk.queue.cancel(job.id, owner)
        say = language_of(request)
        return show(following.look(desk, owner, before, say), before, say)

    shown = [tab.panel, tab.cancel, tab.gallery, tab.report, tab.reuse_seed, tab.use_settings]
    live = [*shown, timer, followed, stamp, known]
    greeted.then(first_words, None, [tab.model, tab.mode, tab.placement, tab.report], **QUICK)
    timer.tick(tick, [browser, followed, tab.live_preview], [*live, tab.preview], **QUICK)
    known.change(None, known, None, js=_KEEP_JOB, **QUICK)
    tab.live_preview.input(None, tab.live_preview, None, js=_KEEP_CHOICE, **QUICK)
    tab.generate.click(press_generate, [browser, followed, *tab.request], live, **PRESS)
    tab.cancel.click(press_cancel, [browser, followed], live, **QUICK)
    _wire_verdict(desk, tab, stamp)
    _wire_controls(desk, tab, browser, followed)


def _pictures(desk: Desk, tab: GenerateTab, job: Job, say: Language) -> dict:
    pictures = [(str(desk.picture(path)), say("seed {seed}", seed=seed)) for path, seed in _kept(job)]
    return {
        tab.gallery: gr.Gallery(pictures, selected_index=0 if pictures else None),
        tab.report: render.report(desk.report_of(job), say),
        tab.reuse_seed: gr.Button(interactive=True),
        tab.use_settings: gr.Button(interactive=True),
    }


def _kept(job: Job) -> list[tuple[str, int]]:
    """The pictures of a job that were not deleted since, with their seeds."""
    made = zip(job.result.report.images, job.result.report.seeds, strict=False)
    return [(path, seed) for path, seed in made if Path(path).exists()]


# -- the verdict ------------------------------------------------------------------------------------------------------


def _wire_verdict(desk: Desk, tab: GenerateTab, stamp: gr.Textbox) -> None:
    outputs = [tab.verdict, tab.nearest, tab.sizes]

    def judge(request: gr.Request, *controls: Any) -> dict:
        say = language_of(request)
        try:
            values = form.values(*controls)
            wanted = desk.read(values)
        except TpuUiError as error:
            refused = Verdict("refused", desk.without_paths(str(error)))
            return {
                tab.verdict: render.verdict(refused, say),
                tab.nearest: gr.Button(say(_NO_NEAREST), interactive=False),
                tab.sizes: gr.Radio(value=None),
            }
        word = desk.verdict(wanted, say)
        nearest = word.nearest_warm
        label = say("This size is warm") if word.state == WarmupState.WARM else say(_NO_NEAREST)
        if nearest is not None:
            label = say("Use {size}, the nearest warm size", size=nearest.replace("x", "×"))
        return {
            tab.verdict: render.verdict(word, say),
            tab.nearest: gr.Button(label, interactive=nearest is not None),
            tab.sizes: _sizes(desk, wanted, say),
        }

    quiet = (tab.prompt, tab.negative_prompt)  # what is typed there changes a verdict at most in its remarks
    triggers = [control.change for control in tab.request if control not in quiet] + [control.blur for control in quiet]
    gr.on([*triggers, stamp.change], judge, tab.request, outputs, trigger_mode="always_last", **QUICK)


def _sizes(desk: Desk, request: GenerationRequest, say: Language) -> gr.Radio:
    try:
        card = desk.judge.card(request.model)
    except TpuUiError:
        return gr.Radio(choices=[], value=None)
    states = desk.judge.size_states(request, card)
    size = (request.width or card.default_width, request.height or card.default_height)
    value = form.size_value(*size) if size in card.ladder else None
    return gr.Radio(choices=form.size_choices(card, states, state_labels(say)), value=value)


# -- the other controls -----------------------------------------------------------------------------------------------


def _wire_controls(desk: Desk, tab: GenerateTab, browser: gr.Textbox, followed: gr.State) -> None:
    usable_model = gr.State(desk.default_model_id)

    def choose_model(model: Any, last: str) -> dict:
        """Each model brings its own defaults. One that cannot be used gives way to the last one that could."""
        try:
            card = desk.card(model)
        except TpuUiError as error:
            gr.Warning(escape(desk.without_paths(str(error))))
            return {tab.model: last}
        return {
            tab.width: card.default_width,
            tab.height: card.default_height,
            tab.steps: card.default_steps,
            tab.guidance: card.default_guidance,
        }

    def follow_model(model: Any, last: str) -> tuple:
        """However it came into the form: chosen, or with the settings of a picture."""
        try:
            card = desk.card(model)
        except TpuUiError:
            return last, gr.skip(), gr.skip(), gr.skip()
        takes = card.takes_picture  # what is out of sight would be refused: it goes
        negative = gr.Textbox(interactive=card.takes_negative_prompt)
        return model, negative, gr.Accordion(visible=takes), gr.skip() if takes else None

    def choose_size(label: Any) -> tuple[int, int]:
        try:
            return parse_size(label)
        except TpuUiError as error:
            raise as_toast(error, desk) from error

    def restore(owner: Any, now: Followed, what: tuple[str, ...]) -> dict:
        job = _shown_job(desk, owner, now)
        if job is None or job.result is None:
            return {tab.seed: gr.skip()}
        model = job.result.report.model
        if model not in [model_id for _, model_id in desk.model_choices()]:  # a folder's id is a part of its path
            model = job.result.request.model
        restored = form.from_request(job.result.request, model or "")
        restored["placement"] = offered_placement(desk, restored["placement"])
        return {getattr(tab, name): restored[name] for name in what}

    tab.model.input(
        choose_model, [tab.model, usable_model], [tab.model, tab.width, tab.height, tab.steps, tab.guidance], **PRESS
    )
    followed_model = [usable_model, tab.negative_prompt, tab.picture_box, tab.image]
    tab.model.change(follow_model, [tab.model, usable_model], followed_model, **QUICK)
    tab.sizes.input(choose_size, tab.sizes, [tab.width, tab.height], **QUICK)
    tab.swap.click(lambda width, height: (height, width), [tab.width, tab.height], [tab.width, tab.height], **QUICK)
    tab.random_seed.click(lambda: "", None, tab.seed, **QUICK)
    tab.nearest.click(
        None, tab.nearest, [tab.width, tab.height],
        js="(label) => /(\\d+)×(\\d+)/.exec(label).slice(1).map(Number)",
        **QUICK,
    )  # fmt: skip
    tab.use_settings.click(
        lambda owner, now: restore(owner, now, form.FIELDS), [browser, followed], tab.request, **QUICK
    )
    selected = gr.State(0)

    def reuse_seed(owner: Any, now: Followed, index: int) -> Any:
        job = _shown_job(desk, owner, now)
        if job is None or job.result is None:
            return gr.skip()
        seeds = [seed for _, seed in _kept(job)] or job.result.report.seeds
        return str(seeds[index] if isinstance(index, int) and index < len(seeds) else seeds[0])

    def select(event: gr.SelectData) -> int:
        return event.index

    tab.gallery.select(select, None, selected, **QUICK)
    tab.reuse_seed.click(reuse_seed, [browser, followed, selected], tab.seed, **QUICK)


def _shown_job(desk: Desk, owner: Any, now: Followed) -> Job | None:
    if not is_token(owner):
        return None
    return next(
        (job for job in desk.queue.jobs_of(owner) if job.id == now.shown and job.kind is JobKind.GENERATE), None
    )
