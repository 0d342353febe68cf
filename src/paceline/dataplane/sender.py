"""A worker's sending side: which chunk goes next, when it goes again, and which results are new.

The order of calls, for a driver:

    release        gradients up to a chunk are ready
    poll_transmit  fills in the next packet to send; repeat while it returns True
    handle_result  a result (or a receipt) for a chunk has come: NEW, DUPLICATE or UNKNOWN
    handle_receipts  the same for all chunks below a point, on point-to-point flows
    handle_timeout call it at `timer_ns` or later; then poll again

Two disciplines share the timers and the accounting. A *stream* sends in order, at most `window` chunks
without a result and none further than `span` past the oldest [ATP: AIMD in packets, halved on ECN and on
out-of-order results]. A *pool* has one chunk in flight in each of `span` slots, and chunk p + span follows
only the result of p, whatever the other slots do [SwitchML].

Timers follow RFC 6298: no sample from a chunk that was resent, and exponential back-off over the time-outs of
a chunk. A stream also takes a chunk for lost when results at least `reorder_chunks` ahead of it have come and
`reorder_rtts` round trips have passed since it was sent; each chunk is judged so once. A chunk that timed out
more than `resends_max` times sets `failed`: a wait never lasts for ever.
"""

from typing import Any, NamedTuple

import numpy as np

from paceline.dataplane.bits import NO_BITS, mix
from paceline.dataplane.compiled import compiled
from paceline.dataplane.pacing import due_ns, sample_rtt, slow_down, speed_up
from paceline.dataplane.wire import COLLISION, ECN, FLUSH, GRADIENT, MAGIC, VERSION

IDLE = 0
SENT = 1
LOST = 2
DONE = 3
QUEUED = 4
FLIGHT_STATES = ("idle", "sent", "lost", "done", "queued")

NEW = 0
DUPLICATE = 1
UNKNOWN = 2

NEVER_NS = np.iinfo(np.int64).max

SENDER = np.dtype(
    [
        ("oldest", "i8"),
        ("next", "i8"),
        ("released", "i8"),
        ("scan", "i8"),
        ("highest_done", "i8"),
        ("recover", "i8"),
        ("unfinished", "i8"),
        ("lost", "i8"),
        ("resend_from", "i8"),
        ("ready_head", "i8"),
        ("ready_count", "i8"),
        ("window", "f8"),
        ("threshold", "f8"),
        ("srtt_ns", "f8"),
        ("rttvar_ns", "f8"),
        ("rto_ns", "i8"),
        ("timer_ns", "i8"),
        ("mask", "u8"),
        ("sent", "i8"),
        ("resent", "i8"),
        ("timeouts", "i8"),
        ("duplicates", "i8"),
        ("marks", "i8"),
        ("failed", "i8"),
        ("window_min", "f8"),
        ("window_max", "f8"),
        ("reorder_rtts", "f8"),
        ("rto_min_ns", "i8"),
        ("rto_max_ns", "i8"),
        ("reorder_chunks", "i8"),
        ("resends_max", "i8"),
        ("slots", "i8"),
        ("span", "i4"),
        ("job", "i4"),
        ("epoch", "i4"),
        ("worker", "i4"),
        ("rack", "i4"),
        ("fan_in", "i4"),
        ("fan_in_upper", "i4"),
        ("count", "i4"),
        ("pool", "i4"),
        ("flush", "i4"),
        ("adaptive", "i4"),
    ],
    align=True,
)

FLIGHT = np.dtype(
    [
        ("chunk", "i8"),
        ("sent_ns", "i8"),
        ("index", "i8"),
        ("resends", "i4"),
        ("backoff", "i4"),
        ("state", "u1"),
    ],
    align=True,
)


class Senders(NamedTuple):
    """Senders of a driver: `state[i]`, and the chunks in flight of each in `flights[i, chunk % span]`."""

    state: Any
    flights: Any
    ready: Any


def new_senders(count: int, span: int) -> Senders:
    """Room for `count` senders whose spans are at most `span`; fill in the configuration, then `start`."""
    return Senders(
        np.zeros(count, dtype=SENDER).view(np.recarray),
        np.zeros((count, span), dtype=FLIGHT).view(np.recarray),
        np.zeros((count, span), dtype=np.int64),
    )


@compiled
def start(senders: Senders, i: int, window: float, rto_ns: int) -> None:
    """Set the moving state of a configured sender to its beginning; its counters go on."""
    sender = senders.state[i]
    sender.oldest = sender.next = sender.released = sender.scan = sender.recover = 0
    sender.unfinished = sender.lost = sender.resend_from = sender.ready_head = sender.ready_count = 0
    sender.srtt_ns = sender.rttvar_ns = 0.0
    sender.failed = 0
    sender.window = min(max(window, sender.window_min), sender.window_max)
    sender.threshold = sender.window_max
    sender.rto_ns = rto_ns
    sender.timer_ns = NEVER_NS
    sender.highest_done = -1
    for k in range(sender.span):
        flight = senders.flights[i, k]
        flight.chunk = k - sender.span if sender.pool == 0 else k
        flight.state = IDLE
        flight.resends = flight.backoff = 0
        if sender.pool == 0:
            # A hash of the job, then in a row: a job never collides with itself.
            flight.index = (mix(sender.job + 1, 0) + k) % max(1, sender.slots)
        else:
            flight.index = k


