"""The switch program: a packet in, at most one packet out.

`handle_packet` looks at one packet, changes the aggregators, rewrites the packet in place where something
leaves the switch, and returns a verdict that tells the driver where the packet goes now:

    CONSUMED       nothing leaves
    TO_CUSTODIAN   to endpoint `packet.custodian` of the job
    UP             to the upper switch
    DOWN           to every member of the job below this switch
    TO_WORKER      to endpoint `packet.worker` of the job
    DOWN_ONE       to the rack switch `packet.rack`
    DROPPED        refused, and counted under its reason

It holds to two rules: sums are merged only when their masks are disjoint, and a result leaves only when the
mask is full. Where ATP and ESA part: ATP keeps a complete aggregator until the parameter packet has come
back; ESA multicasts at once and frees it [PAPERS 1]. Two levels: a rack's complete sum goes up with the
rack's bit as its mask. Ours: what happens to resends at the upper level, and the stale rule of `memory.py`.
SwitchML's own program is in `pool.py`, the state that both work on in `switch_state.py`.
"""

from typing import Any

from paceline.dataplane.bits import NO_BITS, bit
from paceline.dataplane.compiled import compiled, compiled_apart, compiled_inner
from paceline.dataplane.memory import (
    EMPTY,
    FILLING,
    HELD,
    POLICY_ATP,
    POLICY_ESA,
    POLICY_NONE,
    POLICY_SWITCHML,
    TAKE,
    add,
    decide,
    free,
    holds,
    is_full,
    store,
    swap,
    take_out,
)
from paceline.dataplane.pool import pool_gradient, pool_result
from paceline.dataplane.shares import ALL_SHARES, OTHER_OWNER, OVERLAPPING, is_sound, meeting
from paceline.dataplane.switch_state import (
    COMPLETIONS,
    CONFIG,
    CONSUMED,
    COUNTER_NAMES,
    DOWN,
    DOWN_ONE,
    DOWNGRADES,
    DROP_DEAD,
    DROP_EPOCH,
    DROP_INDEX,
    DROP_JOB,
    DROP_LEVEL,
    DROP_MASK,
    DROP_STALE,
    DROPPED,
    DUPLICATES,
    FALLBACKS,
    FLUSHES,
    JOB,
    PASSES,
    PREEMPTIONS,
    REMINDERS,
    TO_CUSTODIAN,
    TO_WORKER,
    UP,
    VERDICT_NAMES,
    Switch,
    admit_job,
    new_switches,
    release_job,
)
from paceline.dataplane.wire import (
    ACK,
    COLLISION,
    CUSTODY,
    FLUSH,
    GRADIENT,
    PARTIAL,
    PULL,
    REMINDER,
    RESULT,
    RESULT_FLAG,
)

__all__ = [
    "COMPLETIONS",
    "CONFIG",
    "CONSUMED",
    "COUNTER_NAMES",
    "DOWN",
    "DOWNGRADES",
    "DOWN_ONE",
    "DROPPED",
    "DROP_DEAD",
    "DROP_EPOCH",
    "DROP_INDEX",
    "DROP_JOB",
    "DROP_LEVEL",
    "DROP_MASK",
    "DROP_STALE",
    "DUPLICATES",
    "FALLBACKS",
    "FLUSHES",
    "JOB",
    "PASSES",
    "PREEMPTIONS",
    "REMINDERS",
    "TO_CUSTODIAN",
    "TO_WORKER",
    "UP",
    "VERDICT_NAMES",
    "Switch",
    "admit_job",
    "handle_packet",
    "new_switches",
    "release_job",
]


