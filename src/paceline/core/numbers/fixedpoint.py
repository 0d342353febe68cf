"""Floats as int32 blocks: switches add integers, and integer sums are the same in any order.

A block of floats shares one exponent e, and worker i sends `rint(x * 2**(bits - e))`, where
`bits = 30 - floor(log2(n))` for n workers. From `|x| <= 2**e` follows `|sum over n| <= n * 2**bits < 2**31`:
**a sum of n contributions cannot overflow int32**, in any order and for any n up to `MAX_WORKERS`.

**Agreement.** All workers must encode a block with the same e. Each computes `block_exponent` of its own
values; the exponents are merged by **max**, which the two sentinels respect: `EXPONENT_ZERO` (nothing but
zeros) loses against every exponent and `EXPONENT_NONFINITE` (a NaN or an infinity) wins against every one.
The exponent of block i travels one window earlier, in the packet of block i - W, so agreeing costs no round
trip of its own. Exponents need 16 bits (int16): float32 reaches from 2**-149 to 2**128.

**Error.** Let q = 2**(e - bits), at most n * 2**(e - 30).
- A contribution: `|x - integer * q| <= q / 2`, and 0 where x is a multiple of q: with e = 0 and n = 8 that is
  every x with at most 27 bits after the point; so small whole numbers stay exact.
- The sum of n: `|exact sum - integer sum * q| <= n * q / 2 <= n**2 * 2**(e - 31)`.
- Decoding rounds once, to the nearest of the output's format, ties to even; a sum beyond the format's
  largest number becomes an infinity, as it would in float arithmetic.
Everything in between is exact in float64, so compiled and interpreted runs agree bit for bit, and so do
machines.

**Status.** `encode_*` and `decode_*` return `OK`, `NONFINITE`, `SATURATED` (a value larger than 2**e: the
workers did not agree) or `INVALID` (lengths, workers or exponent out of range). A failed encoding writes
zeros; decoding a block agreed to be non-finite writes NaN.

Follows SwitchML's block exponents (2**e >= max|x|, sent one window early). Departs from its scale
INT32_MAX / (n * 2**e): rounding there can pass INT32_MAX by n / 2, and a scale that is no power of two does
not even sum ones exactly (n = 1000 gives 1000.0002); a power of two costs at most one bit. The status values
are ours.

bfloat16 and float16 come as uint16 bit patterns (`array.view(np.uint16)`): no compiler support is needed.
"""

import math

import numpy as np
import numpy.typing as npt

from paceline.compile.decorators import compiled, compiled_inner

OK = 0
NONFINITE = 1
"""The values, or another worker's values of this block, hold a NaN or an infinity."""
SATURATED = 2
"""A value is larger than the agreed exponent allows."""
INVALID = 3
"""The output is shorter than the input, or workers or exponent are out of range."""
STATUS_NAMES = ("ok", "nonfinite", "saturated", "invalid")

EXPONENT_ZERO = -32768
EXPONENT_NONFINITE = 32767
EXPONENT_MIN = -149
EXPONENT_MAX = 128
MAX_WORKERS = 4096

_FLOAT32_OVERFLOW = 2.0**128 - 2.0**103
"""From here on, rounding to float32 gives an infinity."""

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
BitsArray = npt.NDArray[np.uint16]


# --- exponents ---------------------------------------------------------------------------------------------


@compiled_inner
def _exponent_of(peak: int, mantissa_bits: int, bias: int) -> int:
    """Smallest e with 2**e >= the float whose sign-less bit pattern is `peak`, or a sentinel."""
    if peak == 0:
        return EXPONENT_ZERO
    biased = peak >> mantissa_bits
    if biased == 2 * bias + 1:
        return EXPONENT_NONFINITE
    if biased > 0:
        fraction = peak & ((1 << mantissa_bits) - 1)
        return biased - bias + (1 if fraction else 0)
    exponent = 0  # subnormal: peak * 2**(1 - bias - mantissa_bits)
    while (1 << exponent) < peak:
        exponent += 1
    return exponent + 1 - bias - mantissa_bits


