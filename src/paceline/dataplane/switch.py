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
SwitchML's slots remember their chunk instead of clearing the other set's bits, so that a packet delayed for
longer than a round cannot be counted into a finished sum.
"""

from typing import Any, NamedTuple

import numpy as np

from paceline.dataplane.bits import NO_BITS, bit, popcount, seed_word
from paceline.dataplane.compiled import compiled, compiled_inner
from paceline.dataplane.memory import (
    ANSWERED,
    EMPTY,
    FILLING,
    HELD,
    POLICY_ATP,
    POLICY_ESA,
    POLICY_NONE,
    POLICY_SWITCHML,
    TAKE,
    Memory,
    add,
    decide,
    free,
    holds,
    new_memory,
    store,
    swap,
    take_out,
)
from paceline.dataplane.wire import (
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

CONSUMED = 0
TO_CUSTODIAN = 1
UP = 2
DOWN = 3
TO_WORKER = 4
DOWN_ONE = 5
DROPPED = 6
VERDICT_NAMES = ("consumed", "to custodian", "up", "down", "to worker", "down one", "dropped")

COMPLETIONS = 0
PREEMPTIONS = 1
FALLBACKS = 2
REMINDERS = 3
DOWNGRADES = 4
DUPLICATES = 5
FLUSHES = 6
DROP_JOB = 7
DROP_EPOCH = 8
DROP_INDEX = 9
DROP_STALE = 10
DROP_DEAD = 11
DROP_LEVEL = 12
DROP_MASK = 13
COUNTER_NAMES = (
    "completions",
    "preemptions",
    "fallbacks",
    "reminders",
    "downgrades",
    "duplicates",
    "flushes",
    "drop_unknown_job",
    "drop_old_epoch",
    "drop_bad_index",
    "drop_stale_chunk",
    "drop_dead_switch",
    "drop_bad_level",
    "drop_empty_mask",
)

CONFIG = np.dtype(
    [
        ("first", "i8"),
        ("slots", "i8"),
        ("stale_ns", "i8"),
        ("policy", "i4"),
        ("level", "i4"),
        ("relay", "i4"),
        ("dead", "i4"),
    ],
    align=True,
)
"""A switch: its range of aggregators, its policy, its level; `relay` sends ESA's results by the custodian."""

JOB = np.dtype(
    [
        ("active", "i4"),
        ("epoch", "i4"),
        ("priority_max", "i4"),
        ("slots_max", "i4"),
        ("used", "i4"),
        ("pool_base", "i4"),
        ("pool_size", "i4"),
    ],
    align=True,
)
"""A job as a switch knows it: what it may take, what it holds, and its static pool under SwitchML."""


class Switch(NamedTuple):
    """All switches of a driver: `config[s]`, `jobs[s, job]`, and the memory that they share out."""

    config: Any
    jobs: Any
    memory: Memory
    counters: Any
    random: Any


def new_switches(
    levels: list[int],
    slots: int,
    jobs: int,
    width: int,
    policy: int,
    stale_ns: int,
    seed: int,
    relay: bool = False,
) -> Switch:
    """Switches with `slots` aggregators each, one for each entry of `levels`; no job is admitted yet."""
    count = len(levels)
    config = np.zeros(count, dtype=CONFIG).view(np.recarray)
    for s, level in enumerate(levels):
        config[s].first = s * slots
        config[s].slots = slots
        config[s].stale_ns = stale_ns
        config[s].policy = policy
        config[s].level = level
        config[s].relay = relay
    return Switch(
        config,
        np.zeros((count, max(jobs, 1)), dtype=JOB).view(np.recarray),
        new_memory(count * slots, width),
        np.zeros((count, max(jobs, 1) + 1, len(COUNTER_NAMES)), dtype=np.int64),
        np.array([seed_word(seed, 1000 + s) for s in range(count)], dtype=np.uint64),
    )


