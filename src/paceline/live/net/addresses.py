"""Addresses: as people write them, and as one number for compiled code.

    split_address("[fd00::1]:7070")  ("fd00::1", 7070); also `host`, `host:port`, `10.0.0.1:7070` and a bare `fd00::1`
    show_address("fd00::1", 7070)    back

For compiled code an address is one number: an IPv4 host as it is, `ip << 16 | port` (host order); an IPv6 host by its
place in the *book*, `IPV6 | place << 16 | port`. So records and comparisons are the same for both, and only the two
functions that talk to the kernel (`udp`) know the difference. 0 is none. An IPv6 address that nobody has packed in this
process stands in no book: what comes from it has the number `STRANGER`, which no worker ever has.

`pack_address` keeps a place for good. What strangers name (a worker's address, told to a switch) is lent instead: when
all who hold it have given it back, another host may have its place. Where a host stands depends on a secret of the
process, so nobody can choose addresses that crowd one place.
"""

import ipaddress
import secrets
import socket
import sys
import threading
from typing import Any

import numpy as np

from paceline.compile.decorators import compiled_inner
from paceline.errors import UserError

IPV6 = 1 << 62
"""Marks the number of an IPv6 address."""
STRANGER = (1 << 62) | (1 << 61)
BOOK_HOSTS = 16_384
PROBES = 64
"""A host stands at most so far from where its hash points."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_SPREAD_AGAIN = np.uint64(0xBF58476D1CE4E5B9)
_FOLD = np.uint64(32)
_TOP = np.uint64(64 - (BOOK_HOSTS - 1).bit_length())

PAGE = np.dtype(
    [
        ("high", "u8"),  # the first eight bytes of the host, as they are in memory
        ("low", "u8"),  # and the last eight
        ("taken", "u8"),  # 1: a host stands or stood here; written after the two
    ]
)


def new_book() -> Any:
    """A book with nobody in it; behind the last place stands its secret."""
    book: Any = np.zeros(BOOK_HOSTS + 1, dtype=PAGE).view(np.recarray)
    book[BOOK_HOSTS].high = secrets.randbits(64)
    return book


BOOK = new_book()
"""IPv6 hosts of this process."""
_writing = threading.Lock()
_holders: dict[int, int] = {}
"""Places that are lent, and how many hold each; all others are held for good."""


@compiled_inner
def first_place(secret: Any, high: Any, low: Any) -> Any:
    """Where the search for a host begins: every bit of it counts, also those that differ in hosts of one network."""
    mixed = (high ^ secret) * _SPREAD
    mixed = ((mixed ^ (mixed >> _FOLD)) ^ low) * _SPREAD_AGAIN
    mixed = (mixed ^ (mixed >> _FOLD)) * _SPREAD
    return mixed >> _TOP


_first_place = getattr(first_place, "py_func", first_place)
"""The same from Python, which shall compile nothing for it."""


@compiled_inner
def place_of(book: Any, high: Any, low: Any) -> int:
    """The place of a host in the book; -1: it is not there."""
    place = np.int64(first_place(book[BOOK_HOSTS].high, high, low))
    for _ in range(PROBES):
        page = book[place]
        if page.taken == 0:
            return -1
        if page.high == high and page.low == low:
            return int(place)
        place = (place + 1) & (BOOK_HOSTS - 1)
    return -1


def _halves(host: ipaddress.IPv6Address) -> tuple[int, int]:
    packed = host.packed
    return int.from_bytes(packed[:8], sys.byteorder), int.from_bytes(packed[8:], sys.byteorder)


def _enter(host: ipaddress.IPv6Address, lent: bool) -> int:
    """The place of a host, which is written down if it is new."""
    high, low = _halves(host)
    with _writing:
        with np.errstate(over="ignore"):  # products wrap
            halves = (np.uint64(half) for half in (BOOK[BOOK_HOSTS].high, high, low))
            first, free = int(_first_place(*halves)), -1
        for step in range(PROBES):
            place = (first + step) & (BOOK_HOSTS - 1)
            page = BOOK[place]
            found = int(page.high), int(page.low)
            if page.taken and found == (high, low):
                _hold(place, lent, new=False)
                return place
            if free < 0 and found == (0, 0):
                free = place
            if page.taken == 0:
                break
        if free < 0:
            raise UserError("this process knows too many IPv6 hosts", place=str(host))
        page = BOOK[free]
        page.high, page.low = high, low
        page.taken = 1
        _hold(free, lent, new=True)
        return free


def _hold(place: int, lent: bool, new: bool) -> None:
    if not lent:
        _holders.pop(place, None)
    elif new or place in _holders:
        _holders[place] = _holders.get(place, 0) + 1


def hold_address(address: int) -> None:
    """One more holds a lent address."""
    place = _lent_place(address)
    with _writing:
        if place in _holders:
            _holders[place] += 1


def give_back(address: int) -> None:
    """One less holds a lent address; after the last one its place is another's."""
    place = _lent_place(address)
    with _writing:
        if place not in _holders:
            return
        _holders[place] -= 1
        if _holders[place] == 0:
            del _holders[place]
            # The page stays taken: a search goes on past it, to hosts that were written after this one.
            BOOK[place].high = BOOK[place].low = 0


def _lent_place(address: int) -> int:
    number = int(address)
    return (number & ~IPV6) >> 16 if number & IPV6 else -1


def parse_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An IP address; IPv4 written as IPv6 (`::ffff:10.0.0.1`) is IPv4. `UserError` if it is none."""
    try:
        found = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        raise UserError("is not an IP address", place=host) from None
    if isinstance(found, ipaddress.IPv6Address):
        if found.scope_id is not None or found.is_link_local:
            raise UserError("is valid on one link only: give an address that is not fe80::", place=host)
        return found.ipv4_mapped or found
    return found


def pack_address(host: str, port: int) -> int:
    """One number for an address, for good."""
    return _packed(host, port, lent=False)


def lend_address(host: str, port: int) -> int:
    """One number for an address, until it is given back (`give_back`)."""
    return _packed(host, port, lent=True)


def _packed(host: str, port: int, lent: bool) -> int:
    found = parse_ip(host)
    if isinstance(found, ipaddress.IPv4Address):
        return int(found) << 16 | port
    return IPV6 | _enter(found, lent) << 16 | port


def unpack_address(address: int) -> tuple[str, int]:
    """The address as the socket module has it."""
    number = int(address)
    if not number & IPV6:
        return str(ipaddress.IPv4Address(number >> 16)), number & 0xFFFF
    if number & STRANGER == STRANGER:
        return "::", number & 0xFFFF
    page = BOOK[(number & ~IPV6) >> 16]
    packed = int(page.high).to_bytes(8, sys.byteorder) + int(page.low).to_bytes(8, sys.byteorder)
    return str(ipaddress.IPv6Address(packed)), number & 0xFFFF


def is_ipv6(host: str) -> bool:
    """Whether a host is written as an IPv6 address."""
    return ":" in host


def family_of(host: str) -> socket.AddressFamily:
    """The family of a socket for a host that is an IP address."""
    return socket.AF_INET6 if is_ipv6(host) else socket.AF_INET


def is_everywhere(host: str) -> bool:
    """All addresses of this host: `0.0.0.0` or `::`."""
    return host in ("0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    """Whether only this host can reach an IP address."""
    return parse_ip(host).is_loopback


def split_address(text: str, default_port: int) -> tuple[str, int]:
    """Host and port of `host`, `host:port`, `[ipv6]:port`, `[ipv6]` or a bare IPv6 address; else ValueError."""
    text = text.strip()
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or not is_ipv6(host):
            raise ValueError(text)
        port = rest[1:] if rest else str(default_port)
    elif text.count(":") > 1:
        host, port = text, str(default_port)
    else:
        host, colon, port = text.partition(":")
        port = port if colon else str(default_port)
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise ValueError(text)
    if is_ipv6(host):
        ipaddress.IPv6Address(host)
    return host, int(port)


def show_address(host: str, port: int) -> str:
    """`host:port`, or `[host]:port` where the host is an IPv6 address."""
    return f"[{host}]:{port}" if is_ipv6(host) else f"{host}:{port}"


def resolve(host: str) -> str:
    """The IP address of a host name, IPv4 where it has both; or a `UserError`."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, socket.AF_UNSPEC, socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"cannot be resolved: {getattr(error, 'strerror', None) or error}", place=host
        ) from None
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    return str(found[0][4][0])
