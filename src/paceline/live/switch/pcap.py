"""A capture of a shard's packets as they are on the wire: pcap with raw IP, for Wireshark and tshark.

The kernel's GSO and GRO would show trains of packets in a capture on the interface; here each packet is its own
record, with the IP and UDP headers it has. Records of several shards go to one file: each write holds whole records.
Packets that were dropped are counted and not captured, so that a flood of them fills no disk. A file that is full
becomes PATH.1, in place of the one before; what comes until then is not captured, and counted.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.errors import UserError
from paceline.live.net.addresses import BOOK, BOOK_HOSTS, IPV6
from paceline.live.net.syscalls import address_of, memcpy, write

_MAGIC_NANOSECONDS = 0xA1B23C4D
_LINK_TYPE_RAW = 101
_RECORD_BYTES = 16
_IP_BYTES = 20
_IPV6_BYTES = 40
_UDP = 17
_UDP_BYTES = 8
_AROUND = _RECORD_BYTES + _IPV6_BYTES + _UDP_BYTES
_IPV6_MARK = np.uint64(IPV6)
_NOTHING = np.uint64(0)
_TWO_BYTES = np.uint64(16)
_PLACES = np.uint64(BOOK_HOSTS - 1)
_BUFFER_BYTES = 1 << 20
_SECOND_NS = 1_000_000_000

CELLS = np.dtype(
    [
        ("buffer", "i8"),  # address of the data
        ("own", "u8"),  # the shard's own address
        ("used", "i8"),  # bytes that wait to be written
        ("offset_ns", "i8"),  # wall clock less monotonic clock
        ("records", "i8"),  # packets captured so far
        ("written", "i8"),  # bytes in the file at hand
        ("limit", "i8"),  # and how many there may be
        ("missed", "i8"),  # packets that found the file full
        ("fd", "i8"),  # the file; -1: nothing is captured
    ]
)


class Capture(NamedTuple):
    """A shard's capture; `cells[0].fd` is -1 where nothing is captured."""

    cells: Any
    data: Any
    book: Any  # IPv6 hosts, as `addresses.BOOK`


def open_pcap(path: Path) -> int:
    """A new capture file with its header; its file descriptor."""
    header = np.array([_MAGIC_NANOSECONDS, 2 | 4 << 16, 0, 0, 65_535, _LINK_TYPE_RAW], dtype=np.uint32)
    try:
        if path.exists() and not path.is_file():
            # A full file is renamed: of a device nothing would be left. A pipe would hold the shard.
            raise UserError("is no file that could be written anew", place=str(path))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", place=str(path)) from None
    os.write(fd, header.tobytes())
    return fd


def turn_over(capture: Capture, fd: int) -> None:
    """Go on in another file; between two batches nothing waits to be written."""
    capture.cells[0].fd, capture.cells[0].written = fd, 0


def new_capture(fd: int, address: int, limit_bytes: int = 1 << 62) -> Capture:
    """The capture of the shard at this address; -1 captures nothing."""
    data = np.zeros(_BUFFER_BYTES if fd >= 0 else 1, dtype=np.uint8)
    cells = np.zeros(1, dtype=CELLS).view(np.recarray)
    cells[0].buffer, cells[0].own, cells[0].fd = address_of(data), address, fd
    cells[0].limit = limit_bytes
    return Capture(cells, data, BOOK)


@compiled_inner
def _put(data: Any, start: int, width: int, value: Any) -> None:
    for i in range(width):
        data[start + i] = np.uint8((value >> (8 * (width - 1 - i))) & 255)


@compiled_inner
def _put_little(data: Any, start: int, value: Any) -> None:
    for i in range(4):
        data[start + i] = np.uint8((value >> (8 * i)) & 255)