@compiled
def admit_job(switch: Switch, s: int, job: int, priority_max: int, pool_base: int, pool_size: int) -> None:
    """From now on packets of `job` are served; `pool_*` matter under SwitchML only (in slots of two sets)."""
    record = switch.jobs[s, job]
    record.active = 1
    record.epoch = 0
    record.priority_max = priority_max
    record.slots_max = switch.config[s].slots
    record.used = 0
    record.pool_base = pool_base
    record.pool_size = pool_size


@compiled
def release_job(switch: Switch, s: int, job: int) -> int:
    """The job leaves: its aggregators are freed, later packets of it are dropped. Gives how many it held."""
    config = switch.config[s]
    freed = 0
    for at in range(config.first, config.first + config.slots):
        if switch.memory.slots[at].job == job:
            free(switch.memory, at)
            freed += 1
    switch.jobs[s, job].active = 0
    switch.jobs[s, job].used = 0
    return freed


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
        if packet.mask == NO_BITS:
            # Its sum would be changed by something that its mask does not tell.
            switch.counters[s, job, DROP_MASK] += 1
            return DROPPED
        record.epoch = max(record.epoch, packet.epoch)
        if packet.priority > record.priority_max:
            packet.priority = record.priority_max
        if config.policy == POLICY_NONE:
            packet.kind = PARTIAL
            return TO_CUSTODIAN
        if config.policy == POLICY_SWITCHML:
            return _pool_gradient(switch, s, packet, buffer, row, now_ns)
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
    return TO_CUSTODIAN


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
    if holds(slot, packet):
        if slot.mask & packet.mask:
            if flush == 0:
                switch.counters[s, job, DUPLICATES] += 1
                return CONSUMED
        else:
            add(memory, at, packet, buffer, row, now_ns)
            if _is_full(slot):
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
        if popcount(packet.mask) >= (packet.fan_in if packet.level == 1 else packet.fan_in_upper):
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
    if _is_full(slot):
        return _complete(switch, s, at, packet, buffer, row)
    return CONSUMED


@compiled_inner
def _is_full(slot: Any) -> bool:
    wanted = slot.fan_in if slot.level == 1 else slot.fan_in_upper
    return bool(popcount(slot.mask) >= wanted)


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
    if config.level == 1 and packet.fan_in_upper > 1:
        packet.level = 2
        packet.mask = bit(packet.rack)
        packet.kind = GRADIENT
        return UP
    if keeps or packet.flag & CUSTODY or config.relay != 0:
        packet.kind = PARTIAL
        return TO_CUSTODIAN
    packet.kind = RESULT
    packet.flag |= RESULT_FLAG
    packet.level = 1
    return DOWN


@compiled_inner
def _gradient_from_below(switch: Switch, s: int, at: int, packet: Any, buffer: Any, row: int) -> int:
    """A single worker's resend at the upper switch: if its rack is already inside, the sum goes out."""
    slot = switch.memory.slots[at]
    if packet.level > switch.config[s].level:
        switch.counters[s, packet.job, DROP_LEVEL] += 1
        return DROPPED
    if holds(slot, packet) and packet.flag & FLUSH and slot.mask & bit(packet.rack):
        return _give_out(switch, s, at, packet, buffer, row, FLUSHES)
    return _fall_back(switch, s, packet)


@compiled_inner
def _give_out(switch: Switch, s: int, at: int, packet: Any, buffer: Any, row: int, counter: int) -> int:
    """What the aggregator holds leaves for its custodian, and the aggregator is free."""
    slot = switch.memory.slots[at]
    switch.jobs[s, slot.job].used -= 1
    switch.counters[s, slot.job, counter] += 1
    take_out(switch.memory, at, packet, buffer, row)
    free(switch.memory, at)
    packet.kind = PARTIAL
    if switch.config[s].level == 1 and packet.fan_in_upper > 1 and popcount(packet.mask) >= packet.fan_in:
        # A whole rack: let the upper switch see that its sum must come out as well.
        packet.level = 2
        packet.mask = bit(packet.rack)
        packet.kind = GRADIENT
        packet.flag |= FLUSH
        return UP
    return TO_CUSTODIAN


