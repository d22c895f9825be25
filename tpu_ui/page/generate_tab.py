"""The Generate tab: its controls, and what they are wired to."""

from dataclasses import dataclass, fields

import gradio as gr

from tpu_ui.errors import TpuUiError
from tpu_ui.lora_files import names_in
from tpu_ui.page import form, render
from tpu_ui.page.desk import Desk
from tpu_ui.placement import Placement
from tpu_ui.resolution import DEFAULT_STRENGTH
from tpu_ui.translations import ENGLISH, Language, marked

PLACEMENT_WORDS = {
    Placement.AUTO: marked("Auto"),
    Placement.SINGLE: marked("One chip"),
    Placement.CPU_OFFLOAD: marked("CPU offload"),
}


_DEMO_LABEL = marked("Demo (bundled, tiny)")


@dataclass(frozen=True)
class GenerateTab:
    """The controls, by the names of a request's fields where they are one's."""

    prompt: gr.Textbox
    negative_prompt: gr.Textbox
    model: gr.Dropdown
    mode: gr.Dropdown
    placement: gr.Dropdown
    width: gr.Number
    height: gr.Number
    steps: gr.Number
    guidance: gr.Number
    seed: gr.Textbox
    batch: gr.Number
    loras: gr.Textbox
    image: gr.Image
    strength: gr.Slider
    picture_box: gr.Accordion
    sizes: gr.Radio
    swap: gr.Button
    random_seed: gr.Button
    generate: gr.Button
    cancel: gr.Button
    nearest: gr.Button
    verdict: gr.HTML
    panel: gr.HTML
    gallery: gr.Gallery
    preview: gr.HTML
    live_preview: gr.Checkbox
    reuse_seed: gr.Button
    use_settings: gr.Button
    report: gr.HTML

    @property
    def request(self) -> list[gr.components.Component]:
        """The controls of a request, in the order of form.FIELDS."""
        return [getattr(self, name) for name in form.FIELDS]


def mode_choices(desk: Desk, say: Language = ENGLISH) -> list[tuple[str, str]]:
    """Labels and words of the modes that exist here."""
    return [(say(mode.label), mode.value) for mode in desk.options.modes]


def take_as_posted(*controls: gr.components.Component) -> None:
    """Hand on what was posted, whatever it is. Gradio's own checks end in sentences about its choices, or in none; ours
    stand in the request, and hold for every way in. A control whose choices were changed for a session is made anew by
    Gradio, and has Gradio's check again there.
    """
    for control in controls:
        control.preprocess = lambda payload: payload


def model_choices(desk: Desk, say: Language = ENGLISH) -> list[tuple[str, str]]:
    """Labels and ids of the models on offer; only the label that is no name has a translation."""
    return [(say(label) if label == _DEMO_LABEL else label, name) for label, name in desk.model_choices()]


def placement_choices(desk: Desk, say: Language = ENGLISH) -> list[tuple[str, str]]:
    """Labels and words of the placements that may be chosen here."""
    return [(say(PLACEMENT_WORDS[each]), each.value) for each in desk.options.placements]


def offered_placement(desk: Desk, placement: object) -> str:
    """The placement of settings from elsewhere, or AUTO where this page does not offer it."""
    return str(placement) if placement in desk.options.placements else Placement.AUTO.value


def _lora_names(desk: Desk) -> str | None:
    """The LoRAs that can be named without a path."""
    return ", ".join(names_in(desk.settings.lora_folder)) or None


