"""The commands, their options and their exit codes."""

import hashlib
import json

import pytest
from PIL import Image


def test_generate_writes_the_picture_and_ends_with_one_report(command_line, small):
    values = small(mode="compile", steps=3, batch=2)
    options = [f"--{name}={value}" for name, value in values.items() if name not in ("width", "height")]
    done = command_line.run(
        "generate", "--device", "tpu-emulated", "--size", "64x64", *options, "--out", "sub/out.png", "--json"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report) >= {
        "ok", "error", "images", "seeds", "model", "revision", "device", "mode", "placement", "width", "height",
        "steps", "guidance", "state_before", "was_warm", "new_compiles", "why_compiled", "timings", "seconds_per_step",
        "peak_memory_bytes", "moved_bytes", "versions",
    }  # fmt: skip
    assert set(report["timings"]) == {"load", "compile", "encode", "denoise", "decode", "total"}
    assert (report["ok"], report["seeds"], report["images"]) == (True, [1, 2], ["sub/out-1.png", "sub/out-2.png"])
    assert (report["state_before"], report["was_warm"]) == ("cold", False)
    assert report["why_compiled"] == ["first run of sd3 on this machine"]
    parts = sum(seconds for name, seconds in report["timings"].items() if name != "total")
    assert parts <= report["timings"]["total"] * 1.01
    for path in report["images"]:
        with Image.open(command_line.folder / path) as picture:
            assert picture.size == (64, 64)
            assert "a red cat" in picture.text["parameters"]
    assert "step 3 of 3" in done.stderr
    assert "compiling: " in done.stderr


def test_a_file_of_requests_gives_a_report_a_line_and_goes_on_after_mistakes(command_line, small):
    command_line.environment["TORCH_TPU_DEFER_AND_FUSE"] = "1"  # makes fused the default mode
    reports = command_line.requests(
        small(mode=None),
        small(width=65),
        {"prompt": "x", "colour": "red"},
        small(seed="7"),
        small(model="nowhere"),
        small(seed=2, prompt="other"),
        small(batch=2, seed=9),
    )
    assert [report["ok"] for report in reports] == [True, False, False, False, False, True, True]
    assert reports[0]["mode"] == "fused"
    assert "64 or 68" in reports[1]["error"]
    assert reports[2]["error"].startswith("colour: no such field")
    assert reports[3]["error"].startswith("seed: '7' is not a whole number")
    assert (reports[5]["was_warm"], reports[5]["new_compiles"]) == (True, 0)
    assert "batch 1→2" in reports[6]["why_compiled"]


MISTAKES = {
    "--steps abc": "steps: 'abc' is not a whole number",
    "--steps 0": "steps: 0 is out of range",
    "--steps 100000": "steps: 100000 is out of range",
    "--guidance nan": "guidance: nan is out of range",
    "--seed 1.5": "seed: '1.5' is not a whole number",
    "--seed 9223372036854775808": "seed: 9223372036854775808 is above the limit",
    "--batch 0": "batch: 0 is out of range",
    "--batch 100": "batch: 100 is out of range",
    "--size 0x64": "width: 0 is out of range",
    "--size -64x64": "width: -64 is out of range",
    "--size 16384x16384": "width: 16384 is out of range",
    "--size 64": "size:",
    "--width abc": "width: 'abc' is not a whole number",
    "--mode warp": "mode: 'warp' is not an execution mode",
    "--placement moon": "placement: 'moon' is not a placement",
    "--model http://127.0.0.1:1/x": "is an address",
    "--model nonsense": "There is no model 'nonsense'",
    "--out picture.jpg": "out: 'picture.jpg' is not the name of a PNG file",
    "--device moon": "device: 'moon' is not a device",
    "--device tpu": "device: no TPU is in this machine",
    "--device cpu --mode fused": "exists only on a TPU",
    "--requests /nowhere.jsonl": "requests: /nowhere.jsonl could not be read",
}


