"""Host-side aggregation: the one state machine for ATP's parameter server and ESA's fallback host.

A custodian holds the partial sum of a chunk that the switch could not finish. The order of calls:

    handle_packet  a packet for this custodian; rewritten in place if something is to be sent, with a verdict
    keep_result    a result made by the switch, for later
    handle_timeout call it at `timer_ns` or later, then
    poll_transmit  fills in the next reminder or pull; repeat while it returns True

Rules: a partial is accepted only if it is disjoint from what is counted, else it is dropped whole, unless it
holds all that is counted and more: then it takes its place [ATP: a full bitmap overwrites]; a result is made
only when every contribution is in; a chunk that is done answers whatever comes for it with its result
again. A chunk that has waited too long sends a reminder to the switch, the next time a pull to the workers whose
contribution is missing, and so on in turn, with back-off [reminder: ours, after ESA; pull: ours].

Chunks live in a ring of twice the senders' span. That is enough: a worker that still lacks the result of
chunk c has sent nothing from c + span on, so no chunk from c + span on is complete anywhere, so nobody has
sent anything from c + 2 span on.

Epochs: partial sums count within one epoch. A custodian that lost its state begins a new one; so does every
worker, which sends again what has no result yet. Results belong to no epoch: whoever holds one may give it.

Two levels: a packet of level 1 brings workers of one rack, a packet of level 2 whole racks. `racks` has the
racks that are complete, `masks[..., rack]` the workers of the others.
"""

from typing import Any

import numpy as np

from paceline.dataplane.bits import NO_BITS, add_modulo, bit, mix, popcount
from paceline.dataplane.compiled import compiled, compiled_inner
from paceline.dataplane.custodian_state import (
    ABSENT,
    ACCEPTED,
    ACKNOWLEDGE,
    CHUNK_STATES,
    COUNTER_NAMES,
    CUSTODIAN,
    CUSTODY,
    FINISHED,
    FINISHES,
    KEPT,
    MULTICAST,
    NOTHING,
    OPEN,
    OUTDATED,
    OVERLAPS,
    PULLS_SENT,
    REFUSED,
    REMINDERS_SENT,
    REPLAYS,
    UNICAST,
    VERDICT_NAMES,
    Custodians,
    new_custodians,
)
from paceline.dataplane.sender_state import NEVER_NS
from paceline.dataplane.wire import (
    ANSWER,
    COLLISION,
    ECN,
    MAGIC,
    PARTIAL,
    PULL,
    QUERY,
    REMINDER,
    RESULT,
    RESULT_FLAG,
    VERSION,
)

