"""Batches of datagrams from compiled code, without the GIL: recvmmsg with GRO, sendmmsg with GSO.

The system call dominates the cost of a datagram, so both ways go in trains of up to 64 equal packets of one flow:

    inbox = new_inbox()                     once, by Python
    segments = receive(fd, inbox)           how many packets came; each is `inbox.segments[i]`: start, length, source

    outbox = new_outbox()
    start = room_for(outbox, size)          where to write the next packet, or -1: flush first
    post(outbox, start, size, destination)  send `outbox.data[start:start + size]` there; several times for several
    left = flush(fd, outbox)                how many trains the kernel had no room for; 0 empties the outbox

`post` puts packets to one destination into one train as long as they are of equal size (the last one may be shorter),
wherever in the outbox they lie; trains to one destination keep their order. What is multicast is written once.
Sending to a destination that cannot be reached is counted, and the rest goes on. `fit` tells an outbox the family of
its socket: over one of IPv6, IPv4 destinations are written as IPv6 has them. Addresses of buffers are written into the
kernel's records once, so the arrays of an inbox or an outbox must live as long as it is used.
"""

import socket
from typing import Any, NamedTuple

import numpy as np

from paceline.compile.decorators import compiled, compiled_inner
from paceline.live.net.addresses import BOOK, BOOK_HOSTS, IPV6, STRANGER, place_of
from paceline.live.net.sockets import takes_service
from paceline.live.net.syscalls import address_of, last_error, recvmmsg, sendmmsg

MESSAGES = 32
MESSAGE_BYTES = 65_536
TRAINS = 256
OUTBOX_BYTES = 2 * 1024 * 1024
SEGMENTS_MAX = 64
TRAIN_BYTES_MAX = 65_000
OPEN_TRAINS = 256
CONTROL_BYTES = 64

_AF_INET = 2
_AF_INET6 = 10
_IPV4_BYTES = 16
_IPV6_BYTES = 28
_IPV6_MARK = np.uint64(IPV6)
_STRANGER = np.uint64(STRANGER)
_MAPPED = np.uint64(0xFFFF0000)  # ::ffff:0:0/96, where IPv6 has IPv4 hosts
_NO_BYTES = np.uint64(0)
_FOUR_BYTES = np.uint64(32)
_FOUR_BYTES_MASK = np.uint64(0xFFFFFFFF)
_PLACES = np.uint64(BOOK_HOSTS - 1)
SOL_UDP = 17
_UDP_SEGMENT = 103
UDP_GRO = 104
_CMSG_LEN_SEGMENT = 18
_CMSG_SPACE_SEGMENT = 24
_CMSG_LEN_SERVICE = 20
_CMSG_SPACE_SERVICE = 24
_IPPROTO_IP = 0
_IP_TOS = 1
_MSG_DONTWAIT = 0x40
_ONE_BYTE = np.uint64(8)
_TWO_BYTES = np.uint64(16)
_BYTE_MASK = np.uint64(0xFF)
_TWO_BYTES_MASK = np.uint64(0xFFFF)
EINTR = 4
EAGAIN = 11
ENOBUFS = 105

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
# `struct sockaddr_in6` from `high` on; what is `host` in `struct sockaddr_in` is there the flow.
SOCKADDR = np.dtype(
    [
        ("family", "u2"),
        ("port", "u2"),
        ("host", "u4"),
        ("high", "u8"),
        ("low", "u8"),
        ("scope", "u4"),
        ("pad", "u4"),
    ]
)
CMSG = np.dtype(
    [("length", "u8"), ("level", "i4"), ("kind", "i4"), ("value", "u4"), ("pad", "u4"), ("more", "u1", 40)]
)
CMSGS = np.dtype(
    [
        ("length", "u8"),  # first how urgent the train is, if that is to be told
        ("level", "i4"),
        ("kind", "i4"),
        ("value", "u4"),
        ("pad", "u4"),
        ("segment_length", "u8"),  # then, or instead, the size of its packets
        ("segment_level", "i4"),
        ("segment_kind", "i4"),
        ("segment_value", "u4"),
        ("segment_pad", "u4"),
        ("more", "u1", 16),
    ]
)
"""What the kernel is told about a train, beside its bytes."""
SEGMENT = np.dtype(
    [
        ("start", "i8"),  # where in the inbox the packet begins
        ("length", "i8"),  # its bytes
        ("source", "u8"),  # the sender's address, as `sockets.pack_address`
    ]
)
TRAIN = np.dtype(
    [
        ("destination", "u8"),  # the address it goes to, as `sockets.pack_address`
        ("bytes", "i8"),  # all its bytes
        ("length", "i8"),  # bytes of each packet but the last
        ("count", "i8"),  # packets in it
        ("pieces", "i8"),  # pieces of the outbox that it is made of
        ("ended", "i8"),  # 1: a shorter packet has ended it
        ("service", "i8"),  # how urgent it is, as the byte in IP's header; 0: as any other
    ]
)
CELLS = np.dtype(
    [
        ("headers", "i8"),  # address of the kernel's records
        ("buffer", "i8"),  # address of the data
        ("service", "i8"),  # how urgent the packets are that are posted next; 0: as any other
        ("services", "i8"),  # 1: the kernel takes that from us
        ("used", "i8"),  # bytes of the outbox in use
        ("trains", "i8"),  # trains in the outbox
        ("flushed", "i8"),  # of these, how many have been sent
        ("calls", "i8"),  # system calls so far
        ("packets", "i8"),  # packets so far
        ("bytes", "i8"),  # bytes so far
        ("errors", "i8"),  # calls that failed for good
        ("last_error", "i8"),  # `errno` of the last of them
        ("ipv6", "i8"),  # 1: the outbox's socket is one of IPv6
    ]
)
assert (MMSGHDR.itemsize, IOVEC.itemsize, SOCKADDR.itemsize, CMSG.itemsize) == (64, 16, 32, CONTROL_BYTES)
assert CMSGS.itemsize == CONTROL_BYTES


