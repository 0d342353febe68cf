"""Links and the packets on them.

A link serves first in, first out at a fixed rate, then delays by a constant: a packet's arrival is known when
it is sent. Each link keeps a ring of (arrival, packet, destination); only its head is in the event queue.
The queue in front of a link is its backlog: what is sent but not yet on the wire. Beyond `queue_bytes` a
packet is dropped, beyond `ecn_bytes` it is marked. Other traffic of a constant rate may share a link: it is not
cut into packets, it goes first, and leaves the rest of the rate.

Where jobs meet, a link may have several queues of strict priority in front of it (`classes`). A packet that finds the
link busy then waits in the queue of its class, and which one goes next is decided when the link is free:
`start_waiting` looks at that whenever the link is touched, so what has begun is never overtaken. As long as packets
wait, one is on the link, and its arrival is the event: classes need no events of their own. Bounds between classes
follow the priorities that come [SP-PIFO, NSDI 2020]; questions and answers without payload are in the first.

Packets live in a pool and are reference-counted: a multicast to hosts is one packet on many links. Memory
follows the packets in flight.

Faults strike when a packet arrives: it may be lost, be duplicated, or take a detour: a pseudo-link to the
same node with a longer delay, so that others overtake it. The copy of a duplicate takes a detour too.

Where hosts run programs, a packet that has arrived waits in a *stack* until its program runs: another pseudo-link to
the same node (`forwarding.py`).
"""

from typing import Any, NamedTuple

import numpy as np

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.wire import ECN, ENVELOPE_BYTES, HEADER_BYTES, PACKET_FIELDS
from paceline.sim.engine.event_queue import NEVER_NS, Queue, set_time
from paceline.sim.engine.records import aligned_records, in_lines

DETOURS = 3
FS_PER_NS = 1_000_000
UNLIMITED_FS = np.iinfo(np.int64).max
_ECN_BIT = 1 << 30

LINK = in_lines(
    # What every packet touches fills the first two cache lines.
    ("to", "i4"),  # the host or switch at its end
    ("to_switch", "i4"),  # 1: a switch
    ("detour", "i4"),  # the first of its detours; -1: it has none
    ("stack", "i4"),  # where packets wait for the program at its end; or NO_STACK, or STACK_OF_ENDPOINT
    ("head", "i4"),  # the oldest packet's place in the ring
    ("length", "i4"),  # packets on it
    ("mask", "i4"),  # places of the ring that are in use, less one: so many less one as a power of two
    ("waiting", "i4"),  # packets in its queues of strict priority
    ("busy_fs", "i8"),  # when all that was sent will be on the wire
    ("fs_per_byte", "i8"),  # its rate, as the time of a byte
    ("packet_fs", "i8"),  # time of a packet, beside that of its bytes
    ("delay_ns", "i8"),  # from the last byte sent to its arrival
    ("queue_fs", "i8"),  # a packet behind a longer backlog is dropped
    ("ecn_fs", "i8"),  # a packet behind a longer backlog is marked
    ("burst_fs", "i8"),  # how much of its idle time it makes up for, as token buckets do
    ("size_bytes", "i8"),  # carried so far
    ("packets", "i8"),  # carried so far
    ("other_num", "i8"),  # other traffic, not cut into packets: its share of the rate, in millionths
    ("length_max", "i4"),  # packets it holds at most
    ("classes", "i4"),  # queues of strict priority in front of it; less than two: first in, first out
    ("core", "i4"),  # of a stack: the core that its program runs on
    ("other_from_ns", "i8"),  # other traffic: from when
    ("other_until_ns", "i8"),  # until when
    ("drops", "i8"),  # packets dropped so far
    ("marks", "i8"),  # packets marked so far
)

FLYING = np.dtype([("time_ns", "i8"), ("packet", "i4"), ("to", "i4")], align=True)
"""A packet on a link: when it arrives, its number in the pool with a mark that it got here, and the endpoint it is for;
-1: nobody in particular."""
RING_START = 16
"""Places of a ring that are in use at first: memory that is gone through is memory that must be fetched."""

LANE = np.dtype(
    [
        ("head", "i8"),  # the oldest packet's place in its ring
        ("length", "i8"),  # packets in it
        ("time_fs", "i8"),  # how long the link will be busy with them
        ("bound", "i8"),  # the rank from which packets go here, or to a queue that is served later
    ],
    align=True,
)
"""A queue of strict priority in front of a link."""

NO_STACK = -1
STACK_OF_ENDPOINT = -2

POOL_PACKET = in_lines(("references", "i4"), *PACKET_FIELDS)
"""A packet of the core and how many hold it. The count stands first: behind the core's fields it would make this
record a subtype of the core's for Numba, which then would run what it had compiled for the core's, with a warning."""


