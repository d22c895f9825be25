"""What will happen on a click, before the click. Reads records only: never the network, never the device's thread."""

import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from tpu_ui import wording
from tpu_ui.catalogue import find_card
from tpu_ui.errors import DoesNotFit, LoadFailed, TpuUiError, UnusableModel
from tpu_ui.forecast import Forecast
from tpu_ui.graphs import GraphKey, WarmupState
from tpu_ui.jobs import JobQueue
from tpu_ui.ledger import GraphLedger
from tpu_ui.model_card import ModelCard
from tpu_ui.request import GenerationRequest
from tpu_ui.resolution import ResolvedRequest
from tpu_ui.resolver import Resolver
from tpu_ui.runtime import Runtime
from tpu_ui.settings import Settings
from tpu_ui.translations import ENGLISH, Language


class ForeseeingEngine(Protocol):
    """The part of the engine that any thread may ask."""

    ledger: GraphLedger
    runtime: Runtime

    def foresee(self, request: GenerationRequest) -> tuple[ResolvedRequest, Forecast]: ...


@dataclass(frozen=True)
class Verdict:
    """The word on a request; the field names are a contract with the users of /verdict.

    Attributes:
        state: cold, on_disk, compiling, warm or failed as in reports; "starting" while the device is not ready,
            "absent" for a model that is not on this machine, "refused" for a request that cannot run.
        sentence: the same for people.
        compiles_expected, seconds_expected: None where they are not known yet.
        runs: warm runs behind the estimate.
        fits: whether the request fits the device's memory by the plan; None where that is not known.
        reason: why it is refused, failed or does not fit; for one that fits, why it is placed by CPU offload.
        nearest_warm: "WIDTHxHEIGHT" of the nearest size that is warm, for a request that is not.
    """

    state: str
    sentence: str
    compiles_expected: int | None = None
    seconds_expected: float | None = None
    runs: int = 0
    fits: bool | None = None
    reason: str | None = None
    nearest_warm: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Judge:
    """Gives verdicts.

    Args:
        device_kind: the device that is being started, known before it is.
        group_devices: see `Resolver`.
    """

    def __init__(
        self,
        queue: JobQueue,
        device_kind: str,
        settings: Settings,
        default_model: str,
        group_devices: int | None = None,
    ) -> None:
        self._queue = queue
        self._device_kind = device_kind
        self._offline = settings.offline
        self._resolver = Resolver(device_kind, settings, default_model, self._device_bytes, group_devices)
        self._started = time.monotonic()

    @property
    def engine(self) -> ForeseeingEngine | None:
        return self._queue.engine

    def verdict(self, request: GenerationRequest, say: Language = ENGLISH) -> Verdict:
        """The word on a request. Never raises a TpuUiError: a refusal is a verdict."""
        try:
            return self.check(request, say)
        except DoesNotFit as error:
            return Verdict("refused", str(error), fits=False, reason=str(error))
        except TpuUiError as error:
            return Verdict("refused", str(error), reason=str(error))

    def check(self, request: GenerationRequest, say: Language = ENGLISH) -> Verdict:
        """The word on a request that can run, as far as that is known now.

        Raises:
            TpuUiError: it cannot.
        """
        card = self.card(request.model)
        why_absent = self._why_absent(card)
        if why_absent is not None:
            return self._absent(request, card, why_absent, say)
        resolved, _ = self._resolver.resolve(request)
        if self._queue.engine_error is not None:
            raise self._queue.engine_error
        if self.engine is None:
            word = Verdict("starting", wording.starting(self._device_kind, time.monotonic() - self._started, say))
        else:
            word = self._foreseen(request, say)
        return _with_remarks(word, resolved)

    def card(self, model: str | None) -> ModelCard:
        """The card of a model, completed from its files where they are on this machine.

        Raises:
            TpuUiError: there is no such model, or its folder cannot be used.
        """
        card = find_card(model or "")
        if card.is_complete and card.repo_id is not None:
            return card
        if card.repo_id is None:
            return self._resolver.find(model or "").card
        try:
            return self._resolver.find(model or "").card
        except LoadFailed:
            return card

    def is_local(self, card: ModelCard) -> bool:
        return self._why_absent(card) is None

    def _why_absent(self, card: ModelCard) -> TpuUiError | None:
        """Why a model of the Hub cannot be used as it is: not downloaded, or only in part."""
        if card.repo_id is None:
            return None
        try:
            self._resolver.find(card.id)
        except (LoadFailed, UnusableModel) as error:
            return error
        return None

    def size_states(self, request: GenerationRequest, card: ModelCard) -> dict[tuple[int, int], str]:
        """The warm-up state of each size of the card's ladder, all else as in the request; empty where not known."""
        if self.engine is None or not self.is_local(card):
            return {}
        states = {}
        for size in card.ladder:
            try:
                _, foreseen = self.engine.foresee(replace(request, width=size.width, height=size.height))
            except TpuUiError:
                continue
            states[size.width, size.height] = foreseen.state.value
        return states

    def seconds(self, request: GenerationRequest) -> float | None:
        """Seconds that a request will take, if they are known."""
        if self.engine is None:
            return None
        try:
            return self.engine.foresee(request)[1].seconds
        except TpuUiError:
            return 0.0  # it will end at once

    def _absent(self, request: GenerationRequest, card: ModelCard, why: TpuUiError, say: Language) -> Verdict:
        resolved = self._resolver.foresee_unseen(request)
        if self._offline:
            raise LoadFailed(
                f"{why.message} Downloads are switched off.", "Unset HF_HUB_OFFLINE, or choose another model."
            )
        sentence = f"{why.message} " + say("It is downloaded first; how long that takes is not known yet.")
        if card.gated:
            sentence += " " + say("The Hub asks for a login and for its licence to be accepted.")
        word = Verdict("absent", sentence)
        return word if resolved is None else _with_remarks(word, resolved)

    def _foreseen(self, request: GenerationRequest, say: Language) -> Verdict:
        resolved, foreseen = self.engine.foresee(request)
        nearest = None if foreseen.state is WarmupState.WARM else self._nearest_warm(request, resolved)
        return Verdict(
            state=foreseen.state.value,
            sentence=wording.forecast_sentence(foreseen, say),
            compiles_expected=foreseen.compiles_expected,
            seconds_expected=foreseen.seconds,
            runs=foreseen.runs,
            reason=foreseen.reason,
            nearest_warm=nearest,
        )

    def _device_bytes(self) -> int | None:
        return None if self.engine is None else self.engine.runtime.memory().total_bytes

    def _nearest_warm(self, request: GenerationRequest, resolved: ResolvedRequest) -> str | None:
        wanted = resolved.request
        shapes = {
            (record.key.width, record.key.height)
            for record in self.engine.ledger.records()
            if _is_like(record.key, resolved) and wanted.batch % record.key.batch == 0
        }
        for width, height in sorted(shapes, key=lambda size: _distance(size, (wanted.width, wanted.height))):
            candidate = replace(request, width=width, height=height)
            try:
                if self.engine.foresee(candidate)[1].state is WarmupState.WARM:
                    return f"{width}x{height}"
            except TpuUiError:
                continue
        return None