@compiled_apart
def record(
    capture: Capture, packet_address: int, length: int, source: Any, destination: Any, now_ns: int
) -> None:
    """Note one packet; `now_ns` is the monotonic clock, the file has the time of day."""
    cells = capture.cells[0]
    data = capture.data
    if cells.written >= cells.limit:
        cells.missed += 1
        return
    if cells.used + _AROUND + length > data.shape[0]:
        write_out(capture)
    at = cells.used
    ipv6 = destination & _IPV6_MARK != _NOTHING or source & _IPV6_MARK != _NOTHING
    total = (_IPV6_BYTES if ipv6 else _IP_BYTES) + _UDP_BYTES + length
    time_ns = now_ns + cells.offset_ns
    _put_little(data, at, time_ns // _SECOND_NS)
    _put_little(data, at + 4, time_ns % _SECOND_NS)
    _put_little(data, at + 8, total)
    _put_little(data, at + 12, total)
    ip = at + _RECORD_BYTES
    udp = ip + (_IPV6_BYTES if ipv6 else _IP_BYTES)
    _put(data, udp, 2, np.int64(source & np.uint64(0xFFFF)))
    _put(data, udp + 2, 2, np.int64(destination & np.uint64(0xFFFF)))
    _put(data, udp + 4, 2, _UDP_BYTES + length)
    _put(data, udp + 6, 2, 0)
    memcpy(cells.buffer + udp + _UDP_BYTES, packet_address, length)
    if ipv6:
        _put_ipv6(capture, ip, _UDP_BYTES + length, source, destination)
    else:
        _put_ipv4(data, ip, total, source, destination)
    cells.used = at + _RECORD_BYTES + total
    cells.records += 1


@compiled_inner
def _put_ipv4(data: Any, ip: int, total: int, source: Any, destination: Any) -> None:
    from_host, to_host = np.int64(source >> _TWO_BYTES), np.int64(destination >> _TWO_BYTES)
    # Version and header length; length; no fragment; 64 hops; UDP.
    _put(data, ip, 4, 0x45000000 | total)
    _put(data, ip + 4, 4, 0x00004000)
    _put(data, ip + 8, 4, 0x40110000)
    _put(data, ip + 12, 4, from_host)
    _put(data, ip + 16, 4, to_host)
    checksum = np.int64(0x4500) + total + 0x4000 + 0x4011
    checksum += (from_host >> 16) + (from_host & 0xFFFF) + (to_host >> 16) + (to_host & 0xFFFF)
    checksum = (checksum & 0xFFFF) + (checksum >> 16)
    checksum = (checksum & 0xFFFF) + (checksum >> 16)
    _put(data, ip + 10, 2, ~checksum & 0xFFFF)


@compiled_inner
def _put_ipv6(capture: Capture, ip: int, length: int, source: Any, destination: Any) -> None:
    """The header, and the checksum of UDP, which IPv6 insists on."""
    data = capture.data
    # Version; length, UDP, 64 hops.
    _put(data, ip, 4, 0x60000000)
    _put(data, ip + 4, 4, (length << 16) | (_UDP << 8) | 64)
    _put_host(capture, ip + 8, source)
    _put_host(capture, ip + 24, destination)
    checksum = np.int64(length + _UDP)
    for i in range(ip + 8, ip + _IPV6_BYTES + length):
        checksum += np.int64(data[i]) << (8 * ((i - ip + 1) & 1))
    while checksum >> 16 != 0:
        checksum = (checksum & 0xFFFF) + (checksum >> 16)
    _put(data, ip + _IPV6_BYTES + 6, 2, ~checksum & 0xFFFF)


@compiled_inner
def _put_host(capture: Capture, start: int, address: Any) -> None:
    """A host as IPv6 has it."""
    if address & _IPV6_MARK == _NOTHING:
        _put(capture.data, start, 8, 0)
        _put(capture.data, start + 8, 8, np.int64(0xFFFF00000000) | np.int64(address >> _TWO_BYTES))
        return
    page = capture.book[(address >> _TWO_BYTES) & _PLACES]
    for i in range(8):
        capture.data[start + i] = np.uint8((page.high >> np.uint64(8 * i)) & np.uint64(255))
        capture.data[start + 8 + i] = np.uint8((page.low >> np.uint64(8 * i)) & np.uint64(255))


@compiled_apart
def write_out(capture: Capture) -> None:
    """Write what was noted; a full disk loses records, not the switch."""
    cells = capture.cells[0]
    if cells.used > 0:
        write(np.int32(cells.fd), cells.buffer, cells.used)
        cells.written += cells.used
        cells.used = 0
