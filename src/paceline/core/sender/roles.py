"""What others tell a sender: its role and its part, acknowledgements, pulls, a new epoch [ours].

    take_role    the coordinator's decision: a new epoch, and how packets are sent in it
    set_share    what this worker contributes: its bit, others' bits, a share of an owner, or nothing
    handle_ack   the custodian counts a chunk: it leaves the window and waits for its result alone
    handle_nack  the switch or the custodian lacks a contribution that was asked about
    handle_pull  a custodian asks: the driver is told to answer with the held result, or to poll
    change_epoch whatever has no result is sent again, as new
    effective_priority      what becomes of a packet's priority in help mode

In help mode leaders send with `custody` and the fan-in of the leaders of their rack (all bits that these carry),
so that aggregators complete without the straggler; a straggler has `flush_always` as well and never holds an
aggregator. A role lasts for an epoch: all workers of an epoch agree on roles and shares, so a contribution of a
worker to a chunk is one and the same packet for as long as the epoch lasts.

A credited chunk waits for the straggler, maybe for long. Its result may also have been lost, so the oldest one,
and those that later results have overtaken, are asked for by a query, with back-off. The custodian answers with the
result, with an acknowledgement, or with a pull if it lacks the contribution; nothing is sent again unasked.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled
from paceline.core.bits import NO_BITS, bit, owner_bit
from paceline.core.sender.congestion import on_loss, on_pure_rtt, on_result
from paceline.core.sender.flights import (
    find_lost,
    is_overtaken,
    mark_credited,
    mark_lost,
    overtake,
    sample_rtt,
    start_asking,
    void_credit,
)
from paceline.core.sender.state import (
    ANSWER_IT,
    CREDITED,
    DONE,
    IGNORE,
    LOST,
    POLL,
    SENT,
    Senders,
)
from paceline.core.wire import CUSTODY, FLUSH, PULL

_BACKOFF_ANSWERED = 8


@compiled
def take_role(
    senders: Senders, i: int, epoch: int, custody: int, flush_always: int, leaders: Any, fan_in: int
) -> int:
    """Begin an epoch in a role; poll afterwards. `leaders` is the set that custodians are chosen from, by rank."""
    sender = senders.state[i]
    sender.custody = custody
    sender.flush_always = flush_always
    sender.leaders = np.uint64(leaders)
    sender.fan_in = fan_in
    return change_epoch(senders, i, epoch)


@compiled
def set_share(senders: Senders, i: int, mask: Any, owner: int, share: Any) -> None:
    """What each packet holds: before the first chunk of an iteration, or just before `take_role`."""
    sender = senders.state[i]
    sender.mask = np.uint64(mask)
    sender.owner = owner
    sender.share = np.uint64(share)
    sender.shares_assigned = 1
    sender.contributes_nothing = 1 if sender.mask == NO_BITS and sender.share == NO_BITS else 0


@compiled
def change_epoch(senders: Senders, i: int, epoch: int) -> int:
    """A new epoch: whatever has no result yet must be sent again in it; gives how many chunks that are."""
    sender = senders.state[i]
    sender.epoch = epoch
    void_credit(sender)
    again = 0
    first = 0 if sender.pool != 0 else sender.oldest
    last = sender.span if sender.pool != 0 else sender.next
    for position in range(first, last):
        flight = senders.flights[i, position % sender.span]
        if flight.state != SENT and flight.state != LOST and flight.state != CREDITED:
            continue
        flight.backoff = 0
        if sender.contributes_nothing != 0:
            if flight.state != CREDITED:
                mark_credited(sender, flight, flight.sent_ns)
            continue
        if flight.state != LOST:
            mark_lost(sender, flight)
        flight.fresh = 1
        again += 1
    return again


@compiled
def handle_ack(senders: Senders, i: int, packet: Any, now_ns: int) -> bool:
    """Take an acknowledgement; True if the sender may have more to send now."""
    sender = senders.state[i]
    chunk = packet.chunk
    if packet.epoch != sender.epoch or sender.pool != 0 or chunk < sender.oldest or chunk >= sender.next:
        return False
    if sender.mask == NO_BITS:
        if packet.worker != sender.worker:
            return False
    elif packet.rack != sender.rack or sender.mask & ~packet.mask:
        return False
    flight = senders.flights[i, chunk % sender.span]
    if flight.state == CREDITED:
        # The wait goes on, but somebody is there.
        sender.confirms += 1
        flight.backoff = min(flight.backoff, _BACKOFF_ANSWERED, sender.resends_max - 1)
        return False
    if flight.state != SENT and flight.state != LOST:
        return False
    if sender.inquires != 0 and sender.custody == 0:
        if flight.state == SENT:
            _confirm(sender, flight, now_ns)
        return False
    if flight.resends == 0:
        sample_rtt(sender, now_ns - flight.sent_ns)
    on_result(sender, packet, True)
    sender.credits += 1
    overtake(sender, chunk)
    mark_credited(sender, flight, now_ns)
    find_lost(senders, i, now_ns)
    return True


@compiled
def _confirm(sender: Any, flight: Any, now_ns: int) -> None:
    """The contribution is there; it is the others' that are waited for."""
    if flight.backoff == 1 and flight.resends == 0 and flight.counted == 0:
        # From the question to its answer: nobody was waited for.
        sample_rtt(sender, now_ns - flight.sent_ns)
        on_pure_rtt(sender, now_ns - flight.sent_ns)
    sender.confirms += 1
    flight.counted = 1
    flight.sent_ns = now_ns
    flight.backoff = min(flight.backoff, _BACKOFF_ANSWERED, sender.resends_max - 1)


