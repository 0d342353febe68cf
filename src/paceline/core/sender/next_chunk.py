"""What a sender does next: the chunk to send, the chunks to pass over, the question to ask.

A stream may have `window` chunks without credit or result, none further than `span`, `budget` or `limit` allow. What
was lost goes first. A worker that contributes nothing passes chunks over: they wait for their results unsent.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled, compiled_apart
from paceline.core.sender.congestion import window_of
from paceline.core.sender.flights import mark_credited, stop_asking
from paceline.core.sender.rtt import due_ns
from paceline.core.sender.state import LOST, SENT, Senders
from paceline.core.wire import CUSTODY, FLUSH, QUERY


@compiled
def next_chunk(senders: Senders, i: int) -> int:
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
def poll_silent(senders: Senders, i: int, now_ns: int) -> None:
    """Nothing to contribute: new chunks wait for their results without being sent."""
    sender = senders.state[i]
    chunk = next_chunk(senders, i)
    while chunk >= 0:
        flight = senders.flights[i, chunk % sender.span]
        flight.chunk = chunk
        # No round trip is ever measured from it.
        flight.resends = 1
        flight.asks = 0
        sender.unfinished += 1
        sender.next = chunk + 1
        mark_credited(sender, flight, now_ns)
        chunk = next_chunk(senders, i)
    if sender.oldest < sender.next:
        oldest = senders.flights[i, sender.oldest % sender.span]
        sender.timer_ns = min(sender.timer_ns, due_ns(sender, oldest))


@compiled_apart
def poll_query(senders: Senders, i: int, packet: Any) -> bool:
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