@pytest.mark.parametrize("options", MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(command_line, tiny_models, options):
    given = options.replace("--size -64x64", "--size=-64x64").split()
    base = [] if "--model" in options else ["--model", str(tiny_models / "sd3")]
    device = [] if "--device" in options else ["--device", "tpu-emulated"]
    done = command_line.run("generate", "--prompt", "x", *base, *device, *given)
    assert done.returncode == 2, done.stderr
    assert MISTAKES[options] in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_world_without_partners_is_refused_at_once(command_line, tiny_models):
    command_line.environment |= {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    done = command_line.run(
        "generate", "--prompt", "x", "--device", "tpu-emulated", "--model", str(tiny_models / "sd3")
    )
    assert done.returncode == 2
    assert done.stderr.startswith("tpu_ui: WORLD_SIZE=2 is set")


def test_an_unusable_folder_is_a_mistake(command_line, tmp_path):
    (tmp_path / "empty").mkdir()
    done = command_line.run("generate", "--prompt", "x", "--device", "cpu", "--model", str(tmp_path / "empty"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_plain_eager_on_the_cpu(command_line, small):
    """No TorchTPU at all: nothing compiles, so everything is warm."""
    first, second = command_line.requests(small(mode=None), small(mode="strict", seed=2), device="cpu")
    assert (first["ok"], first["device"], first["mode"], first["new_compiles"]) == (True, "cpu", "strict", 0)
    assert (second["state_before"], second["was_warm"]) == ("warm", True)


@pytest.mark.slow
def test_torch_compile_on_the_cpu_counts_its_graphs_and_reuses_them(command_line, small):
    first, second = command_line.requests(
        small(mode="compile"), small(mode="compile", seed=2, steps=4, prompt="other"), device="cpu"
    )
    assert (first["state_before"], first["new_compiles"] > 0) == ("cold", True)
    assert (second["was_warm"], second["new_compiles"]) == (True, 0)


@pytest.mark.slow
def test_warmup_then_generate_then_cache(command_line, small, tiny_models):
    done = command_line.run(
        "warmup", "--device", "tpu-emulated", "--model", str(tiny_models / "sd3"), "--mode", "fused",
        "--size", "64x64,80x64", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(report["width"], report["new_compiles"] > 0) for report in reports] == [(64, True), (80, True)]
    (report,) = command_line.requests(small())
    assert (report["state_before"], report["new_compiles"]) == ("on_disk", 0)
    listed = json.loads(command_line.run("cache", "list", "--json").stdout)
    assert {key["state"] for key in listed["keys"]} == {"on_disk"}
    assert listed["bytes"] > 0
    pruned = json.loads(command_line.run("cache", "prune", "--to", "0", "--json").stdout)
    assert pruned["bytes_left"] == 0
    assert pruned["bytes_freed"] == listed["bytes"]
    listed = json.loads(command_line.run("cache", "list", "--json").stdout)
    assert {key["state"] for key in listed["keys"] if key["graphs"]} == {"cold"}


def test_devices_tells_where_everything_is(command_line):
    facts = json.loads(command_line.run("devices", "--json").stdout)
    assert facts["compile_cache"] == str(command_line.cache / "compiled")
    assert {"device", "why", "torch", "torch_tpu", "libtpu", "diffusers", "tcmalloc", "compile_cache_bytes"} <= set(
        facts
    )


def test_models_lists_the_catalogue(command_line):
    models = json.loads(command_line.run("models", "--json").stdout)
    assert {"demo", "flux.1-schnell", "sd3.5-medium"} <= {model["id"] for model in models}


@pytest.mark.slow
def test_loras(command_line, small, tmp_path):
    from tests import tiny_loras

    star = tiny_loras.save("sd3", tmp_path, 1)
    values = small()
    options = (
        "--device",
        "cpu",
        "--model",
        values["model"],
        "--size",
        "64x64",
        "--steps",
        "2",
        "--seed",
        "1",
        "--json",
    )
    pixels = {}
    for name, loras in (("none", ()), ("some", ("--lora", f"{star.name}:2"))):
        done = command_line.run(
            "generate", *options, "--prompt", "x", "--mode", "strict", "--out", f"{name}.png", *loras
        )
        report = json.loads(done.stdout)
        assert report["loras"] == ([f"{star.name}:2"] if loras else []), done.stderr
        pixels[name] = Image.open(tmp_path / f"{name}.png").tobytes()
    assert pixels["none"] != pixels["some"]
    for lora, sentence in (("moon", "there is no LoRA 'moon'"), (f"{star.name}:nan", "out of range")):
        done = command_line.run("generate", *options, "--lora", lora)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "tpu_ui: loras: " in done.stderr
        assert sentence in done.stderr


@pytest.mark.slow
def test_from_a_picture(command_line, small, tmp_path):
    Image.new("RGB", (90, 60), (200, 30, 30)).save(tmp_path / "red.png")
    options = ("--device", "tpu-emulated", "--model", small()["model"], "--mode", "fused", "--json")
    warmed = json.loads(command_line.run("warmup", *options, "--size", "64x64", "--image", "red.png").stdout)
    assert (warmed["state_before"], warmed["new_compiles"] > 0) == ("cold", True), warmed["error"]
    done = command_line.run(
        "generate", *options, "--size", "64x64", "--prompt", "x", "--steps", "4", "--seed", "1", "--image", "red.png",
        "--strength", "0.6",
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert (report["state_before"], report["new_compiles"], report["strength"]) == ("on_disk", 0, 0.6), done.stderr
    assert report["image_sha256"] == hashlib.sha256((tmp_path / "red.png").read_bytes()).hexdigest()
    assert "note: image: its middle was cut out and resized from 90×60 to 64×64." in done.stderr
    for wrong, sentence in (
        (("--image", "red.png", "--steps", "2", "--strength", "0.4"), "Give at least 0.5, or more steps."),
        (("--strength", "0.4"), "strength: there is no picture to start from"),
    ):
        done = command_line.run("generate", *options, *wrong)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert sentence in done.stderr
