"""What a switch does with a gradient, under all policies but SwitchML's: add, complete, preempt, flush, fall back.

Sums are merged only when they have nothing in common (`bits.overlap_of`), and leave as a result, or as a rack's sum,
only when they are full. With custody a full sum of the leaders leaves for its custodian, and who has nobody to wait
for passes the aggregators by. Ours: what happens to resends at the upper level.
"""

from typing import Any

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.bits import ALL_SHARES, NO_BITS, OTHER_OWNER, OVERLAPPING, bit, overlap_of, popcount
from paceline.core.switch.memory import (
    ANSWERS,
    EMPTY,
    HELD,
    MARKS,
    POLICY_ATP,
    POLICY_ESA,
    TAKE,
    add,
    decide,
    free,
    has_left,
    holds,
    is_full,
    is_rest,
    mark_of,
    remember_loser,
    store,
    swap,
    take_out,
)
from paceline.core.switch.state import (
    COMPLETIONS,
    CONSUMED,
    DOWN,
    DOWNGRADES,
    DROP_INDEX,
    DROP_LEVEL,
    DROPPED,
    DUPLICATES,
    FALLBACKS,
    FLUSHES,
    PASSES,
    PREEMPTIONS,
    TO_CUSTODIAN,
    TO_WORKER,
    UP,
    Switch,
)
from paceline.core.wire import COLLISION, CUSTODY, FLUSH, GRADIENT, PARTIAL, RESULT


@compiled_inner
def handle_gradient(switch: Switch, s: int, packet: Any, buffer: Any, row: int, now_ns: int) -> int:
    """A gradient of an active job that tells truly what is inside it."""
    config = switch.config[s]
    job = packet.job
    if packet.index < 0 or packet.index >= config.slots:
        switch.counters[s, job, DROP_INDEX] += 1
        return DROPPED
    at = config.first + packet.index
    memory = switch.memory
    slot = memory.slots[at]
    flush = packet.flag & FLUSH
    if packet.level != config.level:
        return _gradient_from_below(switch, s, at, packet, buffer, row)
    if slot.job == job and slot.epoch < packet.epoch:
        # What it holds belongs to an epoch that is over, and comes again in this one.
        free(memory, at)
        switch.jobs[s, job].used -= 1
    if packet.flag & CUSTODY and (packet.mask == NO_BITS or is_full(packet)):
        # A straggler, or the only leader of its rack: nobody to wait for here.
        switch.counters[s, job, PASSES] += 1
        packet.kind = PARTIAL
        return TO_CUSTODIAN
    if holds(slot, packet):
        meets = overlap_of(slot, packet)
        if meets == OVERLAPPING:
            alone = packet.fan_in_upper == 1 and slot.gone == NO_BITS
            if flush == 0 or (config.rules & ANSWERS != 0 and alone):
                # Sent again, while another's is missing that will be sent again too. As far as is known here nothing
                # of the chunk is elsewhere; if it is, its custodian asks for this. In several racks what is missing
                # here may have gone another way, and nobody would ask.
                switch.counters[s, job, DUPLICATES] += 1
                return CONSUMED
        elif meets == OTHER_OWNER:
            packet.flag |= COLLISION
            return _fall_back(switch, s, packet)
        else:
            add(memory, at, packet, buffer, row, now_ns)
            if is_full(slot):
                return _complete(switch, s, at, packet, buffer, row)
            if is_rest(slot):
                return give_out(switch, s, at, packet, buffer, row, FLUSHES)
        if flush != 0:
            return give_out(switch, s, at, packet, buffer, row, FLUSHES)
        return CONSUMED
    if has_left(slot, packet):
        # A late copy, or a worker that lost the result: as a sum of its own it would wait for nothing.
        switch.counters[s, job, DUPLICATES] += 1
        return give_again(switch, at, packet, buffer, row)
    if flush != 0:
        return _fall_back(switch, s, packet)
    loser = config.rules & MARKS != 0 and slot.mark == mark_of(packet)
    if loser and not _may_gather(slot, packet):
        return _refuse(switch, s, at, packet)
    record = switch.jobs[s, job]
    if slot.state == EMPTY:
        if record.used >= record.slots_max:
            return _refuse(switch, s, at, packet)
        store(memory, at, packet, buffer, row, now_ns)
        record.used += 1
        if loser:
            slot.gone = slot.mark_gone
    elif decide(config, slot, packet.priority, now_ns, switch.random, s) == TAKE:
        if is_full(packet):
            # Complete by itself (the only worker of its rack): it needs no aggregator, the holder stays.
            switch.counters[s, job, COMPLETIONS] += 1
            return _send_complete(switch, s, packet, False)
        if record.used >= record.slots_max and slot.job != job:
            return _refuse(switch, s, at, packet)
        return _preempt(switch, s, at, packet, buffer, row, now_ns)
    else:
        if config.policy == POLICY_ESA and slot.priority > 0:
            slot.priority >>= 1
            switch.counters[s, slot.job, DOWNGRADES] += 1
        return _refuse(switch, s, at, packet)
    if is_full(slot):
        return _complete(switch, s, at, packet, buffer, row)
    if is_rest(slot):
        return give_out(switch, s, at, packet, buffer, row, FLUSHES)
    return CONSUMED


