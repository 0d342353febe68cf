"""Shares: a worker's contribution in parts, and when two containers have something in common [ours].

A container (packet, aggregator, custodian chunk) holds the sum over exactly the workers in its `mask`, plus the
micro-batches in `share` of the worker `owner`. However many micro-batches an owner has, together they are the
whole 64-bit word: with M of them, micro-batch m is the bits from 64m/M up to 64(m+1)/M. So an owner is complete when
its share is all ones, and neither switch nor custodian needs to know M.

`owner` names a bit of a mask: its rack and its position there. A worker is represented by its bit or by shares,
never by both: where two containers meet, that counts as something in common.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled, compiled_inner
from paceline.core.bits import NO_BITS, bit

ALL_SHARES = np.uint64(0xFFFFFFFFFFFFFFFF)
MICRO_BATCHES_MAX = 64
OWNERS_MAX = 64 * 64

DISJOINT = 0
OVERLAPPING = 1
OTHER_OWNER = 2


@compiled
def place_of(rack: int, position: int) -> int:
    """The `owner` field of the worker with this bit in this rack."""
    return int(rack * 64 + position)


@compiled_inner
def owner_bit(owner: int, rack: int) -> np.uint64:
    """The owner's own bit in masks of a rack; none if it is at home elsewhere."""
    return bit(owner & 63) if owner >> 6 == rack else NO_BITS


@compiled
def share_bits(m: int, micro_batches: int) -> np.uint64:
    """The part of the share word that stands for micro-batch `m` of so many."""
    first = 64 * m // micro_batches
    last = 64 * (m + 1) // micro_batches
    upto = ALL_SHARES if last >= 64 else bit(last) - bit(0)
    return np.uint64(upto & ~(bit(first) - bit(0)))


@compiled_inner
def is_sound(packet: Any) -> bool:
    """Can a packet with a share mean what it says? Whole racks have no shares; bit and share exclude each other."""
    if packet.level != 1 or packet.owner < 0 or packet.owner >= OWNERS_MAX:
        return False
    return not packet.mask & owner_bit(packet.owner, packet.rack)


@compiled_inner
def meeting(slot: Any, packet: Any) -> int:
    """`DISJOINT`, `OVERLAPPING`, or `OTHER_OWNER`: an aggregator has room for one owner's shares."""
    if slot.mask & packet.mask:
        return OVERLAPPING
    if (slot.share | packet.share) == NO_BITS:
        return DISJOINT
    if packet.share and slot.mask & owner_bit(packet.owner, packet.rack):
        return OVERLAPPING
    if slot.share == NO_BITS:
        return DISJOINT
    if packet.mask & owner_bit(slot.owner, packet.rack):
        return OVERLAPPING
    if packet.share == NO_BITS:
        return DISJOINT
    if slot.owner != packet.owner:
        return OTHER_OWNER
    return OVERLAPPING if slot.share & packet.share else DISJOINT
