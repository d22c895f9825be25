"""The History tab: this browser's pictures (or everybody's, where history is shared), newest first."""

from datetime import datetime
from html import escape
from typing import Any

import gradio as gr

from tpu_ui.errors import InvalidRequest, TpuUiError
from tpu_ui.outputs import HistoryEntry
from tpu_ui.page import form, render
from tpu_ui.page.desk import Desk
from tpu_ui.page.generate_handlers import PRESS, QUICK, as_toast
from tpu_ui.page.generate_tab import GenerateTab, mode_choices, offered_placement
from tpu_ui.page.labels import language_of
from tpu_ui.page.sessions import is_token
from tpu_ui.translations import Language, marked

_SHOWN = 24
_NAMES = {
    "prompt": marked("prompt"),
    "negative_prompt": marked("negative prompt"),
    "model": marked("model"),
    "mode": marked("mode"),
    "placement": marked("placement"),
    "width": marked("width"),
    "height": marked("height"),
    "steps": marked("steps"),
    "guidance": marked("guidance"),
    "seed": marked("seed"),
    "batch": marked("batch"),
    "loras": marked("LoRAs"),
    "strength": marked("strength"),
    "image_sha256": marked("started from (SHA-256)"),
}

MODEL_STAYS = marked("Its model is not on this server's list; the model in the form stays as it is.")
_GIVE_AGAIN = marked("It started from a picture (SHA-256 {digest}…), which has to be given again.")


def build_and_wire(
    desk: Desk, text: gr.I18n, tab: gr.Tab, tabs: gr.Tabs, browser: gr.Textbox, target: GenerateTab
) -> None:
    """Lay the tab out and connect it."""
    entries = gr.State(())
    chosen = gr.State(None)
    with gr.Row(elem_classes="two-columns"):
        with gr.Column(scale=5, min_width=300):
            with gr.Row():
                search = gr.Textbox(label=text("search"), max_lines=1, elem_id="search", scale=4)
                refresh = gr.Button(text("refresh"), scale=1, min_width=90, elem_id="history-refresh")
            gallery = gr.Gallery(
                label=text("pictures"), show_label=False, format="png", object_fit="cover", columns=4, height=None,
                elem_id="history", buttons=["download", "fullscreen"], interactive=False,
            )  # fmt: skip
            older = gr.Button(text("older"), size="sm", interactive=False, elem_id="older")
        with gr.Column(scale=3, min_width=300):
            details = gr.HTML(elem_id="history-details", elem_classes="panel-card", padding=True)
            with gr.Row():
                restore = gr.Button(text("use_settings"), interactive=False, elem_id="history-restore")
                delete = gr.Button(text("delete"), interactive=False, variant="stop", elem_id="history-delete")

    view = [gallery, entries, chosen, details, restore, delete, older]

    def show_history(owner: Any, words: Any, request: gr.Request, before: str | None = None) -> list:
        if not is_token(owner):
            return [gr.skip()] * len(view)
        try:
            found = desk.outputs.entries(owner, str(words or ""), _SHOWN + 1, before)
            listed = tuple(found[:_SHOWN])
            pictures = [(str(desk.picture(desk.outputs.path_of(e.name, owner))), _caption(e)) for e in listed]
        except TpuUiError as error:
            raise as_toast(error, desk) from error
        disabled = gr.Button(interactive=False)
        nothing = render.sentence(language_of(request)("Choose a picture to see its settings."))
        return [
            gr.Gallery(pictures, selected_index=None, preview=False), listed, None, nothing, disabled, disabled,
            gr.Button(interactive=len(found) > _SHOWN),
        ]  # fmt: skip

    def show_older(owner: Any, words: Any, listed: tuple[HistoryEntry, ...], request: gr.Request) -> list:
        return show_history(owner, words, request, listed[-1].cursor if listed else None)

    def is_gone(owner: Any, entry: HistoryEntry | None, request: gr.Request) -> bool:
        """Whether a picture was deleted since it was listed, in another tab or from the folder; if so, it is told."""
        if entry is None or not is_token(owner):
            return False
        try:
            desk.outputs.path_of(entry.name, owner)
            return False
        except InvalidRequest:
            pass
        gr.Info(escape(language_of(request)("This picture is gone: it was deleted elsewhere.")))
        return True

    def choose(
        owner: Any, words: Any, listed: tuple[HistoryEntry, ...], event: gr.SelectData, request: gr.Request
    ) -> dict | list:
        if not isinstance(event.index, int) or event.index >= len(listed):
            return {chosen: gr.skip()}
        entry = listed[event.index]
        if is_gone(owner, entry, request):
            return show_history(owner, words, request)
        return {
            chosen: entry,
            details: _details(entry, language_of(request)),
            restore: gr.Button(interactive=True),
            delete: gr.Button(interactive=entry.mine or desk.outputs.shared),
        }

    def remove(owner: Any, words: Any, entry: HistoryEntry | None, request: gr.Request) -> list:
        if entry is not None and is_token(owner) and not is_gone(owner, entry, request):
            try:
                desk.delete_picture(entry.name, owner)
            except TpuUiError as error:
                raise as_toast(error, desk) from error
        return show_history(owner, words, request)

    tab.select(show_history, [browser, search], view, **QUICK)
    refresh.click(show_history, [browser, search], view, **QUICK)
    search.change(show_history, [browser, search], view, trigger_mode="always_last", **QUICK)
    older.click(show_older, [browser, search, entries], view, **QUICK)
    gallery.select(choose, [browser, search, entries], view, **PRESS)
    delete.click(remove, [browser, search, chosen], view, **PRESS)

    def use(owner: Any, words: Any, entry: HistoryEntry | None, request: gr.Request) -> dict:
        """The settings of a picture that is gone are still known here."""
        changes = restored(desk, target, {} if entry is None else entry.fields, language_of(request))
        if is_gone(owner, entry, request):
            changes |= dict(zip(view, show_history(owner, words, request), strict=True))
        return changes | {tabs: gr.Tabs(selected="generate")}

    restore.click(use, [browser, search, chosen], [tabs, *target.request, *view], **PRESS)