@compiled_inner
def _fall_back(switch: Switch, s: int, packet: Any) -> int:
    """No place for this packet here: it goes to its own custodian."""
    switch.counters[s, packet.job, FALLBACKS] += 1
    if switch.config[s].level == 1 and packet.fan_in_upper > 1 and packet.flag & FLUSH:
        return UP
    packet.kind = PARTIAL
    return TO_CUSTODIAN


@compiled_inner
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
        return _pool_result(switch, s, packet, buffer, row)
    if packet.index >= 0 and packet.index < config.slots:
        at = config.first + packet.index
        slot = switch.memory.slots[at]
        if slot.state != EMPTY and holds(slot, packet):
            switch.jobs[s, packet.job].used -= 1
            free(switch.memory, at)
    return DOWN


@compiled_inner
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


@compiled_inner
def _pool_row(switch: Switch, s: int, packet: Any) -> int:
    """The aggregator of a chunk in its job's static pool; -1 if the index is outside of it."""
    record = switch.jobs[s, packet.job]
    if record.pool_size <= 0 or packet.index < 0 or packet.index >= record.pool_size:
        return -1
    shadow = (packet.chunk // record.pool_size) & 1
    place = 2 * (record.pool_base + packet.index) + shadow
    if place >= switch.config[s].slots:
        return -1
    return int(switch.config[s].first + place)


@compiled_inner
def _pool_gradient(switch: Switch, s: int, packet: Any, buffer: Any, row: int, now_ns: int) -> int:
    """SwitchML: the slot of the pool, the set of the round; a finished set answers late resends."""
    job = packet.job
    at = _pool_row(switch, s, packet)
    if at < 0:
        switch.counters[s, job, DROP_INDEX] += 1
        return DROPPED
    memory = switch.memory
    slot = memory.slots[at]
    if slot.job == job and slot.chunk > packet.chunk:
        switch.counters[s, job, DROP_STALE] += 1
        return DROPPED
    if packet.level != switch.config[s].level:
        switch.counters[s, job, DROP_LEVEL] += 1
        return DROPPED
    if slot.job != job or slot.chunk < packet.chunk:
        if slot.job < 0:
            switch.jobs[s, job].used += 1
        store(memory, at, packet, buffer, row, now_ns)
    elif slot.state == ANSWERED:
        worker, rack = packet.worker, packet.rack
        take_out(memory, at, packet, buffer, row)
        packet.worker, packet.rack = worker, rack
        packet.kind = RESULT
        packet.flag |= RESULT_FLAG
        packet.level = 1
        return TO_WORKER if switch.config[s].level == 1 else DOWN_ONE
    elif slot.mask & packet.mask:
        switch.counters[s, job, DUPLICATES] += 1
        if slot.state != HELD:
            return CONSUMED
        # The rack's sum, or its answer, was lost on the way: send the sum up again.
        take_out(memory, at, packet, buffer, row)
        packet.level = 2
        packet.mask = bit(packet.rack)
        return UP
    else:
        add(memory, at, packet, buffer, row, now_ns)
    if not _is_full(slot):
        return CONSUMED
    switch.counters[s, job, COMPLETIONS] += 1
    take_out(memory, at, packet, buffer, row)
    if switch.config[s].level == 1 and packet.fan_in_upper > 1:
        slot.state = HELD
        packet.level = 2
        packet.mask = bit(packet.rack)
        return UP
    slot.state = ANSWERED
    packet.kind = RESULT
    packet.flag |= RESULT_FLAG
    packet.level = 1
    return DOWN


@compiled_inner
def _pool_result(switch: Switch, s: int, packet: Any, buffer: Any, row: int) -> int:
    """A rack switch keeps the upper switch's result for its own late workers."""
    at = _pool_row(switch, s, packet)
    if at >= 0:
        slot = switch.memory.slots[at]
        if holds(slot, packet) and slot.state == HELD:
            width = min(buffer.shape[1], switch.memory.values.shape[1])
            for k in range(width):
                switch.memory.values[at, k] = buffer[row, k]
            slot.state = ANSWERED
    return DOWN
