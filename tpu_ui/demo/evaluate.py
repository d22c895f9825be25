"""`python -m tpu_ui.demo.evaluate`: how often the demo model draws what the prompt says, as the checker sees it.

All prompts hold a colour and shape that training never showed together.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from tpu_ui.demo.checker import check, look
from tpu_ui.demo.prompts import Wanted, wanted_of, write_prompt
from tpu_ui.demo.renderer import render
from tpu_ui.demo.scenes import is_held_out, sample_scene
from tpu_ui.demo.vocabulary import COLOURS, SHAPES

DEFAULT_MODEL = Path(__file__).resolve().parents[2] / "assets" / "demo"
SETTINGS = (
    # width, height, steps, guidance
    (256, 256, 12, 4.0),
    (256, 256, 4, 4.0),
    (256, 256, 30, 4.0),
    (256, 256, 12, 1.0),
    (256, 256, 12, 7.0),
    (192, 192, 12, 4.0),
    (384, 384, 12, 4.0),
    (384, 256, 12, 4.0),
    (192, 320, 12, 4.0),
)
BATCH = 10
AVOIDED = ("red", "blue", "green", "purple")
UNKNOWN_WORDS = ("breathtaking", "zyx", "cinematic", "8k")


def held_out_wanted(rng: np.random.Generator, size: tuple[int, int], objects: int) -> Wanted:
    """What a random scene with a held-out pair shows."""
    while not is_held_out(scene := sample_scene(rng, size, objects)):
        pass
    return wanted_of(scene)


def checker_rates(count: int, seed: int = 1) -> dict[str, float]:
    """The checker on rendered truth: how often it refuses a right picture, and accepts one with a single wrong word."""
    rng = np.random.default_rng(seed)
    refused = accepted = 0
    for i in range(count):
        width, height = SETTINGS[i % len(SETTINGS)][:2]
        scene = sample_scene(rng, (width, height))
        wanted, picture = wanted_of(scene), render(scene, width, height)
        refused += not check(picture, wanted).ok
        accepted += check(picture, one_word_wrong(wanted, rng)).ok
    return {"false_refusals": refused / count, "false_acceptances": accepted / count}


def one_word_wrong(wanted: Wanted, rng: np.random.Generator) -> Wanted:
    """The same with one object's colour or shape, or the background, changed."""

    def other(options, word):
        return str(rng.choice([option for option in options if option != word]))

    kind = int(rng.integers(3))
    if kind == 2:
        return replace(wanted, background=other(COLOURS, wanted.background))
    items = list(wanted.objects)
    i = int(rng.integers(len(items)))
    name, options = (("colour", COLOURS), ("shape", SHAPES))[kind]
    items[i] = replace(items[i], **{name: other(options, getattr(items[i], name))})
    return replace(wanted, objects=tuple(items))


