"""The command that plans a model before anything of it is loaded."""

import json
import subprocess
import sys

from tests.cli.conftest import ROOT


def test_the_plan_of_a_model_that_is_not_here(command_line):
    done = command_line.run("plan", "--model", "flux.1-schnell", "--chip", "v6e", "--chips", "1", "--size", "1024x1024")
    assert done.returncode == 0, done.stderr
    assert "transformer     FluxTransformer2DModel  23,782,357,120  22.15 GiB" in done.stdout
    assert "\ncpu offload: weights 31.4 GiB > 31.25 GiB of one v6e chip; with CPU offload the largest component" in (
        done.stdout
    )
    assert "One run fits up to 12 picture(s) of this size." in done.stdout


def test_the_plan_as_json(command_line):
    plan = json.loads(
        command_line.run("plan", "--model", "sd3.5-medium", "--chip", "v6e", "--batch=2", "--json").stdout
    )
    assert (plan["decision"], plan["fits"], plan["batch"], plan["device_bytes"]) == ("single", True, 2, 31.25 * 2**30)
    assert [part["name"] for part in plan["components"]] == [
        "text_encoder", "text_encoder_2", "text_encoder_3", "transformer", "vae",
    ]  # fmt: skip
    assert plan["weight_bytes"] == sum(part["weight_bytes"] for part in plan["components"])
    most = max(part["activation_bytes"] for part in plan["components"])
    assert plan["peak_bytes"]["single"] == plan["weight_bytes"] + most + plan["program_bytes"]
    assert plan["largest_batch"] >= 2


def test_a_plan_that_needs_several_chips(command_line):
    options = ("plan", "--model", "black-forest-labs/FLUX.2-dev", "--chip", "v6e")
    one = command_line.run(*options)
    assert "not possible: transformer alone" in one.stdout
    four = command_line.run(*options, "--chips", "4")
    assert "tensor parallel: weights" in four.stdout
    assert "python app.py --model flux.2-dev --tensor-parallel 4" in four.stdout


def test_the_plan_of_a_folder(command_line, tiny_models):
    done = command_line.run("plan", "--model", str(tiny_models / "flux"), "--size", "64x64", "--json")
    plan = json.loads(done.stdout)
    assert plan["known_from"] == "the headers of its weights"
    assert plan["decision"] == "single"


def test_mistakes_are_told_in_one_sentence(command_line):
    for options, said in {
        ("--chip", "v9"): "chip: 'v9' is no TPU",
        ("--chips", "0"): "chips: 0 is out of range",
        ("--chips", "two"): "chips: 'two' is not a whole number",
        ("--size", "1000x1001", "--model", "flux.1-schnell"): "width: 1000 is not a multiple of 16",
        ("--batch", "17"): "batch: 17 is out of range",
        ("--model", "nonsense"): "There is no model 'nonsense'",
    }.items():
        done = command_line.run("plan", *options)
        assert done.returncode == 2, options
        assert said in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_no_torch_is_imported_for_models_whose_figures_are_there(tiny_models):
    code = f"""
import sys
from tpu_ui.cli.main import main
assert main(["plan", "--model", "flux.1-schnell", "--chip", "v6e"]) == 0
assert main(["plan", "--model", {str(tiny_models / "flux")!r}, "--chip", "v6e"]) == 0
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