def _with_remarks(word: Verdict, resolved: ResolvedRequest) -> Verdict:
    """The planner's word and the notices of a request that can run."""
    remarks = (resolved.placement_reason, *resolved.notices)
    return replace(
        word,
        sentence=" ".join((word.sentence, *filter(None, remarks))),
        fits=resolved.fits,
        reason=word.reason or resolved.placement_reason or None,
    )


def _is_like(key: GraphKey, resolved: ResolvedRequest) -> bool:
    request = resolved.request
    return (
        key.stage == resolved.latents_stage
        and (key.model, key.revision) == (resolved.card.id, resolved.revision)
        and (key.mode, key.placement) == (request.mode.value, request.placement.value)
        and key.guidance_on == resolved.guidance_on
    )


def _distance(size: tuple[int, int], wanted: tuple[int, int]) -> tuple[float, int]:
    """The nearest shape first: by aspect ratio and area together, as a person would choose."""
    (width, height), (wanted_width, wanted_height) = size, wanted
    ratio = max(width * wanted_height, wanted_width * height) / min(width * wanted_height, wanted_width * height)
    area = max(width * height, wanted_width * wanted_height) / min(width * height, wanted_width * wanted_height)
    return ratio * area, abs(width - wanted_width) + abs(height - wanted_height)
