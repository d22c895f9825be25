"""The Warm-up tab: what is compiled on this machine, and compiling more of it in the background."""

import dataclasses
import time
from typing import Any

import gradio as gr

from tpu_ui import wording
from tpu_ui.errors import TpuUiError
from tpu_ui.jobs import JobKind
from tpu_ui.page import following, form, render
from tpu_ui.page.desk import Desk
from tpu_ui.page.following import Followed
from tpu_ui.page.generate_handlers import NO_SESSION, PRESS, QUICK, as_toast, state_labels
from tpu_ui.page.generate_tab import mode_choices, model_choices, take_as_posted
from tpu_ui.page.known_shapes import OTHER_VERSIONS, KnownShape, known_shapes
from tpu_ui.page.labels import language_of
from tpu_ui.page.sessions import is_token
from tpu_ui.shapes import parse_size
from tpu_ui.translations import Language, marked

_HEAD = [
    marked("State"),
    marked("Model"),
    marked("Size"),
    marked("Pictures"),
    marked("Mode"),
    marked("Placement"),
    marked("Graphs"),
    marked("Compiled in"),
    marked("A step"),
    marked("On disk"),
    marked("Last used"),
]
_POLL_SECONDS = 1.0


def build_and_wire(desk: Desk, text: gr.I18n, greeted: gr.events.Dependency, tab: gr.Tab, browser: gr.Textbox) -> None:
    """Lay the tab out and connect it."""
    mode = desk.default_mode
    followed = gr.State(Followed())
    timer = gr.Timer(_POLL_SECONDS, active=False)
    with gr.Row(elem_classes="two-columns"):
        with gr.Column(scale=2, min_width=340):
            model = gr.Dropdown(
                desk.model_choices(), value=desk.default_model_id, label=text("model"), filterable=False,
                elem_id="warm-model",
            )  # fmt: skip
            with gr.Row():
                mode_box = gr.Dropdown(
                    mode_choices(desk), value=mode.value, label=text("mode"), filterable=False, min_width=140,
                    elem_id="warm-mode",
                )  # fmt: skip
                batch = gr.Number(1, label=text("batch"), min_width=80, elem_id="warm-batch")
            sizes = gr.CheckboxGroup([], label=text("warm_sizes"), elem_id="warm-sizes", elem_classes="chips")
            with gr.Row():
                start = gr.Button(text("warm"), variant="primary", elem_id="warm-start")
                cancel = gr.Button(text("cancel_warm"), interactive=False, elem_id="warm-cancel")
            panel = gr.HTML(render.idle(""), elem_id="warm-panel", container=False, padding=False)
        with gr.Column(scale=5, min_width=300):
            table = gr.HTML(elem_id="known-shapes", elem_classes="panel-card", padding=True)
            with gr.Row():
                refresh = gr.Button(text("refresh"), elem_id="warm-refresh")
                if desk.options.is_private:
                    keep = gr.Number(
                        round(desk.settings.cache_budget_bytes / 1e9, 1), label=text("keep_gb"), min_width=120,
                        elem_id="keep-gb",
                    )  # fmt: skip
                    prune = gr.Button(text("prune"), elem_id="prune")

    take_as_posted(model, mode_box, batch, sizes)

    def look_around(model_id: Any, mode_word: Any, pictures: Any, request: gr.Request) -> tuple:
        say = language_of(request)
        return _size_boxes(desk, model_id, mode_word, pictures, say), _table(desk, say)

    def choose(model_id: Any, mode_word: Any, pictures: Any, request: gr.Request) -> gr.CheckboxGroup:
        return _size_boxes(desk, model_id, mode_word, pictures, language_of(request))

    def show(owner: str, before: Followed, say: Language) -> dict:
        sight = following.look(desk, owner, before, say)
        active = following.active_job(desk, owner, before) is not None
        changes: dict = {
            followed: dataclasses.replace(sight.followed, panel=sight.panel),
            timer: gr.Timer(active=active or desk.is_starting),
            cancel: gr.Button(interactive=active),
        }
        if sight.panel != before.panel:
            changes[panel] = sight.panel
        return changes

    def tick(owner: Any, before: Followed, model_id: Any, mode_word: Any, pictures: Any, request: gr.Request) -> dict:
        if not is_token(owner):
            return {followed: before}
        say = language_of(request)
        changes = show(owner, before, say)
        if changes[followed].stamp != before.stamp:
            changes[table] = _table(desk, say)
            changes[sizes] = _size_boxes(desk, model_id, mode_word, pictures, say)
        return changes

    def warm(
        owner: Any, before: Followed, model_id: Any, mode_word: Any, pictures: Any, chosen: Any, request: gr.Request
    ) -> dict:
        say = language_of(request)
        if not is_token(owner):
            raise gr.Error(say(NO_SESSION), print_exception=False)
        if not chosen or not isinstance(chosen, list):
            raise gr.Error(say("Choose one size or more."), print_exception=False)
        for size in chosen:
            try:
                job = desk.submit(_request(desk, model_id, mode_word, pictures, size), owner, JobKind.WARM_UP)
            except TpuUiError as error:
                raise as_toast(error, desk) from error
            before = before.with_job(job)
        return show(owner, before, say) | {sizes: gr.CheckboxGroup(value=[])}

    def stop(owner: Any, before: Followed, request: gr.Request) -> dict:
        """Cancel all warm-ups of this page, those that wait first."""
        if not is_token(owner):
            return {followed: before}
        for job in reversed(desk.queue.jobs_of(owner)):
            if job.kind is JobKind.WARM_UP and not job.state.is_final:
                desk.queue.cancel(job.id, owner)
        return show(owner, before, language_of(request))

    def greet(owner: Any, request: gr.Request) -> dict:
        say = language_of(request)
        words = {
            model: gr.Dropdown(choices=model_choices(desk, say)),
            mode_box: gr.Dropdown(choices=mode_choices(desk, say)),
        }
        if not is_token(owner):
            return words | {followed: Followed()}
        return words | show(owner, following.find_again(desk, owner, JobKind.WARM_UP), say)

    live = [followed, timer, cancel, panel]
    choice = [model, mode_box, batch]
    tab.select(look_around, choice, [sizes, table], **QUICK)
    tab.select(tick, [browser, followed, *choice], [*live, table, sizes], **QUICK)
    refresh.click(look_around, choice, [sizes, table], **QUICK)
    gr.on([model.input, mode_box.input, batch.change], choose, choice, sizes, **QUICK)
    timer.tick(tick, [browser, followed, *choice], [*live, table, sizes], **QUICK)
    start.click(warm, [browser, followed, *choice, sizes], [*live, sizes], **PRESS)
    cancel.click(stop, [browser, followed], live, **QUICK)
    greeted.then(greet, browser, [*live, model, mode_box], **QUICK)
    if desk.options.is_private:

        def make_room(gigabytes: Any, request: gr.Request) -> str:
            return _prune(desk, gigabytes, language_of(request))

        prune.click(make_room, keep, table, **PRESS)


