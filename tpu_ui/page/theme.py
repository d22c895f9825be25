"""Looks: a calm theme in light and dark, and the few lines of CSS and JavaScript that Gradio has no setting for."""

from pathlib import Path

import gradio as gr

_HERE = Path(__file__).parent

CSS_FILE = _HERE / "page.css"
HEAD = f"<script>{(_HERE / 'page.js').read_text()}</script>"

_FONT = ("ui-sans-serif", "system-ui", "Segoe UI", "Roboto", "sans-serif")
_MONO = ("ui-monospace", "Cascadia Code", "Menlo", "Consolas", "monospace")


def theme() -> gr.themes.Base:
    """Slate and a deep teal; no font is fetched from anywhere."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.slate,
        font=_FONT,
        font_mono=_MONO,
        radius_size=gr.themes.sizes.radius_md,
    ).set(
        body_background_fill="#f4f6f7",
        body_background_fill_dark="#12171b",
        body_text_color="#1c2529",
        body_text_color_dark="#e4eaed",
        body_text_color_subdued="#56646b",
        body_text_color_subdued_dark="#9fb0b8",
        background_fill_primary="#ffffff",
        background_fill_primary_dark="#1a2126",
        background_fill_secondary="#f4f6f7",
        background_fill_secondary_dark="#151b1f",
        block_background_fill="#ffffff",
        block_background_fill_dark="#1a2126",
        block_border_color="#dde3e6",
        block_border_color_dark="#2b353b",
        border_color_primary="#dde3e6",
        border_color_primary_dark="#2b353b",
        block_label_background_fill="transparent",
        block_label_background_fill_dark="transparent",
        block_title_text_color="#56646b",
        block_title_text_color_dark="#9fb0b8",
        block_title_text_weight="500",
        block_shadow="none",
        input_placeholder_color="#5f6d75",
        input_placeholder_color_dark="#93a4ad",
        color_accent="#0f766e",
        checkbox_background_color_dark="#12171b",
        checkbox_border_color_dark="#52626b",
        checkbox_background_color_selected="#0f766e",
        checkbox_background_color_selected_dark="#0d9488",
        checkbox_border_color_selected="#0f766e",
        checkbox_border_color_selected_dark="#0d9488",
        checkbox_label_background_fill="#f4f6f7",
        checkbox_label_background_fill_dark="#151b1f",
        checkbox_label_background_fill_hover="#e8edef",
        checkbox_label_background_fill_hover_dark="#222b31",
        checkbox_label_border_color="#dde3e6",
        checkbox_label_border_color_dark="#2b353b",
        checkbox_label_background_fill_selected="#e3f4f1",
        checkbox_label_background_fill_selected_dark="#14332f",
        checkbox_label_border_color_selected="#0f766e",
        checkbox_label_border_color_selected_dark="#2dd4bf",
        checkbox_label_border_width="1px",
        input_background_fill="#f9fafb",
        input_background_fill_dark="#12171b",
        input_border_color="#cfd8dc",
        input_border_color_dark="#37434a",
        input_border_color_focus="#0f766e",
        input_border_color_focus_dark="#2dd4bf",
        button_primary_background_fill="#0f766e",
        button_primary_background_fill_hover="#115e59",
        button_primary_text_color="#ffffff",
        button_primary_background_fill_dark="#2dd4bf",
        button_primary_background_fill_hover_dark="#5eead4",
        button_primary_text_color_dark="#06231f",
        button_secondary_background_fill="#e8edef",
        button_secondary_background_fill_hover="#dbe3e6",
        button_secondary_background_fill_dark="#263037",
        button_secondary_background_fill_hover_dark="#313d45",
        layout_gap="12px",
        block_padding="10px 12px",
    )
