"""A connection as TCP has it, from a worker to its neighbour in a ring; the simulator's only, the protocol has its own.

    poll            the packet to send now, or -1: first what was lost, then what is new
    sent            it is on the host's own link
    handle_receipt  the neighbour has all packets below a point, and the one that made it answer
    handle_timeout  call it at `timer_ns` or later; then poll again

What it does, and where it is from:

- *window*: slow start, then growth and cut of CUBIC in its TCP-friendly region, where short round trips are [RFC 9438];
  a cut for a loss or a congestion mark, at most once a window; after a pause longer than the timer slow start again;
- *loss*: a packet is lost when three later ones have been received [RFC 6675]; when the timer goes off, the oldest is
  sent again as a probe [RFC 8985], and at the second time everything, from a window of one;
- *timer*: RFC 6298;
- *own link*: at most `TRAINS` trains of packets wait for the host's own link, so a queue stands in the network and not
  in the host, and connections of one host take turns (Linux: small queues);
- *buffer*: at most `span` packets without a receipt, as the socket's buffer allows. No other limit needs tuning.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled_apart
from paceline.core.sender.flights import sample_rtt
from paceline.core.sender.program import NEVER_NS
from paceline.sim.engine.links import FS_PER_NS
from paceline.sim.engine.world import PACKET_BYTES, World

RECEIVED = 0
SENT = 1
LOST = 2
"""States of a packet that was sent: with the neighbour, on its way, to be sent again."""

CONNECTION = np.dtype(
    [
        ("oldest", "i8"),  # the first packet without a receipt
        ("next", "i8"),  # the first that was never sent
        ("released", "i8"),  # packets below may be sent
        ("bucket", "i8"),  # the bucket whose messages are released next, counted over all iterations
        ("message", "i8"),  # the first message of it that is not released
        ("under_way", "i8"),  # sent, neither received nor taken for lost
        ("lost", "i8"),  # taken for lost, to be sent again
        ("resend_from", "i8"),  # no lost packet is below
        ("highest", "i8"),  # the highest packet that was received
        ("scan", "i8"),  # packets below have been judged: lost or not
        ("recover", "i8"),  # losses below have been answered by a cut
        ("window", "f8"),  # most under way
        ("threshold", "f8"),  # slow start ends here
        ("srtt_ns", "f8"),
        ("rttvar_ns", "f8"),
        ("rto_ns", "i8"),
        ("rto_min_ns", "i8"),
        ("rto_max_ns", "i8"),
        ("timer_ns", "i8"),  # the retransmission timer
        ("expired", "i8"),  # times in a row that it went off
        ("expired_max", "i8"),  # the connection fails after so many
        ("idle_ns", "i8"),  # when the last packet was received and nothing was left to send
        ("train_ns", "i8"),  # when the last train but one has left the host
        ("second_ns", "i8"),  # when the last train has
        ("resume_ns", "i8"),  # when to poll again, the host's own link being full
        ("handled", "i8"),  # packets below, of the other connection, have been added or kept
        ("handling", "i8"),  # where the message ends that is being handled
        ("handled_ns", "i8"),  # when that is done
    ],
    align=True,
)
SEGMENT = np.dtype([("sent_ns", "i8"), ("resends", "i4"), ("state", "i4")], align=True)
"""A packet that was sent, at its number modulo the span."""

WINDOW_START = 10.0
WINDOW_MIN = 2.0
REORDERING = 3
CUT = 0.7
GROWTH = 3.0 * (1.0 - CUT) / (1.0 + CUT)
"""Packets a round trip: as much as a cut to `CUT` takes at the rate of Reno."""
TRAINS = 2
TRAIN_BYTES = 65_536
"""A segmented send; `TRAINS` of them wait for the host's own link."""
BACKOFF_MAX = 6


def open_connection(world: World, w: int, rto_ns: int) -> None:
    """Nothing sent yet."""
    connection = world.connections[w]
    connection.window = WINDOW_START
    connection.threshold = float(world.segments.shape[1])
    connection.rto_ns = rto_ns
    connection.timer_ns = NEVER_NS
    connection.resume_ns = NEVER_NS
    connection.handled_ns = NEVER_NS
    connection.highest = -1


@compiled_apart
def poll(world: World, w: int, now_ns: int) -> int:
    """The number of the packet to send now, or -1."""
    connection = world.connections[w]
    span = world.segments.shape[1]
    if connection.lost > 0:
        at = max(connection.resend_from, connection.oldest)
        if at > connection.oldest and connection.under_way >= connection.window:
            return -1
        while at < connection.next:
            if world.segments[w, at % span].state == LOST:
                connection.resend_from = at + 1
                return int(at)
            at += 1
        connection.lost = 0
    if connection.next >= connection.released or connection.next >= connection.oldest + span:
        return -1
    if connection.next == connection.oldest and now_ns - connection.idle_ns > connection.rto_ns:
        connection.window = min(connection.window, WINDOW_START)
        connection.idle_ns = now_ns
    if connection.under_way >= connection.window:
        return -1
    return int(connection.next)


