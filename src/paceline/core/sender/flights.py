"""A chunk's flight: its timer, and the steps from one state to the next that `program.py` and `roles.py` share.

Each function makes one change of state of `FLIGHT_STATES` and keeps the sender's counts true: `unfinished` chunks have
no result, of them `lost` wait to be sent again, `credited` wait for their result alone, `asking` for a query, and
`behind` lie below the highest chunk that is done or credited, or are that one. Round trip and timer follow RFC 6298.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled, compiled_apart
from paceline.core.bits import mix
from paceline.core.sender.congestion import on_loss
from paceline.core.sender.state import CREDITED, DONE, IDLE, LOST, QUEUED, SENT, Senders


@compiled
def is_overtaken(sender: Any, chunk: int) -> bool:
    """Have results far enough ahead of it come? At the end of what there is to send, any result ahead counts."""
    distance = sender.reorder_chunks if sender.next < sender.released else 1
    return bool(chunk + distance <= sender.highest_done)


@compiled
def short_patience_ns(sender: Any) -> int:
    """How long what should come next may take."""
    return int(np.int64(sender.reorder_rtts * sender.srtt_ns) + sender.rto_min_ns // 16)


@compiled
def due_ns(sender: Any, flight: Any) -> int:
    """When a chunk is overdue; after a time-out a little later for some, so that workers fall out of step."""
    if sender.in_order != 0 and flight.state == SENT and is_overtaken(sender, flight.chunk):
        # The others went on: nobody is late, it was lost. The timer's floor is for those who are late.
        patience_ns = short_patience_ns(sender)
        again = flight.backoff if sender.inquires != 0 else flight.resends
        return int(flight.sent_ns + min(patience_ns << min(again, 10), sender.rto_max_ns))
    if flight.backoff > 0:
        wait_ns = min(sender.rto_ns << min(flight.backoff, 10), sender.rto_max_ns)
        return int(flight.sent_ns + wait_ns + wait_ns * (mix(sender.worker + 1, flight.chunk) & 255) // 1024)
    return int(flight.sent_ns + min(sender.rto_ns << min(flight.backoff, 10), sender.rto_max_ns))


@compiled
def sample_rtt(sender: Any, rtt_ns: int) -> None:
    """RFC 6298, section 2: the smoothed round trip, its variation, the timer; of a sender, or of a connection."""
    if sender.srtt_ns == 0.0:
        sender.srtt_ns = float(rtt_ns)
        sender.rttvar_ns = rtt_ns / 2.0
    else:
        sender.rttvar_ns += 0.25 * (abs(sender.srtt_ns - rtt_ns) - sender.rttvar_ns)
        sender.srtt_ns += 0.125 * (rtt_ns - sender.srtt_ns)
    rto_ns = np.int64(sender.srtt_ns + 4.0 * sender.rttvar_ns)
    sender.rto_ns = min(max(rto_ns, sender.rto_min_ns), sender.rto_max_ns)


CREDIT_BACKOFF = 2
"""A credited chunk is asked for later than a sent one: after so many doublings of the timer."""


@compiled
def make_ready(senders: Senders, i: int, k: int) -> None:
    """Pool: the chunk in place `k` may be sent, in its turn."""
    sender = senders.state[i]
    senders.flights[i, k].state = QUEUED
    senders.ready[i, (sender.ready_head + sender.ready_count) % sender.span] = k
    sender.ready_count += 1


@compiled
def mark_lost(sender: Any, flight: Any) -> None:
    """It is to be sent again."""
    if sender.lost == 0 or flight.chunk < sender.resend_from:
        sender.resend_from = flight.chunk
    if flight.state == CREDITED:
        sender.credited -= 1
    stop_asking(sender, flight)
    flight.state = LOST
    flight.counted = 0
    sender.lost += 1


@compiled
def mark_credited(sender: Any, flight: Any, now_ns: int) -> None:
    """Its custodian counts it, or there is nothing to send: only the result is missing."""
    if flight.state == LOST:
        sender.lost -= 1
    flight.state = CREDITED
    flight.fresh = 0
    flight.sent_ns = now_ns
    flight.backoff = CREDIT_BACKOFF
    sender.credited += 1
    if flight.chunk == sender.oldest:
        sender.timer_ns = min(sender.timer_ns, due_ns(sender, flight))


@compiled
def start_asking(sender: Any, flight: Any) -> None:
    """A query about it is to be sent."""
    if flight.asks == 0:
        if sender.asking == 0 or flight.chunk < sender.ask_from:
            sender.ask_from = flight.chunk
        flight.asks = 1
        sender.asking += 1


@compiled
def stop_asking(sender: Any, flight: Any) -> None:
    """The query has been sent, or is not needed any more."""
    if flight.asks != 0:
        flight.asks = 0
        sender.asking -= 1


@compiled
def overtake(sender: Any, chunk: int) -> None:
    """A chunk is done or credited: those below it that have no result are behind, and so is itself until it has one."""
    if chunk > sender.highest_done:
        sender.behind += chunk - sender.highest_done
        sender.highest_done = chunk


@compiled
def void_credit(sender: Any) -> None:
    """An epoch ends, and its credit with it: a chunk is behind only if a result overtook it.

    All between the highest result and the highest credit were behind, since none of them has a result.
    """
    sender.behind -= sender.highest_done - sender.highest_result
    sender.highest_done = sender.highest_result


@compiled
def finish(senders: Senders, i: int, chunk: int) -> None:
    """Its result (or receipt) has come."""
    sender = senders.state[i]
    k = chunk % sender.span
    flight = senders.flights[i, k]
    if flight.state == LOST:
        sender.lost -= 1
    elif flight.state == CREDITED:
        sender.credited -= 1
    stop_asking(sender, flight)
    sender.unfinished -= 1
    overtake(sender, chunk)
    sender.behind -= 1
    sender.highest_result = max(sender.highest_result, chunk)
    if sender.pool != 0:
        flight.chunk = chunk + sender.span
        flight.resends = flight.backoff = 0
        flight.state = IDLE
        if flight.chunk < sender.released:
            make_ready(senders, i, k)
        return
    flight.state = DONE
    while sender.oldest < sender.next and senders.flights[i, sender.oldest % sender.span].state == DONE:
        senders.flights[i, sender.oldest % sender.span].state = IDLE
        sender.oldest += 1


@compiled
def find_lost(senders: Senders, i: int, now_ns: int) -> None:
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
            mark_lost(sender, flight)
            found = True
        sender.scan += 1
    if found:
        on_loss(sender)


@compiled
def watch_oldest(senders: Senders, i: int, now_ns: int) -> None:
    """A result came: the oldest chunk may be due; sooner if overtaken, else not before its result may have followed."""
    sender = senders.state[i]
    oldest = senders.flights[i, sender.oldest % sender.span]
    if oldest.state != SENT or oldest.chunk != sender.oldest:
        return
    if is_overtaken(sender, oldest.chunk):
        sender.timer_ns = min(sender.timer_ns, due_ns(sender, oldest))
    elif sender.inquires != 0:
        sender.timer_ns = min(
            sender.timer_ns, max(due_ns(sender, oldest), now_ns + short_patience_ns(sender))
        )


@compiled_apart
def watch_credited(senders: Senders, i: int, now_ns: int) -> None:
    """A result came: the oldest credited chunk is on its timer, those that were overtaken are judged soon."""
    sender = senders.state[i]
    oldest = senders.flights[i, sender.oldest % sender.span]
    if oldest.state == CREDITED:
        sender.timer_ns = min(sender.timer_ns, max(due_ns(sender, oldest), now_ns + sender.rto_ns))
    elif sender.highest_result > sender.oldest:
        sender.timer_ns = min(sender.timer_ns, now_ns + sender.rto_ns)


@compiled
def ask_when_due(sender: Any, flight: Any, now_ns: int) -> None:
    """A chunk that has waited for long enough is asked for, and the wait begins anew."""
    if due_ns(sender, flight) <= now_ns:
        flight.sent_ns = now_ns
        flight.backoff += 1
        if flight.backoff > sender.resends_max:
            sender.failed = 1
        start_asking(sender, flight)
    sender.timer_ns = min(sender.timer_ns, due_ns(sender, flight))


@compiled
def forget_backoff(senders: Senders, i: int, now_ns: int) -> None:
    """The way is there again after a silence: what was asked for in vain is due as after the first time-out."""
    sender = senders.state[i]
    first = 0 if sender.pool != 0 else sender.oldest
    last = sender.span if sender.pool != 0 else sender.next
    for position in range(first, last):
        flight = senders.flights[i, position % sender.span]
        if flight.state == SENT:
            flight.backoff = min(flight.backoff, 1)
        elif flight.state == CREDITED:
            flight.backoff = min(flight.backoff, CREDIT_BACKOFF)
    sender.timer_ns = min(sender.timer_ns, now_ns)
