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
back; ESA multicasts at once and frees it. Two levels: a rack's complete sum goes up with the
rack's bit as its mask. What happens to gradients is in `gradient.py`, SwitchML's own program in `switchml.py`, the
state that all work on in `state.py`.
"""

from typing import Any

from paceline.compile.decorators import compiled, compiled_apart, compiled_inner
from paceline.core.bits import NO_BITS, bit, is_sound
from paceline.core.homes import HOME
from paceline.core.switch.gradient import give_again, give_out, handle_gradient
from paceline.core.switch.memory import (
    ANSWERS,
    EMPTY,
    FILLING,
    HELD,
    POLICY_NONE,
    POLICY_SWITCHML,
    free,
    has_left,
    holds,
)
from paceline.core.switch.state import (
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
    tell_home,
)
from paceline.core.switch.switchml import pool_gradient, pool_result
from paceline.core.wire import (
    ACK,
    COLLISION,
    CUSTODY,
    FLUSH,
    GRADIENT,
    NACK,
    PARTIAL,
    PULL,
    QUERY,
    REMINDER,
    RESULT,
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
        record.heard_ns = now_ns
        verdict = handle_gradient(switch, s, packet, buffer, row, now_ns)
        if verdict != CONSUMED and packet.offer & HOME:
            tell_home(switch, s, packet, now_ns)
        return verdict
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
    if kind == QUERY:
        verdict = _query(switch, s, packet, buffer, row)
        if packet.offer & HOME:
            tell_home(switch, s, packet, now_ns)
        return verdict
    if kind == ACK and packet.flag & CUSTODY:
        # To the workers in its mask, who are all in one rack.
        if packet.level > config.level:
            return UP
        if config.level > 1:
            packet.level = 1
            return DOWN_ONE
        return DOWN
    if kind == ACK or kind == NACK:
        return TO_WORKER
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
def _query(switch: Switch, s: int, packet: Any, buffer: Any, row: int) -> int:
    """A worker asks where its contribution is. What is not here may be above, or with the custodian.

    `ack`: it is counted here, and waits for others; with `flush` what is here goes to the custodian. The chunk may be
    here without it: then it was lost, or lost its place; the custodian knows, and `collision` tells it. `esa-plus` has
    it lost where nothing says otherwise, and answers `nack` itself; and a result that has left is given again. ATP: a
    complete sum that waits for its result was lost on the way, and goes again.
    """
    config = switch.config[s]
    if packet.flag & CUSTODY or packet.mask == NO_BITS or packet.share != NO_BITS:
        return TO_CUSTODIAN
    if packet.level > config.level:
        # It comes from above, on its way to a custodian of this rack.
        return TO_CUSTODIAN
    aggregates = config.dead == 0 and config.policy != POLICY_NONE and config.policy != POLICY_SWITCHML
    if aggregates and packet.index >= 0 and packet.index < config.slots:
        at = config.first + packet.index
        slot = switch.memory.slots[at]
        if slot.state != EMPTY and holds(slot, packet):
            own = packet.mask if config.level == 1 else bit(packet.rack)
            if own & ~slot.mask:
                alone = packet.fan_in_upper == 1 and packet.flag & FLUSH == 0
                if config.rules & ANSWERS != 0 and alone and not own & slot.gone:
                    # It was lost on its way, as far as is known here. If not, masks keep the sum exact.
                    packet.kind = NACK
                    return TO_WORKER
                packet.flag |= COLLISION
            elif slot.state == HELD or packet.flag & FLUSH:
                return give_out(switch, s, at, packet, buffer, row, FLUSHES)
            else:
                packet.kind = ACK
                return TO_WORKER if config.level == 1 else DOWN_ONE
        elif has_left(slot, packet):
            return give_again(switch, at, packet, buffer, row)
    if config.level == 1 and packet.fan_in_upper > 1:
        packet.level = 2
        return UP
    return TO_CUSTODIAN


@compiled_apart
def _reminder(switch: Switch, s: int, packet: Any, buffer: Any, row: int) -> int:
    """A custodian asks for the rest of a chunk; above the racks it is passed on to them."""
    config = switch.config[s]
    if config.dead == 0 and packet.index >= 0 and packet.index < config.slots:
        at = config.first + packet.index
        slot = switch.memory.slots[at]
        if slot.state == FILLING and holds(slot, packet):
            return give_out(switch, s, at, packet, buffer, row, REMINDERS)
    if config.level > 1:
        packet.level = 1
        return DOWN
    return CONSUMED