@compiled
def block_exponent(values: FloatArray) -> int:
    """Smallest e with 2**e >= max|x|; `EXPONENT_ZERO` or `EXPONENT_NONFINITE` where there is none."""
    bits = values.view(np.int32)
    peak = np.int32(0)
    for i in range(bits.shape[0]):  # integer maximum: it vectorises, and NaN sorts above everything
        peak = max(peak, np.int32(bits[i] & np.int32(0x7FFFFFFF)))
    return _exponent_of(int(peak), 23, 127)


@compiled_inner
def _peak16(bits: BitsArray) -> int:
    peak = np.uint16(0)
    for i in range(bits.shape[0]):
        peak = max(peak, np.uint16(bits[i] & np.uint16(0x7FFF)))
    return int(peak)


@compiled
def block_exponent_bf16(bits: BitsArray) -> int:
    """`block_exponent` of bfloat16 bit patterns."""
    return _exponent_of(_peak16(bits), 7, 127)


@compiled
def block_exponent_f16(bits: BitsArray) -> int:
    """`block_exponent` of float16 bit patterns."""
    return _exponent_of(_peak16(bits), 10, 15)


@compiled
def sum_bits(workers: int) -> int:
    """Bits of magnitude that one of `workers` contributions may use: workers * 2**sum_bits < 2**31."""
    bits = 30
    while workers > 1:
        workers >>= 1
        bits -= 1
    return bits


@compiled
def scale_for(exponent: int, workers: int) -> float:
    """The factor from values to integers, a power of two; 0.0 for a sentinel or anything out of range."""
    if not (EXPONENT_MIN <= exponent <= EXPONENT_MAX and 1 <= workers <= MAX_WORKERS):
        return 0.0
    return math.ldexp(1.0, sum_bits(workers) - exponent)


# --- values to integers ------------------------------------------------------------------------------------


@compiled_inner
def _encode_status(own: int, exponent: int, workers: int, size: int, room: int) -> int:
    """Whether values with the exponent `own` may be encoded under the agreed `exponent`."""
    if room < size or not 1 <= workers <= MAX_WORKERS:
        return INVALID
    if own == EXPONENT_NONFINITE or exponent == EXPONENT_NONFINITE:
        return NONFINITE
    if exponent != EXPONENT_ZERO and not EXPONENT_MIN <= exponent <= EXPONENT_MAX:
        return INVALID
    return SATURATED if own > exponent else OK


@compiled
def encode_f32(values: FloatArray, exponent: int, workers: int, out: IntArray) -> int:
    """float32 to integers under the agreed exponent; a status."""
    status = _encode_status(block_exponent(values), exponent, workers, values.shape[0], out.shape[0])
    if status != OK:
        out[:] = 0
        return status
    scale = scale_for(exponent, workers)
    for i in range(values.shape[0]):
        out[i] = np.int32(np.rint(np.float64(values[i]) * scale))
    return OK


@compiled
def encode_bf16(bits: BitsArray, exponent: int, workers: int, out: IntArray) -> int:
    """bfloat16 bit patterns to integers under the agreed exponent; a status."""
    status = _encode_status(block_exponent_bf16(bits), exponent, workers, bits.shape[0], out.shape[0])
    if status != OK:
        out[:] = 0
        return status
    scale = scale_for(exponent, workers)
    for i in range(bits.shape[0]):
        value = np.uint32(np.uint32(bits[i]) << np.uint32(16)).view(np.float32)
        out[i] = np.int32(np.rint(np.float64(value) * scale))
    return OK


@compiled
def encode_f16(bits: BitsArray, exponent: int, workers: int, out: IntArray) -> int:
    """float16 bit patterns to integers under the agreed exponent; a status."""
    status = _encode_status(block_exponent_f16(bits), exponent, workers, bits.shape[0], out.shape[0])
    if status != OK:
        out[:] = 0
        return status
    scale = scale_for(exponent, workers)
    for i in range(bits.shape[0]):
        out[i] = np.int32(np.rint(np.float64(_widen_f16(bits[i])) * scale))
    return OK


