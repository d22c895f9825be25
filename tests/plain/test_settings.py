"""Where things are kept, and what else the environment decides."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_ui.errors import InvalidRequest
from tpu_ui.settings import default_cache_dir, parse_bytes, read_settings

HOME = Path("/home/ann")


def test_the_cache_folder_is_the_first_of_these(tmp_path: Path):
    """What was chosen, a Space's persistent storage, the XDG folder, the home folder."""
    space = {"SPACE_ID": "me/space", "XDG_CACHE_HOME": "/xdg"}
    assert default_cache_dir(space | {"TPU_UI_CACHE_DIR": "/chosen"}, HOME, tmp_path) == Path("/chosen")
    assert default_cache_dir(space, HOME, tmp_path) == tmp_path / "tpu_ui"
    assert default_cache_dir(space, HOME, tmp_path / "none") == Path("/xdg/tpu_ui")
    assert default_cache_dir({"XDG_CACHE_HOME": "/xdg"}, HOME, tmp_path) == Path("/xdg/tpu_ui")
    for nothing in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}, {"TPU_UI_CACHE_DIR": ""}):
        assert default_cache_dir(nothing, HOME, tmp_path) == HOME / ".cache" / "tpu_ui"


def test_without_a_home_folder_a_cache_folder_must_be_named(tmp_path: Path):
    with pytest.raises(InvalidRequest, match="Set it to a folder"):
        default_cache_dir({}, None, tmp_path)
    with pytest.raises(InvalidRequest, match="unknown user's home"):
        default_cache_dir({"TPU_UI_CACHE_DIR": "~nobody-of-this-name/x"}, HOME, tmp_path)


def test_what_the_environment_decides(tmp_path: Path):
    cache = {"TPU_UI_CACHE_DIR": str(tmp_path)}
    plain = read_settings(cache)
    assert plain.compile_cache_dir.is_relative_to(tmp_path)
    assert plain.ledger_path.is_relative_to(tmp_path)
    assert (plain.defer_and_fuse, plain.offline, plain.world_size, plain.compiler_flags) == (False, False, 1, ())
    told = read_settings(
        cache
        | {"TORCH_TPU_DEFER_AND_FUSE": "1", "HF_HUB_OFFLINE": "1", "TPU_UI_CACHE_BUDGET": "5GB", "WORLD_SIZE": "2"}
        | {"XLA_FLAGS": "--xla_a", "LIBTPU_INIT_ARGS": "", "TPU_UI_MAX_GRAPHS": "7"}
    )
    assert (told.defer_and_fuse, told.offline, told.world_size) == (True, True, 2)
    assert (told.cache_budget_bytes, told.max_graphs_in_memory) == (5 * 10**9, 7)
    assert told.compiler_flags == (("XLA_FLAGS", "--xla_a"),)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORLD_SIZE", "0"), ("WORLD_SIZE", "two"), ("WORLD_SIZE", "9" * 5000), ("TPU_UI_MAX_GRAPHS", "0"),
        ("TPU_UI_CACHE_BUDGET", "much"), ("TPU_UI_CACHE_BUDGET", "-1"), ("TPU_UI_CACHE_BUDGET", "nan"),
        ("TPU_UI_CACHE_BUDGET", "inf"),
    ],
)  # fmt: skip
def test_wrong_variables_are_named(tmp_path: Path, name: str, value: str):
    with pytest.raises(InvalidRequest) as caught:
        read_settings({"TPU_UI_CACHE_DIR": str(tmp_path), name: value})
    assert caught.value.field == name
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("20GB", 20 * 10**9), ("512 MiB", 512 * 2**20), ("1.5k", 1500), (" 1 TiB ", 2**40), ("7b", 7)],
)
def test_sizes_in_bytes(text: str, count: int):
    assert parse_bytes("size", text) == count


@given(st.text())
def test_any_text_is_a_size_in_bytes_or_refused(text: str):
    with contextlib.suppress(InvalidRequest):
        assert 0 <= parse_bytes("size", text) < 2**62
