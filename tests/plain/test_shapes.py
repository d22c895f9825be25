"""Sizes are refused with their neighbours named, never rounded in silence."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_ui.errors import InvalidRequest
from tpu_ui.shapes import MAX_PIXELS, MAX_SIDE_PX, NamedSize, ShapeLadder, SizeRule, parse_size

FLUX = SizeRule.with_multiple(16)
SDXL = SizeRule.with_multiple(8)
SANA = SizeRule.with_multiple(32)


@pytest.mark.parametrize(
    ("rule", "width", "height", "field", "said"),
    [
        (FLUX, 1920, 1080, "height", ["1080", "multiple of 16", "1072 or 1088"]),
        (FLUX, 1000, 1000, "width", ["1000", "992 or 1008", "height is wrong too"]),
        (FLUX, 1023, 1025, "width", ["1023", "1008 or 1024", "1024 or 1040"]),
        (SANA, 1000, 1024, "width", ["multiple of 32", "992 or 1024"]),
        (SDXL, 1024, 1023, "height", ["multiple of 8", "1016 or 1024"]),
        (FLUX, 0, 1024, "width", ["0 is not a size", "32 to 4096"]),
        (FLUX, 1024, 0, "height", ["0 is not a size"]),
        (FLUX, -64, 1024, "width", ["-64 is negative"]),
        (FLUX, 16384, 1024, "width", ["16384", "limit of 4096", "largest is 4096"]),
        (FLUX, 1024, 10**30, "height", ["limit of 4096"]),
        (FLUX, 16, 1024, "width", ["16 is below", "smallest is 32"]),
        (FLUX, 1024.0, 1024, "width", ["1024.0 is not a whole number"]),
        (FLUX, math.nan, 1024, "width", ["nan is not a whole number"]),
        (FLUX, True, 1024, "width", ["True is not a whole number"]),
        (FLUX, 1024, "1024", "height", ["'1024' is not a whole number"]),
        (FLUX, None, 1024, "width", ["None is not a whole number"]),
    ],
)
def test_wrong_sides_are_refused_with_the_rule_and_the_nearest_sides(rule, width, height, field, said):
    with pytest.raises(InvalidRequest) as caught:
        rule.check(width, height)
    assert caught.value.field == field
    for words in said:
        assert words in str(caught.value)


def test_too_many_pixels_are_refused_with_the_size_that_would_do():
    rule = SizeRule.with_multiple(16, max_side=2048, max_pixels=2 * 1024 * 1024)
    rule.check(2048, 1024)
    with pytest.raises(InvalidRequest) as caught:
        rule.check(2048, 2048)
    assert caught.value.field == "width × height"
    assert "4,194,304" in str(caught.value)
    assert "2048×1024" in str(caught.value)


@given(
    multiple=st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128]),
    width=st.integers(-10, 5000),
    height=st.integers(-10, 5000),
    max_pixels=st.integers(1, MAX_PIXELS),
)
def test_check_accepts_exactly_what_the_rule_says(multiple, width, height, max_pixels):
    rule = SizeRule.with_multiple(multiple, max_pixels=max_pixels)
    allowed = (
        all(rule.min_side <= side <= rule.max_side and side % multiple == 0 for side in (width, height))
        and width * height <= rule.max_pixels
    )
    assert rule.allows(width, height) == allowed
    if allowed:
        rule.check(width, height)
    else:
        with pytest.raises(InvalidRequest):
            rule.check(width, height)


@given(multiple=st.sampled_from([1, 4, 8, 16, 32, 64]), side=st.integers(-100, 6000))
def test_neighbours_are_the_nearest_allowed_sides(multiple, side):
    rule = SizeRule.with_multiple(multiple)
    allowed = range(rule.min_side, rule.max_side + 1, multiple)
    below, above = [s for s in allowed if s <= side][-1:], [s for s in allowed if s >= side][:1]
    assert set(rule.neighbours(side)) == {*below, *above}


@pytest.mark.parametrize(
    "values",
    [(0, 16, 32, 9999), (16, 0, 32, 9999), (16, 24, 32, 9999), (16, 16, 40, 9999), (16, 64, 32, 9999), (16, 32, 64, 9)],
)
def test_a_rule_that_contradicts_itself_is_no_rule(values):
    with pytest.raises(ValueError, match=r"multiple|side|pixels"):
        SizeRule(*values)


@pytest.mark.parametrize("text", ["1024x768", "1024X768", "1024×768", " 1024 x 768 "])
def test_sizes_are_read(text):
    assert parse_size(text) == (1024, 768)


@pytest.mark.parametrize(
    "text",
    ["", "1024", "1024x", "x768", "1024*768", "1024x768x3", "1e3x768", "1024.5x768", "nanxnan", "10 24x768", "٣x٣"],
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InvalidRequest, match="WIDTHxHEIGHT"):
        parse_size(text)


@pytest.mark.parametrize("value", ["9" * 5000 + "x1", None, 1024])
def test_huge_numbers_and_other_types_are_refused_in_a_short_sentence(value):
    with pytest.raises(InvalidRequest, match="WIDTHxHEIGHT") as caught:
        parse_size(value)
    assert len(str(caught.value)) < 200


def test_signs_are_read_so_that_the_rule_can_say_negative():
    with pytest.raises(InvalidRequest, match="-64 is negative"):
        SDXL.check(*parse_size("-64x64"))


@given(st.text(max_size=30))
def test_any_text_is_a_size_or_refused(text):
    try:
        width, height = parse_size(text)
    except InvalidRequest:
        return
    assert isinstance(width, int)
    assert isinstance(height, int)


def test_the_ladder_of_a_megapixel_is_what_people_know():
    ladder = ShapeLadder.for_pixels(SizeRule.with_multiple(64), 1024 * 1024)
    assert ladder.labels == (
        "1:1 · 1024×1024",
        "4:3 · 1152×896",
        "3:4 · 896×1152",
        "3:2 · 1280×832",
        "2:3 · 832×1280",
        "16:9 · 1344×768",
        "9:16 · 768×1344",
    )
    assert (1344, 768) in ladder
    assert (768, 768) not in ladder
    assert ladder.find("16:9 · 1344×768") == NamedSize("16:9", 1344, 768)
    with pytest.raises(InvalidRequest, match="not on this model's list"):
        ladder.find("21:9")


@given(
    multiple=st.sampled_from([1, 4, 8, 16, 32, 64, 128]),
    budget=st.integers(1, 2 * MAX_PIXELS),
    max_side=st.integers(128, 2 * MAX_SIDE_PX),
    max_pixels=st.integers(1, MAX_PIXELS),
)
def test_every_rung_is_allowed_and_turns_into_its_portrait(multiple, budget, max_side, max_pixels):
    rule = SizeRule.with_multiple(multiple, max_side=max_side, max_pixels=max_pixels)
    ladder = ShapeLadder.for_pixels(rule, budget)
    assert ladder.sizes[0].aspect == "1:1"
    for size in ladder:
        rule.check(size.width, size.height)
        assert (size.height, size.width) in ladder


def test_a_ladder_is_not_empty_and_holds_a_size_once():
    with pytest.raises(ValueError, match="at least one"):
        ShapeLadder(())
    with pytest.raises(ValueError, match="once"):
        ShapeLadder((NamedSize("1:1", 64, 64), NamedSize("a", 64, 64)))