def is_offered(value: Any, choices: list[tuple[str, str]]) -> bool:
    """Whether a value is one of a dropdown's, which are given as labels and values."""
    return value in [offered for _, offered in choices]


def give_again(fields: dict[str, Any], say: Language) -> str:
    """What to tell where a recipe's fields name a picture that it started from."""
    return say(_GIVE_AGAIN, digest=fields["image_sha256"][:12])


def restored(desk: Desk, target: GenerateTab, fields: dict[str, Any], say: Language) -> dict:
    """Changes of the form that bring a recipe's settings back; a model that is not on offer is left out."""
    changes: dict[Any, Any] = {}
    if fields:  # what a picture was made without does not stay in the form; none holds the one that it started from
        fields = {"prompt": "", "negative_prompt": "", "loras": [], "image": None} | fields
    if "image_sha256" in fields:
        gr.Info(escape(give_again(fields, say)))
    for name in form.FIELDS:
        if name not in fields:
            continue
        value = fields[name]
        if name == "model" and not is_offered(value, desk.model_choices()):
            gr.Info(escape(say(MODEL_STAYS)))
            continue
        if name == "mode" and not is_offered(value, mode_choices(desk)):
            gr.Info(escape(say("Its mode does not exist on this device; the mode in the form stays as it is.")))
            continue
        if name == "placement":
            value = offered_placement(desk, value)
        if name in ("mode", "seed"):
            value = str(value)
        if name == "loras":
            value = "\n".join(value)
        changes[getattr(target, name)] = value
    return changes


def _caption(entry: HistoryEntry) -> str:
    prompt = " ".join(str(entry.fields.get("prompt", "")).split())
    return prompt if len(prompt) <= 60 else f"{prompt[:57]}…"


def _details(entry: HistoryEntry, say: Language) -> str:
    made = datetime.fromtimestamp(entry.created_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
    return render.rows([(say("made"), made), *settings_rows(entry.fields, say)])


def settings_rows(fields: dict[str, Any], say: Language) -> list[tuple[str, str]]:
    """A recipe's fields as names and values."""
    given = {name: fields[name] for name in _NAMES if fields.get(name) not in (None, "", [])}
    return [(say(_NAMES[name]), ", ".join(v) if isinstance(v, list) else str(v)) for name, v in given.items()]
