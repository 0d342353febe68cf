"""The exponents of a tensor's blocks: found, voted for, agreed on.

A section's chunk has a row of counters for each of its blocks, one for each exponent there can be. A worker
raises the one of its own block; the sum then shows every vote, and the largest exponent with a vote is the agreed
one. One more counter is for a NaN or an infinity. The first lane says what is reduced, so that workers that reduce
unlike tensors find out.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled, compiled_apart, compiled_inner
from paceline.core.numbers import fixedpoint
from paceline.core.numbers.fixedpoint import EXPONENT_MIN, EXPONENT_ZERO
from paceline.core.numbers.layout import BFLOAT16, FIELDS, FLOAT32
from paceline.core.numbers.views import f32_at, u16_at

NONFINITE = 4096
"""Added to the agreed exponent of a block that holds a NaN or an infinity."""
DISAGREED = 1
"""The workers reduce different tensors."""

_F32_TOP = np.int32(0x7F800000)
_SIGNLESS = np.int32(0x7FFFFFFF)
_WORD = 0xFFFFFFFF


@compiled_inner
def is_mixed(exponent: int) -> bool:
    """Does the block hold a NaN or an infinity?"""
    return bool(exponent > NONFINITE // 2 or EXPONENT_ZERO < exponent < EXPONENT_MIN)


@compiled
def peak_f32(values: Any) -> np.int32:
    """The largest sign-less bit pattern: it orders as the numbers do, NaN above all."""
    bits = values.view(np.int32)
    peak = np.int32(0)
    for i in range(bits.shape[0]):
        peak = max(peak, np.int32(bits[i] & _SIGNLESS))
    return peak


@compiled_apart
def _finite_peak_f32(values: Any) -> np.int32:
    bits = values.view(np.int32)
    peak = np.int32(0)
    for i in range(bits.shape[0]):
        pattern = np.int32(bits[i] & _SIGNLESS)
        if pattern < _F32_TOP:
            peak = max(peak, pattern)
    return peak


@compiled
def _peaks_16(values: Any, top: int) -> Any:
    peak = np.int64(0)
    nonfinite = False
    for i in range(values.shape[0]):
        pattern = np.int64(values[i]) & 0x7FFF
        if pattern >= top:
            nonfinite = True
        else:
            peak = max(peak, pattern)
    return peak, nonfinite


@compiled
def exponent_at(address: int, first: int, numbers: int, kind: int) -> int:
    """The exponent of the finite numbers of a block, plus `NONFINITE` if there are others."""
    if kind == FLOAT32:
        values = f32_at(address + 4 * first, numbers)
        pattern = peak_f32(values)
        if pattern < _F32_TOP:
            return int(fixedpoint._exponent_of(int(pattern), 23, 127))
        return int(fixedpoint._exponent_of(int(_finite_peak_f32(values)), 23, 127)) + NONFINITE
    halves = u16_at(address + 2 * first, numbers)
    mantissa, bias = (7, 127) if kind == BFLOAT16 else (10, 15)
    peak, nonfinite = _peaks_16(halves, (2 * bias + 1) << mantissa)
    exponent = int(fixedpoint._exponent_of(peak, mantissa, bias))
    return exponent + NONFINITE if nonfinite else exponent


@compiled
def _raise_field(out: Any, at: int, layout: Any, number: int) -> None:
    bits = np.int64(layout.field_bits)
    per_lane = 32 // bits
    lane = at + number // per_lane
    raised = (np.int64(out[lane]) & _WORD) | (np.int64(1) << (bits * (number % per_lane)))
    out[lane] = np.int32(raised - 2**32 if raised >= 2**31 else raised)


@compiled
def _field(values: Any, at: int, layout: Any, number: int) -> int:
    bits = np.int64(layout.field_bits)
    per_lane = 32 // bits
    word = np.int64(values[at + number // per_lane]) & _WORD
    return int((word >> (bits * (number % per_lane))) & ((np.int64(1) << bits) - 1))


@compiled
def write_exponents(layout: Any, place: Any, address: int, kind: int, out: Any) -> None:
    """A section's chunk: what is reduced, and a vote for the exponent of each of its blocks."""
    for lane in range(out.shape[0]):
        out[lane] = 0
    out[0] = layout.signature
    block_numbers = layout.block_chunks * layout.elements
    for b in range(place.numbers):
        first = (place.first * layout.section_blocks + b) * block_numbers
        exponent = exponent_at(address, first, min(block_numbers, layout.numbers - first), kind)
        at = 1 + b * layout.lanes
        if is_mixed(exponent):
            _raise_field(out, at, layout, FIELDS - 1)
            exponent -= NONFINITE
        _raise_field(out, at, layout, 0 if exponent == EXPONENT_ZERO else exponent - EXPONENT_MIN + 1)


@compiled
def read_exponents(layout: Any, place: Any, values: Any, exponents: Any) -> int:
    """The agreed exponents of a section; `DISAGREED` if the workers cannot mean the same tensor."""
    if values[0] != layout.signature * layout.workers:
        return DISAGREED
    for b in range(place.numbers):
        at = 1 + b * layout.lanes
        votes = 0
        agreed = 0
        for number in range(FIELDS - 1):
            count = _field(values, at, layout, number)
            votes += count
            if count > 0:
                agreed = number
        if votes != layout.workers:
            return DISAGREED
        exponent = EXPONENT_ZERO if agreed == 0 else agreed + EXPONENT_MIN - 1
        if _field(values, at, layout, FIELDS - 1) > 0:
            exponent += NONFINITE
        exponents[place.first * layout.section_blocks + b] = exponent
    return 0