@compiled
def release(senders: Senders, i: int, released: int) -> None:
    """Gradients of all chunks below `released` are ready to be sent."""
    sender = senders.state[i]
    sender.released = max(sender.released, released)
    if sender.pool == 0:
        return
    for k in range(sender.span):
        flight = senders.flights[i, k]
        if flight.state == IDLE and flight.chunk < sender.released:
            _make_ready(senders, i, k)


@compiled
def _make_ready(senders: Senders, i: int, k: int) -> None:
    sender = senders.state[i]
    senders.flights[i, k].state = QUEUED
    senders.ready[i, (sender.ready_head + sender.ready_count) % sender.span] = k
    sender.ready_count += 1


@compiled
def _next_chunk(senders: Senders, i: int) -> int:
    """The chunk to send now, or -1: first what was lost, then what is new."""
    sender = senders.state[i]
    if sender.lost > 0:
        if sender.pool != 0:
            for k in range(sender.span):
                if senders.flights[i, k].state == LOST:
                    return int(senders.flights[i, k].chunk)
        chunk = max(sender.resend_from, sender.oldest)
        while chunk < sender.next:
            if senders.flights[i, chunk % sender.span].state == LOST:
                sender.resend_from = chunk + 1
                return int(chunk)
            chunk += 1
        sender.lost = 0
    if sender.pool != 0:
        if sender.ready_count == 0:
            return -1
        k = senders.ready[i, sender.ready_head]
        sender.ready_head = (sender.ready_head + 1) % sender.span
        sender.ready_count -= 1
        return int(senders.flights[i, k].chunk)
    if (
        sender.next < sender.released
        and sender.unfinished < sender.window
        and sender.next < sender.oldest + sender.span
    ):
        return int(sender.next)
    return -1


@compiled
def poll_transmit(senders: Senders, i: int, packet: Any, now_ns: int) -> bool:
    """Fill in the next packet, or say that there is none; the driver adds payload, priority and custodian."""
    sender = senders.state[i]
    if sender.failed != 0:
        return False
    chunk = _next_chunk(senders, i)
    if chunk < 0:
        return False
    flight = senders.flights[i, chunk % sender.span]
    packet.flag = 0
    if flight.state == LOST:
        sender.lost -= 1
        sender.resent += 1
        flight.resends += 1
        if sender.flush != 0:
            packet.flag = FLUSH
    else:
        flight.chunk = chunk
        flight.resends = flight.backoff = 0
        sender.unfinished += 1
        if sender.pool == 0:
            sender.next = chunk + 1
    flight.state = SENT
    flight.sent_ns = now_ns
    sender.timer_ns = min(sender.timer_ns, due_ns(sender, flight))
    sender.sent += 1
    packet.magic = MAGIC
    packet.version = VERSION
    packet.kind = GRADIENT
    packet.job = sender.job
    packet.chunk = chunk
    packet.epoch = sender.epoch
    packet.count = sender.count
    packet.index = flight.index
    packet.mask = sender.mask
    packet.fan_in = sender.fan_in
    packet.fan_in_upper = sender.fan_in_upper
    packet.rack = sender.rack
    packet.level = 1
    packet.worker = sender.worker
    packet.share = NO_BITS
    packet.owner = 0
    packet.exponent = 0
    packet.offer = 0
    packet.tag = NO_BITS
    return True


@compiled
def handle_result(senders: Senders, i: int, packet: Any, now_ns: int) -> int:
    """Take a result: NEW exactly once for each chunk that was sent."""
    sender = senders.state[i]
    chunk = packet.chunk
    flight = senders.flights[i, chunk % sender.span]
    if sender.pool == 0:
        if chunk >= sender.next:
            return UNKNOWN
        if chunk < sender.oldest or flight.state == DONE:
            sender.duplicates += 1
            return DUPLICATE
    elif flight.chunk != chunk or (flight.state != SENT and flight.state != LOST):
        sender.duplicates += 1
        return DUPLICATE
    if flight.resends == 0:
        sample_rtt(sender, now_ns - flight.sent_ns)
    if sender.adaptive != 0:
        if packet.flag & ECN:
            sender.marks += 1
            slow_down(sender, chunk)
        else:
            speed_up(sender)
    if packet.flag & COLLISION:
        flight.index = packet.offer % max(1, sender.slots)
    _finish(senders, i, chunk)
    if sender.pool == 0:
        _find_lost(senders, i, now_ns)
    return NEW


