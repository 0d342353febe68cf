"""Masks, shares, hashes and randomness, the same compiled and interpreted.

Masks are unsigned 64-bit words and only ever meet other unsigned words (Numba turns a mix of signed and
unsigned into a float). Hashes stay below 2**31 in signed words, so that neither form overflows. Random
numbers come from a state that the caller passes in: one xorshift word.

**Shares** [ours]. A container (packet, aggregator, custodian chunk) holds the sum over exactly the workers in its
`mask`, plus the micro-batches in `share` of the worker `owner`. However many micro-batches an owner has, together
they are the whole 64-bit word: with M of them, micro-batch m is the bits from 64m/M up to 64(m+1)/M. So an owner is
complete when its share is all ones, and neither switch nor custodian needs to know M.

`owner` names a bit of a mask: its rack and its position there. A worker is represented by its bit or by shares,
never by both: where two containers meet, that counts as something in common.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from paceline.compile.decorators import compiled, compiled_form_of, compiled_inner

NO_BITS = np.uint64(0)
ONE = np.uint64(1)
_MIX_1 = 0x2C1B3C6D
_MIX_2 = 0x297A2D39
_MIX_31 = 0x7FFFFFFF


def popcount(mask: Any) -> int:
    """How many contributions a mask holds."""
    return int(mask).bit_count()


@intrinsic
def _ctpop(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.ctpop", [ir.IntType(64)])
        return builder.call(function, [args[0]])

    return types.int64(types.uint64), generate


@compiled_form_of(popcount)
def _popcount_compiled(mask: Any) -> Any:
    def count(mask: Any) -> Any:
        return _ctpop(np.uint64(mask))  # type: ignore[call-arg]

    return count


@compiled_inner
def bit(position: int) -> np.uint64:
    """The mask with one contribution; positions are 0..63."""
    return ONE << np.uint64(position)


@compiled_inner
def add_modulo(a: Any, b: Any) -> np.int32:
    """The sum of two 32-bit integers, modulo 2**32, without a warning where it wraps."""
    return np.int32(np.int64(a) + np.int64(b))


@compiled_inner
def mix(a: int, b: int) -> int:
    """A hash of two non-negative numbers into 0..2**31-1."""
    first = np.int64(a)
    second = np.int64(b)
    h = (first ^ (first >> 31)) & _MIX_31
    h = ((h ^ (h >> 15)) * _MIX_1) & _MIX_31
    h = (h + ((second ^ (second >> 31)) & _MIX_31)) & _MIX_31
    h = ((h ^ (h >> 15)) * _MIX_1) & _MIX_31
    h = ((h ^ (h >> 13)) * _MIX_2) & _MIX_31
    return int(h ^ (h >> 16))


@compiled_inner
def next_random(state: Any, at: int) -> np.uint64:
    """Advance the xorshift word `state[at]` and give its new value; the state is never zero."""
    word = state[at]
    word ^= word << np.uint64(13)
    word ^= word >> np.uint64(7)
    word ^= word << np.uint64(17)
    state[at] = word
    return np.uint64(word)


@compiled_inner
def chance(state: Any, at: int, threshold: int) -> bool:
    """True with probability threshold / 2**32."""
    if threshold <= 0:
        return False
    return bool(np.int64(next_random(state, at) >> np.uint64(32)) < threshold)


def seed_word(seed: int, stream: int = 0) -> np.uint64:
    """A well-spread, non-zero xorshift word for a seed and a stream (splitmix64)."""
    z = (seed * 0x9E3779B97F4A7C15 + (stream + 1) * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = ((z ^ (z >> shift)) * factor) & 0xFFFFFFFFFFFFFFFF
    return np.uint64((z ^ (z >> 31)) or 1)


def threshold_of(probability: float) -> int:
    """A probability as the integer that `chance` compares with."""
    return round(min(max(probability, 0.0), 1.0) * 2**32)


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
def overlap_of(slot: Any, packet: Any) -> int:
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
