"""What a browser kept of the form: whatever stands there, only values that this page could have shown come back."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_ui.errors import UnknownModel
from tpu_ui.hardware import DeviceChoice
from tpu_ui.page import form
from tpu_ui.page.desk import PageOptions
from tpu_ui.page.kept_form import checked

PAGE = "tiny  cpu "
FULL = {
    "prompt": "a fox\nin the \U0001f332", "negative_prompt": "", "model": "tiny", "mode": "strict", "placement": "auto",
    "width": 48, "height": 64.0, "steps": 7, "guidance": 2.5, "seed": "9007199254740993", "batch": 2,
    "loras": "star:1", "image": None, "strength": 0.35,
}  # fmt: skip


class FakeDesk:
    default_model_id = "tiny"
    options = PageOptions(DeviceChoice("cpu", "asked for"), "tiny", Path("served"))

    def card(self, model: object) -> None:
        if model not in ("tiny", "other", None):
            raise UnknownModel("There is no such model.")


def kept(values: object, page: object = PAGE) -> dict:
    return checked(FakeDesk(), json.dumps({"page": page, "form": values}))


def test_a_form_comes_back_whole():
    assert tuple(FULL) == form.FIELDS
    assert kept(FULL) == FULL
    assert kept(FULL | {"model": "other"}) == FULL | {"model": "other"}
    assert kept(FULL | {"width": None, "guidance": None})["width"] is None  # emptied by its user
    assert kept({"prompt": "x", "colour": "red"}) == {"prompt": "x"}


def test_on_a_page_of_another_model_or_device_the_models_numbers_are_its_own():
    model = ("model", "mode", "width", "height", "steps", "guidance", "loras")
    rest = {name: value for name, value in FULL.items() if name not in model}
    assert kept(FULL, "flux.1-schnell  tpu") == kept(FULL, None) == rest
    assert kept(FULL | {"model": "gone"}) == rest


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        (name, wrong)
        for name in form.FIELDS
        for wrong in ([], {}, ["x"], {"path": "/etc/passwd"}, True, float("nan"), float("inf"), 10**400, -(10**12))
    ]
    + [(name, "x") for name in ("width", "steps", "guidance", "batch", "strength", "mode", "placement", "image")]
    + [(name, 5) for name in ("prompt", "seed", "loras", "model", "mode", "placement", "image", "strength")]
    + [("mode", "fused"), ("prompt", "\ud800"), ("strength", 0), ("strength", None), ("image", "/etc/passwd")]
    + [("prompt", None), ("seed", None), ("mode", None)],
)
def test_a_wrong_value_is_left_out_alone(name: str, wrong: object):
    back = kept(FULL | {name: wrong})
    assert name not in back
    if name != "model":
        assert back == {each: value for each, value in FULL.items() if each != name}


def test_an_uploaded_picture_comes_back_while_its_file_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "served"))
    file = tmp_path / "served" / "ab" / "start.png"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    assert kept({"image": str(file)}) == {"image": str(file)}
    file.unlink()
    assert kept({"image": str(file)}) == {}


@given(st.text() | st.none() | st.integers() | st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["page", "form", *form.FIELDS]), inner),
).map(json.dumps))  # fmt: skip
def test_no_stored_value_does_harm(text: object):
    for name, value in checked(FakeDesk(), text).items():
        assert name in form.FIELDS
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", "[" * 100_000, '{"page":1,"form":[]}', "x" * 10**6])
def test_no_json_is_no_form(text: str):
    assert form.from_storage(text) == ("", {})
