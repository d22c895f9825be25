"""Text can be read: contrast AA (4.5 to 1) of every text colour on the grounds it stands on, in light and dark."""

import re

import pytest

from tpu_ui.page import theme

CSS = theme.CSS_FILE.read_text()
VARIABLES = {
    "": dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", CSS.split(".dark")[0])),
    "_dark": dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", CSS.split(".dark")[1].split("}")[0])),
}
SIDES = [pytest.param("", id="light"), pytest.param("_dark", id="dark")]
GROUNDS = ("body_background_fill", "block_background_fill", "background_fill_secondary")


def luminance(colour: str) -> float:
    """WCAG 2: relative luminance of #rrggbb."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_black_on_white_is_twenty_one_to_one():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("side", SIDES)
def test_text_of_the_theme(side: str):
    made = theme.theme()
    pairs = [(text, ground) for text in ("body_text_color", "body_text_color_subdued") for ground in GROUNDS]
    pairs += [
        ("block_title_text_color", "block_background_fill"),
        ("input_placeholder_color", "input_background_fill"),
        ("body_text_color", "input_background_fill"),
        ("body_text_color", "checkbox_label_background_fill"),
        ("body_text_color", "checkbox_label_background_fill_selected"),
        ("body_text_color", "button_secondary_background_fill"),
        ("button_primary_text_color", "button_primary_background_fill"),
        ("button_primary_text_color", "button_primary_background_fill_hover"),
    ]
    poor = {pair: contrast(*(getattr(made, name + side) for name in pair)) for pair in pairs}
    assert {pair: ratio for pair, ratio in poor.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("side", SIDES)
def test_text_of_states(side: str):
    colours = VARIABLES[side]
    text = getattr(theme.theme(), f"body_text_color{side}")
    assert {"ok", "disk", "cold", "bad", "ok-soft", "disk-soft", "cold-soft", "bad-soft", "quiet-soft"} == set(colours)
    for name in ("ok", "disk", "cold", "bad"):
        assert contrast(colours[name], colours[f"{name}-soft"]) >= 4.5, name
        assert contrast(text, colours[f"{name}-soft"]) >= 4.5, name
    assert contrast(text, colours["quiet-soft"]) >= 4.5
    block = getattr(theme.theme(), f"block_background_fill{side}")
    assert contrast(colours["bad"], block) >= 4.5, "the title of a failure"
    assert contrast(colours["ok"], block) >= 4.5, "links and the chosen tab"
