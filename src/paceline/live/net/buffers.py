"""Where datagrams lie before and after a system call: an inbox and an outbox, with the kernel's own records.

`udp.py` is the program that runs over them. Addresses of buffers are written into the kernel's records once, so the
arrays of an inbox or an outbox must live as long as it is used.
"""

from typing import Any, NamedTuple

import numpy as np

from paceline.live.net.libc import address_of

MESSAGES = 32
MESSAGE_BYTES = 65_536
TRAINS = 256
OUTBOX_BYTES = 2 * 1024 * 1024
SEGMENTS_MAX = 64
TRAIN_BYTES_MAX = 65_000
OPEN_TRAINS = 256
CONTROL_BYTES = 64

_AF_INET = 2
SOL_UDP = 17
_UDP_SEGMENT = 103
UDP_GRO = 104
_CMSG_LEN_SEGMENT = 18

MMSGHDR = np.dtype(
    [
        ("name", "u8"),
        ("name_bytes", "u4"),
        ("pad", "u4"),
        ("iovecs", "u8"),
        ("iovec_count", "u8"),
        ("control", "u8"),
        ("control_bytes", "u8"),
        ("hints", "i4"),
        ("pad_2", "i4"),
        ("received", "u4"),
        ("pad_3", "u4"),
    ]
)
"""`struct mmsghdr` of 64-bit Linux."""
IOVEC = np.dtype([("start", "u8"), ("length", "u8")])
# Port and host stay in network order: Numba's records have no other than the machine's own.
SOCKADDR = np.dtype([("family", "u2"), ("port", "u2"), ("host", "u4"), ("zero", "u8")])
CMSG = np.dtype(
    [("length", "u8"), ("level", "i4"), ("kind", "i4"), ("value", "u4"), ("pad", "u4"), ("more", "u1", 40)]
)
SEGMENT = np.dtype([("start", "i8"), ("length", "i8"), ("source", "u8")])
TRAIN = np.dtype(
    [
        ("destination", "u8"),
        ("bytes", "i8"),
        ("length", "i8"),
        ("count", "i8"),
        ("pieces", "i8"),
        ("ended", "i8"),
    ]
)
CELLS = np.dtype(
    [
        ("headers", "i8"),
        ("buffer", "i8"),
        ("used", "i8"),
        ("trains", "i8"),
        ("flushed", "i8"),
        ("calls", "i8"),
        ("packets", "i8"),
        ("bytes", "i8"),
        ("errors", "i8"),
        ("last_error", "i8"),
    ]
)
assert (MMSGHDR.itemsize, IOVEC.itemsize, SOCKADDR.itemsize, CMSG.itemsize) == (64, 16, 16, CONTROL_BYTES)


class Inbox(NamedTuple):
    """Where datagrams arrive; `segments` says what came. `cells[0]` counts calls, packets and bytes."""

    cells: Any
    data: Any
    segments: Any
    headers: Any
    iovecs: Any
    names: Any
    controls: Any


class Outbox(NamedTuple):
    """Packets to send, and the trains they are in. `cells[0]` counts calls, packets, bytes and errors."""

    cells: Any
    data: Any
    trains: Any
    headers: Any
    iovecs: Any
    names: Any
    controls: Any
    open: Any


def _records(shape: Any, dtype: np.dtype[np.void]) -> Any:
    return np.zeros(shape, dtype=dtype).view(np.recarray)


def _headers(count: int, iovecs: Any, names: Any, controls: Any) -> Any:
    headers = _records(count, MMSGHDR)
    headers.name = address_of(names) + SOCKADDR.itemsize * np.arange(count, dtype=np.uint64)
    headers.name_bytes = SOCKADDR.itemsize
    headers.iovecs = address_of(iovecs) + iovecs.strides[0] * np.arange(count, dtype=np.uint64)
    headers.iovec_count = 1
    headers.control = address_of(controls) + CMSG.itemsize * np.arange(count, dtype=np.uint64)
    return headers


def _cells(headers: Any, data: Any) -> Any:
    cells = _records(1, CELLS)
    cells[0].headers, cells[0].buffer = address_of(headers), address_of(data)
    return cells


def new_inbox(messages: int = MESSAGES, extra_bytes: int = 0) -> Inbox:
    """Room for this many messages of one call, each a train of up to 64 KiB; the extra bytes are the caller's."""
    data = np.zeros(messages * MESSAGE_BYTES + extra_bytes, dtype=np.uint8)
    # A train has at most 64 segments where we made it; a hostile one can be of single bytes.
    segments = _records(messages * MESSAGE_BYTES // 64, SEGMENT)
    iovecs, names, controls = (
        _records((messages, 1), IOVEC),
        _records(messages, SOCKADDR),
        _records(messages, CMSG),
    )
    iovecs["start"][:, 0] = address_of(data) + MESSAGE_BYTES * np.arange(messages, dtype=np.uint64)
    iovecs["length"] = MESSAGE_BYTES
    headers = _headers(messages, iovecs, names, controls)
    return Inbox(_cells(headers, data), data, segments, headers, iovecs, names, controls)


def new_outbox(capacity_bytes: int = OUTBOX_BYTES, trains: int = TRAINS) -> Outbox:
    """Room for this many bytes of packets in this many trains."""
    data = np.zeros(capacity_bytes, dtype=np.uint8)
    iovecs, names = _records((trains, SEGMENTS_MAX), IOVEC), _records(trains, SOCKADDR)
    controls = _records(trains, CMSG)
    names.family = _AF_INET
    controls.length, controls.level, controls.kind = _CMSG_LEN_SEGMENT, SOL_UDP, _UDP_SEGMENT
    headers = _headers(trains, iovecs, names, controls)
    cells = _cells(headers, data)
    open_trains = np.full(OPEN_TRAINS, -1, dtype=np.int64)
    return Outbox(cells, data, _records(trains, TRAIN), headers, iovecs, names, controls, open_trains)
