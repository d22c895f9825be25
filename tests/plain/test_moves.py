"""Which parts leave the device for another: those that cost least to bring back, and none in vain."""

import itertools

import pytest

from tpu_ui.planner.moves import parts_to_drop

ORDER = ("text_encoder", "text_encoder_2", "transformer", "vae")
# FLUX.1-schnell's, in hundredths of GiB.
WEIGHTS = {"text_encoder": 23, "text_encoder_2": 887, "transformer": 2215, "vae": 16}
ALL = sum(WEIGHTS.values())


def leaving(wanted: str, *on_device: str, room: int) -> set[str]:
    return parts_to_drop(ORDER, WEIGHTS, set(on_device), wanted, room)


def test_nothing_leaves_where_all_fit():
    for wanted in ORDER:
        assert leaving(wanted, *ORDER, room=ALL) == set()


def test_text_encoders_leave_first_since_a_repeated_prompt_does_without_them():
    assert leaving("vae", "text_encoder", "text_encoder_2", "transformer", room=ALL - 1) == {"text_encoder"}
    assert leaving("vae", "text_encoder", "text_encoder_2", "transformer", room=ALL - 24) == {"text_encoder_2"}
    assert leaving("transformer", "text_encoder_2", "vae", room=ALL - 39) == {"text_encoder_2"}, "larger, but leaves"


def test_none_leaves_in_vain():
    """For the large encoder the transformer has to go, however soon it is needed; the two small parts can stay."""
    assert leaving("text_encoder_2", "text_encoder", "transformer", "vae", room=3000) == {"transformer"}


def test_of_equals_the_one_that_is_needed_latest_leaves():
    equal = dict.fromkeys("abc", 10)
    assert [parts_to_drop("abc", equal, set("abc"), wanted, 20) for wanted in "abc"] == [{"c"}, {"a"}, {"b"}]


def test_without_room_all_others_leave():
    assert leaving("vae", *ORDER, room=0) == set(ORDER) - {"vae"}
    assert leaving("vae", room=0) == set()


@pytest.mark.parametrize("wanted", ORDER)
@pytest.mark.parametrize("room", range(0, ALL + 200, 130))
def test_what_stays_fits_and_each_that_leaves_had_to(wanted: str, room: int):
    others = [part for part in ORDER if part != wanted]
    for on_device in itertools.chain.from_iterable(itertools.combinations(others, n) for n in range(4)):
        gone = leaving(wanted, *on_device, room=room)
        staying = WEIGHTS[wanted] + sum(WEIGHTS[part] for part in on_device if part not in gone)
        assert staying <= room or gone == set(on_device)
        assert all(staying + WEIGHTS[part] > room for part in gone)