@compiled
def handle_packet(switch: Switch, s: int, packet: Any, buffer: Any, row: int, now_ns: int) -> int:
    """Run the switch program of switch `s` on one packet; its payload is `buffer[row]`."""
    job = packet.job
    if job < 0 or job >= switch.jobs.shape[1]:
        switch.counters[s, switch.jobs.shape[1], DROP_JOB] += 1
        return DROPPED
    record = switch.jobs[s, job]
    if record.active == 0:
        switch.counters[s, job, DROP_JOB] += 1
        return DROPPED
    config = switch.config[s]
    kind = packet.kind
    if kind == GRADIENT:
        if config.dead != 0:
            return _without_memory(switch, s, packet)
        if packet.epoch < record.epoch:
            switch.counters[s, job, DROP_EPOCH] += 1
            return DROPPED
        if (packet.mask == NO_BITS or packet.share != NO_BITS) and not _is_fit(config, packet):
            # Its sum would be changed by something that it does not tell.
            switch.counters[s, job, DROP_MASK] += 1
            return DROPPED
        record.epoch = max(record.epoch, packet.epoch)
        if packet.priority > record.priority_max:
            packet.priority = record.priority_max
        if config.policy == POLICY_NONE:
            packet.kind = PARTIAL
            return TO_CUSTODIAN
        if config.policy == POLICY_SWITCHML:
            return pool_gradient(switch, s, packet, buffer, row, now_ns)
        return _gradient(switch, s, packet, buffer, row, now_ns)
    if RESULT <= kind <= PULL:
        # From a custodian below a rack switch they climb to the job's top switch first, then spread.
        if packet.level > config.level:
            return UP
        if kind == RESULT:
            return _result(switch, s, packet, buffer, row)
        if kind == REMINDER:
            return _reminder(switch, s, packet, buffer, row)
        packet.level = 1
        return DOWN
    if kind == ACK and packet.flag & CUSTODY:
        # To the workers in its mask, who are all in one rack.
        if packet.level > config.level:
            return UP
        if config.level > 1:
            packet.level = 1
            return DOWN_ONE
        return DOWN
    return TO_CUSTODIAN


@compiled_inner
def _is_fit(config: Any, packet: Any) -> bool:
    """Does a gradient without a bit, or with a share, tell what is inside it? A pool knows no shares."""
    return bool(packet.share and config.policy != POLICY_SWITCHML and is_sound(packet))


@compiled_inner
def _without_memory(switch: Switch, s: int, packet: Any) -> int:
    # The aggregation program is gone, forwarding is not: with a fallback host the job goes on.
    if switch.config[s].policy == POLICY_SWITCHML:
        switch.counters[s, packet.job, DROP_DEAD] += 1
        return DROPPED
    switch.counters[s, packet.job, FALLBACKS] += 1
    packet.kind = PARTIAL
    return TO_CUSTODIAN


@compiled_inner
def _gradient(switch: Switch, s: int, packet: Any, buffer: Any, row: int, now_ns: int) -> int:
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
        meets = meeting(slot, packet)
        if meets == OVERLAPPING:
            if flush == 0:
                switch.counters[s, job, DUPLICATES] += 1
                return CONSUMED
        elif meets == OTHER_OWNER:
            packet.flag |= COLLISION
            return _fall_back(switch, s, packet)
        else:
            add(memory, at, packet, buffer, row, now_ns)
            if is_full(slot):
                return _complete(switch, s, at, packet, buffer, row)
        if flush != 0:
            return _give_out(switch, s, at, packet, buffer, row, FLUSHES)
        return CONSUMED
    if flush != 0:
        return _fall_back(switch, s, packet)
    record = switch.jobs[s, job]
    if slot.state == EMPTY:
        if record.used >= record.slots_max:
            packet.flag |= COLLISION
            return _fall_back(switch, s, packet)
        store(memory, at, packet, buffer, row, now_ns)
        record.used += 1
    elif decide(config.policy, slot, packet.priority, now_ns, config.stale_ns, switch.random, s) == TAKE:
        if is_full(packet):
            # Complete by itself (the only worker of its rack): it needs no aggregator, the holder stays.
            switch.counters[s, job, COMPLETIONS] += 1
            return _send_complete(switch, s, packet, False)
        if record.used >= record.slots_max and slot.job != job:
            packet.flag |= COLLISION
            return _fall_back(switch, s, packet)
        return _preempt(switch, s, at, packet, buffer, row, now_ns)
    else:
        if config.policy == POLICY_ESA and slot.priority > 0:
            slot.priority >>= 1
            switch.counters[s, slot.job, DOWNGRADES] += 1
        packet.flag |= COLLISION
        return _fall_back(switch, s, packet)
    if is_full(slot):
        return _complete(switch, s, at, packet, buffer, row)
    return CONSUMED


