"""The commands and their options. Values are checked by the rooms that own them, not by argparse."""

import argparse
import logging
import sys
from collections.abc import Sequence

from tpu_ui import __version__
from tpu_ui.cli import bench, download, generate, plan, show, warmup
from tpu_ui.errors import TpuUiError
from tpu_ui.hardware import TPU_CHIPS
from tpu_ui.modes import DEVICE_KINDS, ExecutionMode
from tpu_ui.placement import Placement

EXIT_FAULT = 1
EXIT_MISTAKE = 2
EXIT_CANCELLED = 130  # as a shell reports a program ended by Ctrl+C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 for a fault, 2 for a mistake of the user, 130 when cancelled."""
    options = build_parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    try:
        return options.run(options)
    except TpuUiError as error:
        print(f"tpu_ui: {error}", file=sys.stderr)
        return EXIT_MISTAKE if error.is_users_mistake else EXIT_FAULT
    except KeyboardInterrupt:
        print("tpu_ui: cancelled", file=sys.stderr)
        return EXIT_CANCELLED


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tpu_ui", description="Pictures from diffusers pipelines on a TPU.")
    parser.add_argument("--version", action="version", version=f"tpu_ui {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_generate(commands)
    _add_warmup(commands)
    _add_plan(commands)
    _add_bench(commands)
    _add_download(commands)
    _add_show(commands)
    return parser


def _command(commands: argparse._SubParsersAction, name: str, run, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    parser.add_argument("--log-level", default="warning", choices=("debug", "info", "warning", "error"))
    return parser


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        default="auto",
        help=f"auto or one of {', '.join(DEVICE_KINDS)}. auto takes a TPU if there is one, else CUDA, else the CPU",
    )


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", help="a name from `models`, a folder in diffusers' format, or a Hub id; id@revision pins a commit"
    )
    _add_hub_cache(parser)
    parser.add_argument("--mode", help="; ".join(f"{mode}: {mode.explanation}" for mode in ExecutionMode))
    parser.add_argument("--placement", default="auto", help=" | ".join(p.value for p in Placement))


def _add_hub_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hub-cache", metavar="FOLDER", help="where downloaded models are kept (default: HF_HUB_CACHE, or HF_HOME/hub)"
    )


def _add_generate(commands: argparse._SubParsersAction) -> None:
    parser = _command(commands, "generate", generate.run, "Make pictures of a prompt.")
    _add_device(parser)
    _add_model(parser)
    parser.add_argument("--prompt", help="what the picture shows")
    parser.add_argument("--negative-prompt", help="what it should not show (models with classifier-free guidance)")
    parser.add_argument("--size", help="width x height in pixels, for example 1024x768")
    parser.add_argument("--width", help="pixels")
    parser.add_argument("--height", help="pixels")
    parser.add_argument("--steps", help="denoising steps")
    parser.add_argument("--guidance", help="guidance scale")
    parser.add_argument("--seed", help="0 to 2^63-1; a negative one is drawn")
    parser.add_argument("--batch", help="number of pictures; picture i has seed + i")
    parser.add_argument(
        "--lora",
        action="append",
        metavar="NAME[:WEIGHT]",
        help="a LoRA: a safetensors file, its folder, or a Hub id as org/name[/file.safetensors][@revision]; a number "
        "behind the last colon is its weight, -4 to 4 (default 1). May be given several times",
    )
    parser.add_argument("--image", metavar="FILE", help="a PNG, JPEG or WebP to start from (image to image)")
    parser.add_argument("--strength", help="how far from --image to go: above 0, at most 1 (default 0.6)")
    parser.add_argument("--out", help="the PNG to write (default out.png); with several pictures -1, -2 ... is added")
    parser.add_argument("--json", action="store_true", help="end with a report as JSON on standard output")
    parser.add_argument(
        "--requests", metavar="FILE", help="run the requests of a file, one JSON object a line; - reads standard input"
    )


def _add_warmup(commands: argparse._SubParsersAction) -> None:
    parser = _command(commands, "warmup", warmup.run, "Compile sizes now, so that later pictures need not wait.")
    _add_device(parser)
    _add_model(parser)
    parser.add_argument(
        "--size", help="sizes with commas between, for example 1024x1024,768x1344; default: the model's"
    )
    parser.add_argument("--batch", default="1", help="numbers of pictures with commas between")
    parser.add_argument("--image", metavar="FILE", help="any picture: warm up for pictures that start from one")
    parser.add_argument("--json", action="store_true", help="print one JSON report a line")


def _add_plan(commands: argparse._SubParsersAction) -> None:
    parser = _command(commands, "plan", plan.run, "Tell what a model needs, and where it fits. Loads nothing.")
    parser.add_argument("--model", help="a name from `models`, a folder in diffusers' format, or a Hub id")
    parser.add_argument("--chip", help=f"one of {', '.join(chip.name for chip in TPU_CHIPS)}; default: this machine's")
    parser.add_argument("--chips", default="1", help="how many chips there are")
    parser.add_argument("--size", help="width x height in pixels; default: the model's")
    parser.add_argument("--batch", default="1", help="number of pictures of one run")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def _add_bench(commands: argparse._SubParsersAction) -> None:
    parser = _command(commands, "bench", bench.run, "Measure tpu_ui against plain diffusers, in one process, in turn.")
    _add_device(parser)
    _add_model(parser)
    parser.add_argument("--size", help="width x height in pixels")
    parser.add_argument("--rounds", default="7", help="timed rounds of each side")
    parser.add_argument("--steps", help="denoising steps of the timed rounds")
    parser.add_argument(
        "--replicas", help="measure the throughput of so many replicas against one instead: a number, or auto"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on standard output")


def _add_download(commands: argparse._SubParsersAction) -> None:
    parser = _command(
        commands, "download", download.run, "Fetch a model from the Hub: its newest commit, or one given."
    )
    parser.add_argument("--model", help="a name from `models`, or a Hub id; id@revision pins a commit")
    _add_hub_cache(parser)
    parser.add_argument("--json", action="store_true", help="end with a report as JSON on standard output")


def _add_show(commands: argparse._SubParsersAction) -> None:
    devices = _command(commands, "devices", show.devices, "Tell what this machine can run on.")
    devices.add_argument("--json", action="store_true")
    models = _command(commands, "models", show.models, "List the catalogue.")
    models.add_argument("--json", action="store_true")
    cache = _command(commands, "cache", show.cache, "List or prune the compiled graphs on disk.")
    cache.add_argument("action", choices=("list", "prune"))
    cache.add_argument(
        "--to", metavar="BYTES", help="prune: what may stay, for example 5GB (default: the budget; 0 clears)"
    )
    cache.add_argument("--json", action="store_true")
