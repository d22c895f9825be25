"""Which replica runs a request: the one that is done first, as far as that is known. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpu_ui.forecast import Forecast
from tpu_ui.graphs import WarmupState


@dataclass(frozen=True)
class Offer:
    """What a request would cost on one replica.

    Attributes:
        place: of the replica.
        wait_seconds: until it is free; 0 where it is idle, None where it is busy for nobody knows how long.
        load_seconds: to load the model there; 0 where it is loaded, None if it is not known.
        forecast: the ledger's word, with what is warm in that replica.
    """

    place: int
    wait_seconds: float | None
    load_seconds: float | None
    forecast: Forecast

    @property
    def is_idle(self) -> bool:
        return self.wait_seconds == 0

    @property
    def is_warm(self) -> bool:
        return self.forecast.state is WarmupState.WARM

    @property
    def seconds(self) -> float | None:
        """From the moment that the replica is free to the pictures; None if any part is not known."""
        if self.forecast.seconds is None or self.load_seconds is None:
            return None
        return self.load_seconds + self.forecast.seconds

    @property
    def total_seconds(self) -> float | None:
        return None if self.seconds is None or self.wait_seconds is None else self.wait_seconds + self.seconds


def choose_offer(offers: Sequence[Offer]) -> Offer:
    """The offer to take, of one or more; one that is busy means: wait for it.

    An idle replica where the request is warm comes first. A busy one where it is warm is worth waiting for only if it
    is known to be done no later than the best idle one; with figures unknown the idle one is taken. Among idle ones
    that are not warm, what is on disk comes before what is cold, then the one that has the model loaded.
    """
    idle = [offer for offer in offers if offer.is_idle]
    if not idle:
        return min(offers, key=lambda offer: (not offer.is_warm, _or_last(offer.wait_seconds), offer.place))
    best = min(idle, key=_rank)
    if best.is_warm or best.total_seconds is None:
        return best
    sooner = [
        offer
        for offer in offers
        if not offer.is_idle and offer.is_warm and _or_last(offer.total_seconds) <= best.total_seconds
    ]
    return min(sooner, key=lambda offer: (offer.total_seconds, offer.place), default=best)


def _rank(offer: Offer) -> tuple:
    states = (WarmupState.WARM, WarmupState.ON_DISK)
    state = offer.forecast.state
    return states.index(state) if state in states else len(states), offer.load_seconds != 0, offer.place


def _or_last(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds
