"""Addresses: as people write them, and as one number for compiled code.

    split_address("[fd00::1]:7070")  ("fd00::1", 7070); also `host`, `host:port`, `10.0.0.1:7070` and a bare `fd00::1`
    show_address("fd00::1", 7070)    back

For compiled code an address is one number: an IPv4 host as it is, `ip << 16 | port` (host order); an IPv6 host by its
place in the *book*, `IPV6 | place << 16 | port`. So records and comparisons are the same for both, and only the two
functions that talk to the kernel (`udp`) know the difference. 0 is none. An IPv6 address that nobody has packed in this
process stands in no book: what comes from it has the number `STRANGER`, which no worker ever has.
"""

import ipaddress
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
_PORT_BITS = np.uint64(16)
_IPV6_BIT = np.uint64(IPV6)
_PLACES = np.uint64(BOOK_HOSTS - 1)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_TOP = np.uint64(40)

PAGE = np.dtype(
    [
        ("high", "u8"),  # the first eight bytes of the host, as they are in memory
        ("low", "u8"),  # and the last eight
        ("taken", "u8"),  # 1: a host stands here; written after the two
    ]
)
BOOK: Any = np.zeros(BOOK_HOSTS, dtype=PAGE).view(np.recarray)
"""IPv6 hosts of this process; a host never leaves it."""
_writing = threading.Lock()


@compiled_inner
def first_place(high: Any, low: Any) -> Any:
    """Where the search for a host begins."""
    return (((high ^ (low * _SPREAD)) * _SPREAD) >> _TOP) & _PLACES


@compiled_inner
def place_of(book: Any, high: Any, low: Any) -> int:
    """The place of a host in the book; -1: it is not there."""
    place = np.int64(first_place(high, low))
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


def _enter(host: ipaddress.IPv6Address) -> int:
    """The place of a host, which is written down if it is new."""
    high, low = _halves(host)
    with _writing:
        # In Python's own numbers: NumPy would warn of every product that wraps.
        spread = (1 << 64) - 1
        first = ((high ^ (low * int(_SPREAD) & spread)) * int(_SPREAD) & spread) >> int(_TOP)
        for step in range(PROBES):
            place = (first + step) & (BOOK_HOSTS - 1)
            page = BOOK[place]
            if page.taken == 0:
                page.high, page.low = high, low
                page.taken = 1
                return place
            if int(page.high) == high and int(page.low) == low:
                return place
    raise UserError("this process knows too many IPv6 hosts", place=str(host))


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
    """One number for an address."""
    found = parse_ip(host)
    if isinstance(found, ipaddress.IPv4Address):
        return int(found) << 16 | port
    return IPV6 | _enter(found) << 16 | port


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
