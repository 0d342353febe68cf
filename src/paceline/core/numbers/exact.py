"""The exact form of small float tensors: sums that lose nothing, in one round trip.

A float32 is an integer of at most 24 bits times 2**p, p from -149 to 104: as a whole number of 2**-149 it has at
most 277 bits. They are spread, with the sign, over twelve lanes of 24 bits each; an int32 lane leaves seven bits
for the sums of up to 64 workers. A thirteenth lane counts what is not finite: +inf in its low byte, -inf in the next,
NaN in both. The result is the exact sum, rounded once to the nearest of the output's format, ties to even.

Lane 0 of the chunk is the tensor's signature: a sum of different signatures shows that workers disagree.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled, compiled_inner
from paceline.core.numbers import fixedpoint
from paceline.core.numbers.layout import BFLOAT16, EXACT_LANES, FLOAT32, f32_at, u16_at

LIMBS = EXACT_LANES - 1
LIMB_BITS = 24
_LIMB = (1 << LIMB_BITS) - 1
_UNIT_EXPONENT = -149
_MINUS = 256
"""One -inf in the lane that counts what is not finite."""
_FLOAT32_OVERFLOW = 2.0**128 - 2.0**103
"""From here on, rounding to float32 gives an infinity."""


@compiled_inner
def as_float(value: float) -> np.float32:
    """Rounded to float32; what is too large becomes infinite, spelt out so that no cast overflows."""
    if value >= _FLOAT32_OVERFLOW:
        value = np.inf
    elif value <= -_FLOAT32_OVERFLOW:
        value = -np.inf
    return np.float32(value)


@compiled
def narrow_to(kind: int, value: float) -> np.uint16:
    """The nearest bfloat16 or float16 pattern; NaN stays NaN."""
    if np.isnan(value):
        return np.uint16(0x7FC0 if kind == BFLOAT16 else 0x7E00)
    if kind == BFLOAT16:
        return np.uint16(fixedpoint._narrow(value, 7, 127, 2.0**-126))
    return np.uint16(fixedpoint._narrow(value, 10, 15, 2.0**-14))


@compiled_inner
def _bits_of(address: int, at: int, kind: int) -> int:
    """The float32 bit pattern of a number of the tensor, signed."""
    if kind == FLOAT32:
        return int(np.int64(f32_at(address + 4 * at, 1).view(np.int32)[0]))
    half = u16_at(address + 2 * at, 1)[0]
    pattern = np.int64(half)
    if kind == BFLOAT16:
        word = pattern << 16
    elif pattern & 0x7C00 == 0x7C00:
        word = (np.int64(0x7F800000) | (pattern & 0x3FF) << 13) | (pattern & 0x8000) << 16
    else:
        word = np.int64(np.float32(fixedpoint._widen_f16(half)).view(np.int32)) & 0xFFFFFFFF
    return int(word - 2**32 if word >= 2**31 else word)


@compiled
def write_exact(address: int, kind: int, signature: int, out: Any) -> None:
    """The whole tensor, with its signature, as contributions to exact sums."""
    for lane in range(out.shape[0]):
        out[lane] = 0
    out[0] = signature
    for i in range((out.shape[0] - 1) // EXACT_LANES):
        at = 1 + EXACT_LANES * i
        bits = _bits_of(address, i, kind)
        biased = (bits >> 23) & 0xFF
        fraction = bits & 0x7FFFFF
        if biased == 255:
            if fraction != 0:
                out[at + LIMBS] = 1 + _MINUS
            else:
                out[at + LIMBS] = _MINUS if bits < 0 else 1
            continue
        whole = fraction if biased == 0 else fraction | 0x800000
        shift = max(biased, 1) - 1
        wide = whole << (shift % LIMB_BITS)
        low, high = wide & _LIMB, wide >> LIMB_BITS
        limb = at + shift // LIMB_BITS
        out[limb] = -low if bits < 0 else low
        if high != 0:
            out[limb + 1] = -high if bits < 0 else high


@compiled
def read_exact(values: Any, address: int, kind: int, divisor: int, numbers: int) -> None:
    """Exact sums to numbers of the tensor's format, divided by `divisor`."""
    for i in range(numbers):
        at = 1 + EXACT_LANES * i
        counts = np.int64(values[at + LIMBS])
        if counts != 0:
            above = counts % _MINUS
            value = np.nan if above and counts >= _MINUS else (np.inf if above else -np.inf)
        else:
            value = _total(values, at) / divisor
        if kind == FLOAT32:
            f32_at(address + 4 * i, 1)[0] = as_float(value)
        else:
            u16_at(address + 2 * i, 1)[0] = narrow_to(kind, value)


@compiled
def _total(values: Any, at: int) -> float:
    """The sum as a float64 that rounds to any narrower format as the exact sum would.

    The leading 48 bits and four more, and a last bit that is set if anything is below them.
    """
    sign = _sign_of(values, at)
    # Limbs from the lowest: `carry` may be of either sign, the limbs left behind are not negative.
    carry = np.int64(0)
    first, second, third, sticky = 0, 0, 0, 0
    lead, after, last, rest, top = 0, 0, 0, 0, 0
    for limb in range(LIMBS + 2):
        carry += sign * np.int64(values[at + limb]) if limb < LIMBS else 0
        digit = int(carry & _LIMB)
        carry >>= LIMB_BITS
        sticky |= third
        third, second, first = second, first, digit
        if digit != 0:
            top = limb
            lead, after, last, rest = first, second, third, sticky
    if lead == 0:
        return 0.0
    wide = (lead << (LIMB_BITS + 4)) | (after << 4) | (last >> 20)
    if rest != 0 or last & 0xFFFFF:
        wide |= 1
    magnitude = np.ldexp(float(wide), np.int32(LIMB_BITS * (top - 1) - 4 + _UNIT_EXPONENT))
    return float(sign * magnitude)


@compiled_inner
def _sign_of(values: Any, at: int) -> int:
    """1 or -1: the sign of the whole sum."""
    carry = np.int64(0)
    for limb in range(LIMBS):
        carry = (carry + np.int64(values[at + limb])) >> LIMB_BITS
    return -1 if carry < 0 else 1
