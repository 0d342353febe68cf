"""Switch memory: the aggregators, and who may take one from whom.

An aggregator holds the sum over exactly its `mask` and the `share` of its `owner`. It is empty when `job` is -1. All
switches of a driver share one flat array; each owns the range that starts at its `first`. Values are rows of 32-bit
integers whose width the driver chooses: a driver that carries no values has rows of width zero, and nothing else
changes. Only the `count` lanes of a packet are read or written: what lies beyond them is some other packet's.

The policies differ only here and in when an aggregator is given back (`program.py`):

- `switchml` [code]: a static pool for each job, two sets for each slot; nobody takes from anybody.
- `atp` [code]: first come, first served. Ours: an aggregator untouched for `stale_ns` may be taken, since a
  late duplicate would otherwise hold it for ever.
- `esa` [ours, after the paper's abstract]: a strictly higher priority takes it; a failed try halves the
  holder's priority, so that a stale holder does not last. Ties do not preempt.
- `esa-plus` [ours]: as `esa`, with four rules more or less, each of which can be left out (`RULES`):
  - *mark*: an aggregator remembers the chunk that last lost its place here, or found none, and which of its
    contributions have left for the custodian. What comes later of that chunk is summed as its *rest*, and the rest
    leaves for the custodian as soon as it is all there: a chunk that was split waits for no timer, and costs its
    custodian two packets. What has left already, or is the last of the rest, passes by.
  - *cost*: evicting a holder with n of N contributions sends at most 1 + N - n packets to its custodian, refusing a
    newcomer up to N of its own. So a newcomer takes the aggregator unless the holder's priority is higher by more than
    a margin and that difference, in octaves. Without it a strictly higher priority takes, as under `esa`.
  - *priority*: without it every newcomer takes the aggregator.
  - *answer*: a worker that asks for a chunk that is here without its contribution is told so by the switch, and not by
    the custodian (`program.py`). And a sum whose result has left stays readable until its place is needed: who lost
    the result has it from here, as quickly as under SwitchML.

  For a P4 switch, in one pass: two bitmaps, a hash and a job more in an aggregator's record; four compares, one of
  them with a value from a table over (N, n); no loop over aggregators.
- `never` [ours]: early release without preemption; `always-preempt`, `coin-flip` [ours]: preemption without priority.
  Strawmen that show what each is worth.
- `none`: no aggregation, for a plain parameter server.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from paceline.compile.decorators import compiled_inner
from paceline.core.bits import ALL_SHARES, NO_BITS, add_modulo, mix, next_random, popcount
from paceline.core.wire import CUSTODY, FLAGS_WITHOUT_FLUSH

POLICY_NONE = 0
POLICY_SWITCHML = 1
POLICY_ATP = 2
POLICY_ESA = 3
POLICY_ALWAYS_PREEMPT = 4
POLICY_COIN_FLIP = 5
POLICY_ESA_PLUS = 6
POLICY_NEVER = 7
POLICIES = {
    "none": POLICY_NONE,
    "switchml": POLICY_SWITCHML,
    "atp": POLICY_ATP,
    "esa": POLICY_ESA,
    "always-preempt": POLICY_ALWAYS_PREEMPT,
    "coin-flip": POLICY_COIN_FLIP,
    "esa-plus": POLICY_ESA_PLUS,
    "never": POLICY_NEVER,
}

EARLY = ("esa", "esa-plus", "never", "always-preempt", "coin-flip")
"""Policies that give an aggregator back as soon as its sum is complete; their custodians ask for what is missing."""

MARGIN = 12
"""`esa-plus`: a holder whose priority is higher by more than this keeps its place, whatever it costs; in steps of
priority, of which eight are an octave."""

BY_PRIORITY = 1
BY_COST = 2
MARKS = 4
ANSWERS = 8
RULES = {"priority": BY_PRIORITY, "cost": BY_COST, "mark": MARKS, "answer": ANSWERS}
"""`esa-plus`: its rules; each can be left out, to see what it is worth. With none it is `always-preempt`."""
ALL_RULES = BY_PRIORITY | BY_COST | MARKS | ANSWERS
_OCTAVES = np.array([0] + [round(8 * math.log2(x)) for x in range(1, 66)], dtype=np.int64)

EMPTY = 0
FILLING = 1
HELD = 2
"""Complete, and kept until the result comes back through the switch."""
ANSWERED = 3
"""SwitchML only: holds the final result, for a worker whose copy was lost."""
STATE_NAMES = ("empty", "filling", "held", "answered")

KEEP = 0
TAKE = 1

AGGREGATOR = np.dtype(
    [
        ("chunk", "i8"),  # the chunk whose sum it holds
        ("mask", "u8"),  # workers in the sum, as bits; racks at the upper level
        ("share", "u8"),  # micro-batches of `owner` in the sum
        ("since_ns", "i8"),  # when it was last written
        ("job", "i4"),  # the job it works for; -1: empty
        ("epoch", "i4"),  # of the contributions in it
        ("count", "i4"),  # integers of its payload in use
        ("window", "i4"),  # the least window of its contributors, in chunks
        ("gone", "u8"),  # `esa-plus`: contributions to its chunk that left for the custodian before
        ("mark_gone", "u8"),  # `esa-plus`: contributions that left of the chunk in `mark`
        ("left", "i4"),  # `esa-plus`: empty, with the sum of `chunk` still here, of this job less one; or 0
        ("mark", "u4"),  # `esa-plus`: `mark_of` the chunk that last lost its place here, or found none
        ("fan_in", "i2"),  # contributions that make the rack's sum full
        ("fan_in_upper", "i2"),  # racks that make the upper sum full
        ("custodian", "u2"),  # who gets the sum if it must leave unfinished
        ("worker", "u2"),  # whose packet was the last
        ("owner", "u2"),  # the worker whose shares it holds, as `bits.place_of`
        ("rack", "u1"),  # the rack of its contributors
        ("level", "u1"),  # 1: workers of a rack; 2: racks
        ("state", "u1"),  # one of `STATE_NAMES`
        ("priority", "u1"),  # the holder's; `esa` halves it at each failed try to take the aggregator
        ("flag", "u1"),  # flags of its packets: custody, congestion
    ],
    align=True,
)


class Memory(NamedTuple):
    """The aggregators of all switches of a driver, and their values."""

    slots: Any
    values: Any


def new_memory(slots: int, width: int) -> Memory:
    """Empty aggregators; `width` integers of payload are kept for each."""
    records = np.zeros(max(slots, 1), dtype=AGGREGATOR).view(np.recarray)
    records.job = -1
    return Memory(records, np.zeros((max(slots, 1), width), dtype=np.int32))


@compiled_inner
def holds(slot: Any, packet: Any) -> bool:
    """Is this aggregator working on the packet's chunk?"""
    return bool(slot.chunk == packet.chunk and slot.job == packet.job and slot.epoch == packet.epoch)


