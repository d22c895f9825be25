"""Graph keys: what they hold, what they leave out, and how they tell what changed."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from tests.plain.graph_examples import KEY, key, with_version
from tpu_ui.catalogue import find_card
from tpu_ui.graphs import NOT_IN_KEY, GraphKey, Stage, WarmupState, worst
from tpu_ui.modes import ExecutionMode
from tpu_ui.placement import Placement
from tpu_ui.request import GenerationRequest
from tpu_ui.resolution import resolve

KEY_DIGEST = "fcd9e63efdb72229"


def test_the_digest_is_the_same_in_every_process_and_version():
    """If this fails, every ledger in the world forgets what it knows: change a key's fields only on purpose."""
    assert KEY.digest == KEY_DIGEST


def test_the_digest_does_not_depend_on_the_process():
    program = "from graph_examples import KEY; print(KEY.digest)"
    here = Path(__file__).parent
    path = os.pathsep.join(map(str, (here, here.parent.parent)))
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": path},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert digests == {KEY_DIGEST}


def test_round_trip_through_json():
    for each in (KEY, key(lora=("a", "b"), tokens=3072, height=0, width=0, guidance_on=False, model="é/ü")):
        read = GraphKey.from_json(each.to_json())
        assert read == each
        assert hash(read) == hash(each)
        assert read.digest == each.digest


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "7", '"x"', "{", KEY.to_json()[:-3], KEY.to_json().replace("batch", "pictures")]
)
def test_what_is_no_key_is_refused(text: str):
    with pytest.raises((ValueError, TypeError, KeyError)):
        GraphKey.from_json(text)


def test_each_field_changes_the_digest():
    for field in fields(GraphKey):
        value = getattr(KEY, field.name)
        changed = {bool: lambda v: not v, int: lambda v: v + 1, str: lambda v: v + "x"}.get(type(value))
        other = changed(value) if changed else (("added", "1"),) if field.name == "toolchain" else ("style",)
        assert replace(KEY, **{field.name: other}).digest != KEY.digest, field.name


# -- what decides on graphs -------------------------------------------------------------------------------------------

BASE = GenerationRequest(
    prompt="a red star", width=256, height=192, steps=8, guidance=4.0, seed=1, batch=1, placement=Placement.SINGLE
)


def keys_of(request: GenerationRequest = BASE, model: str = "demo", **changes: object) -> dict[Stage, GraphKey]:
    settings = {
        "revision": "abc",
        "dtype": "float32",
        "device_kind": "tpu-emulated",
        "default_mode": ExecutionMode.COMPILED,
    } | changes
    toolchain = settings.pop("toolchain", {"torch": "2.10.0"})
    return resolve(request, find_card(model), **settings).graph_keys(toolchain)


# How each field of a request reaches the key, or that it does not. A new field must be entered here or in NOT_IN_KEY.
CHANGES_KEY = {
    "width": 320,
    "height": 256,
    "batch": 2,
    "mode": ExecutionMode.STRICT_EAGER,
    "placement": Placement.CPU_OFFLOAD,
}
COMPILES_NOTHING = {
    "prompt": "a prompt of quite another length, with many more words in it",
    "negative_prompt": "blurry",
    "seed": 99,
    "steps": 50,
    "guidance": 9.5,
    "loras": ("style:0.8",),
    "image": "other.png",
    "strength": 0.3,
    "image_sha256": "0" * 64,
    "notices": ("said",),
}


def test_every_field_of_a_request_is_decided_on():
    names = {field.name for field in fields(GenerationRequest)}
    assert names == {*NOT_IN_KEY, *CHANGES_KEY, "model"}
    assert set(COMPILES_NOTHING) == set(NOT_IN_KEY)
    assert not set(NOT_IN_KEY) & {field.name for field in fields(GraphKey)}


@pytest.mark.parametrize("name", sorted(COMPILES_NOTHING))
@pytest.mark.parametrize("model", ["demo", "flux.1-schnell", "flux.1-dev"])
def test_these_leave_every_key_as_it_is(name: str, model: str):
    bases = [replace(BASE, image="one.png", strength=0.9)]
    if name not in ("image", "strength", "image_sha256"):
        bases.append(BASE)
    for base in bases:
        assert keys_of(replace(base, **{name: COMPILES_NOTHING[name]}), model) == keys_of(base, model)


def test_a_picture_to_start_from_has_a_stage_of_its_own_instead_of_the_latents():
    text, picture = keys_of(), keys_of(replace(BASE, image="one.png"))
    assert text.keys() == set(Stage) - {Stage.PICTURE}
    assert picture.keys() == set(Stage) - {Stage.LATENTS}
    assert all(text[stage] == picture[stage] for stage in text.keys() & picture.keys())


@pytest.mark.parametrize("name", sorted(CHANGES_KEY))
def test_these_change_a_key(name: str):
    before, after = keys_of(), keys_of(replace(BASE, **{name: CHANGES_KEY[name]}))
    changed = {stage for stage in before if before[stage] != after[stage]}
    sizes = {Stage.LATENTS, Stage.DENOISER, Stage.DECODER}
    assert changed == (sizes if name in ("width", "height") else before.keys())


