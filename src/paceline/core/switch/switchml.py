"""SwitchML's program: a static pool for each job, two sets for each slot, and no fallback host.

A slot answers for two rounds: while one set fills, the other keeps its finished result for a worker whose copy
was lost [code: SwitchML]. Ours: a slot remembers its chunk instead of clearing the other set's bits, so that
a packet delayed for longer than a round cannot be counted into a finished sum; and the second level.
"""

from typing import Any

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.bits import bit
from paceline.core.switch.memory import ANSWERED, HELD, add, holds, is_full, store, take_out
from paceline.core.switch.state import (
    COMPLETIONS,
    CONSUMED,
    DOWN,
    DOWN_ONE,
    DROP_INDEX,
    DROP_LEVEL,
    DROP_STALE,
    DROPPED,
    DUPLICATES,
    TO_WORKER,
    UP,
    Switch,
)
from paceline.core.wire import RESULT


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


@compiled_apart
def pool_gradient(switch: Switch, s: int, packet: Any, buffer: Any, row: int, now_ns: int) -> int:
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
    if slot.job != job or slot.chunk < packet.chunk or slot.epoch < packet.epoch:
        if slot.job < 0:
            switch.jobs[s, job].used += 1
        store(memory, at, packet, buffer, row, now_ns)
    elif slot.state == ANSWERED:
        worker, rack = packet.worker, packet.rack
        take_out(memory, at, packet, buffer, row)
        packet.worker, packet.rack = worker, rack
        packet.kind = RESULT
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
    if not is_full(slot):
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
    packet.level = 1
    return DOWN


@compiled_apart
def pool_result(switch: Switch, s: int, packet: Any, buffer: Any, row: int) -> int:
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