class Inbox(NamedTuple):
    """Where datagrams arrive; `segments` says what came. `cells[0]` counts calls, packets and bytes."""

    cells: Any
    data: Any
    segments: Any
    headers: Any
    iovecs: Any
    names: Any
    controls: Any
    book: Any


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
    book: Any


def _records(shape: Any, dtype: np.dtype[np.void]) -> Any:
    return np.zeros(shape, dtype=dtype).view(np.recarray)


def _headers(count: int, iovecs: Any, names: Any, controls: Any) -> Any:
    headers = _records(count, MMSGHDR)
    headers.name = address_of(names) + SOCKADDR.itemsize * np.arange(count, dtype=np.uint64)
    headers.name_bytes = _IPV4_BYTES
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
    return Inbox(_cells(headers, data), data, segments, headers, iovecs, names, controls, BOOK)


def new_outbox(capacity_bytes: int = OUTBOX_BYTES, trains: int = TRAINS) -> Outbox:
    """Room for this many bytes of packets in this many trains."""
    data = np.zeros(capacity_bytes, dtype=np.uint8)
    iovecs, names = _records((trains, SEGMENTS_MAX), IOVEC), _records(trains, SOCKADDR)
    controls = _records(trains, CMSGS)
    names.family = _AF_INET
    headers = _headers(trains, iovecs, names, controls)
    cells = _cells(headers, data)
    cells[0].services = int(takes_service())
    open_trains = np.full(OPEN_TRAINS, -1, dtype=np.int64)
    return Outbox(cells, data, _records(trains, TRAIN), headers, iovecs, names, controls, open_trains, BOOK)


def fit(outbox: Outbox, fd: int) -> None:
    """This outbox is for this socket, of IPv4 or of IPv6; where there is none (-1), of IPv4."""
    if fd < 0:
        return
    looked_at = socket.socket(fileno=fd)
    ipv6 = looked_at.family == socket.AF_INET6
    looked_at.detach()
    outbox.cells[0].ipv6 = int(ipv6)
    if ipv6:  # there the byte is called otherwise, and would need a record of its own
        outbox.cells[0].services = 0
    outbox.names.family = _AF_INET6 if ipv6 else _AF_INET
    outbox.headers.name_bytes = _IPV6_BYTES if ipv6 else _IPV4_BYTES


@compiled_inner
def _swapped_2(word: Any) -> Any:
    return ((word & _BYTE_MASK) << _ONE_BYTE) | (word >> _ONE_BYTE)


