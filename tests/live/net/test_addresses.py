"""Addresses as people write them and as one number: IPv4 as it is, IPv6 by its place in the book."""

import ipaddress
from typing import Any

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.live.net import addresses


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("host", ("host", 7070)),
        ("host:1", ("host", 1)),
        ("10.0.0.1:99", ("10.0.0.1", 99)),
        ("[::1]:99", ("::1", 99)),
        ("[::1]", ("::1", 7070)),
        ("fd00::1", ("fd00::1", 7070)),
        ("::", ("::", 7070)),
    ],
)
def test_written_addresses(text: str, found: tuple[str, int]) -> None:
    assert addresses.split_address(text, 7070) == found
    assert addresses.split_address(addresses.show_address(*found), 7070) == found


@pytest.mark.parametrize(
    "text", ["", ":1", "host:", "host:x", "h:70000", "[::1", "[::1]x", "[h]:1", "a:b:c", "h:\u0661"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError):
        addresses.split_address(text, 7070)


def test_numbers_come_back_and_differ() -> None:
    hosts = ["10.1.2.3", "255.255.255.254", "::1", "fd77::10", "fd77::11", "2001:db8:1:2:3:4:5:6"]
    numbers = {addresses.pack_address(host, port) for host in hosts for port in (1, 65_535)}
    assert len(numbers) == 2 * len(hosts)
    assert {addresses.unpack_address(number) for number in numbers} == {
        (host, port) for host in hosts for port in (1, 65_535)
    }
    assert addresses.pack_address("::1", 5) == addresses.pack_address("[::1]", 5)
    assert addresses.pack_address("::ffff:10.1.2.3", 5) == addresses.pack_address("10.1.2.3", 5)


@pytest.mark.parametrize("host", ["fe80::1", "fe80::1%eth0", "name", "1.2.3", ""])
def test_what_has_no_number(host: str) -> None:
    with pytest.raises(UserError):
        addresses.pack_address(host, 1)


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = addresses.new_book()
    monkeypatch.setattr(addresses, "BOOK", made)
    monkeypatch.setattr(addresses, "_holders", {})
    return made


@pytest.mark.parametrize("step", [1, 1 << 8, 1 << 56, 1 << 64, 1 << 80, 0x1_0000_0001])
def test_hosts_that_differ_anywhere_have_places_and_compiled_code_finds_them(book: Any, step: int) -> None:
    """In the last byte, in their network, or elsewhere: as hosts of one cluster do."""
    hosts = [ipaddress.IPv6Address((0xFD77 << 112) + 1 + i * step) for i in range(3000)]
    places = [addresses.pack_address(str(host), 0) >> 16 & (addresses.BOOK_HOSTS - 1) for host in hosts]
    assert len(set(places)) == len(hosts)
    with np.errstate(over="ignore"):
        for host, place in zip(hosts[::100], places[::100], strict=True):
            high, low = (np.uint64(half) for half in addresses._halves(host))
            assert addresses.place_of(book, high, low) == place
        assert addresses.place_of(book, np.uint64(1), np.uint64(2)) == -1


def test_a_lent_place_is_anothers_when_all_have_given_it_back(book: Any) -> None:
    kept = addresses.pack_address("fd00::1", 1)
    for i in range(1, 3 * addresses.BOOK_HOSTS):
        address = addresses.lend_address(f"fd01::{i:x}", 1)
        addresses.hold_address(address)
        addresses.give_back(address)
        assert addresses.unpack_address(address) == (f"fd01::{i:x}", 1)
        addresses.give_back(address)
    assert addresses.unpack_address(kept) == ("fd00::1", 1)
    assert addresses.lend_address("fd00::1", 1) == kept
    addresses.give_back(kept)
    assert addresses.unpack_address(kept) == ("fd00::1", 1), "it is held for good"


def test_who_is_behind_a_place_that_was_given_back_is_found(
    book: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "_first_place", lambda *_: 5)
    first, second = (addresses.lend_address(host, 1) for host in ("fd00::1", "fd00::2"))
    addresses.give_back(first)
    assert addresses.lend_address("fd00::2", 1) == second
    assert addresses.lend_address("fd00::3", 1) == first, "the free place"


def test_a_full_book_is_told(book: Any) -> None:
    book["taken"] = 1
    book["high"] = 7
    with pytest.raises(UserError, match="too many IPv6 hosts"):
        addresses.pack_address("fd00::77", 1)