@pytest.mark.parametrize(
    "changes",
    [{"revision": "def"}, {"dtype": "bfloat16"}, {"toolchain": {"torch": "2.10.1"}}, {"model": "sd3.5-medium"}],
    ids=str,
)
def test_these_change_every_key(changes: dict):
    before, after = keys_of(), keys_of(**changes)
    assert all(before[stage].digest != after[stage].digest for stage in before)


@pytest.mark.parametrize("guidance", [0.0, 0.5, 1.0])
def test_guidance_off_is_another_graph_but_not_for_the_decoder(guidance: float):
    on, off = keys_of(), keys_of(replace(BASE, guidance=guidance))
    assert on[Stage.DENOISER].differences(off[Stage.DENOISER]) == ("guidance on no→yes",)
    assert on[Stage.TEXT] != off[Stage.TEXT]
    assert on[Stage.DECODER] == off[Stage.DECODER]


@pytest.mark.parametrize("guidance", [0.0, 1.0, 3.5])
def test_a_distilled_value_of_guidance_is_no_switch(guidance: float):
    assert keys_of(replace(BASE, guidance=guidance), "flux.1-dev") == keys_of(model="flux.1-dev")


def test_a_denoiser_that_sees_tokens_is_shared_by_turned_sizes():
    wide = keys_of(replace(BASE, width=1024, height=768), "flux.1-dev")
    tall = keys_of(replace(BASE, width=768, height=1024), "flux.1-dev")
    other = keys_of(replace(BASE, width=1024, height=1024), "flux.1-dev")
    assert wide[Stage.DENOISER] == tall[Stage.DENOISER]
    assert wide[Stage.DENOISER].tokens == 64 * 48
    assert wide[Stage.DECODER] != tall[Stage.DECODER]
    assert wide[Stage.DENOISER] != other[Stage.DENOISER]
    turned = [keys_of(replace(BASE, width=w, height=h)) for w, h in ((256, 192), (192, 256))]
    assert turned[0][Stage.DENOISER] != turned[1][Stage.DENOISER]


def test_keys_hold_nothing_but_plain_json():
    for stage, each in keys_of().items():
        assert each.stage == stage.value
        assert type(each.stage) is type(each.mode) is type(each.placement) is str
        assert json.loads(each.to_json()) | {"devices": 1} == json.loads(json.dumps(asdict(each)))


# -- what changed -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"height": 768}, ("height 1024→768",)),
        ({"batch": 2}, ("batch 1→2",)),
        ({"tokens": 3072}, ("picture tokens 0→3072",)),
        ({"text_tokens": 512}, ("text length 256→512",)),
        ({"guidance_on": False}, ("guidance on yes→no",)),
        ({"dtype": "float32"}, ("data type bfloat16→float32",)),
        ({"revision": "def"}, ("model revision abc123→def",)),
        ({"mode": "fused"}, ("mode compile→fused",)),
        ({"placement": "cpu_offload"}, ("placement single→cpu_offload",)),
        ({"lora": ("ink", "oil")}, ("LoRA set none→ink+oil",)),
        ({"toolchain": with_version("torch_tpu", "0.3.0")}, ("torch_tpu 0.2.0→0.3.0",)),
        ({"toolchain": with_version("libtpu", "0.1")}, ("libtpu none→0.1",)),
        ({"toolchain": KEY.toolchain[:-1]}, ("torch_tpu 0.2.0→none",)),
        ({"height": 512, "batch": 4}, ("height 1024→512", "batch 1→4")),
        ({}, ()),
    ],
    ids=str,
)
def test_differences_in_words(changes: dict, words: tuple[str, ...]):
    assert key(**changes).differences(KEY) == words


def test_the_nearest_key_is_the_most_telling():
    """From the nearest to the farthest: a size near by, a size far off, two fields, what changes every graph."""
    in_order = [
        KEY,
        key(height=1008),
        key(height=512),
        key(height=1008, batch=2),
        key(mode="strict"),
        key(mode="strict", batch=2),
        key(toolchain=with_version("torch", "3"), dtype="float32"),
    ]
    shuffled = [in_order[i] for i in (3, 6, 0, 5, 2, 4, 1)]
    assert sorted(shuffled, key=KEY.distance) == in_order
    assert KEY.distance(KEY) == (0, 0, 0)
    assert KEY.distance(key(height=768, width=1024)) > (0, 0, 0)


def test_a_request_is_in_the_worst_state_of_its_keys():
    order = [WarmupState.WARM, WarmupState.ON_DISK, WarmupState.COMPILING, WarmupState.COLD, WarmupState.FAILED]
    for i, better in enumerate(order):
        for state in order[i:]:
            assert worst([better, state]) is worst([state, better]) is state
    assert worst([]) is WarmupState.WARM