__all__ = [
    "ABSENT",
    "ACCEPTED",
    "ACKNOWLEDGE",
    "CHUNK_STATES",
    "COUNTER_NAMES",
    "CUSTODIAN",
    "CUSTODY",
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
    "REFUSED",
    "REMINDERS_SENT",
    "REPLAYS",
    "UNICAST",
    "VERDICT_NAMES",
    "Custodians",
    "begin_epoch",
    "custodian_for",
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
        or (kind == PARTIAL and packet.mask == NO_BITS)
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
    if entry.state == ABSENT or entry.chunk < packet.chunk:
        if kind == QUERY:
            return NOTHING
        _open(custodians, k, at, packet, now_ns)
    if entry.state == FINISHED:
        if kind == ANSWER:
            return NOTHING
        custodians.counters[k, REPLAYS] += 1
        alone = kind == QUERY or (packet.level == 1 and popcount(packet.mask) == 1)
        _make_result(custodians, k, at, packet, buffer, row)
        return UNICAST if alone else MULTICAST
    if kind == QUERY:
        return NOTHING
    if kind == ANSWER:
        _copy_in(custodians, k, at, buffer, row, True)
        entry.flag = packet.flag & COLLISION
        entry.offer = packet.offer
        return _finish(custodians, k, at, packet, buffer, row)
    return _merge(custodians, k, at, packet, buffer, row)


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
        _open(custodians, k, at, packet, now_ns)
    if entry.state == OPEN:
        _copy_in(custodians, k, at, buffer, row, True)
        entry.flag = packet.flag & COLLISION
        entry.offer = packet.offer
        entry.state = FINISHED
        custodians.counters[k, KEPT] += 1


@compiled_inner
def _open(custodians: Custodians, k: int, at: int, packet: Any, now_ns: int) -> None:
    custodian = custodians.state[k]
    entry = custodians.chunks[k, at]
    entry.chunk = packet.chunk
    entry.state = OPEN
    entry.racks = NO_BITS
    entry.flag = 0
    entry.attempts = 0
    entry.priority = packet.priority
    entry.index = packet.index
    entry.exponent = packet.exponent
    entry.due_ns = now_ns + custodian.patience_ns
    for rack in range(custodians.masks.shape[2]):
        custodians.masks[k, at, rack] = NO_BITS
    for lane in range(custodians.values.shape[2]):
        custodians.values[k, at, lane] = 0
    if custodian.high == 0:
        custodian.low = packet.chunk
    custodian.low = min(custodian.low, packet.chunk)
    custodian.high = max(custodian.high, packet.chunk + 1)
    if custodian.reminders != 0 or custodian.pulls != 0:
        custodian.timer_ns = min(custodian.timer_ns, entry.due_ns)


@compiled_inner
def _copy_in(custodians: Custodians, k: int, at: int, buffer: Any, row: int, overwrite: bool) -> None:
    for lane in range(min(buffer.shape[1], custodians.values.shape[2])):
        if overwrite:
            custodians.values[k, at, lane] = buffer[row, lane]
        else:
            custodians.values[k, at, lane] = add_modulo(custodians.values[k, at, lane], buffer[row, lane])


@compiled_inner
def _is_disjoint(custodians: Custodians, k: int, at: int, packet: Any) -> bool:
    entry = custodians.chunks[k, at]
    if packet.level == 1:
        if entry.racks & bit(packet.rack):
            return False
        return not custodians.masks[k, at, packet.rack] & packet.mask
    if entry.racks & packet.mask:
        return False
    for rack in range(custodians.masks.shape[2]):
        if packet.mask & bit(rack) and custodians.masks[k, at, rack] != NO_BITS:
            return False
    return True


@compiled_inner
def _covers(custodians: Custodians, k: int, at: int, packet: Any) -> bool:
    """Does a packet hold all that is counted, and more? Then it can stand in its place."""
    entry = custodians.chunks[k, at]
    if packet.level == 1:
        counted = custodians.masks[k, at, packet.rack]
        if entry.racks != NO_BITS or counted == packet.mask or counted & ~packet.mask:
            return False
    elif entry.racks & ~packet.mask:
        return False
    news = packet.level == 1 or entry.racks != packet.mask
    for rack in range(custodians.masks.shape[2]):
        if custodians.masks[k, at, rack] == NO_BITS or entry.racks & bit(rack):
            continue
        if packet.level == 1:
            if rack != packet.rack:
                return False
        elif not packet.mask & bit(rack):
            return False
    return bool(news)


@compiled_inner
def _merge(custodians: Custodians, k: int, at: int, packet: Any, buffer: Any, row: int) -> int:
    """The disjoint-accept rule; a full mask makes the result."""
    entry = custodians.chunks[k, at]
    replaces = not _is_disjoint(custodians, k, at, packet)
    if replaces:
        if not _covers(custodians, k, at, packet):
            custodians.counters[k, OVERLAPS] += 1
            return NOTHING
        entry.racks = NO_BITS
        for rack in range(custodians.masks.shape[2]):
            custodians.masks[k, at, rack] = NO_BITS
    custodians.counters[k, ACCEPTED] += 1
    entry.flag |= packet.flag & (COLLISION | ECN)
    if packet.index != entry.index:
        # Workers have come to use different aggregators for this place in the window: the offer brings them together.
        entry.flag |= COLLISION
    _copy_in(custodians, k, at, buffer, row, replaces)
    if packet.level == 1:
        custodians.masks[k, at, packet.rack] |= packet.mask
        if popcount(custodians.masks[k, at, packet.rack]) >= custodians.fan_in[k, packet.rack]:
            entry.racks |= bit(packet.rack)
    else:
        entry.racks |= packet.mask
    if popcount(entry.racks) < custodians.state[k].fan_in_upper:
        return NOTHING
    entry.offer = mix(custodians.state[k].job + 1, entry.chunk + 0x10001) % max(1, custodians.state[k].slots)
    return _finish(custodians, k, at, packet, buffer, row)


@compiled_inner
def _finish(custodians: Custodians, k: int, at: int, packet: Any, buffer: Any, row: int) -> int:
    custodians.counters[k, FINISHES] += 1
    custodians.chunks[k, at].state = FINISHED
    _make_result(custodians, k, at, packet, buffer, row)
    return MULTICAST


@compiled_inner
def _make_result(custodians: Custodians, k: int, at: int, packet: Any, buffer: Any, row: int) -> None:
    """The packet becomes the chunk's result; `worker` stays, so that it can be sent to the asker alone."""
    entry = custodians.chunks[k, at]
    packet.kind = RESULT
    packet.flag = entry.flag | RESULT_FLAG
    packet.count = custodians.state[k].count
    packet.exponent = entry.exponent
    packet.offer = entry.offer
    packet.priority = entry.priority
    packet.index = entry.index
    packet.fan_in_upper = custodians.state[k].fan_in_upper
    packet.level = 2 if custodians.state[k].fan_in_upper > 1 else 1
    for lane in range(min(buffer.shape[1], custodians.values.shape[2])):
        buffer[row, lane] = custodians.values[k, at, lane]


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
        if overdue:
            wait_ns = custodian.patience_ns << min(entry.attempts // 2, 10)
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
    packet.magic = MAGIC
    packet.version = VERSION
    packet.kind = kind
    packet.flag = 0
    packet.priority = entry.priority
    packet.job = custodian.job
    packet.chunk = entry.chunk
    packet.epoch = custodian.epoch
    packet.count = 0
    packet.index = entry.index
    packet.fan_in = custodians.fan_in[k, 0]
    packet.fan_in_upper = custodian.fan_in_upper
    packet.rack = 0
    packet.worker = 0
    packet.custodian = custodian.endpoint
    packet.share = NO_BITS
    packet.owner = 0
    packet.exponent = 0
    packet.offer = 0
    packet.tag = NO_BITS
    if custodian.fan_in_upper > 1:
        packet.level = 2
        packet.mask = ~entry.racks
    else:
        packet.level = 1
        counted = NO_BITS
        for rack in range(custodians.masks.shape[2]):
            counted |= custodians.masks[k, at, rack]
        packet.mask = ~counted


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