class Links(NamedTuple):
    """The links, and the packets on each in a ring."""

    state: Any
    """`LINK` records."""
    flying: Any
    """`[link, place]`: `FLYING` records."""
    lanes: Any
    """`[link, class]`: `LANE` records, the first is served first; where links have classes."""
    lane_packet: Any
    """`[link, class, place]`: as `packet` of `FLYING`."""
    lane_to: Any
    """`[link, class, place]`: as `to` of `FLYING`."""


class Pool(NamedTuple):
    """Packets in flight."""

    packets: Any
    """`POOL_PACKET` records."""
    values: Any
    """`[packet, lane]`: the integers it carries, when values are carried."""
    stack: Any
    """Numbers of packets; the first `meta[0]` are free."""
    meta: Any
    """One entry: how many are free."""


def new_pool(capacity: int, width: int) -> Pool:
    """An empty pool."""
    return Pool(
        aligned_records(capacity, POOL_PACKET),
        np.zeros((capacity, width), dtype=np.int32),
        np.arange(capacity - 1, -1, -1, dtype=np.int32),
        np.array([capacity], dtype=np.int64),
    )


def grown_pool(pool: Pool) -> Pool:
    """The same pool with twice the room."""
    old = pool.packets.shape[0]
    new = new_pool(2 * old, pool.values.shape[1])
    new.packets[:old] = pool.packets
    new.values[:old] = pool.values
    free = int(pool.meta[0])
    new.stack[old : old + free] = pool.stack[:free]
    new.stack[:old] = np.arange(2 * old - 1, old - 1, -1)
    new.meta[0] = old + free
    return new


@compiled_inner
def peek_free(pool: Pool) -> int:
    """The packet that `take` will take; the engine keeps some free before every event."""
    return int(pool.stack[pool.meta[0] - 1])


@compiled_inner
def take(pool: Pool) -> int:
    """A packet with one reference."""
    pool.meta[0] -= 1
    p = pool.stack[pool.meta[0]]
    pool.packets[p].references = 1
    return int(p)


@compiled_inner
def drop_reference(pool: Pool, p: int) -> None:
    """One holder fewer; the last one returns the packet to the pool."""
    packet = pool.packets[p]
    packet.references -= 1
    if packet.references == 0:
        pool.stack[pool.meta[0]] = p
        pool.meta[0] += 1


@compiled_inner
def copy_packet(pool: Pool, p: int) -> int:
    """A packet of its own with the same content."""
    q = take(pool)
    pool.packets[q] = pool.packets[p]
    pool.packets[q].references = 1
    for k in range(pool.values.shape[1]):
        pool.values[q, k] = pool.values[p, k]
    return q


@compiled_inner
def _transmission_fs(link: Any, size_bytes: int, start_ns: int) -> int:
    """How long a packet of this size keeps the link busy, from a time on."""
    size_fs = size_bytes * link.fs_per_byte + link.packet_fs
    if link.other_num > 0 and link.other_from_ns <= start_ns < link.other_until_ns:
        size_fs = size_fs * FS_PER_NS // (FS_PER_NS - link.other_num)
    return int(size_fs)


@compiled_inner
def _size_bytes(pool: Pool, p: int) -> int:
    return int(HEADER_BYTES + ENVELOPE_BYTES + 4 * np.int64(pool.packets[p].count))


@compiled_apart
def _wait(links: Links, pool: Pool, at: int, p: int, to: int, now_fs: int) -> None:
    """The link is busy: the packet waits in the queue of its class, behind what goes first."""
    link = links.state[at]
    packet = pool.packets[p]
    c = 0
    if packet.count > 0:
        c = _class_of(links, at, 255 - int(packet.priority))
    ahead_fs = link.busy_fs - now_fs
    for other in range(c + 1):
        ahead_fs += links.lanes[at, other].time_fs
    lane = links.lanes[at, c]
    capacity = links.lane_packet.shape[2]
    if ahead_fs > link.queue_fs or link.length + link.waiting >= link.length_max:
        link.drops += 1
        drop_reference(pool, p)
        return
    entry = p
    if ahead_fs > link.ecn_fs:
        link.marks += 1
        entry |= _ECN_BIT
    size_bytes = _size_bytes(pool, p)
    link.size_bytes += size_bytes
    link.packets += 1
    place = (lane.head + lane.length) & (capacity - 1)
    links.lane_packet[at, c, place] = entry
    links.lane_to[at, c, place] = to
    lane.length += 1
    lane.time_fs += size_bytes * link.fs_per_byte
    link.waiting += 1


