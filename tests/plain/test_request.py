"""Requests at the door: what is accepted, what is refused, and in which words."""

from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tpu_ui.errors import InvalidRequest
from tpu_ui.lora import MAX_PATH_CHARACTERS
from tpu_ui.modes import ExecutionMode
from tpu_ui.placement import Placement
from tpu_ui.request import (
    MAX_BATCH,
    MAX_DRAWN_SEED,
    MAX_GUIDANCE,
    MAX_PROMPT_CHARACTERS,
    MAX_SEED,
    MAX_SIDE_PX,
    MAX_STEPS,
    GenerationRequest,
)

LONGEST_SENTENCE = 400


def refusal(**values: object) -> InvalidRequest:
    """The error for these values, checked to be a sentence of bounded length that names its field."""
    with pytest.raises(InvalidRequest) as caught:
        GenerationRequest.from_mapping(values)
    error = caught.value
    assert error.is_users_mistake
    assert str(error).startswith(f"{error.field}: ")
    assert len(str(error)) <= LONGEST_SENTENCE
    assert error.remedy or error.message.endswith(".")
    return error


# -- whole numbers ----------------------------------------------------------------------------------------------------

LIMITS = [("width", MAX_SIDE_PX), ("height", MAX_SIDE_PX), ("steps", MAX_STEPS), ("batch", MAX_BATCH)]
HUGE = 10**5000  # Python itself refuses to write it out


@pytest.mark.parametrize(("field", "limit"), LIMITS)
def test_whole_numbers_within_their_limits(field: str, limit: int):
    assert getattr(GenerationRequest.from_mapping({field: 1}), field) == 1
    assert getattr(GenerationRequest.from_mapping({field: limit}), field) == limit


@pytest.mark.parametrize(("field", "limit"), LIMITS)
def test_whole_numbers_out_of_range(field: str, limit: int):
    for value in (0, -1, -64, limit + 1, 16384 * 100, 10**100, HUGE, -HUGE):
        error = refusal(**{field: value})
        assert error.field == field
        assert "out of range" in error.message
        assert str(limit) in error.remedy


@pytest.mark.parametrize("field", [field for field, _ in LIMITS] + ["seed"])
@pytest.mark.parametrize(
    "value",
    [True, False, 1.0, 1.9, float("nan"), float("inf"), -float("inf"), "7", "", b"7", [7], {"a": 7}, (7,), 1j],
)
def test_what_is_no_whole_number(field: str, value: object):
    error = refusal(**{field: value})
    assert error.field == field
    assert "not a whole number" in error.message


def test_null_means_the_default():
    assert GenerationRequest.from_mapping(dict.fromkeys(["width", "seed", "batch", "mode", "prompt", "placement"])) == (
        GenerationRequest()
    )


def test_deeply_nested_and_very_long_values_make_short_sentences():
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    for value in (nested, "9" * 100_000, [0] * 100_000, [HUGE]):
        for field in ("seed", "steps", "guidance", "mode", "placement"):
            assert refusal(**{field: value}).field == field


def test_pixels_of_the_whole_request():
    assert GenerationRequest(width=4096, height=4096).batch == 1
    assert GenerationRequest(width=1024, height=1024, batch=16).batch == 16
    error = refusal(width=4096, height=4096, batch=2)
    assert error.field == "width × height × batch"
    assert "16777216" in error.message
    assert refusal(width=16384, height=16384).field == "width"


# -- guidance ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 0.0, 1, 3.5, MAX_GUIDANCE])
def test_guidance_is_a_float(value: float):
    guidance = GenerationRequest(guidance=value).guidance
    assert guidance == value
    assert isinstance(guidance, float)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), -0.001, -1, 100.001, 1e308, 10**400, -(10**400)]
)
def test_guidance_out_of_range(value: float):
    error = refusal(guidance=value)
    assert error.field == "guidance"
    assert "out of range" in error.message


def test_guidance_of_thousands_of_digits():
    assert "out of range" in refusal(guidance=HUGE).message


@pytest.mark.parametrize("value", [True, False, "7", "nan", [1.0], {}, 1j])
def test_guidance_that_is_no_number(value: object):
    assert "not a number" in refusal(guidance=value).message


# -- seeds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**53, 9007199254740993, 2**63 - 1])
def test_seeds_are_used_as_given(seed: int):
    request = GenerationRequest(seed=seed)
    assert request.with_drawn_seed() is request
    assert request.seeds == (seed,)


@pytest.mark.parametrize("seed", [None, -1, -5, -(2**63), -(10**100)])
def test_negative_seeds_are_drawn(seed: int | None):
    request = GenerationRequest(seed=seed, batch=4)
    drawn = {request.with_drawn_seed().seed for _ in range(50)}
    assert len(drawn) == 50
    assert all(each >= 0 and each + 3 <= MAX_DRAWN_SEED for each in drawn)
    with pytest.raises(ValueError, match="with_drawn_seed"):
        _ = request.seeds


@pytest.mark.parametrize("seed", [2**63, 2**64 - 1, 2**64, 10**100])
def test_seeds_above_the_range(seed: int):
    error = refusal(seed=seed)
    assert error.field == "seed"
    assert str(MAX_SEED) in error.remedy


def test_seeds_of_thousands_of_digits():
    assert refusal(seed=HUGE).field == "seed"
    assert GenerationRequest(seed=-HUGE).with_drawn_seed().seed >= 0


