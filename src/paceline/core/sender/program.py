"""A worker's sending side: which chunk goes next, when it goes again, and which results are new.

The order of calls, for a driver:

    release        gradients up to a chunk are ready
    poll_transmit  fills in the next packet to send; repeat while it returns True
    handle_result  a result (or a receipt) for a chunk has come: NEW, DUPLICATE or UNKNOWN
    handle_timeout call it at `timer_ns` or later; then poll again

and, where stragglers are helped (`roles.py`): `take_role`, `set_share`, `handle_ack`, `handle_pull`. The
changes of a flight's state are in `flights.py`.

Two disciplines share the timers and the accounting. A *stream* sends in order, at most `window` chunks
without a result and none further than `span` past the oldest [ATP: AIMD in packets, halved on ECN and on
out-of-order results]. A *pool* has one chunk in flight in each of `span` slots, and chunk p + span follows
only the result of p, whatever the other slots do [SwitchML]. What was lost goes first. A worker that contributes
nothing passes chunks over: they wait for their results unsent.

Timers follow RFC 6298: no sample from a chunk that was resent, and exponential back-off over the time-outs of
a chunk. A stream also takes a chunk for lost when results at least `reorder_chunks` ahead of it have come and
`reorder_rtts` round trips have passed since it was sent; each chunk is judged so once, or, where the path keeps the
order (`in_order`), again and again with back-off. A chunk that timed out
more than `resends_max` times sets `failed`: a wait never lasts for ever.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled, compiled_apart
from paceline.core.bits import NO_BITS, mix
from paceline.core.homes import HOME, home_index, is_home, sharers_in
from paceline.core.sender.congestion import (
    LEAD,
    ROOM_START,
    TOGETHER,
    end_round,
    most_room,
    on_loss,
    on_pure_rtt,
    on_result,
    on_send,
    told_window,
    window_of,
)
from paceline.core.sender.flights import (
    CREDIT_BACKOFF,
    ask_when_due,
    due_ns,
    find_lost,
    finish,
    is_overtaken,
    make_ready,
    mark_credited,
    mark_lost,
    sample_rtt,
    short_patience_ns,
    stop_asking,
    watch_credited,
    watch_oldest,
)
from paceline.core.sender.roles import (
    change_epoch,
    effective_priority,
    handle_ack,
    handle_nack,
    handle_pull,
    holds_result,
    is_asked,
    resend,
    set_share,
    take_role,
)
from paceline.core.sender.state import (
    ANSWER_IT,
    CREDITED,
    DONE,
    DUPLICATE,
    FLIGHT,
    FLIGHT_STATES,
    IDLE,
    IGNORE,
    LOST,
    NEVER_NS,
    NEW,
    POLL,
    QUEUED,
    SENDER,
    SENT,
    UNKNOWN,
    Senders,
    new_senders,
)
from paceline.core.wire import ANSWER, COLLISION, CUSTODY, FLUSH, GRADIENT, MAGIC, QUERY, VERSION

__all__ = [
    "ANSWER_IT",
    "CREDITED",
    "DONE",
    "DUPLICATE",
    "FLIGHT",
    "FLIGHT_STATES",
    "IDLE",
    "IGNORE",
    "LOST",
    "NEVER_NS",
    "NEW",
    "POLL",
    "QUEUED",
    "SENDER",
    "SENT",
    "UNKNOWN",
    "Senders",
    "answer_pull",
    "change_epoch",
    "effective_priority",
    "handle_ack",
    "handle_nack",
    "handle_pull",
    "handle_result",
    "handle_timeout",
    "holds_result",
    "is_asked",
    "new_senders",
    "poll_transmit",
    "release",
    "resend",
    "set_share",
    "start",
    "take_role",
]


@compiled
def row_index(sender: Any, chunk: int) -> int:
    """The aggregator of a chunk that was offered no other: a hash of the job, then in a row.

    In a row a job does not meet itself. A place that was offered another aggregator comes back to the row with its next
    sum that found one, else a job that has met others would be scattered, and meet itself where memory is small. Where
    a result tells the job's home, the place goes there (`homes.py`).
    """
    return int((mix(sender.job + 1, 0) + chunk) % max(1, sender.slots))


@compiled
def start(senders: Senders, i: int, window: float, rto_ns: int) -> None:
    """Set the moving state of a configured sender to its beginning; its counters go on."""
    sender = senders.state[i]
    sender.oldest = sender.next = sender.released = sender.scan = sender.recover = 0
    sender.unfinished = sender.lost = sender.resend_from = sender.ready_head = sender.ready_count = 0
    sender.credited = sender.asking = sender.ask_from = sender.overtaken = sender.behind = 0
    sender.srtt_ns = sender.rttvar_ns = 0.0
    sender.failed = 0
    sender.round_end = sender.suspect = 0
    sender.news_ns = -NEVER_NS
    sender.agreed = sender.cut_queue_ns = sender.cut_window = 0.0
    sender.sharers = 0
    sender.room = most_room(sender)
    if sender.minds_memory != 0:
        sender.room = min(sender.room, max(1.0, ROOM_START * sender.slots))
    sender.round_room = sender.room
    sender.room_threshold = sender.window_max
    sender.room_clean = 0
    sender.burst_first = sender.burst_length = sender.burst_ns = 0
    sender.burst_age_ns = sender.burst_took_ns = 0.0
    sender.idle_ns = NEVER_NS
    sender.agreed_chunk = 0
    sender.target_rise = 1.0
    sender.round_marks, sender.round_losses = sender.marks, sender.losses
    sender.round_rtt_ns = sender.round_rtts = 0
    sender.round_results, sender.round_resent, sender.round_timeouts = (
        sender.results,
        sender.resent,
        sender.timeouts,
    )
    sender.rtt_min_ns = 0.0
    sender.rtt_min_at_ns = 0
    sender.window = min(max(window, sender.window_min), sender.window_max)
    sender.threshold = LEAD * sender.window_max if sender.congestion == TOGETHER else sender.window_max
    sender.rto_ns = rto_ns
    sender.timer_ns = NEVER_NS
    sender.highest_done = sender.highest_result = -1
    for k in range(sender.span):
        flight = senders.flights[i, k]
        flight.chunk = k - sender.span if sender.pool == 0 else k
        flight.state = IDLE
        flight.wanted = -1
        flight.resends = flight.backoff = 0
        flight.fresh = flight.asks = flight.counted = 0
        if sender.pool == 0:
            flight.index = row_index(sender, k)
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
            make_ready(senders, i, k)


@compiled
def poll_transmit(senders: Senders, i: int, packet: Any, now_ns: int) -> bool:
    """Fill in the next packet, or say that there is none; the driver adds payload, priority and custodian.

    It is a gradient, or a query, which has no payload (`count` is 0).
    """
    sender = senders.state[i]
    if sender.failed != 0:
        return False
    if sender.contributes_nothing != 0:
        _pass_over(senders, i, now_ns)
    packet.fan_in = sender.fan_in
    if sender.asking == 0 or not _poll_query(senders, i, packet):
        chunk = -1 if sender.contributes_nothing != 0 else _next_chunk(senders, i)
        if chunk < 0:
            return False
        flight = senders.flights[i, chunk % sender.span]
        packet.flag = 0
        if flight.state == LOST:
            sender.lost -= 1
            sender.resent += 1
            flight.resends += 1
            if sender.flush != 0 and flight.fresh == 0:
                packet.flag = FLUSH
            flight.fresh = 0
        else:
            flight.chunk = chunk
            flight.resends = flight.backoff = 0
            flight.counted = 0
            if flight.wanted == chunk and sender.flush != 0:
                # What the others contributed is with the custodian, and waits for nothing else.
                packet.flag = FLUSH
            if sender.pool == 0:
                on_send(sender, chunk, now_ns)
                sender.next = chunk + 1
            sender.unfinished += 1
        flight.state = SENT
        flight.sent_ns = now_ns
        sender.timer_ns = min(sender.timer_ns, due_ns(sender, flight))
        sender.sent += 1
        if sender.custody != 0:
            packet.flag |= CUSTODY
        if sender.flush_always != 0:
            # With custody it is complete by itself, and passes the aggregators by.
            packet.flag |= FLUSH
            packet.fan_in = 1
        packet.kind = GRADIENT
        packet.chunk = chunk
        packet.count = sender.count
        packet.index = flight.index
    packet.magic = MAGIC
    packet.version = VERSION
    packet.job = sender.job
    packet.epoch = sender.epoch
    packet.mask = sender.mask
    packet.fan_in_upper = sender.fan_in_upper
    packet.rack = sender.rack
    packet.level = 1
    packet.worker = sender.worker
    packet.share = sender.share
    packet.owner = sender.owner
    packet.window = told_window(sender)
    packet.offer = HOME if sender.minds_memory != 0 and sender.congestion == TOGETHER else 0
    packet.tag = NO_BITS
    return True


@compiled
def _next_chunk(senders: Senders, i: int) -> int:
    """The chunk to send now, or -1: first what was lost, then what is new."""
    sender = senders.state[i]
    if sender.lost > 0:
        if sender.pool != 0:
            for k in range(sender.span):
                if senders.flights[i, k].state == LOST:
                    return int(senders.flights[i, k].chunk)
        full = sender.budget > 0 and sender.unfinished - sender.credited - sender.lost >= window_of(sender)
        chunk = max(sender.resend_from, sender.oldest)
        while chunk < sender.next:
            if senders.flights[i, chunk % sender.span].state == LOST:
                if full and chunk > sender.oldest:
                    # With credit there may be more to send again than the window holds, after an epoch's end. What
                    # all wait for goes in any case.
                    return -1
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
    under_way = sender.unfinished - sender.credited
    if sender.in_order != 0 and sender.custody == 0:
        # What was overtaken is not on the way any more; sent again, it is little.
        under_way -= min(sender.behind, np.int64(window_of(sender)))
    if (
        sender.next < sender.released
        and under_way < window_of(sender)
        and sender.next < sender.oldest + sender.span
        and (sender.budget == 0 or sender.next < sender.oldest + sender.budget)
        and (sender.limit == 0 or sender.next < sender.limit)
    ):
        return int(sender.next)
    return -1


@compiled_apart
def _pass_over(senders: Senders, i: int, now_ns: int) -> None:
    """Nothing to contribute: new chunks wait for their results without being sent."""
    sender = senders.state[i]
    chunk = _next_chunk(senders, i)
    while chunk >= 0:
        flight = senders.flights[i, chunk % sender.span]
        flight.chunk = chunk
        # No round trip is ever measured from it.
        flight.resends = 1
        flight.asks = 0
        sender.unfinished += 1
        sender.next = chunk + 1
        mark_credited(sender, flight, now_ns)
        chunk = _next_chunk(senders, i)
    if sender.oldest < sender.next:
        oldest = senders.flights[i, sender.oldest % sender.span]
        sender.timer_ns = min(sender.timer_ns, due_ns(sender, oldest))


@compiled_apart
def _poll_query(senders: Senders, i: int, packet: Any) -> bool:
    """The next question to a custodian: is there a result, is the contribution counted?"""
    sender = senders.state[i]
    chunk = max(sender.ask_from, sender.oldest)
    while chunk < sender.next:
        flight = senders.flights[i, chunk % sender.span]
        chunk += 1
        if flight.asks != 0:
            stop_asking(sender, flight)
            sender.ask_from = chunk
            sender.queries += 1
            packet.kind = QUERY
            packet.flag = CUSTODY if sender.custody != 0 else 0
            if flight.state != SENT or flight.backoff > 1:
                # Asked before, or nothing of ours is missing: those who are missing may have the result already.
                packet.flag |= FLUSH
            packet.chunk = flight.chunk
            packet.count = 0
            packet.index = flight.index
            return True
    sender.asking = 0
    return False


@compiled
def answer_pull(senders: Senders, i: int, packet: Any, count: int) -> None:
    """A pull becomes its answer, with the aggregator index that goes on with it; the driver adds the values."""
    sender = senders.state[i]
    packet.kind = ANSWER
    packet.flag = COLLISION
    packet.count = count
    packet.worker = sender.worker
    packet.rack = sender.rack
    packet.offer = senders.flights[i, packet.chunk % sender.span].index


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
    credited = flight.state == CREDITED
    sender.news_ns = now_ns
    lost = sender.inquires != 0 and _was_lost(flight, packet)
    if lost and (credited or chunk < sender.highest_done or packet.worker == sender.worker):
        # The oldest: a result that another's contribution brought was late, one that names this worker is an answer.
        on_loss(sender)
        if chunk >= sender.highest_done:
            # It came for the asking, and nothing came after it: what went with it may be lost as well.
            sender.suspect = sender.next
            sender.timer_ns = min(sender.timer_ns, now_ns)
    elif flight.resends == 0 and not credited and (sender.in_order == 0 or chunk >= sender.highest_done):
        if sender.inquires == 0:
            sample_rtt(sender, now_ns - flight.sent_ns)
        elif flight.backoff == 0:
            _sample_inquiring(sender, packet, now_ns - flight.sent_ns)
    on_result(sender, packet, not credited)
    if sender.minds_memory != 0 and is_home(packet.offer):
        sender.sharers = sharers_in(packet.offer)
        flight.index = home_index(packet.offer, sender.slots, chunk + sender.span)
    elif packet.flag & COLLISION:
        flight.index = packet.offer % max(1, sender.slots)
    elif sender.minds_memory != 0:
        # No switch has seen it.
        sender.sharers = 0
        flight.index = row_index(sender, chunk + sender.span)
    finish(senders, i, chunk)
    if sender.unfinished == 0:
        sender.idle_ns = now_ns
    if sender.pool == 0:
        if sender.inquires == 0:
            find_lost(senders, i, now_ns)
        if sender.in_order != 0:
            watch_oldest(senders, i, now_ns)
        end_round(sender, now_ns)
    if sender.credited > 0:
        watch_credited(senders, i, now_ns)
    return NEW


@compiled
def _was_lost(flight: Any, packet: Any) -> bool:
    """Did a result come only for the asking, so that the copy for this worker had been lost?"""
    before = CREDIT_BACKOFF if flight.state == CREDITED else 0
    asked = flight.backoff > before and flight.counted == 0 and flight.resends == 0
    return bool(asked and packet.flag & COLLISION == 0)


@compiled
def _sample_inquiring(sender: Any, packet: Any, rtt_ns: int) -> None:
    """The last worker waited for nobody. For others a round trip is an upper bound: it counts only where it is less."""
    if packet.worker == sender.worker and packet.flag & COLLISION == 0:
        on_pure_rtt(sender, rtt_ns)
        sample_rtt(sender, rtt_ns)
    elif sender.srtt_ns == 0.0 or rtt_ns < sender.srtt_ns:
        sample_rtt(sender, rtt_ns)


@compiled
def handle_timeout(senders: Senders, i: int, now_ns: int) -> int:
    """Take overdue chunks for lost, or ask for them, and set the timer anew; gives how many there were."""
    sender = senders.state[i]
    sender.timer_ns = NEVER_NS
    first = 0 if sender.pool != 0 else sender.oldest
    last = sender.span if sender.pool != 0 else sender.next
    overdue = 0
    oldest_sent = True
    follows_ns = sender.news_ns + short_patience_ns(sender)
    for position in range(first, last):
        flight = senders.flights[i, position % sender.span]
        if flight.state == CREDITED and (position == first or position < sender.overtaken):
            ask_when_due(sender, flight, now_ns)
        if flight.state != SENT:
            continue
        if sender.inquires != 0:
            # Results come in order: the oldest, those that were overtaken, and those in doubt tell of all. With custody
            # the oldest is long credited; the oldest that is not tells of those behind it.
            asks = position == first or (sender.custody != 0 and oldest_sent)
            oldest_sent = False
            in_doubt = position < sender.suspect or is_overtaken(sender, flight.chunk)
            if asks and not in_doubt and now_ns < follows_ns:
                # Results come, if late: this one may be next.
                sender.timer_ns = min(sender.timer_ns, max(follows_ns, due_ns(sender, flight)))
            elif asks or in_doubt:
                sender.timeouts += position > sender.highest_done and due_ns(sender, flight) <= now_ns
                ask_when_due(sender, flight, now_ns)
            continue
        due = due_ns(sender, flight)
        if due > now_ns:
            sender.timer_ns = min(sender.timer_ns, due)
            continue
        flight.backoff += 1
        if flight.backoff > sender.resends_max:
            sender.failed = 1
        mark_lost(sender, flight)
        overdue += 1
    sender.timeouts += overdue
    if sender.credited > 0 and sender.highest_result > sender.oldest:
        # Those that have been overtaken since the last look are asked for at the next.
        sender.overtaken = sender.highest_result
        sender.timer_ns = min(sender.timer_ns, now_ns + sender.rto_ns)
    if overdue > 0:
        on_loss(sender)
    return overdue
