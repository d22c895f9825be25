"""Anything may be posted to any field of any endpoint, hidden ones too: it is taken, or refused with our sentence."""

import json

import pytest

from tests.page.posts import arguments, functions, post
from tests.page.server import ROOT, Server
from tpu_ui.page.form import FIELDS

OWNER = "a" * 32
WRONG = (
    None, "", "x", [], ["x"], {}, {"a": [1]}, True, -1, 0.5, 10**30, float("nan"), float("inf"), "9" * 5000, [[[]]],
    "\u202e\x00",
)  # fmt: skip
FORM = {"prompt": "x", "negative_prompt": "", "placement": "auto", "width": 64, "height": 64, "steps": 1, "batch": 1,
        "strength": 0.6, "model": "sd3", "mode": "strict", "loras": "", "seed": "1"}  # fmt: skip
NAMED = {
    "generate": {"wait": False}, "verdict": {}, "warmup": {"width": 64, "height": 64}, "status": {},
    "cancel": {"job": "x"},
}  # fmt: skip
HIDDEN = {
    "judge": [], "choose_size": ["64x64"], "choose_model": ["sd3", None], "follow_model": ["sd3", None],
    "restore_form": [""], "show_history": [OWNER, ""], "look_around": ["sd3", "strict", 1],
    "choose": ["sd3", "strict", 1], "warm": [OWNER, None, "sd3", "strict", 1, []], "make_room": [1],
    "press_cancel": [OWNER, None], "tick": [OWNER, None, True], "greet": ["", ""],
}  # fmt: skip


def told(server: Server, function: int, data: list) -> str:
    """What is wrong with a post, in words; empty where it was taken."""
    answer = post(server, function, json.loads(json.dumps(data)), "thesession")
    return "" if answer["success"] else str(answer["output"].get("error"))


def check(server: Server, function: int, data: list, at: int, name: str) -> None:
    """A list of choices that was changed for the session is Gradio's to check; of what is no list it says nothing."""
    for wrong in WRONG:
        if name == "warm 5" and not isinstance(wrong, list):
            continue
        sentence = told(server, function, [*data[:at], wrong, *data[at + 1 :]])
        assert sentence != "None", (name, wrong)
        assert "Traceback" not in sentence


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "image"])
def test_fields_of_the_form(server: Server, name: str):
    """Of both functions that read them. The queue's limit is not reached: what is taken is short, and cancelled."""
    known = functions(server)
    form = [FORM.get(field) for field in FIELDS]
    check(server, known["judge"], form, FIELDS.index(name), f"judge {name}")
    refused = [told(server, known["press_generate"], [OWNER, None, *form[: (at := FIELDS.index(name))], wrong,
                                                      *form[at + 1 :]]) for wrong in ([["x"]], {"a": [1]})]  # fmt: skip
    assert all(name in sentence for sentence in refused) or name == "strength", refused


@pytest.mark.parametrize("name", NAMED)
def test_fields_of_the_named_endpoints(server: Server, name: str):
    data = arguments(server, name, **NAMED[name])
    for at in range(len(data)):
        if name == "generate" and at == len(data) - 1:
            continue  # `wait`
        check(server, functions(server)[name], data, at, f"{name} {at}")


@pytest.mark.parametrize("name", [name for name in HIDDEN if HIDDEN[name]])
def test_arguments_of_the_hidden_functions(server: Server, name: str):
    data = HIDDEN[name]
    for at, usual in enumerate(data):
        if usual is not None:  # the others are the server's own
            check(server, functions(server)[name], data, at, f"{name} {at}")


def test_nothing_of_it_was_a_fault_of_ours(server: Server):
    """Last: what all of the above left in the log."""
    assert f'File "{ROOT}/tpu_ui' not in server.log, server.log[-3000:]