@compiled_inner
def _swapped_4(word: Any) -> Any:
    return (_swapped_2(word & _TWO_BYTES_MASK) << _TWO_BYTES) | _swapped_2(word >> _TWO_BYTES)


@compiled
def receive(fd: int, inbox: Inbox) -> int:
    """Take what has arrived, without waiting; the number of packets, in `inbox.segments`."""
    cells = inbox.cells[0]
    headers = inbox.headers
    for m in range(headers.shape[0]):
        headers[m].name_bytes = _IPV6_BYTES
        headers[m].control_bytes = CONTROL_BYTES
    got = recvmmsg(fd, cells.headers, np.uint32(headers.shape[0]), _MSG_DONTWAIT, 0)
    cells.calls += 1
    if got <= 0:
        error = last_error()
        if got < 0 and error != EAGAIN and error != EINTR:
            cells.errors += 1
            cells.last_error = error
        return 0
    segments = 0
    for m in range(got):
        header = headers[m]
        length = np.int64(header.received)
        size = length
        control = inbox.controls[m]
        if header.control_bytes >= 20 and control.level == SOL_UDP and control.kind == UDP_GRO:
            size = np.int64(control.value)
        name = inbox.names[m]
        source = _swapped_4(np.uint64(name.host)) << _TWO_BYTES
        if name.family == _AF_INET6:
            source = _source_of_ipv6(inbox.book, name.high, name.low)
        source |= _swapped_2(np.uint64(name.port))
        segments = _split(inbox, m, length, size, source, segments)
        cells.bytes += length
    cells.packets += segments
    return segments


@compiled_inner
def _source_of_ipv6(book: Any, high: Any, low: Any) -> Any:
    """The number of a host, without its port."""
    if high == _NO_BYTES and low & _FOUR_BYTES_MASK == _MAPPED:
        return _swapped_4(low >> _FOUR_BYTES) << _TWO_BYTES
    place = place_of(book, high, low)
    if place < 0:
        return _STRANGER
    return _IPV6_MARK | (np.uint64(place) << _TWO_BYTES)


@compiled_inner
def _split(inbox: Inbox, m: int, length: Any, size: Any, source: Any, segments: int) -> int:
    """Note the packets of a train; an empty datagram is one packet of no bytes."""
    offset = np.int64(0)
    while segments < inbox.segments.shape[0]:
        segment = inbox.segments[segments]
        segment.start = m * MESSAGE_BYTES + offset
        segment.length = min(size, length - offset)
        segment.source = source
        segments += 1
        offset += size
        if offset >= length or size <= 0:
            break
    return segments


@compiled
def room_for(outbox: Outbox, size: int) -> int:
    """Where the next packet of this size can be written, or -1: flush first. Nothing is taken yet."""
    cells = outbox.cells[0]
    if cells.used + size > outbox.data.shape[0]:
        return -1
    return int(cells.used)


@compiled_inner
def _place(destination: Any) -> int:
    word = np.uint64(destination)
    return int((word ^ (word >> np.uint64(16)) ^ (word >> np.uint64(24))) & np.uint64(OPEN_TRAINS - 1))


@compiled
def post(outbox: Outbox, start: int, size: int, destination: Any) -> bool:
    """Send `outbox.data[start:start + size]` to an address; False if there is no train left: flush first."""
    cells = outbox.cells[0]
    place = _place(destination)
    at = outbox.open[place]
    if at >= 0:
        train = outbox.trains[at]
        if (
            train.destination == destination
            and train.ended == 0
            and 0 < size <= train.length
            and train.count < SEGMENTS_MAX
            and train.bytes + size <= TRAIN_BYTES_MAX
        ):
            _extend(outbox, at, start, size)
            return True
    if cells.trains >= outbox.trains.shape[0]:
        return False
    at = cells.trains
    cells.trains = at + 1
    outbox.open[place] = at
    train = outbox.trains[at]
    train.destination = destination
    train.length = size
    train.bytes = train.count = train.pieces = train.ended = 0
    train.service = cells.service if cells.services != 0 else 0
    _extend(outbox, at, start, size)
    return True