@compiled_inner
def mark_of(packet: Any) -> Any:
    """What an aggregator remembers of a chunk that lost its place there; two chunks in 4 billion share one."""
    return np.uint32(mix(packet.job + 1, packet.chunk) | 1)


@compiled_inner
def is_full(holder: Any) -> bool:
    """Are all contributions of its level in an aggregator, or a packet? All shares of a worker stand for its bit.

    With custody the fan-in is that of the leaders, and the straggler's part does not count.
    """
    count = popcount(holder.mask)
    if holder.share == ALL_SHARES and holder.flag & CUSTODY == 0 and holder.owner >> 6 == holder.rack:
        count += 1
    return bool(count >= (holder.fan_in if holder.level == 1 else holder.fan_in_upper))


@compiled_inner
def remember_loser(slot: Any, packet: Any) -> None:
    """A packet leaves, or was refused: what has left of its chunk is remembered, until another chunk loses here."""
    mark = mark_of(packet)
    if slot.mark != mark:
        slot.mark = mark
        slot.mark_gone = NO_BITS
    slot.mark_gone |= packet.mask


@compiled_inner
def is_rest(slot: Any) -> bool:
    """Has a part of the chunk left before, and is all of the rest here? Then waiting would bring nothing more."""
    wanted = slot.fan_in if slot.level == 1 else slot.fan_in_upper
    return bool(slot.gone != NO_BITS and popcount(slot.mask | slot.gone) >= wanted)


@compiled_inner
def has_left(slot: Any, packet: Any) -> bool:
    """Is the sum of the packet's chunk still in this empty aggregator, its result having left?"""
    return bool(
        slot.left == packet.job + 1
        and slot.state == EMPTY
        and slot.chunk == packet.chunk
        and slot.epoch == packet.epoch
    )


@compiled_inner
def store(memory: Memory, at: int, packet: Any, buffer: Any, row: int, now_ns: int) -> None:
    """The packet's content becomes the aggregator's."""
    slot = memory.slots[at]
    slot.chunk = packet.chunk
    slot.job = packet.job
    slot.epoch = packet.epoch
    slot.mask = packet.mask
    slot.share = packet.share
    slot.owner = packet.owner
    slot.since_ns = now_ns
    slot.count = packet.count
    slot.window = packet.window
    slot.fan_in = packet.fan_in
    slot.fan_in_upper = packet.fan_in_upper
    slot.custodian = packet.custodian
    slot.worker = packet.worker
    slot.rack = packet.rack
    slot.level = packet.level
    slot.state = FILLING
    slot.priority = packet.priority
    slot.flag = packet.flag
    slot.gone = NO_BITS
    slot.left = 0
    width = min(buffer.shape[1], memory.values.shape[1], packet.count)
    for k in range(width):
        memory.values[at, k] = buffer[row, k]