@compiled
def handle_receipts(senders: Senders, i: int, below: int, marked: bool, now_ns: int) -> int:
    """All chunks below a point have arrived (point-to-point flows); gives how many of them were news."""
    sender = senders.state[i]
    news = 0
    if marked and sender.adaptive != 0:
        sender.marks += 1
        slow_down(sender, sender.oldest)
    last = min(below, sender.next)
    if last > sender.oldest:
        flight = senders.flights[i, (last - 1) % sender.span]
        if flight.state == SENT and flight.resends == 0:
            sample_rtt(sender, now_ns - flight.sent_ns)
    while sender.oldest < last:
        before = sender.oldest
        _finish(senders, i, before)
        if sender.adaptive != 0 and not marked:
            speed_up(sender)
        news += 1
    return news


@compiled
def _finish(senders: Senders, i: int, chunk: int) -> None:
    sender = senders.state[i]
    k = chunk % sender.span
    flight = senders.flights[i, k]
    if flight.state == LOST:
        sender.lost -= 1
    sender.unfinished -= 1
    sender.highest_done = max(sender.highest_done, chunk)
    if sender.pool != 0:
        flight.chunk = chunk + sender.span
        flight.resends = flight.backoff = 0
        flight.state = IDLE
        if flight.chunk < sender.released:
            _make_ready(senders, i, k)
        return
    flight.state = DONE
    while sender.oldest < sender.next and senders.flights[i, sender.oldest % sender.span].state == DONE:
        senders.flights[i, sender.oldest % sender.span].state = IDLE
        sender.oldest += 1


@compiled
def _find_lost(senders: Senders, i: int, now_ns: int) -> None:
    """Judge, once each, the chunks that later results have overtaken by enough, in distance and in time."""
    sender = senders.state[i]
    sender.scan = max(sender.scan, sender.oldest)
    patience_ns = sender.reorder_rtts * sender.srtt_ns
    limit = min(sender.highest_done - sender.reorder_chunks, sender.next - 1)
    found = False
    while sender.scan <= limit:
        flight = senders.flights[i, sender.scan % sender.span]
        if flight.state == SENT and flight.resends == 0:
            if now_ns - flight.sent_ns < patience_ns:
                break
            _mark_lost(sender, flight)
            found = True
        sender.scan += 1
    if found and sender.adaptive != 0:
        slow_down(sender, sender.oldest)


@compiled
def _mark_lost(sender: Any, flight: Any) -> None:
    if sender.lost == 0 or flight.chunk < sender.resend_from:
        sender.resend_from = flight.chunk
    flight.state = LOST
    sender.lost += 1


@compiled
def handle_timeout(senders: Senders, i: int, now_ns: int) -> int:
    """Take overdue chunks for lost and set the timer anew; gives how many there were."""
    sender = senders.state[i]
    sender.timer_ns = NEVER_NS
    first = 0 if sender.pool != 0 else sender.oldest
    last = sender.span if sender.pool != 0 else sender.next
    overdue = 0
    for position in range(first, last):
        flight = senders.flights[i, position % sender.span]
        if flight.state != SENT:
            continue
        due = due_ns(sender, flight)
        if due > now_ns:
            sender.timer_ns = min(sender.timer_ns, due)
            continue
        flight.backoff += 1
        if flight.backoff > sender.resends_max:
            sender.failed = 1
        _mark_lost(sender, flight)
        overdue += 1
    sender.timeouts += overdue
    if overdue > 0 and sender.adaptive != 0:
        slow_down(sender, sender.oldest)
    return overdue


@compiled
def resend(senders: Senders, i: int, chunk: int) -> bool:
    """A custodian pulls a chunk: send it again if it is in flight; False if it is not."""
    sender = senders.state[i]
    flight = senders.flights[i, chunk % sender.span]
    if flight.chunk != chunk or flight.state != SENT:
        return False
    _mark_lost(sender, flight)
    return True


@compiled
def change_epoch(senders: Senders, i: int, epoch: int) -> int:
    """A new epoch: whatever has no result yet must be sent again in it; gives how many chunks that are."""
    sender = senders.state[i]
    sender.epoch = epoch
    again = 0
    first = 0 if sender.pool != 0 else sender.oldest
    last = sender.span if sender.pool != 0 else sender.next
    for position in range(first, last):
        flight = senders.flights[i, position % sender.span]
        if flight.state == SENT:
            _mark_lost(sender, flight)
            again += 1
    return again


@compiled
def holds_result(senders: Senders, i: int, chunk: int) -> bool:
    """Has this stream's worker got the result of a chunk, and can it still give it to others?"""
    sender = senders.state[i]
    if chunk >= sender.next or chunk < sender.oldest - sender.span:
        return False
    return bool(chunk < sender.oldest or senders.flights[i, chunk % sender.span].state == DONE)
