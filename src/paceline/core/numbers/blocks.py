"""Floats in blocks, to 32-bit integers and back: the exponents that the workers agree on, and the numbers under them.

**Exponents.** A section's chunk has a row of counters for each of its blocks, one for each exponent there can be. A
worker raises the one of its own block; the sum then shows every vote, and the largest exponent with a vote is the
agreed one. One more counter is for a NaN or an infinity. The first lane says what is reduced, so that workers that
reduce unlike tensors find out.

**Blocks.** A block's numbers go as `rint(x * 2**(bits - e))`, as `core/numbers/fixedpoint.py` says, with the block's
agreed exponent e; integer sums are exact, in any order. **Error**, for n workers: at most `error_bound(...)`, that
is n/2 quanta of 2**(e - bits), and one rounding to the output's format.

**NaN and infinities** come out as a float sum would give them: a NaN, or infinities of both signs, give NaN; an
infinity gives itself. A block that holds one anywhere is sent with fewer bits: the upper bits of each integer are two
counters, of +inf and of -inf (a NaN raises both). The finite numbers of such a block are then coarser: `nonfinite`
of `error_bound`. Other blocks are not touched.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled, compiled_apart, compiled_inner
from paceline.core.numbers import fixedpoint
from paceline.core.numbers.exact import as_float, narrow_to
from paceline.core.numbers.fixedpoint import EXPONENT_MIN, EXPONENT_ZERO, sum_bits
from paceline.core.numbers.layout import (
    BFLOAT16,
    FIELDS,
    FLOAT16,
    FLOAT32,
    f32_at,
    field_bits,
    u16_at,
)

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


@compiled_apart
def _finite_peak_16(values: Any, top: int) -> int:
    peak = np.int64(0)
    for i in range(values.shape[0]):
        pattern = np.int64(values[i]) & 0x7FFF
        if pattern < top:
            peak = max(peak, pattern)
    return int(peak)


@compiled
def peak_at(address: int, first: int, numbers: int, kind: int) -> Any:
    """The sign-less bit pattern of the largest finite number, and whether there are others than finite ones."""
    if kind == FLOAT32:
        values = f32_at(address + 4 * first, numbers)
        pattern = peak_f32(values)
        if pattern < _F32_TOP:
            return int(pattern), False
        return int(_finite_peak_f32(values)), True
    halves = u16_at(address + 2 * first, numbers)
    top = 0x7F80 if kind == BFLOAT16 else 0x7C00
    peak = fixedpoint._peak16(halves)
    if peak < top:
        return int(peak), False
    return int(_finite_peak_16(halves, top)), True


@compiled
def exponent_at(address: int, first: int, numbers: int, kind: int) -> int:
    """The exponent of the finite numbers of a block, plus `NONFINITE` if there are others."""
    pattern, nonfinite = peak_at(address, first, numbers, kind)
    if kind == FLOAT32:
        exponent = int(fixedpoint._exponent_of(pattern, 23, 127))
    elif kind == BFLOAT16:
        exponent = int(fixedpoint._exponent_of(pattern, 7, 127))
    else:
        exponent = int(fixedpoint._exponent_of(pattern, 10, 15))
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
    block_numbers = layout.block_chunks * layout.chunk_numbers
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


def error_bound(peak: float, workers: int, nonfinite: bool = False) -> float:
    """The most by which a sum, before its one rounding, can differ from the true one; `peak` is max|x| of the block.

    A block is at most `BLOCK_ELEMENTS` numbers in a row (at least one chunk). Tensors small enough for the exact form
    have no such error.
    """
    if peak == 0.0:
        return 0.0
    exponent = int(fixedpoint.block_exponent(np.array([peak], dtype=np.float32)))
    bits = mixed_bits(workers) if nonfinite else sum_bits(workers)
    return float(workers * 2.0 ** (exponent - bits - 1))


@compiled
def mixed_bits(workers: int) -> int:
    """Bits of magnitude of a contribution in a block with two counters above the sum."""
    return sum_bits(workers) - 2 * field_bits(workers)


@compiled_inner
def power(exponent: int) -> float:
    """Two to the exponent."""
    return float(np.ldexp(1.0, np.int32(exponent)))


# --- whole blocks of finite numbers ------------------------------------------------------------------------


@compiled
def encode_f32(values: Any, scale: float, out: Any) -> None:
    """`rint(x * scale)`; scales are powers of two, and float32 is exact wherever it can hold the scale."""
    if 2.0**-126 <= scale <= 2.0**127:
        factor = np.float32(scale)
        for i in range(out.shape[0]):
            out[i] = np.int32(np.rint(values[i] * factor))
    else:
        for i in range(out.shape[0]):
            out[i] = np.int32(np.rint(np.float64(values[i]) * scale))


@compiled
def decode_f32(values: Any, unit: float, divisor: int, out: Any) -> None:
    """`integer * unit / divisor`, rounded once to float32."""
    if divisor == 1 and 2.0**-126 <= unit <= 2.0**90:
        # One rounding, of the integer; the product with a power of two is exact, and no subnormal.
        factor = np.float32(unit)
        for i in range(out.shape[0]):
            out[i] = np.float32(values[i]) * factor
    else:
        for i in range(out.shape[0]):
            out[i] = as_float(np.float64(values[i]) * unit / divisor)


@compiled
def encode_16(values: Any, kind: int, scale: float, out: Any) -> None:
    """As `encode_f32`, from 16-bit patterns."""
    if kind == BFLOAT16:
        for i in range(out.shape[0]):
            value = np.uint32(np.uint32(values[i]) << np.uint32(16)).view(np.float32)
            out[i] = np.int32(np.rint(np.float64(value) * scale))
    else:
        for i in range(out.shape[0]):
            out[i] = np.int32(np.rint(np.float64(fixedpoint._widen_f16(values[i])) * scale))


@compiled
def decode_16(values: Any, kind: int, unit: float, divisor: int, out: Any) -> None:
    """As `decode_f32`, to 16-bit patterns."""
    for i in range(out.shape[0]):
        out[i] = narrow_to(kind, np.float64(values[i]) * unit / divisor)


# --- blocks with a NaN or an infinity ----------------------------------------------------------------------


@compiled_inner
def number_at(address: int, at: int, kind: int) -> float:
    """One number of the tensor."""
    if kind == FLOAT32:
        return float(f32_at(address + 4 * at, 1)[0])
    pattern = u16_at(address + 2 * at, 1)[0]
    if kind == FLOAT16:
        return float(fixedpoint._widen_f16(pattern)) if pattern & 0x7C00 != 0x7C00 else _special(pattern, 10)
    return float(np.uint32(np.uint32(pattern) << np.uint32(16)).view(np.float32))


@compiled_inner
def _special(pattern: int, mantissa: int) -> float:
    if np.int64(pattern) & ((1 << mantissa) - 1):
        return float(np.nan)
    return float(-np.inf if np.int64(pattern) & 0x8000 else np.inf)


@compiled_apart
def _encode_mixed(address: int, first: int, kind: int, scale: float, workers: int, out: Any) -> None:
    width = field_bits(workers)
    low = 32 - 2 * width
    for i in range(out.shape[0]):
        value = number_at(address, first + i, kind)
        word = np.int64(0)
        if np.isfinite(value):
            word = np.int64(np.rint(value * scale))
        else:
            if not value < 0.0:
                word += np.int64(1) << low
            if not value > 0.0:
                word += np.int64(1) << (low + width)
        word &= _WORD
        out[i] = np.int32(word - 2**32 if word >= 2**31 else word)


@compiled_apart
def _decode_mixed(
    values: Any, unit: float, workers: int, divisor: int, address: int, first: int, kind: int
) -> None:
    width = field_bits(workers)
    low = 32 - 2 * width
    for i in range(values.shape[0]):
        word = np.int64(values[i]) & _WORD
        total = word & ((1 << low) - 1)
        if total >= 1 << (low - 1):
            total -= 1 << low
        counters = ((word - total) & _WORD) >> low
        value = float(total) * unit / divisor
        if counters != 0:
            above = counters & ((1 << width) - 1)
            value = np.nan if above and counters >> width else (np.inf if above else -np.inf)
        if kind == FLOAT32:
            f32_at(address + 4 * (first + i), 1)[0] = as_float(value)
        else:
            u16_at(address + 2 * (first + i), 1)[0] = narrow_to(kind, value)


# --- chunks ------------------------------------------------------------------------------------------------


@compiled
def write_block(place: Any, address: int, kind: int, exponent: int, workers: int, out: Any) -> None:
    """A data chunk's integers, under the agreed exponent of its block."""
    if is_mixed(exponent):
        exponent -= NONFINITE
        scale = 0.0 if exponent == EXPONENT_ZERO else power(mixed_bits(workers) - exponent)
        _encode_mixed(address, place.first, kind, scale, workers, out)
    elif exponent == EXPONENT_ZERO:
        for i in range(place.count):
            out[i] = 0
    elif kind == FLOAT32:
        encode_f32(f32_at(address + 4 * place.first, place.count), power(sum_bits(workers) - exponent), out)
    else:
        halves = u16_at(address + 2 * place.first, place.count)
        encode_16(halves, kind, power(sum_bits(workers) - exponent), out)


@compiled
def read_block(
    place: Any, values: Any, exponent: int, workers: int, divisor: int, address: int, kind: int
) -> None:
    """A result's integers to numbers of the tensor."""
    if is_mixed(exponent):
        exponent -= NONFINITE
        unit = 0.0 if exponent == EXPONENT_ZERO else power(exponent - mixed_bits(workers))
        _decode_mixed(values, unit, workers, divisor, address, place.first, kind)
        return
    unit = 0.0 if exponent == EXPONENT_ZERO else power(exponent - sum_bits(workers))
    if divisor & (divisor - 1) == 0:
        unit /= divisor
        divisor = 1
    if kind == FLOAT32:
        decode_f32(values, unit, divisor, f32_at(address + 4 * place.first, place.count))
    else:
        decode_16(values, kind, unit, divisor, u16_at(address + 2 * place.first, place.count))
