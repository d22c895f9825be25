"""The PNG tab: what stands in a picture, ours or another program's, and back into the form with it."""

from typing import Any

import gradio as gr

from tpu_ui.errors import TpuUiError
from tpu_ui.page import render
from tpu_ui.page.desk import Desk
from tpu_ui.page.generate_handlers import PRESS, QUICK
from tpu_ui.page.generate_tab import GenerateTab
from tpu_ui.page.history_tab import MODEL_STAYS, give_again, is_offered, restored, settings_rows
from tpu_ui.page.labels import language_of
from tpu_ui.recipe import read_recipe
from tpu_ui.translations import marked

_SHOWN_CHARACTERS = 4000
_NOTHING = marked("Drop a picture to see how it was made.")


def build_and_wire(
    desk: Desk, text: gr.I18n, greeted: gr.events.Dependency, tabs: gr.Tabs, target: GenerateTab
) -> None:
    """Lay the tab out and connect it."""
    fields = gr.State({})
    with gr.Row(elem_classes="two-columns"):
        with gr.Column(scale=3, min_width=300):
            # Without a mode the file itself is handed over; Gradio would otherwise write it anew, without its texts.
            picture = gr.Image(
                type="filepath", image_mode=None, sources=["upload", "clipboard"], label=text("png_drop"), height=420,
                elem_id="png-drop", buttons=[],
            )  # fmt: skip
        with gr.Column(scale=4, min_width=300):
            found = gr.HTML(elem_id="png-found", elem_classes="panel-card", padding=True)
            restore = gr.Button(text("use_settings"), variant="primary", interactive=False, elem_id="png-restore")

    def read_png(path: Any, request: gr.Request) -> tuple:
        say = language_of(request)
        if not path:
            return {}, render.sentence(say(_NOTHING)), gr.Button(interactive=False)
        try:
            recipe = read_recipe(path)
        except TpuUiError as error:
            told = desk.without_paths(str(error))
            return {}, render.sentence(told), gr.Button(interactive=False)
        if recipe.source is None:
            return {}, render.sentence(say("No settings are in this picture.")), gr.Button(interactive=False)
        notices = list(recipe.notices)
        model = recipe.fields.get("model")
        if model is not None and not is_offered(model, desk.model_choices()):
            notices.append(say(MODEL_STAYS))
        if "image_sha256" in recipe.fields:
            notices.append(give_again(recipe.fields, say))
        html = render.rows(
            [
                (say("written by"), recipe.source),
                *settings_rows(recipe.fields, say),
                *((say("note"), notice) for notice in notices),
                (say("as written"), recipe.raw_text[:_SHOWN_CHARACTERS]),
            ]
        )
        return recipe.fields, html, gr.Button(interactive=bool(recipe.fields))

    def use(known: dict[str, Any], request: gr.Request) -> dict:
        return restored(desk, target, known, language_of(request)) | {tabs: gr.Tabs(selected="generate")}

    def first_words(request: gr.Request) -> str:
        return render.sentence(language_of(request)(_NOTHING))

    greeted.then(first_words, None, found, **QUICK)
    picture.change(read_png, picture, [fields, found, restore], **PRESS)
    restore.click(use, fields, [tabs, *target.request], **PRESS)
