"""The ledger's records gathered by what a user asks for: one row for a model, mode, placement, size and batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tpu_ui.graphs import GraphKey, Stage, WarmupState, worst
from tpu_ui.ledger import GraphRecord

OTHER_VERSIONS = "other versions"
_LATENTS = (Stage.LATENTS, Stage.PICTURE)  # one of the two is in each shape


@dataclass(frozen=True)
class KnownShape:
    """What is known of one shape; the sums are over its own graphs, those that all sizes share are left out.

    Attributes:
        state: a WarmupState's word, or OTHER_VERSIONS for graphs of another toolchain.
        graphs, compile_seconds, disk_bytes: what it cost when it was cold.
    """

    model: str
    mode: str
    placement: str
    guidance_on: bool
    from_picture: bool
    width: int
    height: int
    batch: int
    state: str
    graphs: int
    compile_seconds: float
    step_seconds: float | None
    last_used: float
    disk_bytes: int


def known_shapes(
    records: Sequence[GraphRecord], state_of: Callable[[GraphKey], WarmupState], toolchain: tuple[tuple[str, str], ...]
) -> list[KnownShape]:
    """One row a shape, the last used first; image to image has rows of its own."""
    anchors = {
        (*_kin(record.key), record.key.stage, record.key.width, record.key.height): record.key
        for record in records
        if record.key.stage in _LATENTS
    }
    shapes = [_gather(anchor, records, state_of, toolchain) for anchor in anchors.values()]
    return sorted(shapes, key=lambda shape: -shape.last_used)


def _gather(
    anchor: GraphKey,
    records: Sequence[GraphRecord],
    state_of: Callable[[GraphKey], WarmupState],
    toolchain: tuple[tuple[str, str], ...],
) -> KnownShape:
    kin = [record for record in records if _kin(record.key) == _kin(anchor) and _is_part(record.key, anchor)]
    own = [record for record in kin if record.key.stage != Stage.TEXT]
    steps = [record.step_seconds for record in own if record.step_seconds is not None]
    state = worst([state_of(record.key) for record in kin]).value
    return KnownShape(
        model=anchor.model,
        mode=anchor.mode,
        placement=anchor.placement,
        guidance_on=anchor.guidance_on,
        from_picture=anchor.stage == Stage.PICTURE,
        width=anchor.width,
        height=anchor.height,
        batch=anchor.batch,
        state=state if anchor.toolchain == toolchain else OTHER_VERSIONS,
        graphs=sum(record.graphs for record in own),
        compile_seconds=sum(record.compile_seconds for record in own),
        step_seconds=steps[0] if steps else None,
        last_used=max(record.last_used for record in own),
        disk_bytes=sum(record.disk_bytes for record in own),
    )


def _kin(key: GraphKey) -> tuple:
    return key.model, key.revision, key.mode, key.placement, key.devices, key.batch, key.dtype, key.toolchain, key.lora


def _is_part(key: GraphKey, anchor: GraphKey) -> bool:
    """Whether a record belongs to the shape: by size, or by the number of tokens, or as the text that all share."""
    # The decoder does not know of guidance.
    if key.stage != Stage.DECODER and key.guidance_on != anchor.guidance_on:
        return False
    if key.stage in _LATENTS and key.stage != anchor.stage:
        return False
    if key.stage == Stage.TEXT:
        return True
    if key.tokens:
        # A token is a square of pixels, so the ratio tells whether the number fits: a whole square, and no other.
        side = (anchor.width * anchor.height / key.tokens) ** 0.5
        return side.is_integer() and anchor.width % side == 0 and anchor.height % side == 0 and 4 <= side <= 128
    return (key.width, key.height) == (anchor.width, anchor.height)