@compiled_inner
def add(memory: Memory, at: int, packet: Any, buffer: Any, row: int, now_ns: int) -> None:
    """Add the packet's content; the caller has seen that the two have nothing in common."""
    slot = memory.slots[at]
    slot.since_ns = now_ns
    slot.mask |= packet.mask
    slot.window = min(slot.window, packet.window)
    if packet.share:
        slot.share |= packet.share
        slot.owner = packet.owner
    slot.flag |= packet.flag & FLAGS_WITHOUT_FLUSH
    width = min(buffer.shape[1], memory.values.shape[1], packet.count)
    for k in range(width):
        memory.values[at, k] = add_modulo(memory.values[at, k], buffer[row, k])


@compiled_inner
def take_out(memory: Memory, at: int, packet: Any, buffer: Any, row: int) -> None:
    """The aggregator's content leaves in the packet, whatever the packet was; the aggregator is unchanged."""
    slot = memory.slots[at]
    packet.chunk = slot.chunk
    packet.job = slot.job
    packet.epoch = slot.epoch
    packet.mask = slot.mask
    packet.share = slot.share
    packet.owner = slot.owner
    packet.count = slot.count
    packet.window = slot.window
    packet.fan_in = slot.fan_in
    packet.fan_in_upper = slot.fan_in_upper
    packet.custodian = slot.custodian
    packet.worker = slot.worker
    packet.rack = slot.rack
    packet.level = slot.level
    packet.priority = slot.priority
    packet.flag = slot.flag
    width = min(buffer.shape[1], memory.values.shape[1], packet.count)
    for k in range(width):
        buffer[row, k] = memory.values[at, k]


@compiled_inner
def swap(memory: Memory, at: int, packet: Any, buffer: Any, row: int, now_ns: int) -> None:
    """Packet and aggregator change places: the newcomer stays, the old partial sum leaves."""
    slot = memory.slots[at]
    chunk, job, epoch, mask = slot.chunk, slot.job, slot.epoch, slot.mask
    count, window, priority, flags = slot.count, slot.window, slot.priority, slot.flag
    fan_in, fan_in_upper, custodian = slot.fan_in, slot.fan_in_upper, slot.custodian
    worker, rack, level = slot.worker, slot.rack, slot.level
    share, owner = slot.share, slot.owner
    width = min(buffer.shape[1], memory.values.shape[1], max(slot.count, packet.count))
    for k in range(width):
        value = memory.values[at, k]
        memory.values[at, k] = buffer[row, k]
        buffer[row, k] = value
    slot.chunk, slot.job, slot.epoch, slot.mask = packet.chunk, packet.job, packet.epoch, packet.mask
    slot.count, slot.window = packet.count, packet.window
    slot.priority, slot.flag = packet.priority, packet.flag
    slot.fan_in, slot.fan_in_upper = packet.fan_in, packet.fan_in_upper
    slot.custodian, slot.worker = packet.custodian, packet.worker
    slot.rack, slot.level = packet.rack, packet.level
    slot.share, slot.owner = packet.share, packet.owner
    slot.state = FILLING
    slot.since_ns = now_ns
    packet.chunk, packet.job, packet.epoch, packet.mask = chunk, job, epoch, mask
    packet.count, packet.window, packet.priority, packet.flag = count, window, priority, flags
    packet.fan_in, packet.fan_in_upper, packet.custodian = fan_in, fan_in_upper, custodian
    packet.worker, packet.rack, packet.level = worker, rack, level
    packet.share, packet.owner = share, owner


@compiled_inner
def free(memory: Memory, at: int) -> None:
    """Give the aggregator back."""
    slot = memory.slots[at]
    slot.job = -1
    slot.state = EMPTY
    slot.mask = NO_BITS
    slot.share = NO_BITS
    slot.priority = 0


@compiled_inner
def cheaper_by(slot: Any) -> int:
    """By how many steps of priority evicting this holder is cheaper than refusing a newcomer."""
    wanted = int(slot.fan_in if slot.level == 1 else slot.fan_in_upper)
    missing = max(0, wanted - popcount(slot.mask))
    return int(_OCTAVES[min(64, wanted)] - _OCTAVES[min(64, missing) + 1])


@compiled_inner
def decide(config: Any, slot: Any, priority: int, now_ns: int, random: Any, at: int) -> int:
    """Another chunk holds the aggregator: `TAKE` it or `KEEP` the holder. Touches nothing but `random`."""
    policy = config.policy
    if policy == POLICY_ESA:
        return TAKE if priority > slot.priority else KEEP
    if policy == POLICY_ESA_PLUS:
        if config.rules & BY_PRIORITY == 0:
            return TAKE
        leeway = config.margin + cheaper_by(slot) if config.rules & BY_COST else 0
        return TAKE if np.int64(priority) + leeway > slot.priority else KEEP
    if policy == POLICY_ATP:
        return TAKE if now_ns - slot.since_ns > config.stale_ns else KEEP
    if policy == POLICY_ALWAYS_PREEMPT:
        return TAKE
    if policy == POLICY_COIN_FLIP:
        return TAKE if next_random(random, at) & np.uint64(1 << 20) else KEEP
    return KEEP
