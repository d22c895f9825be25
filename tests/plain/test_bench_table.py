"""The table of bench that tells about repeated prompts and moved weights."""

import pytest

from tpu_ui.cli.bench import _repeats_table


def side(seconds: float, moved: int) -> dict:
    moves = {"to_device": moved, "to_host": moved // 2}
    return {
        "warm_seconds": (seconds, seconds, 9.0),
        "repeated_seconds": (seconds / 2,),
        "first_moves": moves,
        "new_prompt_moves": moves,
        "repeated_moves": {"to_device": 0, "to_host": 0},
    }


@pytest.mark.parametrize(("placement", "rows"), [("single", 1), ("cpu_offload", 3)])
def test_moved_bytes_are_told_under_offload(placement: str, rows: int):
    table = _repeats_table(
        [{"mode": "fused", "placement": placement, "plain": side(1, 4000), "tpu_ui": side(0.5, 2000)}]
    )
    header, line, *body = table.splitlines()
    assert len(body) == rows
    assert body[0].startswith("| fused | 1.000 / 0.500 | 0.500 / 0.250 |")
    assert len({text.count("|") for text in (header, line, *body)}) == 1, "all lines have the same columns"
    if placement == "cpu_offload":
        assert body[0].endswith("| the first request | 4.0 kB / 2.0 kB | 2.0 kB / 1.0 kB |")
        assert body[2].endswith("| a repeated prompt | 0 B / 0 B | 0 B / 0 B |")