def _request(desk: Desk, model_id: Any, mode_word: Any, pictures: Any, size: Any):
    width, height = parse_size(size)
    wanted = {"model": model_id, "mode": mode_word, "width": width, "height": height, "batch": form.whole(pictures)}
    return desk.read({name: value for name, value in wanted.items() if value is not None})


def _size_boxes(desk: Desk, model_id: Any, mode_word: Any, pictures: Any, say: Language) -> gr.CheckboxGroup:
    try:
        card = desk.card(model_id)
        first = next(iter(card.ladder))
        request = _request(desk, model_id, mode_word, pictures, form.size_value(first.width, first.height))
    except TpuUiError:
        return gr.CheckboxGroup(choices=[], value=[])
    states = desk.judge.size_states(request, card)
    return gr.CheckboxGroup(choices=form.size_choices(card, states, state_labels(say)))


def _table(desk: Desk, say: Language) -> str:
    head = [say(cell) for cell in _HEAD]
    engine = desk.judge.engine
    if engine is None:
        return render.table(head, [], say("The device is starting; the ledger is read as soon as it is ready."))
    toolchain = tuple(sorted(engine.toolchain.items()))
    shapes = known_shapes(engine.ledger.records(), engine.ledger.state, toolchain)
    now = time.time()
    lines = [
        [
            f"{render.mark(shape.state)} {_state(shape.state, say)}",
            shape.model,
            f"{shape.width}×{shape.height}",
            str(shape.batch),
            ", ".join((shape.mode, *_remarks(shape, say))),
            shape.placement,
            str(shape.graphs),
            wording.duration(shape.compile_seconds, say) if shape.graphs else "–",
            wording.duration(shape.step_seconds, say),
            wording.size_in_bytes(shape.disk_bytes, say),
            _ago(now - shape.last_used, say) if shape.last_used else say("never"),
        ]
        for shape in shapes
    ]
    empty = say("Nothing has been compiled on this machine yet. The first picture of a size compiles it.")
    sizes = {"used": engine.cache.total_bytes(), "budget": desk.settings.cache_budget_bytes}
    told = {name: wording.size_in_bytes(count, say) for name, count in sizes.items()}
    cache = say("Compiled graphs on disk: {used} of {budget}.", **told)
    return render.table(head, lines, empty) + render.sentence(cache)


def _remarks(shape: KnownShape, say: Language) -> list[str]:
    told = {say("no guidance"): not shape.guidance_on, say("from a picture"): shape.from_picture}
    return [words for words, holds in told.items() if holds]


def _state(word: str, say: Language) -> str:
    return say("other versions") if word == OTHER_VERSIONS else wording.short_state(word, say)


def _ago(seconds: float, say: Language) -> str:
    return say("{duration} ago", duration=wording.duration(seconds, say))


def _prune(desk: Desk, gigabytes: Any, say: Language) -> str:
    engine = desk.judge.engine
    if not desk.options.is_private:
        raise gr.Error(say("Only the user of this machine may prune its cache."), print_exception=False)
    if engine is None:
        raise gr.Error(say("The device is starting; try again in a moment."), print_exception=False)
    if isinstance(gigabytes, bool) or not isinstance(gigabytes, int | float) or not 0 <= gigabytes < 1e6:
        raise gr.Error(say("Give a number of gigabytes, 0 or more."), print_exception=False)
    count, freed = engine.cache.prune(int(gigabytes * 1e9), dict(engine.ledger.files_by_last_use()))
    told = {"bytes": wording.size_in_bytes(freed, say)}
    gr.Info(
        say.counted(
            count, "{number} file removed, {bytes} came free.", "{number} files removed, {bytes} came free.", **told
        )
    )
    return _table(desk, say)
