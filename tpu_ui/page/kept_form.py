"""The form outlives a reload: the browser keeps its values, and the page checks them before it shows them again."""

import json
from typing import Any

import gradio as gr

from tpu_ui.errors import TpuUiError
from tpu_ui.page import form
from tpu_ui.page.desk import Desk
from tpu_ui.page.generate_handlers import QUICK
from tpu_ui.page.generate_tab import GenerateTab, mode_choices, placement_choices
from tpu_ui.page.history_tab import is_offered
from tpu_ui.page.uploads import uploaded

_OF_THE_MODEL = ("model", "mode", "width", "height", "steps", "guidance", "loras")

# A tab finds its own form again, a new tab the one that was used last.
_READ = """() => {
    try {
        return sessionStorage.getItem("tpu_ui.form") ?? localStorage.getItem("tpu_ui.form") ?? "";
    } catch { return ""; }
}"""
# Not before it was read: a page begins with its defaults, and they must not go over what is kept.
_WRITE = """(...values) => {
    if (!%(now)s && !document.body.dataset.formIsKept) return;
    document.body.dataset.formIsKept = "yes";
    try {
        const form = Object.fromEntries(%(fields)s.map((name, i) => [name, values[i]?.path ?? values[i]]));
        const text = JSON.stringify({ page: %(page)s, form });
        sessionStorage.setItem("tpu_ui.form", text);
        localStorage.setItem("tpu_ui.form", text);
    } catch {}
}"""


def wire(desk: Desk, page: gr.Blocks, tab: GenerateTab) -> None:
    """Keep the form at each change, and bring it back when the page is loaded."""
    kept = gr.Textbox("", visible="hidden", elem_id="kept-form", label="kept form")

    def restore_form(text: Any) -> list:
        values = checked(desk, text)
        return [values.get(name, gr.skip()) for name in form.FIELDS]

    def write(now: str) -> str:
        return _WRITE % {"now": now, "fields": json.dumps(form.FIELDS), "page": json.dumps(_page_of(desk))}

    restored = page.load(restore_form, kept, tab.request, js=_READ, **QUICK)
    restored.then(None, tab.request, None, js=write("true"), **QUICK)
    gr.on([control.change for control in tab.request], None, tab.request, None, js=write("false"), **QUICK)


def _page_of(desk: Desk) -> str:
    """What a page was started with: on another, the model and its numbers are the page's own again."""
    options = desk.options
    return f"{desk.default_model_id} {options.default_mode or ''} {options.device.kind} {options.group_devices or ''}"


def checked(desk: Desk, text: object) -> dict[str, Any]:
    """Values for the form's controls from what a browser kept; what this page could not have shown is left out."""
    page, values = form.from_storage(text)
    if page != _page_of(desk) or not _is_usable(desk, values.get("model")):
        values = {name: value for name, value in values.items() if name not in _OF_THE_MODEL}
    offered = {"mode": mode_choices(desk), "placement": placement_choices(desk)}
    values = {name: value for name, value in values.items() if name not in offered or is_offered(value, offered[name])}
    if "image" in values:
        try:
            values["image"] = uploaded(values["image"])
        except TpuUiError:  # a file of a program that has ended
            del values["image"]
    return values


def _is_usable(desk: Desk, model: object) -> bool:
    try:
        desk.card(model)
    except TpuUiError:
        return False
    return True