@compiled_inner
def _complete(switch: Switch, s: int, at: int, packet: Any, buffer: Any, row: int) -> int:
    """All contributions of this level are in: the sum leaves in the packet that brought the last one."""
    config = switch.config[s]
    slot = switch.memory.slots[at]
    switch.counters[s, packet.job, COMPLETIONS] += 1
    flush = packet.flag & FLUSH
    priority = packet.priority
    take_out(switch.memory, at, packet, buffer, row)
    packet.priority = priority
    packet.flag |= flush
    keeps = config.policy == POLICY_ATP and packet.flag & CUSTODY == 0
    if keeps:
        slot.state = HELD
    else:
        free(switch.memory, at)
        switch.jobs[s, packet.job].used -= 1
    return _send_complete(switch, s, packet, keeps)


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
    packet.flag |= RESULT_FLAG
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
        return _give_out(switch, s, at, packet, buffer, row, FLUSHES)
    return _fall_back(switch, s, packet)


@compiled_apart
def _give_out(switch: Switch, s: int, at: int, packet: Any, buffer: Any, row: int, counter: int) -> int:
    """What the aggregator holds leaves for its custodian, and the aggregator is free."""
    slot = switch.memory.slots[at]
    switch.jobs[s, slot.job].used -= 1
    switch.counters[s, slot.job, counter] += 1
    take_out(switch.memory, at, packet, buffer, row)
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


@compiled_inner
def _fall_back(switch: Switch, s: int, packet: Any) -> int:
    """No place for this packet here: it goes to its own custodian."""
    switch.counters[s, packet.job, FALLBACKS] += 1
    if switch.config[s].level == 1 and packet.fan_in_upper > 1 and packet.flag & (FLUSH | CUSTODY) == FLUSH:
        return UP
    packet.kind = PARTIAL
    return TO_CUSTODIAN


@compiled_apart
def _preempt(switch: Switch, s: int, at: int, packet: Any, buffer: Any, row: int, now_ns: int) -> int:
    """The newcomer takes the aggregator; the old partial leaves for its own job's custodian."""
    slot = switch.memory.slots[at]
    switch.counters[s, packet.job, PREEMPTIONS] += 1
    switch.jobs[s, slot.job].used -= 1
    switch.jobs[s, packet.job].used += 1
    swap(switch.memory, at, packet, buffer, row, now_ns)
    packet.kind = PARTIAL
    packet.flag |= COLLISION
    return TO_CUSTODIAN


@compiled_inner
def _result(switch: Switch, s: int, packet: Any, buffer: Any, row: int) -> int:
    """A result on its way to the workers: whatever is still held for its chunk is free now."""
    config = switch.config[s]
    packet.level = 1
    if config.policy == POLICY_NONE or config.dead != 0:
        return DOWN
    if config.policy == POLICY_SWITCHML:
        return pool_result(switch, s, packet, buffer, row)
    if packet.index >= 0 and packet.index < config.slots:
        at = config.first + packet.index
        slot = switch.memory.slots[at]
        if slot.state != EMPTY and holds(slot, packet):
            switch.jobs[s, packet.job].used -= 1
            free(switch.memory, at)
    return DOWN


@compiled_apart
def _reminder(switch: Switch, s: int, packet: Any, buffer: Any, row: int) -> int:
    """A custodian asks for the rest of a chunk; above the racks it is passed on to them."""
    config = switch.config[s]
    if config.dead == 0 and packet.index >= 0 and packet.index < config.slots:
        at = config.first + packet.index
        slot = switch.memory.slots[at]
        if slot.state == FILLING and holds(slot, packet):
            return _give_out(switch, s, at, packet, buffer, row, REMINDERS)
    if config.level > 1:
        packet.level = 1
        return DOWN
    return CONSUMED
