"""Keys and outcomes for the tests of the ledger and of what is read from it."""

from dataclasses import replace

from tpu_ui.graphs import GraphKey, Stage
from tpu_ui.ledger import StageOutcome

TOOLCHAIN = (("chip", "v6e"), ("torch", "2.10.0"), ("torch_tpu", "0.2.0"))

KEY = GraphKey(
    model="demo",
    revision="abc123",
    stage="denoiser",
    height=1024,
    width=768,
    tokens=0,
    batch=1,
    text_tokens=256,
    guidance_on=True,
    dtype="bfloat16",
    mode="compile",
    placement="single",
    toolchain=TOOLCHAIN,
)


def key(**changes: object) -> GraphKey:
    return replace(KEY, **changes)


def with_version(name: str, version: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((dict(TOOLCHAIN) | {name: version}).items()))


def stages(**changes: object) -> list[GraphKey]:
    """The four keys of a request."""
    return [
        key(stage=Stage.TEXT.value, **(changes | {"height": 0, "width": 0})),
        key(stage=Stage.LATENTS.value, **changes),
        key(stage=Stage.DENOISER.value, **changes),
        key(stage=Stage.DECODER.value, **(changes | {"guidance_on": False})),
    ]


def compiled(graphs: int = 3, seconds: float = 30.0, files: dict[str, int] | None = None) -> StageOutcome:
    """The outcome of a pass that compiled."""
    return StageOutcome(graphs, 0, seconds, 0.5, new_files=files)


def steady(seconds: float = 0.5, step: float | None = None) -> StageOutcome:
    """The outcome of a pass that found everything in memory."""
    return StageOutcome(0, 0, 0.0, seconds, step)