def load_pipeline(folder: Path):
    """The plain diffusers pipeline, quiet."""
    from diffusers import StableDiffusion3Pipeline

    pipeline = StableDiffusion3Pipeline.from_pretrained(folder, use_safetensors=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def draw(pipeline, prompts: list[str], seeds: list[int], width, height, steps, guidance, negative: str = ""):
    """Pictures for prompts, a batch at a time."""
    import torch

    pictures = []
    for start in range(0, len(prompts), BATCH):
        part = slice(start, start + BATCH)
        pictures += pipeline(
            prompts[part],
            width=width,
            height=height,
            num_inference_steps=steps,
            guidance_scale=guidance,
            negative_prompt=[negative] * len(prompts[part]),
            max_sequence_length=32,
            generator=[torch.Generator().manual_seed(seed) for seed in seeds[part]],
        ).images
    return pictures


def with_unknown_words(prompt: str, rng: np.random.Generator) -> str:
    """The prompt with words strewn in that the model has no token for."""
    words = prompt.split()
    for word in UNKNOWN_WORDS:
        words.insert(int(rng.integers(len(words) + 1)), word)
    return " ".join(words)


def evaluate(pipeline, setting: tuple[int, int, int, float], objects: int, count: int, unknown: bool = False) -> dict:
    """Draws `count` held-out prompts with this setting and counts what the checker accepts."""
    width, height, steps, guidance = setting
    rng = np.random.default_rng([width, height, steps, int(guidance * 10), objects, unknown])
    wanted = [held_out_wanted(rng, (width, height), objects) for _ in range(count)]
    prompts = [write_prompt(item) for item in wanted]
    if unknown:
        prompts = [with_unknown_words(prompt, rng) for prompt in prompts]
    pictures = draw(pipeline, prompts, list(range(count)), *setting)
    verdicts = [check(picture, item) for picture, item in zip(pictures, wanted, strict=True)]
    wrong = [
        {"prompt": prompt, "faults": verdict.faults}
        for prompt, verdict in zip(prompts, verdicts, strict=True)
        if not verdict.ok
    ]
    return {
        "objects": objects,
        "width": width,
        "height": height,
        "steps": steps,
        "guidance": guidance,
        "prompts": count,
        "right": 1 - len(wrong) / count,
        "wrong": wrong,
    }


def avoided_colour_rate(pipeline, count: int, negative: bool) -> float:
    """Share of "a star" and the like whose colour is one that a negative prompt forbids (or merely might forbid)."""
    hits = 0
    for i, colour in enumerate(AVOIDED):
        prompts = [f"a {SHAPES[(i + k) % len(SHAPES)]} on a white background" for k in range(count)]
        seeds = [1000 * i + k for k in range(count)]
        pictures = draw(pipeline, prompts, seeds, 192, 192, 12, 4.0, colour if negative else "")
        hits += sum(colour in [item.colour for item in look(picture).objects] for picture in pictures)
    return hits / (count * len(AVOIDED))


def main(argv: list[str] | None = None) -> None:
    """Prints a table, and with --json writes the figures to a file."""
    parser = argparse.ArgumentParser(prog="python -m tpu_ui.demo.evaluate", description=__doc__)
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="diffusers folder (default: the bundled one)")
    parser.add_argument("--prompts", type=int, default=40, help="prompts for each line of the table")
    parser.add_argument("--settings", type=int, default=len(SETTINGS), help="only the first so many settings")
    parser.add_argument("--json", type=Path, help="file for the figures and every wrong picture's faults")
    options = parser.parse_args(argv)

    rates = checker_rates(300)
    print(
        f"checker on rendered truth: refuses {rates['false_refusals']:.1%} of right pictures, "
        f"accepts {rates['false_acceptances']:.1%} of pictures with one word wrong\n"
    )
    pipeline = load_pipeline(options.model)
    rows = []
    print("size       steps  guidance  one object  two objects  seconds a picture", flush=True)
    for setting in SETTINGS[: options.settings]:
        started = time.monotonic()
        pair = [evaluate(pipeline, setting, objects, options.prompts) for objects in (1, 2)]
        seconds = (time.monotonic() - started) / (2 * options.prompts)
        width, height, steps, guidance = setting
        print(
            f"{width} x {height}  {steps:5d}  {guidance:8.1f}  {pair[0]['right']:10.1%}  {pair[1]['right']:11.1%}"
            f"  {seconds:17.2f}",
            flush=True,
        )
        rows += pair
    unknown = [evaluate(pipeline, SETTINGS[0], objects, options.prompts, unknown=True) for objects in (1, 2)]
    print(f"\nwith four unknown words: {unknown[0]['right']:.1%} one object, {unknown[1]['right']:.1%} two objects")
    avoided = [avoided_colour_rate(pipeline, max(4, options.prompts // 2), negative) for negative in (False, True)]
    print(f"a given colour appears in {avoided[0]:.1%} of free choices, and in {avoided[1]:.1%} as negative prompt")
    if options.json:
        figures = {
            "checker": rates,
            "rows": rows,
            "unknown_words": unknown,
            "avoided_colour": {"without": avoided[0], "with": avoided[1]},
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