@compiled_inner
def _widen_f16(pattern: np.uint16) -> np.float32:
    """The value of a finite float16 bit pattern, exact."""
    magnitude = np.int32(pattern & np.uint16(0x7FFF))
    if magnitude < 0x400:  # subnormal: so many times 2**-24
        value = np.float32(magnitude) * np.float32(2.0**-24)
    else:
        value = np.int32((magnitude << 13) + ((127 - 15) << 23)).view(np.float32)
    return -value if pattern & np.uint16(0x8000) else value


# --- integers to values ------------------------------------------------------------------------------------


@compiled_inner
def _decode_status(exponent: int, workers: int, size: int, room: int) -> int:
    if room < size or not 1 <= workers <= MAX_WORKERS:
        return INVALID
    if exponent == EXPONENT_NONFINITE:
        return NONFINITE
    if exponent != EXPONENT_ZERO and not EXPONENT_MIN <= exponent <= EXPONENT_MAX:
        return INVALID
    return OK


@compiled_inner
def _unit(exponent: int, workers: int) -> float:
    """The value of the integer 1; 0.0 for a block of zeros."""
    return 0.0 if exponent == EXPONENT_ZERO else math.ldexp(1.0, exponent - sum_bits(workers))


@compiled
def decode_f32(ints: IntArray, exponent: int, workers: int, out: FloatArray) -> int:
    """Integers, summed or not, to float32; a status."""
    status = _decode_status(exponent, workers, ints.shape[0], out.shape[0])
    if status != OK:
        out[:] = np.nan
        return status
    unit = _unit(exponent, workers)
    for i in range(ints.shape[0]):
        value = float(ints[i]) * unit
        if value >= _FLOAT32_OVERFLOW:  # spelt out, so that no cast overflows
            value = np.inf
        elif value <= -_FLOAT32_OVERFLOW:
            value = -np.inf
        out[i] = np.float32(value)
    return OK


@compiled
def decode_bf16(ints: IntArray, exponent: int, workers: int, out: BitsArray) -> int:
    """Integers, summed or not, to bfloat16 bit patterns; a status."""
    status = _decode_status(exponent, workers, ints.shape[0], out.shape[0])
    if status != OK:
        out[:] = 0x7FC0
        return status
    unit = _unit(exponent, workers)
    for i in range(ints.shape[0]):
        out[i] = _narrow(float(ints[i]) * unit, 7, 127, 2.0**-126)
    return OK


@compiled
def decode_f16(ints: IntArray, exponent: int, workers: int, out: BitsArray) -> int:
    """Integers, summed or not, to float16 bit patterns; a status."""
    status = _decode_status(exponent, workers, ints.shape[0], out.shape[0])
    if status != OK:
        out[:] = 0x7E00
        return status
    unit = _unit(exponent, workers)
    for i in range(ints.shape[0]):
        out[i] = _narrow(float(ints[i]) * unit, 10, 15, 2.0**-14)
    return OK


@compiled_inner
def _narrow(value: float, mantissa_bits: int, bias: int, smallest_normal: float) -> np.uint16:
    """The 16-bit pattern nearest to `integer * unit`, ties to even; what is too large becomes infinite.

    A subnormal is lifted by the smallest normal number: its last place is then where the format's is, and
    its pattern comes out higher by one exponent. The lift is exact wherever it can matter: an int32's last
    bit is at most 31 places below its first. 32-bit integers throughout: they vectorise.
    """
    magnitude = abs(value)
    lift = smallest_normal if magnitude < smallest_normal else 0.0
    wide = np.float64(magnitude + lift).view(np.int64)
    # The upper half holds every place that is kept; the lower can only decide that a tie is none.
    upper = np.int32(wide >> 32)
    if wide & 0xFFFFFFFF:
        upper = np.int32(upper | 1)
    drop = 20 - mantissa_bits
    odd = np.int32((upper >> drop) & 1)
    rounded = np.int32(np.int32(upper + np.int32((1 << (drop - 1)) - 1) + odd) >> drop)
    pattern = np.int32(rounded - np.int32((1023 - bias) << mantissa_bits))
    if lift > 0.0:
        pattern = np.int32(pattern - np.int32(1 << mantissa_bits))
    pattern = min(pattern, np.int32((2 * bias + 1) << mantissa_bits))
    return np.uint16(pattern | (0x8000 if value < 0.0 else 0))