@compiled
def handle_nack(senders: Senders, i: int, packet: Any, now_ns: int) -> bool:
    """The contribution is not where it should be: send it again, by the switch; True if there is something to send."""
    sender = senders.state[i]
    chunk = packet.chunk
    if packet.epoch != sender.epoch or packet.worker != sender.worker or sender.inquires == 0:
        return False
    if sender.pool != 0 or chunk < sender.oldest or chunk >= sender.next:
        return False
    flight = senders.flights[i, chunk % sender.span]
    if flight.state != SENT or flight.backoff == 0:
        return False
    sender.nacks += 1
    on_loss(sender)
    mark_lost(sender, flight)
    flight.fresh = 1
    if not is_overtaken(sender, chunk):
        # The oldest was lost, and nothing came after it: what went with it may be lost as well.
        sender.suspect = sender.next
        sender.timer_ns = min(sender.timer_ns, now_ns)
    return True


@compiled
def effective_priority(packet: Any, priority: int) -> int:
    """A packet's priority: none where it waits for a straggler anyway; so leaders of a helped job make room."""
    return 0 if packet.flag & CUSTODY else priority


@compiled
def is_asked(sender: Any, packet: Any) -> bool:
    """Does a pull mean this worker: by its bit, by an owner that it carries shares of, or by itself?"""
    if packet.flag & FLUSH:
        return bool(packet.worker == sender.worker)
    if sender.share & packet.share and packet.owner == sender.owner:
        return True
    if packet.fan_in_upper > 1:
        asked = packet.mask & bit(sender.rack)
        return bool(asked or (sender.share and packet.mask & bit(sender.owner >> 6)))
    return bool(
        packet.mask & sender.mask or (sender.share and packet.mask & owner_bit(sender.owner, sender.rack))
    )


@compiled
def handle_pull(senders: Senders, i: int, packet: Any) -> int:
    """A custodian asks for a chunk: `ANSWER_IT` with the held result, `POLL` the sender, or `IGNORE` it."""
    sender = senders.state[i]
    if packet.kind != PULL:
        return IGNORE
    asked = is_asked(sender, packet)
    # A worker that carried a part then may carry another now: any holder of the result answers.
    if (asked or sender.shares_assigned != 0) and holds_result(senders, i, packet.chunk):
        return ANSWER_IT
    if not asked or packet.epoch != sender.epoch:
        return IGNORE
    if resend(senders, i, packet.chunk):
        return POLL
    flight = senders.flights[i, packet.chunk % sender.span]
    if sender.inquires != 0 and sender.next <= packet.chunk < sender.oldest + sender.span:
        flight.wanted = packet.chunk
        return POLL
    if flight.chunk != packet.chunk or flight.state != CREDITED or sender.contributes_nothing != 0:
        return IGNORE
    if packet.flag & FLUSH:
        mark_lost(sender, flight)
    else:
        start_asking(sender, flight)
    return POLL


@compiled
def resend(senders: Senders, i: int, chunk: int) -> bool:
    """Send a chunk again if it is in flight and not known to be counted; False if it is not."""
    sender = senders.state[i]
    flight = senders.flights[i, chunk % sender.span]
    if flight.chunk != chunk or flight.state != SENT:
        return False
    mark_lost(sender, flight)
    return True


@compiled
def holds_result(senders: Senders, i: int, chunk: int) -> bool:
    """Has this stream's worker got the result of a chunk, and can it still give it to others?"""
    sender = senders.state[i]
    if chunk >= sender.next or chunk < sender.oldest - sender.span:
        return False
    return bool(chunk < sender.oldest or senders.flights[i, chunk % sender.span].state == DONE)