@compiled_apart
def sent(world: World, w: int, at: int, now_ns: int) -> None:
    """The packet goes out."""
    connection = world.connections[w]
    segment = world.segments[w, at % world.segments.shape[1]]
    if at == connection.next:
        connection.next += 1
        segment.resends = 0
    else:
        connection.lost -= 1
        segment.resends += 1
        world.senders.state[w].resent += 1
    world.senders.state[w].sent += 1
    segment.state = SENT
    segment.sent_ns = now_ns
    connection.under_way += 1
    if connection.timer_ns == NEVER_NS:
        connection.timer_ns = now_ns + connection.rto_ns


@compiled_apart
def may_queue(world: World, w: int, now_ns: int) -> bool:
    """Has the host's own link room for another train of this connection? If not, it is told when."""
    connection = world.connections[w]
    first_ns = connection.train_ns if connection.train_ns < connection.second_ns else connection.second_ns
    if first_ns > now_ns:
        connection.resume_ns = first_ns
        return False
    connection.resume_ns = NEVER_NS
    return True


@compiled_apart
def wake_ns(world: World, w: int) -> int:
    """When the connection needs its timer next."""
    connection = world.connections[w]
    return int(min(connection.timer_ns, connection.resume_ns, connection.handled_ns))


@compiled_apart
def queued(world: World, w: int, link: int, packets: int, now_ns: int) -> None:
    """A train of so many packets has been given to the host's own link: when will it have left?"""
    connection = world.connections[w]
    carrier = world.links.state[link]
    busy_fs = max(carrier.busy_fs, now_ns * FS_PER_NS)
    left_ns = (busy_fs + packets * world.control[PACKET_BYTES] * carrier.fs_per_byte) // FS_PER_NS
    connection.train_ns = connection.second_ns
    connection.second_ns = left_ns


@compiled_apart
def handle_receipt(world: World, w: int, below: int, chunk: int, marked: bool, now_ns: int) -> bool:
    """All below a point have been received, and `chunk`; True if that is news."""
    connection = world.connections[w]
    span = world.segments.shape[1]
    if chunk >= connection.next or below > connection.next:
        return False
    if chunk >= connection.oldest:
        segment = world.segments[w, chunk % span]
        if segment.state == SENT and segment.resends == 0:
            sample_rtt(connection, now_ns - segment.sent_ns)
    limited = connection.under_way + 1 >= 0.5 * connection.window
    news = 0
    while connection.oldest < below:
        news += _received(world, w, connection.oldest)
        world.segments[w, connection.oldest % span].state = RECEIVED
        connection.oldest += 1
    if chunk >= connection.oldest:
        news += _received(world, w, chunk)
    connection.highest = max(connection.highest, chunk)
    connection.scan = max(connection.scan, connection.oldest)
    found = False
    while connection.scan <= connection.highest - REORDERING:
        segment = world.segments[w, connection.scan % span]
        if segment.state == SENT and segment.resends == 0:
            _lose(connection, segment, connection.scan)
            found = True
        connection.scan += 1
    if marked:
        world.senders.state[w].marks += 1
    if found or marked:
        _cut(connection)
    elif limited and connection.oldest >= connection.recover:
        for _ in range(news):
            if connection.window < connection.threshold:
                connection.window += 1.0
            else:
                connection.window += GROWTH / connection.window
        connection.window = min(connection.window, float(span))
    if news > 0:
        connection.expired = 0
        connection.timer_ns = NEVER_NS
        if connection.oldest < connection.next:
            connection.timer_ns = now_ns + connection.rto_ns
        else:
            connection.idle_ns = now_ns
    return bool(news > 0 or connection.lost > 0)


@compiled_apart
def _received(world: World, w: int, at: int) -> int:
    """The packet is with the neighbour; 1 if that was not known."""
    connection = world.connections[w]
    segment = world.segments[w, at % world.segments.shape[1]]
    if segment.state == SENT:
        connection.under_way -= 1
    elif segment.state == LOST:
        connection.lost -= 1
    else:
        return 0
    segment.state = RECEIVED
    return 1


@compiled_apart
def _lose(connection: Any, segment: Any, at: int) -> None:
    if connection.lost == 0 or at < connection.resend_from:
        connection.resend_from = at
    segment.state = LOST
    connection.lost += 1
    connection.under_way -= 1


@compiled_apart
def _cut(connection: Any) -> None:
    """Less under way, at most once for what was under way."""
    if connection.oldest < connection.recover:
        return
    connection.recover = connection.next
    connection.window = max(CUT * connection.window, WINDOW_MIN)
    connection.threshold = connection.window


@compiled_apart
def handle_timeout(world: World, w: int, now_ns: int) -> bool:
    """The timer went off: a probe, then all again; False once it has gone off too often."""
    connection = world.connections[w]
    span = world.segments.shape[1]
    connection.timer_ns = NEVER_NS
    if connection.oldest >= connection.next:
        return True
    connection.expired += 1
    world.senders.state[w].timeouts += 1
    for at in range(connection.oldest, connection.next):
        segment = world.segments[w, at % span]
        if segment.state == SENT:
            _lose(connection, segment, at)
            if connection.expired == 1:
                break
    if connection.expired > 1:
        connection.threshold = max(0.5 * connection.window, WINDOW_MIN)
        connection.window = WINDOW_MIN
        connection.recover = connection.next
        connection.scan = connection.next
    connection.resend_from = connection.oldest
    wait_ns = connection.rto_ns << min(connection.expired, BACKOFF_MAX)
    connection.timer_ns = now_ns + wait_ns
    return bool(connection.expired <= connection.expired_max)
