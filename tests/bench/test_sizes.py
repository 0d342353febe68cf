"""Sizes as people write them."""

import pytest

from paceline.bench.sizes import parse_sizes
from paceline.errors import UserError


def test_a_range_goes_up_and_ends_with_its_end() -> None:
    assert parse_sizes("4B..1kB") == (4, 32, 256, 1000)
    assert parse_sizes("8..8") == (8,)


def test_lists_and_ranges_mix_and_each_size_comes_once() -> None:
    assert parse_sizes("25MB, 4B..32B ,25 MB,1KiB") == (25_000_000, 4, 32, 1024)


@pytest.mark.parametrize("text", ["", "4B..", "many", "100MB..4B", "0", "-4B", "3GiB", "4B,,8B", "4bit"])
def test_a_bad_size_is_the_users_error(text: str) -> None:
    with pytest.raises(UserError, match="--sizes"):
        parse_sizes(text)