def build(desk: Desk, text: gr.I18n) -> GenerateTab:
    """Lay the tab out, with the defaults of the page's model."""
    try:
        card = desk.card(None)
        defaults = {
            "width": card.default_width, "height": card.default_height,
            "steps": card.default_steps, "guidance": card.default_guidance,
        }  # fmt: skip
        choices = form.size_choices(card, {}, {})
        takes_negative, takes_picture = card.takes_negative_prompt, card.takes_picture
    except TpuUiError:
        defaults, choices, takes_negative, takes_picture = {}, [], True, True
    mode = desk.default_mode
    with gr.Row(elem_id="workbench"):
        with gr.Column(elem_id="ask"):
            prompt = gr.Textbox(
                label=text("prompt"), placeholder=text("prompt_hint"), lines=3, max_lines=8, elem_id="prompt"
            )
            negative = gr.Textbox(
                label=text("negative"), placeholder=text("negative_hint"), lines=1, max_lines=4,
                interactive=takes_negative, elem_id="negative",
            )  # fmt: skip
            with gr.Row(elem_id="act"):
                generate = gr.Button(text("generate"), variant="primary", elem_id="generate", min_width=120)
                cancel = gr.Button(
                    text("cancel"), variant="secondary", interactive=False, elem_id="cancel", min_width=90
                )
            verdict = gr.HTML(elem_id="verdict", container=False, padding=False)
            nearest = gr.Button("\u00a0", size="sm", elem_id="nearest", interactive=False, elem_classes="quiet")
        with gr.Column(elem_id="settings"):
            model = gr.Dropdown(
                desk.model_choices(), value=desk.default_model_id, label=text("model"), elem_id="model",
                allow_custom_value=desk.options.is_private, filterable=desk.options.is_private,
            )  # fmt: skip
            with gr.Row():
                mode_box = gr.Dropdown(
                    mode_choices(desk), value=mode.value, label=text("mode"), filterable=False, min_width=140,
                    elem_id="mode",
                )  # fmt: skip
                placement = gr.Dropdown(
                    placement_choices(desk), value=Placement.AUTO.value, label=text("placement"), filterable=False,
                    min_width=140, elem_id="placement",
                )  # fmt: skip
            size_value = form.size_value(defaults["width"], defaults["height"]) if defaults else None
            sizes = gr.Radio(choices, value=size_value, label=text("sizes"), elem_id="sizes")
            with gr.Row(elem_id="size-row"):
                width = gr.Number(defaults.get("width"), label=text("width"), min_width=80, elem_id="width")
                swap = gr.Button("⇄", elem_id="swap", min_width=44, scale=0, elem_classes="icon")
                height = gr.Number(defaults.get("height"), label=text("height"), min_width=80, elem_id="height")
            with gr.Row(elem_id="numbers"):
                steps = gr.Number(defaults.get("steps"), label=text("steps"), min_width=80, elem_id="steps")
                guidance = gr.Number(
                    defaults.get("guidance"), label=text("guidance"), step=0.5, min_width=80, elem_id="guidance"
                )
                batch = gr.Number(1, label=text("batch"), min_width=80, elem_id="batch")
            with gr.Row(elem_id="seed-row"):
                seed = gr.Textbox(label=text("seed"), placeholder=text("seed_hint"), max_lines=1, elem_id="seed")
                random_seed = gr.Button("⚄", elem_id="random-seed", min_width=44, scale=0, elem_classes="icon")
            with gr.Accordion(
                text("from_picture"), open=False, visible=takes_picture, elem_id="from-picture"
            ) as picture_box:
                # Without a mode the file itself is handed over, turned and with its transparency.
                image = gr.Image(
                    type="filepath", image_mode=None, sources=["upload", "clipboard"], label=text("picture"),
                    height=200, elem_id="image", buttons=[],
                )  # fmt: skip
                strength = gr.Slider(
                    0.01, 1, value=DEFAULT_STRENGTH, step=0.01, label=text("strength"), info=text("strength_hint"),
                    elem_id="strength",
                )  # fmt: skip
            with gr.Accordion(text("advanced"), open=False, elem_id="advanced"):
                loras = gr.Textbox(
                    label=text("loras"), placeholder=text("loras_hint"), info=_lora_names(desk), lines=2, max_lines=8,
                    elem_id="loras",
                )  # fmt: skip
        with gr.Column(elem_id="results"):
            panel = gr.HTML(render.idle(""), elem_id="panel", container=False, padding=False)
            with gr.Column(elem_id="stage"):
                gallery = gr.Gallery(
                    label=text("pictures"), show_label=False, format="png", object_fit="contain", columns=2,
                    height=None, preview=True, elem_id="gallery", buttons=["download", "fullscreen"], interactive=False,
                )  # fmt: skip
                preview = gr.HTML(elem_id="preview", container=False, padding=False)
            with gr.Row(elem_id="after"):
                live_preview = gr.Checkbox(
                    True, label=text("live_preview"), container=False, min_width=90, scale=0, elem_id="live-preview"
                )
                reuse_seed = gr.Button(text("reuse_seed"), size="sm", interactive=False, elem_id="reuse-seed")
                use_settings = gr.Button(text("use_settings"), size="sm", interactive=False, elem_id="use-settings")
            with gr.Accordion(text("report"), open=False, elem_id="report-box"):
                report = gr.HTML(elem_id="report", padding=False)
    controls = {
        "prompt": prompt, "negative_prompt": negative, "model": model, "mode": mode_box, "placement": placement,
        "width": width, "height": height, "steps": steps, "guidance": guidance, "seed": seed, "batch": batch,
        "loras": loras, "image": image, "strength": strength, "picture_box": picture_box, "sizes": sizes, "swap": swap,
        "random_seed": random_seed, "generate": generate,
        "cancel": cancel, "nearest": nearest, "verdict": verdict, "panel": panel, "gallery": gallery,
        "preview": preview, "live_preview": live_preview, "reuse_seed": reuse_seed, "use_settings": use_settings,
        "report": report,
    }  # fmt: skip
    take_as_posted(*(control for name, control in controls.items() if name in form.FIELDS and name != "image"), sizes)
    assert set(controls) == {field.name for field in fields(GenerateTab)}
    return GenerateTab(**controls)
