"""Which parts leave the device so that another has room: arithmetic on bytes and on the order in which parts run."""

import itertools
from collections.abc import Mapping, Sequence, Set


def parts_to_drop(
    order: Sequence[str], weight_bytes: Mapping[str, int], on_device: Set[str], wanted: str, room_bytes: int
) -> Set[str]:
    """Which parts leave before `wanted` comes: those that cost least to bring back.

    Text encoders before all others, since a prompt that is repeated does without them; then the fewest bytes; then
    what is needed latest. Requests follow one another, so the order is a circle.

    Args:
        order: all parts, as one request runs them.
        room_bytes: what the weights of all parts may take together while `wanted` runs. It comes also where it alone
            takes more, and then all others leave.
    """
    others = sorted(on_device - {wanted}, key=order.index)
    excess = weight_bytes[wanted] + sum(weight_bytes[part] for part in others) - room_bytes
    place = order.index(wanted)

    def cost(leaving: tuple[str, ...]) -> tuple[int, int, int]:
        always_needed = sum(weight_bytes[part] for part in leaving if not part.startswith("text_encoder"))
        calls_until_needed = sum((order.index(part) - place) % len(order) for part in leaving)
        return always_needed, sum(weight_bytes[part] for part in leaving), -calls_until_needed

    choices = itertools.chain.from_iterable(itertools.combinations(others, n) for n in range(len(others) + 1))
    enough = [leaving for leaving in choices if sum(weight_bytes[part] for part in leaving) >= excess]
    return set(min(enough, key=cost, default=others))