@compiled_inner
def _extend(outbox: Outbox, at: int, start: int, size: int) -> None:
    train = outbox.trains[at]
    cells = outbox.cells[0]
    address = np.uint64(cells.buffer + start)
    last = outbox.iovecs[at, max(train.pieces - 1, 0)]
    if train.pieces > 0 and last.start + last.length == address:
        last.length += np.uint64(size)
    else:
        piece = outbox.iovecs[at, train.pieces]
        piece.start = address
        piece.length = np.uint64(size)
        train.pieces += 1
    train.bytes += size
    train.count += 1
    if size < train.length:
        train.ended = 1
    cells.used = max(cells.used, (start + size + 7) & ~7)


@compiled
def flush(fd: int, outbox: Outbox) -> int:
    """Send all trains; gives how many the kernel has no room for (try again later), and 0 empties the outbox."""
    cells = outbox.cells[0]
    for at in range(cells.flushed, cells.trains):
        _address(outbox, at)
    while cells.flushed < cells.trains:
        waiting = cells.trains - cells.flushed
        sent = sendmmsg(fd, cells.headers + 64 * cells.flushed, np.uint32(waiting), _MSG_DONTWAIT)
        cells.calls += 1
        if sent < 0:
            error = last_error()
            if error == EINTR:
                continue
            if error == EAGAIN or error == ENOBUFS:
                return int(waiting)
            # This train cannot go; the next ones may.
            cells.errors += 1
            cells.last_error = error
            cells.flushed += 1
            continue
        for at in range(cells.flushed, cells.flushed + sent):
            cells.packets += outbox.trains[at].count
            cells.bytes += outbox.trains[at].bytes
        cells.flushed += sent
    discard(outbox)
    return 0


@compiled
def discard(outbox: Outbox) -> int:
    """Give up what is not sent yet; gives how many packets that were."""
    cells = outbox.cells[0]
    lost = 0
    for at in range(cells.trains):
        if at >= cells.flushed:
            lost += outbox.trains[at].count
        outbox.open[_place(outbox.trains[at].destination)] = -1
    cells.used = cells.trains = cells.flushed = 0
    return int(lost)


@compiled_inner
def _address(outbox: Outbox, at: int) -> None:
    train = outbox.trains[at]
    name = outbox.names[at]
    if outbox.cells[0].ipv6 == 0:
        name.host = np.uint32(_swapped_4((train.destination >> _TWO_BYTES) & _FOUR_BYTES_MASK))
        if train.destination & _IPV6_MARK != _NO_BYTES:
            name.host = np.uint32(0xFFFFFFFF)  # to everybody: the kernel refuses it, and an error is counted
    elif train.destination & _IPV6_MARK != _NO_BYTES:
        page = outbox.book[(train.destination >> _TWO_BYTES) & _PLACES]
        name.high, name.low = page.high, page.low
    else:
        host = _swapped_4((train.destination >> _TWO_BYTES) & _FOUR_BYTES_MASK)
        name.high, name.low = _NO_BYTES, _MAPPED | (host << _FOUR_BYTES)
    name.port = np.uint16(_swapped_2(train.destination & _TWO_BYTES_MASK))
    header = outbox.headers[at]
    header.iovec_count = np.uint64(train.pieces)
    control = outbox.controls[at]
    header.control_bytes = np.uint64(0)
    if train.service != 0:
        control.length = np.uint64(_CMSG_LEN_SERVICE)
        control.level = np.int32(_IPPROTO_IP)
        control.kind = np.int32(_IP_TOS)
        control.value = np.uint32(train.service)
        header.control_bytes = np.uint64(_CMSG_SPACE_SERVICE)
        if train.count > 1:
            control.segment_length = np.uint64(_CMSG_LEN_SEGMENT)
            control.segment_level = np.int32(SOL_UDP)
            control.segment_kind = np.int32(_UDP_SEGMENT)
            control.segment_value = np.uint32(train.length)
            header.control_bytes = np.uint64(_CMSG_SPACE_SERVICE + _CMSG_SPACE_SEGMENT)
    elif train.count > 1:
        control.length = np.uint64(_CMSG_LEN_SEGMENT)
        control.level = np.int32(SOL_UDP)
        control.kind = np.int32(_UDP_SEGMENT)
        control.value = np.uint32(train.length)
        header.control_bytes = np.uint64(_CMSG_SPACE_SEGMENT)