@compiled_apart
def _class_of(links: Links, at: int, rank: int) -> int:
    """The queue of a packet [SP-PIFO, NSDI 2020]: bounds between queues follow the ranks that come."""
    c = int(links.state[at].classes) - 1
    while c > 0 and rank < links.lanes[at, c].bound:
        c -= 1
    lane = links.lanes[at, c]
    if rank >= lane.bound:
        lane.bound = rank
    else:
        # More urgent than all: room for it at the front, by moving all bounds.
        less = lane.bound - rank
        for other in range(links.state[at].classes):
            links.lanes[at, other].bound -= less
    return int(c)


@compiled_inner
def _append(links: Links, at: int, time_ns: int, entry: int, to: int) -> None:
    """A packet is on the link, behind the others."""
    link = links.state[at]
    if link.length > link.mask:
        _widen(links, at)
    newest = links.flying[at, (link.head + link.length) & link.mask]
    newest.time_ns = time_ns
    newest.packet = entry
    newest.to = to
    link.length += 1


@compiled_apart
def _widen(links: Links, at: int) -> None:
    """All places in use are taken: twice as many. Those that went on at the beginning go on behind the old end."""
    link = links.state[at]
    places = link.mask + 1
    for i in range(link.head):
        links.flying[at, places + i] = links.flying[at, i]
    link.mask = 2 * places - 1


@compiled_apart
def start_waiting(links: Links, pool: Pool, at: int, now_ns: int) -> None:
    """Put on the wire what has had its turn by now: whenever the link was free, the head of the first queue."""
    link = links.state[at]
    now_fs = now_ns * FS_PER_NS
    while link.waiting > 0 and link.busy_fs <= now_fs:
        c = 0
        while links.lanes[at, c].length == 0:
            c += 1
        lane = links.lanes[at, c]
        entry = links.lane_packet[at, c, lane.head]
        to = links.lane_to[at, c, lane.head]
        lane.head = (lane.head + 1) & (links.lane_packet.shape[2] - 1)
        lane.length -= 1
        link.waiting -= 1
        size_bytes = _size_bytes(pool, int(entry) & (_ECN_BIT - 1))
        lane.time_fs -= size_bytes * link.fs_per_byte
        link.busy_fs += _transmission_fs(link, size_bytes, link.busy_fs // FS_PER_NS)
        arrival_ns = (link.busy_fs + (FS_PER_NS - 1)) // FS_PER_NS + link.delay_ns
        _append(links, at, arrival_ns, entry, to)


@compiled_inner
def enqueue(links: Links, queue: Queue, pool: Pool, at: int, p: int, to: int, now_ns: int) -> None:
    """Send packet `p` over link `at` to endpoint `to` (-1: to nobody in particular); takes one reference."""
    link = links.state[at]
    now_fs = now_ns * FS_PER_NS
    if link.classes > 1:
        start_waiting(links, pool, at, now_ns)
        if link.busy_fs > now_fs:
            _wait(links, pool, at, p, to, now_fs)
            return
    # A token bucket: what a link has not carried of late, up to a burst, it carries at once.
    busy_fs = max(link.busy_fs, now_fs - link.burst_fs)
    backlog_fs = max(0, busy_fs - now_fs)
    if backlog_fs > link.queue_fs or link.length >= link.length_max:
        link.drops += 1
        drop_reference(pool, p)
        return
    entry = p
    if backlog_fs > link.ecn_fs:
        link.marks += 1
        entry |= _ECN_BIT
    size_bytes = _size_bytes(pool, p)
    busy_fs += _transmission_fs(link, size_bytes, now_ns)
    link.busy_fs = busy_fs
    link.size_bytes += size_bytes
    link.packets += 1
    arrival_ns = (max(busy_fs, now_fs) + (FS_PER_NS - 1)) // FS_PER_NS + link.delay_ns
    _append(links, at, arrival_ns, entry, to)
    if link.length == 1:
        set_time(queue, at, arrival_ns)


@compiled_inner
def dequeue(links: Links, queue: Queue, pool: Pool, at: int, now_ns: int) -> tuple[int, int, int]:
    """The packet that arrives: (packet, ECN flag, destination); the link's next arrival is scheduled."""
    link = links.state[at]
    if link.waiting > 0:
        start_waiting(links, pool, at, now_ns)
    oldest = links.flying[at, link.head]
    entry = np.int64(oldest.packet)
    to = np.int64(oldest.to)
    link.head = (link.head + 1) & link.mask
    link.length -= 1
    if link.length > 0:
        set_time(queue, at, links.flying[at, link.head].time_ns)
    else:
        set_time(queue, at, NEVER_NS)
    return int(entry & (_ECN_BIT - 1)), ECN if entry & _ECN_BIT else 0, int(to)