@compiled_inner
def _may_gather(slot: Any, packet: Any) -> bool:
    """Of a chunk that has lost here: is there a rest to be summed, of which this is a new part but not the last?"""
    if slot.mark_gone & packet.mask or packet.share or packet.flag & CUSTODY:
        return False
    wanted = packet.fan_in if packet.level == 1 else packet.fan_in_upper
    return bool(popcount(slot.mark_gone | packet.mask) < wanted)


@compiled_inner
def _refuse(switch: Switch, s: int, at: int, packet: Any) -> int:
    """No aggregator for this packet: its chunk is remembered as a loser, and it goes to its custodian."""
    if switch.config[s].rules & MARKS:
        remember_loser(switch.memory.slots[at], packet)
    packet.flag |= COLLISION
    return _fall_back(switch, s, packet)


@compiled_inner
def _complete(switch: Switch, s: int, at: int, packet: Any, buffer: Any, row: int) -> int:
    """All contributions of this level are in: the sum leaves in the packet that brought the last one."""
    config = switch.config[s]
    slot = switch.memory.slots[at]
    switch.counters[s, packet.job, COMPLETIONS] += 1
    flush = packet.flag & FLUSH
    priority, worker = packet.priority, packet.worker
    take_out(switch.memory, at, packet, buffer, row)
    # The last worker waited for nobody: its round trip is the network's alone.
    packet.priority, packet.worker = priority, worker
    packet.flag |= flush
    keeps = config.policy == POLICY_ATP and packet.flag & CUSTODY == 0
    if keeps:
        slot.state = HELD
    else:
        free(switch.memory, at)
        switch.jobs[s, packet.job].used -= 1
    verdict = _send_complete(switch, s, packet, keeps)
    if config.rules & ANSWERS and verdict == DOWN and packet.fan_in_upper == 1:
        slot.left = packet.job + 1
    return verdict


@compiled_inner
def _send_complete(switch: Switch, s: int, packet: Any, keeps: bool) -> int:
    """A sum over all of this level leaves: up, to its custodian, or as the result to everyone."""
    config = switch.config[s]
    if packet.flag & CUSTODY or not _is_whole(packet):
        packet.kind = PARTIAL
        return TO_CUSTODIAN
    if config.level == 1 and packet.fan_in_upper > 1:
        _make_rack_sum(packet)
        return UP
    if keeps or config.relay != 0:
        packet.kind = PARTIAL
        return TO_CUSTODIAN
    packet.kind = RESULT
    packet.level = 1
    return DOWN


@compiled_inner
def _is_whole(packet: Any) -> bool:
    """Is nothing but whole workers of the packet's rack inside, so that a full sum is the sum over the rack?"""
    return bool(packet.share == NO_BITS or (packet.share == ALL_SHARES and packet.owner >> 6 == packet.rack))


