"""Host-side aggregation: one state machine for ATP's parameter server, ESA's fallback host, SA-ATP's leading worker.

A custodian holds the partial sum of a chunk that the switch could not finish. The order of calls:

    handle_packet  a packet for this custodian; rewritten in place if something is to be sent, with a verdict
    keep_result    a result made by the switch, for later
    handle_timeout call it at `timer_ns` or later, then
    poll_transmit  fills in the next reminder or pull; repeat while it returns True

Rules: a partial is accepted only if it is disjoint from what is counted, else it is dropped whole, unless it holds
all that is counted and more: then it takes its place [ATP: a full bitmap overwrites]; a result is made only when
every contribution is in; a chunk that is done answers whatever comes for it with its result again. A chunk that has
waited too long sends a reminder to the switch, the next time a pull to the workers whose contribution is missing, and
so on in turn, with back-off [reminder: ours, after ESA; pull: ours]. `handle_timeout` begins a round over the open
chunks, `poll_transmit` gives what is overdue. A pull names what is missing: workers, racks, or micro-batches of one
owner.

Where a worker is late, every chunk waits, and asking for each would only fill the links. So a custodian asks for chunks
that later ones have overtaken, and for the `reach` oldest: one, twice as many when an answer completes a chunk, half as
many when there is none.

With custody, what is counted is acknowledged: a straggler's at once, the leaders' when all leaders of a rack are in, so
that they run ahead side by side [ours: one that ran ahead alone would leave the others' sums waiting in the switch]. A
query is answered with the result, with an acknowledgement if the asker's contribution is counted, and with a pull if
not. It also opens a chunk that nobody has brought yet, so that others are asked for it [ours].

Chunks live in a ring of twice the senders' span. That is enough: a worker that still lacks the result of
chunk c has sent nothing from c + span on, so no chunk from c + span on is complete anywhere, so nobody has
sent anything from c + 2 span on.

Epochs: partial sums count within one epoch. A custodian that lost its state begins a new one; so does every
worker, which sends again what has no result yet. Results belong to no epoch: whoever holds one may give it.

Two levels: a packet of level 1 brings workers of one rack, a packet of level 2 whole racks. What is counted, what
can be counted with it, and the changes of a chunk's state are in `chunk.py`.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled, compiled_apart, compiled_inner
from paceline.core.bits import NO_BITS, bit, is_sound, mix, popcount
from paceline.core.custodian.chunk import (
    acknowledge,
    copy_in,
    count_in,
    count_leaders,
    count_nothing,
    covers,
    finish,
    has_room,
    includes,
    is_disjoint,
    is_led,
    make_result,
    open_entry,
    pass_by,
)
from paceline.core.custodian.state import (
    ABSENT,
    ACCEPTED,
    ACKNOWLEDGE,
    ACKS_SENT,
    CHUNK_STATES,
    COUNTER_NAMES,
    CUSTODIAN,
    CUSTODIAN_CHUNK,
    FINISHED,
    FINISHES,
    KEPT,
    LED_IN_PART,
    MULTICAST,
    NOTHING,
    OPEN,
    OUTDATED,
    OVERLAPS,
    PULL_REST,
    PULLS_SENT,
    REFUSED,
    REMINDERS_SENT,
    REPLAYS,
    UNICAST,
    VERDICT_NAMES,
    Custodians,
    new_custodians,
)
from paceline.core.homes import is_home
from paceline.core.sender.state import NEVER_NS
from paceline.core.wire import (
    ANSWER,
    COLLISION,
    CUSTODY,
    ECN,
    FLUSH,
    NACK,
    PARTIAL,
    PULL,
    QUERY,
    REMINDER,
    clear,
)

__all__ = [
    "ABSENT",
    "ACCEPTED",
    "ACKNOWLEDGE",
    "ACKS_SENT",
    "CHUNK_STATES",
    "COUNTER_NAMES",
    "CUSTODIAN",
    "CUSTODIAN_CHUNK",
    "FINISHED",
    "FINISHES",
    "KEPT",
    "MULTICAST",
    "NEVER_NS",
    "NOTHING",
    "OPEN",
    "OUTDATED",
    "OVERLAPS",
    "PULLS_SENT",
    "PULL_REST",
    "REFUSED",
    "REMINDERS_SENT",
    "REPLAYS",
    "UNICAST",
    "VERDICT_NAMES",
    "Custodians",
    "begin_epoch",
    "custodian_for",
    "follow",
    "forget",
    "handle_packet",
    "handle_timeout",
    "keep_result",
    "new_custodians",
    "poll_transmit",
]


@compiled
def handle_packet(custodians: Custodians, k: int, packet: Any, buffer: Any, row: int, now_ns: int) -> int:
    """Take a partial, an answer or a query; `NOTHING`, or the packet is now a result for all or for one."""
    custodian = custodians.state[k]
    kind = packet.kind
    if (
        packet.job != custodian.job
        or (kind != PARTIAL and kind != ANSWER and kind != QUERY)
        or packet.rack >= custodians.masks.shape[2]
        or packet.fan_in_upper != custodian.fan_in_upper
        or (kind == PARTIAL and (packet.mask | packet.share) == NO_BITS)
        or (packet.share and kind != ANSWER and not _is_fit(custodians, packet))
    ):
        custodians.counters[k, REFUSED] += 1
        return NOTHING
    at = packet.chunk % custodian.ring
    entry = custodians.chunks[k, at]
    if kind == PARTIAL and packet.epoch != custodian.epoch:
        if packet.epoch < custodian.epoch:
            custodians.counters[k, OUTDATED] += 1
            return NOTHING
        begin_epoch(custodians, k, packet.epoch)
    if entry.state != ABSENT and entry.chunk > packet.chunk:
        custodians.counters[k, OUTDATED] += 1
        return NOTHING
    if kind == QUERY and not (entry.state == FINISHED and entry.chunk == packet.chunk):
        return _query(custodians, k, at, packet, now_ns)
    if entry.state == ABSENT or entry.chunk < packet.chunk:
        open_entry(custodians, k, at, packet, now_ns)
    if entry.state == FINISHED:
        if kind == ANSWER:
            return NOTHING
        custodians.counters[k, REPLAYS] += 1
        alone = kind == QUERY or (packet.level == 1 and popcount(packet.mask) <= 1)
        make_result(custodians, k, at, packet, buffer, row)
        return UNICAST if alone else MULTICAST
    if kind == ANSWER:
        copy_in(custodians, k, at, buffer, row, True)
        entry.flag = packet.flag & COLLISION
        entry.offer = packet.offer
        # Of the workers now, it says nothing.
        entry.window = 0
        return finish(custodians, k, at, packet, buffer, row)
    if packet.share and not has_room(custodians, k, at, packet.owner):
        custodians.counters[k, REFUSED] += 1
        return NOTHING
    return _merge(custodians, k, at, packet, buffer, row, now_ns)


@compiled_inner
def _is_fit(custodians: Custodians, packet: Any) -> bool:
    """Can a share be counted here at all?"""
    return bool(is_sound(packet) and packet.owner >> 6 < custodians.masks.shape[2])


@compiled
def begin_epoch(custodians: Custodians, k: int, epoch: int) -> None:
    """Partial sums of the epoch before are void: their contributions come again. Results stay results."""
    custodians.state[k].epoch = epoch
    for at in range(custodians.state[k].ring):
        if custodians.chunks[k, at].state == OPEN:
            custodians.chunks[k, at].state = ABSENT


@compiled
def forget(custodians: Custodians, k: int, epoch: int) -> None:
    """The custodian lost its state, results included; it goes on in a new epoch."""
    custodians.state[k].epoch = epoch
    custodians.state[k].low = custodians.state[k].high
    custodians.state[k].timer_ns = NEVER_NS
    for at in range(custodians.state[k].ring):
        custodians.chunks[k, at].state = ABSENT
        custodians.chunks[k, at].chunk = -1


@compiled
def keep_result(custodians: Custodians, k: int, packet: Any, buffer: Any, row: int, now_ns: int) -> None:
    """A result that the switch made has come by: keep it for workers whose copy was lost."""
    custodian = custodians.state[k]
    if packet.job != custodian.job:
        custodians.counters[k, REFUSED] += 1
        return
    at = packet.chunk % custodian.ring
    entry = custodians.chunks[k, at]
    if entry.state != ABSENT and entry.chunk > packet.chunk:
        custodians.counters[k, OUTDATED] += 1
        return
    if entry.state == ABSENT or entry.chunk < packet.chunk:
        open_entry(custodians, k, at, packet, now_ns)
    if entry.state == OPEN:
        copy_in(custodians, k, at, buffer, row, True)
        entry.flag = packet.flag & COLLISION
        entry.offer = packet.offer
        entry.window = packet.window
        pass_by(custodians, k, at)
        custodians.counters[k, KEPT] += 1


@compiled_inner
def _merge(custodians: Custodians, k: int, at: int, packet: Any, buffer: Any, row: int, now_ns: int) -> int:
    """The disjoint-accept rule; a full mask makes the result."""
    entry = custodians.chunks[k, at]
    replaces = not is_disjoint(custodians, k, at, packet)
    if replaces:
        if not covers(custodians, k, at, packet):
            custodians.counters[k, OVERLAPS] += 1
            if packet.flag & CUSTODY and packet.level == 1 and includes(custodians, k, at, packet):
                return acknowledge(custodians, k, packet) if is_led(custodians, k, at, packet) else NOTHING
            return _pull_rest(custodians, k, at, packet)
        count_nothing(custodians, k, at)
    custodians.counters[k, ACCEPTED] += 1
    entry.flag |= packet.flag & (COLLISION | ECN)
    entry.window = min(entry.window, packet.window)
    if is_home(packet.offer):
        entry.offer = packet.offer
    if packet.index != entry.index:
        # Workers have come to use different aggregators for this place in the window: the offer brings them together.
        entry.flag |= COLLISION
    copy_in(custodians, k, at, buffer, row, replaces)
    if count_in(custodians, k, at, packet):
        if not is_home(entry.offer):
            slots = max(1, custodians.state[k].slots)
            entry.offer = _next_index(custodians.state[k].job, entry.index, slots)
        return finish(custodians, k, at, packet, buffer, row)
    if packet.flag & CUSTODY and packet.level == 1:
        return count_leaders(custodians, k, at, packet, now_ns)
    return NOTHING


@compiled_inner
def _next_index(job: int, index: int, slots: int) -> int:
    """Another aggregator for a chunk's place in the window: a good third of the way round, by how much says the job.

    All places that moved as often are still in a row, and rows lie far apart: a job does not meet itself. Another job
    that moves too goes elsewhere.
    """
    return int((index + slots * (55 + mix(job, 1) % 35) // 144) % slots)


@compiled_inner
def _pull_rest(custodians: Custodians, k: int, at: int, packet: Any) -> int:
    """A partial that overlaps cannot be merged: those in it that are not counted are asked, and they alone.

    Where racks or shares are involved, the custodian's timer asks.
    """
    custodian = custodians.state[k]
    rest = packet.mask & ~custodians.masks[k, at, packet.rack]
    with_shares = packet.share != NO_BITS or custodians.chunks[k, at].owners != 0
    if custodian.pulls == 0 or custodian.fan_in_upper > 1 or with_shares or rest == NO_BITS:
        return NOTHING
    if packet.flag & CUSTODY:
        return NOTHING
    custodians.counters[k, PULLS_SENT] += 1
    packet.kind = PULL
    packet.flag = 0
    packet.mask = rest
    packet.count = 0
    packet.custodian = custodian.endpoint
    return PULL_REST


@compiled
def follow(custodians: Custodians, k: int, sender: Any) -> None:
    """A custodian beside a worker is as patient as the worker's round trips tell; call after the worker's results."""
    custodian = custodians.state[k]
    if custodian.patience_rtts > 0.0 and sender.rounds != custodian.rounds and sender.srtt_ns > 0.0:
        custodian.rounds = sender.rounds
        patience_ns = max(np.int64(custodian.patience_rtts * sender.srtt_ns), custodian.patience_min_ns)
        custodian.patience_led_ns = min(patience_ns, custodian.patience_max_ns)
        custodian.patience_ns = max(custodian.patience_led_ns, custodian.patience_helping_ns)


@compiled_apart
def _query(custodians: Custodians, k: int, at: int, packet: Any, now_ns: int) -> int:
    """A worker asks about a chunk that is not done: is its contribution counted? If not, it is to be sent.

    A chunk that nobody has brought yet is opened: the custodian then asks those who may hold its result.
    """
    entry = custodians.chunks[k, at]
    if packet.epoch < custodians.state[k].epoch:
        custodians.counters[k, OUTDATED] += 1
        return NOTHING
    if packet.epoch > custodians.state[k].epoch:
        begin_epoch(custodians, k, packet.epoch)
    absent = entry.state == ABSENT or entry.chunk < packet.chunk
    waits = packet.flag & COLLISION or packet.chunk > custodians.state[k].passed
    if absent and waits and packet.flag & (CUSTODY | FLUSH) == 0:
        # Others wait for it in the switch, or it is new: nobody needs to be asked for it.
        packet.kind = NACK
        packet.flag = 0
        packet.count = 0
        packet.custodian = custodians.state[k].endpoint
        return UNICAST
    if absent:
        open_entry(custodians, k, at, packet, now_ns)
    if includes(custodians, k, at, packet):
        acknowledge(custodians, k, packet)
    else:
        custodians.counters[k, PULLS_SENT] += 1
        packet.kind = PULL
        packet.flag = FLUSH
        packet.count = 0
        packet.custodian = custodians.state[k].endpoint
    return UNICAST


@compiled
def custodian_for(chunk: int, members: int, leaders: Any, epoch: int) -> int:
    """Which of `members` keeps a chunk: the highest hash wins, so that a change moves few chunks.

    `leaders` is the set of ranks to choose from, 0 for all; ranks from 64 on are not in a set.
    """
    best = 0
    best_hash = -1
    for member in range(members):
        if leaders != NO_BITS and (member > 63 or not leaders & bit(member)):
            continue
        value = mix(int(chunk + (np.int64(epoch) << 40)), member)
        if value > best_hash:
            best_hash = value
            best = member
    return best


_ATTEMPTS_FEW = 4


@compiled
def handle_timeout(custodians: Custodians, k: int, now_ns: int) -> None:
    """Begin a round over the open chunks; `poll_transmit` then gives what is overdue."""
    custodian = custodians.state[k]
    custodian.timer_ns = NEVER_NS
    custodian.now_ns = now_ns
    custodian.low = max(custodian.low, custodian.high - custodian.ring)
    while custodian.low < custodian.high:
        entry = custodians.chunks[k, custodian.low % custodian.ring]
        if entry.state == OPEN and entry.chunk == custodian.low:
            break
        custodian.low += 1
    custodian.cursor = custodian.low
    custodian.seen = 0


@compiled
def poll_transmit(custodians: Custodians, k: int, packet: Any) -> bool:
    """The next reminder or pull of the round that `handle_timeout` began; they take turns at a chunk."""
    custodian = custodians.state[k]
    if custodian.reminders == 0 and custodian.pulls == 0:
        return False
    while custodian.cursor < custodian.high:
        at = custodian.cursor % custodian.ring
        entry = custodians.chunks[k, at]
        custodian.cursor += 1
        if entry.state != OPEN or entry.chunk != custodian.cursor - 1:
            continue
        overdue = entry.due_ns <= custodian.now_ns
        if entry.attempts < _ATTEMPTS_FEW:
            # What has been asked for often may be done everywhere, a late copy of it having come; it holds nobody back.
            custodian.seen += 1
        overtaken = entry.chunk + custodian.reorder_chunks <= custodian.passed
        if overdue and custodian.seen > custodian.reach and not overtaken and entry.custody == 0:
            # Somebody is late, and those before it tell of that.
            custodian.timer_ns = min(custodian.timer_ns, custodian.now_ns + custodian.patience_ns)
            continue
        if overdue:
            if entry.attempts >= 2:
                custodian.reach = max(1, custodian.reach // 2)
            hurries = entry.led == LED_IN_PART and custodian.patience_led_ns > 0
            patience_ns = custodian.patience_led_ns if hurries else custodian.patience_ns
            wait_ns = patience_ns << min(entry.attempts // 2, 10)
            entry.due_ns = custodian.now_ns + min(wait_ns, custodian.patience_max_ns)
            entry.attempts += 1
        custodian.timer_ns = min(custodian.timer_ns, entry.due_ns)
        if overdue:
            if custodian.reminders != 0 and (entry.attempts % 2 == 1 or custodian.pulls == 0):
                custodians.counters[k, REMINDERS_SENT] += 1
                _ask(custodians, k, at, packet, REMINDER)
            else:
                custodians.counters[k, PULLS_SENT] += 1
                _ask(custodians, k, at, packet, PULL)
            return True
    return False


@compiled_inner
def _ask(custodians: Custodians, k: int, at: int, packet: Any, kind: int) -> None:
    """A packet without payload about a chunk; a pull names who is missing: workers, or whole racks."""
    custodian = custodians.state[k]
    entry = custodians.chunks[k, at]
    clear(packet, kind)
    packet.priority = entry.priority
    packet.job = custodian.job
    packet.chunk = entry.chunk
    packet.epoch = custodian.epoch
    packet.index = entry.index
    packet.fan_in = custodians.fan_in[k, 0]
    packet.fan_in_upper = custodian.fan_in_upper
    packet.custodian = custodian.endpoint
    if custodian.fan_in_upper > 1:
        packet.level = 2
        packet.mask = ~entry.racks
    else:
        counted = NO_BITS
        for rack in range(custodians.masks.shape[2]):
            counted |= custodians.masks[k, at, rack]
        packet.mask = ~counted
    if entry.owners != 0 and kind == PULL:
        _ask_for_shares(custodians, k, at, packet)


@compiled_apart
def _ask_for_shares(custodians: Custodians, k: int, at: int, packet: Any) -> None:
    """The pull also names micro-batches: what is missing of one owner, of each in its turn."""
    entry = custodians.chunks[k, at]
    turn = entry.attempts // 2 % entry.owners
    for place in range(custodians.owners.shape[2]):
        owner = custodians.owners[k, at, place]
        if owner < 0:
            continue
        if packet.fan_in_upper == 1:
            packet.mask &= ~bit(owner & 63)
        if turn == 0:
            packet.owner = owner
            packet.share = ~custodians.shares[k, at, place]
        turn -= 1
