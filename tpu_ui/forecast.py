"""What a request will cost before it runs, and why it compiled after it ran: pure reading of the ledger."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpu_ui.graphs import GraphKey, Stage, WarmupState, worst
from tpu_ui.ledger import GraphLedger, GraphRecord


@dataclass(frozen=True)
class Forecast:
    """The ledger's word on a request.

    Attributes:
        state: the worst state of its keys.
        compiles_expected: graphs that will be compiled; None if nothing comparable is known.
        warmup_seconds: seconds of compiling, or of reading from disk; None if not known.
        run_seconds: seconds for the pictures once warm; None if not known.
        runs: warm passes behind `run_seconds`.
        compared_with: how many cold keys were estimated from other records of the same model.
        reason: why it failed the last time, for the failed state.
    """

    state: WarmupState
    compiles_expected: int | None
    warmup_seconds: float | None
    run_seconds: float | None
    runs: int
    compared_with: int
    reason: str | None = None

    @property
    def seconds(self) -> float | None:
        """Seconds from the click to the pictures, queueing not included."""
        if self.warmup_seconds is None or self.run_seconds is None:
            return None
        return self.warmup_seconds + self.run_seconds


def forecast(ledger: GraphLedger, keys: Sequence[GraphKey], steps: int, repeats: int = 1) -> Forecast:
    """Look a request up that runs these keys' graphs `repeats` times. Never waits for the device."""
    records = ledger.records()
    by_digest = {record.key.digest: record for record in records}
    states = {key: ledger.state(key) for key in keys}
    state = worst(list(states.values()))
    compiles: int | None = 0
    warmup: float | None = 0.0
    run: float | None = 0.0 if keys else None  # without graphs, as in strict mode on a CPU, no times are kept
    runs: list[int] = []
    compared = 0
    reason = None
    for key in keys:
        own = by_digest.get(key.digest)
        like = _most_alike(key, records)
        if states[key] in (WarmupState.COLD, WarmupState.FAILED, WarmupState.COMPILING):
            source = own if own is not None and own.graphs else like
            compared += source is not None and source is not own
            compiles = _add(compiles, source and source.graphs)
            warmup = _add(warmup, source and source.compile_seconds)
            reason = reason or (own.error if own else None)
        elif states[key] is WarmupState.ON_DISK:
            source = own if own is not None and own.disk_seconds is not None else like
            warmup = _add(warmup, source and source.disk_seconds)
        timed = own if own is not None and own.runs else like
        run = _add(run, timed and _run_seconds(timed, key, steps))
        runs.append(timed.runs if timed is not None and timed is own else 0)
    run = None if run is None else run * repeats
    return Forecast(state, compiles, warmup, run, min(runs, default=0), compared, reason)


def explain(ledger: GraphLedger, keys: Sequence[GraphKey]) -> tuple[str, ...]:
    """Why these keys have to be compiled: for each, the differences to the nearest known key, without repetition."""
    records = ledger.records()
    known = {record.key.digest: record for record in records}
    reasons: dict[str, None] = {}
    for key in keys:
        if ledger.state(key) in (WarmupState.WARM, WarmupState.ON_DISK):
            continue
        if key.digest in known:
            reasons[_why_again(known[key.digest])] = None
            continue
        same_stage = [r.key for r in records if r.key.stage == key.stage and r.key.model == key.model]
        if not same_stage:
            reasons[f"first run of {key.model} on this machine"] = None
            continue
        nearest = min(same_stage, key=key.distance)
        reasons.update(dict.fromkeys(key.differences(nearest)))
    return tuple(reasons)


def _why_again(record: GraphRecord) -> str:
    if record.error:
        return "its last compile failed"
    return "its compiled graphs are no longer on disk" if record.proven else "its last warm-up did not finish"


def _most_alike(key: GraphKey, records: list[GraphRecord]) -> GraphRecord | None:
    """The nearest record that tells about this key: same stage, model, mode, placement and toolchain."""
    fields = ("stage", "model", "mode", "placement", "devices", "toolchain")
    alike = [r for r in records if r.proven and all(getattr(r.key, f) == getattr(key, f) for f in fields)]
    return min((r for r in alike if r.key != key), key=lambda r: key.distance(r.key), default=None)


def _run_seconds(record: GraphRecord, key: GraphKey, steps: int) -> float | None:
    """Seconds of a warm pass, scaled by the pixels where the record is of another size."""
    scale = (key.height * key.width * key.batch) / (record.key.height * record.key.width * record.key.batch or 1)
    scale = scale if key.height and scale else 1.0
    if record.key.tokens and key.tokens:
        scale = key.tokens * key.batch / (record.key.tokens * record.key.batch)
    if key.stage == Stage.DENOISER:
        return None if record.step_seconds is None else record.step_seconds * steps * scale
    return None if record.run_seconds is None else record.run_seconds * scale


def _add(total: float | None, part: float | None) -> float | None:
    return None if total is None or part is None else total + part