@compiled_inner
def _make_rack_sum(packet: Any) -> None:
    packet.level = 2
    packet.mask = bit(packet.rack)
    packet.share = NO_BITS
    packet.owner = 0
    packet.kind = GRADIENT


@compiled_apart
def _gradient_from_below(switch: Switch, s: int, at: int, packet: Any, buffer: Any, row: int) -> int:
    """A single worker's resend at the upper switch: if its rack is already inside, the sum goes out."""
    slot = switch.memory.slots[at]
    if packet.level > switch.config[s].level:
        switch.counters[s, packet.job, DROP_LEVEL] += 1
        return DROPPED
    if holds(slot, packet) and packet.flag & FLUSH and slot.mask & bit(packet.rack):
        return give_out(switch, s, at, packet, buffer, row, FLUSHES)
    return _fall_back(switch, s, packet)


@compiled_apart
def give_out(switch: Switch, s: int, at: int, packet: Any, buffer: Any, row: int, counter: int) -> int:
    """What the aggregator holds leaves for its custodian, and the aggregator is free."""
    slot = switch.memory.slots[at]
    switch.jobs[s, slot.job].used -= 1
    switch.counters[s, slot.job, counter] += 1
    take_out(switch.memory, at, packet, buffer, row)
    if switch.config[s].rules & MARKS and not is_rest(slot):
        _remember_holder(slot, packet)
    free(switch.memory, at)
    packet.kind = PARTIAL
    if packet.flag & CUSTODY or switch.config[s].level > 1 or packet.fan_in_upper == 1:
        return TO_CUSTODIAN
    if is_full(packet) and _is_whole(packet):
        # A whole rack: let the upper switch see that its sum must come out as well.
        _make_rack_sum(packet)
        packet.flag |= FLUSH
        return UP
    return TO_CUSTODIAN


@compiled_apart
def give_again(switch: Switch, at: int, packet: Any, buffer: Any, row: int) -> int:
    """A worker has lost a result, and its sum is still here: it gets it again, alone."""
    slot = switch.memory.slots[at]
    packet.kind = RESULT
    packet.flag = slot.flag
    packet.count = slot.count
    packet.window = slot.window
    packet.share = NO_BITS
    packet.owner = 0
    width = min(buffer.shape[1], switch.memory.values.shape[1], packet.count)
    for k in range(width):
        buffer[row, k] = switch.memory.values[at, k]
    return TO_WORKER


@compiled_inner
def _fall_back(switch: Switch, s: int, packet: Any) -> int:
    """No place for this packet here: it goes to its own custodian."""
    switch.counters[s, packet.job, FALLBACKS] += 1
    if switch.config[s].level == 1 and packet.fan_in_upper > 1 and packet.flag & (FLUSH | CUSTODY) == FLUSH:
        return UP
    packet.kind = PARTIAL
    return TO_CUSTODIAN


@compiled_inner
def _remember_holder(slot: Any, packet: Any) -> None:
    """The holder's sum leaves in the packet before it is full; with what left before it, it is the loser here."""
    gone = slot.gone
    remember_loser(slot, packet)
    slot.mark_gone |= gone


@compiled_apart
def _preempt(switch: Switch, s: int, at: int, packet: Any, buffer: Any, row: int, now_ns: int) -> int:
    """The newcomer takes the aggregator; the old partial leaves for its own job's custodian."""
    slot = switch.memory.slots[at]
    switch.counters[s, packet.job, PREEMPTIONS] += 1
    switch.jobs[s, slot.job].used -= 1
    switch.jobs[s, packet.job].used += 1
    if switch.config[s].rules & MARKS == 0:
        swap(switch.memory, at, packet, buffer, row, now_ns)
    else:
        gone = slot.mark_gone if slot.mark == mark_of(packet) else NO_BITS
        swap(switch.memory, at, packet, buffer, row, now_ns)
        _remember_holder(slot, packet)
        slot.gone = gone
    packet.kind = PARTIAL
    packet.flag |= COLLISION
    return TO_CUSTODIAN
