"""`python -m tpu_ui.demo.train --out DIR`: renders its own data and trains the demo model from nothing, on the CPU."""

import argparse
import copy
import json
import os
import shutil
import time
from pathlib import Path

STAGE_MINUTES = {"autoencoder": 12, "text": 6, "denoiser": 55, "decoder": 8}
SECONDS_PER_STEP = {"autoencoder": 0.45, "text": 0.25, "denoiser": 0.6, "decoder": 0.4}
"""As measured on two cores; --minutes is turned into steps with these, so that equal flags give equal training."""


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m tpu_ui.demo.train", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints; the model comes to OUT/model")
    parser.add_argument("--minutes", type=float, default=sum(STAGE_MINUTES.values()), help="time on two cores, about")
    parser.add_argument(
        "--steps",
        type=int,
        nargs=4,
        metavar=("AUTOENCODER", "TEXT", "DENOISER", "DECODER"),
        help="exact steps instead of --minutes",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, data and noise")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoints in OUT")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    return parser.parse_args(argv)


def steps_of(stage: str, minutes: float) -> int:
    """How many steps a stage gets when the whole training may take so many minutes."""
    share = STAGE_MINUTES[stage] / sum(STAGE_MINUTES.values())
    return max(2, round(minutes * share * 60 / SECONDS_PER_STEP[stage]))


def export(autoencoder, encoders, transformer, folder: Path) -> None:
    """Writes the diffusers folder, weights stored in 16 bits, in one move."""
    from tpu_ui.demo.components import new_pipeline, save_pipeline
    from tpu_ui.demo.tokenizer import new_tokenizer

    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    encoders = tuple(copy.deepcopy(encoder) for encoder in encoders)
    save_pipeline(new_pipeline(new_tokenizer(), encoders, copy.deepcopy(autoencoder), transformer), part)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def main(argv: list[str] | None = None) -> None:
    """Runs the four stages; each takes up its own checkpoint."""
    options = parse(argv)
    if options.out.exists() and any(options.out.glob("*.pt")) and not options.resume:
        raise SystemExit(
            f"{options.out} holds checkpoints. Pass --resume to go on from them, or choose another folder."
        )
    # Read when torch is loaded: where threads sleep between small operations, a step takes nearly twice as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "active")
    import torch

    from tpu_ui.demo import train_autoencoder, train_decoder, train_denoiser, train_text
    from tpu_ui.demo.latents import ShardStore, measure_latents

    torch.set_num_threads(options.threads)
    steps = (
        dict(zip(STAGE_MINUTES, options.steps, strict=True))
        if options.steps
        else {stage: steps_of(stage, options.minutes) for stage in STAGE_MINUTES}
    )
    started = time.monotonic()
    autoencoder = train_autoencoder.train(options.out, options.seed, steps["autoencoder"])
    mean, deviation = measure_latents(autoencoder, options.seed)
    autoencoder.register_to_config(scaling_factor=1 / deviation, shift_factor=mean)
    encoders = train_text.train(options.out, options.seed, steps["text"])
    store = ShardStore(options.out / "shards", options.seed, autoencoder)
    transformer = train_denoiser.train(
        options.out,
        options.seed,
        steps["denoiser"],
        train_denoiser.Batches(store, encoders, mean, deviation, options.seed),
        export=lambda module: export(autoencoder, encoders, module, options.out / "model"),
    )
    export(autoencoder, encoders, transformer, options.out / "model")
    train_decoder.train(options.out, options.seed, steps["decoder"], autoencoder)
    export(autoencoder, encoders, transformer, options.out / "model")
    print(json.dumps({"model": str(options.out / "model"), "minutes": round((time.monotonic() - started) / 60, 1)}))


if __name__ == "__main__":
    main()