def test_the_last_picture_of_a_batch_has_a_seed_in_range():
    request = GenerationRequest(seed=MAX_SEED - 3, batch=4)
    assert request.seeds == (MAX_SEED - 3, MAX_SEED - 2, MAX_SEED - 1, MAX_SEED)
    for seed, batch in ((MAX_SEED - 2, 4), (MAX_SEED, 2), (MAX_SEED - 14, 16)):
        assert "seed + i" in refusal(seed=seed, batch=batch).message


# -- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["prompt", "negative_prompt"])
def test_text_of_any_allowed_length_stays_whole(field: str):
    long = "a plain grey wall, " * 400 + "and one red bicycle"
    for text in ("", " ", long, "é" * MAX_PROMPT_CHARACTERS, "🦊" * 300, "a\nb\r\n\tc", "עברית \u200d\u202e"):
        request = GenerationRequest.from_mapping({field: text})
        assert getattr(request, field) == text
        assert request.notices == ()


@pytest.mark.parametrize("field", ["prompt", "negative_prompt"])
@pytest.mark.parametrize("length", [MAX_PROMPT_CHARACTERS + 1, 100_000])
def test_text_above_the_limit_is_refused(field: str, length: int):
    error = refusal(**{field: "x" * length})
    assert error.field == field
    assert f"{length:,}" in error.message
    assert f"{MAX_PROMPT_CHARACTERS:,}" in error.message


@pytest.mark.parametrize("value", [7, 1.5, True, ["a"], {"a": 1}, b"a"])
def test_prompts_that_are_no_text(value: object):
    assert "must be text" in refusal(prompt=value).message


def test_control_characters_and_lone_surrogates_are_removed_with_a_notice():
    request = GenerationRequest(prompt="a\x00 red\x1b[31m \ud800fox\x7f\x85\n")
    assert request.prompt == "a red[31m fox\n"
    assert request.notices == ("prompt: 5 control character(s) were removed.",)
    assert request.prompt.encode()
    again = replace(request, negative_prompt="b\x07")
    assert again.notices == (*request.notices, "negative_prompt: 1 control character(s) were removed.")


def test_notices_are_no_part_of_what_is_asked():
    assert GenerationRequest(prompt="fox\x00") == GenerationRequest(prompt="fox")


# -- names ------------------------------------------------------------------------------------------------------------


def test_modes_and_placements_by_their_words():
    request = GenerationRequest.from_mapping({"mode": "compile", "placement": "cpu_offload"})
    assert request.mode is ExecutionMode.COMPILED
    assert request.placement is Placement.CPU_OFFLOAD
    for wrong in ("turbo", "COMPILE", "", 1, True, 1.5, float("nan"), [], {}, HUGE):
        assert "strict, fused, compile" in refusal(mode=wrong).remedy
        assert "auto, single, cpu_offload" in refusal(placement=wrong).remedy


@pytest.mark.parametrize("model", ["", "  ", 7, True, ["demo"], "m" * (MAX_PATH_CHARACTERS + 1), "\n"])
def test_models_that_are_no_names(model: object):
    assert refusal(model=model).field == "model"


@pytest.mark.parametrize("name", ["promt", "notices", "", "Prompt", "__class__", "x" * 100_000, "\ud800"])
def test_unknown_fields_are_named(name: str):
    error = refusal(**{name: 1})
    assert error.field == name[:40]
    assert "prompt, negative_prompt, model, mode" in error.remedy
    assert "notices" not in error.remedy


def test_keys_that_are_no_text():
    with pytest.raises(InvalidRequest, match="no such field"):
        GenerationRequest.from_mapping({1: 2, None: 3, "prompt": "x"})


def test_a_request_cannot_be_changed_and_can_be_a_key():
    request = GenerationRequest(prompt="a")
    with pytest.raises(FrozenInstanceError):
        request.prompt = "b"
    assert len({request, GenerationRequest(prompt="a"), GenerationRequest(prompt="b")}) == 2


# -- anything at all --------------------------------------------------------------------------------------------------

FIELDS = (
    "prompt", "negative_prompt", "model", "mode", "placement", "width", "height", "steps", "guidance", "seed", "batch",
    "loras", "image", "strength", "image_sha256",
)  # fmt: skip
any_text = st.text(st.characters(exclude_categories=()))
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), any_text, st.sampled_from([10**4000, 2**63]))
json_like = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3), max_leaves=6
)
plausible = st.fixed_dictionaries(
    {},
    optional={
        "prompt": any_text,
        "width": st.integers(-1, 5000),
        "height": st.integers(-1, 5000),
        "steps": st.integers(-1, 250),
        "batch": st.integers(-1, 20),
        "seed": st.integers(MAX_SEED - 20, MAX_SEED + 20) | st.integers(-5, 5),
        "guidance": st.floats() | st.integers(),
        "mode": st.sampled_from(["strict", "fused", "compile", "other"]),
        "placement": st.sampled_from(["auto", "single", "cpu_offload", "other"]),
    },
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS) | any_text, json_like, max_size=5) | plausible)
@example({"guidance": 10**400})
@example({"steps": [10**4000]})
def test_any_mapping_gives_a_request_or_one_sentence(values: dict):
    try:
        request, sentence = GenerationRequest.from_mapping(values), ""
    except InvalidRequest as error:
        request, sentence = None, str(error)
    if request is None:
        assert 0 < len(sentence) <= LONGEST_SENTENCE
        return
    drawn = request.with_drawn_seed()
    assert all(0 <= seed <= MAX_SEED for seed in drawn.seeds)
    assert len(drawn.seeds) == request.batch
    assert request.prompt.encode().decode() == request.prompt
    assert replace(request) == request
    assert (request.width or 1) * (request.height or 1) * request.batch <= 4096 * 4096
    if values.get("seed") is not None and values["seed"] >= 0:
        assert drawn.seed == values["seed"]
