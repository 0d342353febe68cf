"""The 16-bit form: two numbers in a 32-bit lane, for tensors whose own precision is no better than that.

**Two in one.** A lane is `low + high * 2**16`, of signed numbers that are both below 2**15. Lanes are added modulo
2**32, as any: the sum is the sum of the lows plus 2**16 times that of the highs. As long as both stay below 2**15 in
magnitude they can be told apart again: what a negative low borrows from the high is given back in reading. So
switches, custodians and whoever else adds need to know nothing of it, and every path gives the same bits.
The first half of a chunk's numbers are its lows, the second its highs.

**Steps.** A *patch* of at most `PATCH` numbers in a row shares a step, a power of two. Before, every worker says how
large its largest number of a patch is, its *peak*, as a whole number of 2**(e - `peak_bits`), rounded up; e is the
agreed exponent of the block, as in `blocks`. No sum over the workers is larger than the sum of their peaks. The
step q is the smallest with

    sum of peaks / q + n / 2 <= 32767

(n / 2 for the roundings of n workers): **a sum of lanes cannot overflow**, in any order, and the room is shared by
what the workers really have, not by what all could have at once. From q >= 2**-149 follows that nothing here is
finer than float32.

**Error.** A contribution is `rint(x / q)`. Of a sum, before the one rounding to the output's format: at most n * q / 2,
that is less than n * (P + n * 2**(e - peak_bits)) / (32767 - n / 2), where P is the sum of the n peaks: `error_bound`.
A float ring of 16 bits rounds n - 1 times, by up to 2**-9 (bfloat16) of each partial sum.

**NaN and infinities** come out as a float sum gives them. The upper byte of a patch's peak word counts the workers,
c of them, with such a number in the patch. Where c is not 0, the 2**16 values of a half are shared by two counters,
of +inf and of -inf (a NaN raises both), of c + 1 values each, and what is left: finite numbers go as `trunc(x / q)`,
and q is the smallest with sum of peaks / q <= F, where (2 F + 1)(c + 1)**2 <= 2**16. They are coarser, off by up to
n * q; other patches are not touched.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled, compiled_apart, compiled_inner
from paceline.core.numbers import fixedpoint
from paceline.core.numbers.blocks import DISAGREED, NONFINITE, is_mixed, number_at, peak_at, power
from paceline.core.numbers.exact import as_float, narrow_to
from paceline.core.numbers.fixedpoint import EXPONENT_ZERO, sum_bits
from paceline.core.numbers.layout import BFLOAT16, FLOAT32, PATCH, f32_at, i32_at, u16_at

STEP_MIN = -149
"""The exponent of the smallest step."""
_BIAS = 1024
_COUNTER = 24
_WORD = 0xFFFFFFFF
_HALF = 0xFFFF
_PLAIN_MIN = _BIAS - 100
_PLAIN_MAX = _BIAS + 100
"""Steps from 2**-100 to 2**100 of patches without a NaN or an infinity: float32 holds all that is computed."""


@compiled
def peak_bits(workers: int) -> int:
    """Bits of a worker's peak: the sum of all has at most 24."""
    return sum_bits(workers) - 7


@compiled
def finite_room(unfinite: int) -> int:
    """The largest sum of finite numbers in a lane, where so many workers have others in its patch."""
    return int(((1 << 16) // ((unfinite + 1) * (unfinite + 1)) - 1) // 2)


@compiled
def step_of(peaks: int, unfinite: int, exponent: int, workers: int) -> int:
    """The step that follows from a patch's word: its exponent plus a bias, and above that how many are not finite."""
    room = finite_room(unfinite) - (0 if unfinite else (workers + 1) // 2)
    step = STEP_MIN
    if peaks > 0:
        shift = 0  # the largest with peaks * 2**shift <= room
        while peaks << (shift + 1) <= room:
            shift += 1
        while peaks > room << -min(shift, 0):
            shift -= 1
        step = max(STEP_MIN, exponent - peak_bits(workers) - shift)
    return int((unfinite << 16) | (step + _BIAS))


def error_bound(peaks: list[float], block_peak: float, unfinite: int = 0) -> float:
    """The most by which a sum, before its one rounding, can differ from the true one.

    `peaks` is each worker's max|x| over the patch, `block_peak` the largest of all workers in the block; `unfinite`
    says how many workers have a NaN or an infinity in the patch, which is then not among the peaks.
    """
    workers = len(peaks)
    if block_peak == 0.0:
        return 0.0
    exponent = int(fixedpoint.block_exponent(np.array([block_peak], dtype=np.float32)))
    scale = 2.0 ** (peak_bits(workers) - exponent)
    total = sum(int(np.ceil(peak * scale)) for peak in peaks)
    step = (step_of(total, unfinite, exponent, workers) & _HALF) - _BIAS
    return float(workers * 2.0 ** (step if unfinite else step - 1))


# --- peaks -------------------------------------------------------------------------------------------------


@compiled
def _block_exponent(exponent: int) -> int:
    return exponent - NONFINITE if is_mixed(exponent) else exponent


@compiled
def _value_of(pattern: int, kind: int) -> float:
    """The number with this sign-less bit pattern, finite."""
    if kind == FLOAT32:
        return float(np.int32(pattern).view(np.float32))
    if kind == BFLOAT16:
        return float(np.int32(pattern << 16).view(np.float32))
    return float(fixedpoint._widen_f16(np.uint16(pattern)))


@compiled_inner
def patch_range(layout: Any, patch: int) -> Any:
    """The numbers of a patch, from the first to the one behind the last; none of those that a last chunk lacks."""
    first = patch // layout.chunk_patches * layout.chunk_numbers
    numbers: Any = min(np.int64(layout.chunk_numbers), layout.numbers - first)
    lows = (numbers + 1) // 2
    a_half = layout.chunk_patches // 2
    begin = patch % layout.chunk_patches % a_half * PATCH
    end: Any = min(begin + PATCH, lows)
    if patch % layout.chunk_patches >= a_half:
        begin += lows
        end = min(end + lows, numbers)
    return first + begin, first + end


@compiled_inner
def step_parts(word: int) -> Any:
    """What `step_of` gives: how many workers are not finite in the patch, and the exponent of its step."""
    return word >> 16, (word & _HALF) - _BIAS


@compiled
def write_peaks(layout: Any, place: Any, address: int, kind: int, exponents: Any, out: Any) -> None:
    """A word for each patch: its peak, rounded up, and above it whether there is a NaN or an infinity."""
    for i in range(place.count):
        begin, end = patch_range(layout, place.first + i)
        word: Any = np.int64(0)
        if begin < end:
            pattern, nonfinite = peak_at(address, begin, end - begin, kind)
            block = (place.first + i) // layout.chunk_patches // layout.block_chunks
            exponent = _block_exponent(exponents[block])
            if exponent != EXPONENT_ZERO:
                word = np.int64(
                    np.ceil(_value_of(pattern, kind) * power(peak_bits(layout.workers) - exponent))
                )
            if nonfinite:
                word |= np.int64(1) << _COUNTER
        out[i] = np.int32(word)


@compiled
def read_peaks(layout: Any, place: Any, values: Any, exponents: Any) -> int:
    """The steps of the patches; `DISAGREED` if no workers could have sent this."""
    workers: Any = np.int64(layout.workers)
    for i in range(place.count):
        patch = place.first + i
        word: Any = np.int64(values[i]) & _WORD
        unfinite = word >> _COUNTER
        peaks = word & ((1 << _COUNTER) - 1)
        if unfinite > workers or peaks > workers << peak_bits(workers):
            return DISAGREED
        chunk = patch // layout.chunk_patches
        exponent = _block_exponent(exponents[chunk // layout.block_chunks])
        exponents[layout.blocks + patch] = step_of(peaks, unfinite, exponent, workers)
    return 0


# --- numbers -----------------------------------------------------------------------------------------------


@compiled_inner
def _is_plain(step: int) -> bool:
    return bool(_PLAIN_MIN <= step <= _PLAIN_MAX)


@compiled
def write_halves(layout: Any, place: Any, address: int, kind: int, exponents: Any, payload: int) -> None:
    """A data chunk's lanes, under the agreed steps of its patches."""
    lows: Any = np.int64(place.count)
    highs: Any = np.int64(place.numbers) - lows
    steps = layout.blocks + place.first // layout.chunk_numbers * layout.chunk_patches
    a_half = layout.chunk_patches // 2
    for patch in range((lows + PATCH - 1) // PATCH):
        begin = patch * PATCH
        end: Any = min(begin + PATCH, lows)
        end_high: Any = max(begin, min(end, highs))
        low_step: Any = np.int64(exponents[steps + patch])
        high_step: Any = np.int64(exponents[steps + a_half + patch])
        first = place.first + begin
        out = i32_at(payload + 4 * begin, end - begin)
        if not (_is_plain(low_step) and _is_plain(high_step)):
            _write_slowly(address, first, lows, kind, low_step, high_step, end_high - begin, out)
            continue
        low_scale = power(_BIAS - low_step)
        high_scale = power(_BIAS - high_step)
        if kind == FLOAT32:
            low32 = f32_at(address + 4 * first, end - begin)
            high32 = f32_at(address + 4 * (first + lows), end_high - begin)
            _pack_f32(low32, high32, low_scale, high_scale, out)
        else:
            low16 = u16_at(address + 2 * first, end - begin)
            high16 = u16_at(address + 2 * (first + lows), end_high - begin)
            if kind == BFLOAT16:
                _pack_bf16(low16, high16, low_scale, high_scale, out)
            else:
                _pack_f16(low16, high16, low_scale, high_scale, out)


@compiled_inner
def _whole(value: Any, scale: Any) -> Any:
    return np.int32(np.rint(value * scale))


@compiled_inner
def _from_bf16(pattern: Any) -> Any:
    return np.uint32(np.uint32(pattern) << np.uint32(16)).view(np.float32)


@compiled
def _pack_f32(low: Any, high: Any, low_scale: float, high_scale: float, out: Any) -> None:
    a, b = np.float32(low_scale), np.float32(high_scale)
    both = high.shape[0]
    for i in range(both):
        out[i] = _whole(low[i], a) + (_whole(high[i], b) << 16)
    for i in range(both, out.shape[0]):
        out[i] = _whole(low[i], a)


@compiled
def _pack_bf16(low: Any, high: Any, low_scale: float, high_scale: float, out: Any) -> None:
    a, b = np.float32(low_scale), np.float32(high_scale)
    both = high.shape[0]
    for i in range(both):
        out[i] = _whole(_from_bf16(low[i]), a) + (_whole(_from_bf16(high[i]), b) << 16)
    for i in range(both, out.shape[0]):
        out[i] = _whole(_from_bf16(low[i]), a)


@compiled
def _pack_f16(low: Any, high: Any, low_scale: float, high_scale: float, out: Any) -> None:
    a, b = np.float32(low_scale), np.float32(high_scale)
    both = high.shape[0]
    for i in range(both):
        low_half = _whole(fixedpoint._widen_f16(low[i]), a)
        out[i] = low_half + (_whole(fixedpoint._widen_f16(high[i]), b) << 16)
    for i in range(both, out.shape[0]):
        out[i] = _whole(fixedpoint._widen_f16(low[i]), a)


@compiled
def read_halves(
    layout: Any, place: Any, payload: int, exponents: Any, divisor: int, address: int, kind: int
) -> None:
    """A result's lanes to numbers of the tensor."""
    lows: Any = np.int64(place.count)
    highs: Any = np.int64(place.numbers) - lows
    steps = layout.blocks + place.first // layout.chunk_numbers * layout.chunk_patches
    a_half = layout.chunk_patches // 2
    whole_power = divisor & (divisor - 1) == 0
    for patch in range((lows + PATCH - 1) // PATCH):
        begin = patch * PATCH
        end: Any = min(begin + PATCH, lows)
        end_high: Any = max(begin, min(end, highs))
        low_step: Any = np.int64(exponents[steps + patch])
        high_step: Any = np.int64(exponents[steps + a_half + patch])
        first = place.first + begin
        part = i32_at(payload + 4 * begin, end - begin)
        if not (_is_plain(low_step) and _is_plain(high_step) and whole_power):
            _read_slowly(part, address, first, lows, kind, low_step, high_step, end_high - begin, divisor)
            continue
        low_unit = power(low_step - _BIAS) / divisor
        high_unit = power(high_step - _BIAS) / divisor
        if kind == FLOAT32:
            low32 = f32_at(address + 4 * first, end - begin)
            high32 = f32_at(address + 4 * (first + lows), end_high - begin)
            _unpack_f32(part, low_unit, high_unit, low32, high32)
        else:
            low16 = u16_at(address + 2 * first, end - begin)
            high16 = u16_at(address + 2 * (first + lows), end_high - begin)
            if kind == BFLOAT16:
                _unpack_bf16(part, low_unit, high_unit, low16, high16)
            else:
                _unpack_f16(part, low_unit, high_unit, kind, low16, high16)


@compiled_inner
def _low(word: Any) -> Any:
    return np.int32(((word & np.int32(_HALF)) ^ np.int32(0x8000)) - np.int32(0x8000))


@compiled_inner
def _high(word: Any) -> Any:
    """What is above the low half, and what that has borrowed."""
    return np.int32((word >> np.int32(16)) + ((word >> np.int32(15)) & np.int32(1)))


@compiled_inner
def _to_bf16(value: Any) -> Any:
    """The nearest bfloat16 pattern of a finite float32 below 2**120, ties to even."""
    bits = np.float32(value).view(np.uint32)
    odd = np.uint32((bits >> np.uint32(16)) & np.uint32(1))
    return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@compiled
def _unpack_f32(values: Any, low_unit: float, high_unit: float, low: Any, high: Any) -> None:
    a, b = np.float32(low_unit), np.float32(high_unit)
    both = high.shape[0]
    for i in range(both):
        low[i] = np.float32(_low(values[i])) * a
        high[i] = np.float32(_high(values[i])) * b
    for i in range(both, low.shape[0]):
        low[i] = np.float32(_low(values[i])) * a


@compiled
def _unpack_bf16(values: Any, low_unit: float, high_unit: float, low: Any, high: Any) -> None:
    a, b = np.float32(low_unit), np.float32(high_unit)
    both = high.shape[0]
    for i in range(both):
        low[i] = _to_bf16(np.float32(_low(values[i])) * a)
        high[i] = _to_bf16(np.float32(_high(values[i])) * b)
    for i in range(both, low.shape[0]):
        low[i] = _to_bf16(np.float32(_low(values[i])) * a)


@compiled
def _unpack_f16(values: Any, low_unit: float, high_unit: float, kind: int, low: Any, high: Any) -> None:
    both = high.shape[0]
    for i in range(both):
        low[i] = narrow_to(kind, np.float64(_low(values[i])) * low_unit)
        high[i] = narrow_to(kind, np.float64(_high(values[i])) * high_unit)
    for i in range(both, low.shape[0]):
        low[i] = narrow_to(kind, np.float64(_low(values[i])) * low_unit)


# --- patches with a NaN, an infinity, or a step beyond float32; averages of other than 2, 4, 8, ... workers ---


@compiled_inner
def _half_of(value: float, step: int) -> int:
    """One number as its 16-bit contribution, not yet cut to 16 bits."""
    scale = power(_BIAS - (step & _HALF))
    unfinite = step >> 16
    if unfinite == 0:
        return int(np.rint(value * scale))
    if np.isfinite(value):
        return int(np.trunc(value * scale))
    stride = 2 * finite_room(unfinite) + 1
    raised = 0
    if not value < 0.0:
        raised += 1
    if not value > 0.0:
        raised += unfinite + 1
    return int(stride * raised)


@compiled_apart
def _write_slowly(
    address: int, first: int, lows: int, kind: int, low_step: int, high_step: int, highs: int, out: Any
) -> None:
    for i in range(out.shape[0]):
        word: Any = np.int64(_half_of(number_at(address, first + i, kind), low_step))
        if i < highs:
            word += np.int64(_half_of(number_at(address, first + lows + i, kind), high_step)) << 16
        word &= _WORD
        out[i] = np.int32(word - 2**32 if word >= 2**31 else word)


@compiled_inner
def _number_of(shifted: int, step: int, divisor: int) -> float:
    """The number that a summed half stands for; `shifted` is the half plus the room of its patch, from 0 to 2**16."""
    unfinite = step >> 16
    room = finite_room(unfinite)
    stride = 2 * room + 1
    raised = shifted // stride
    if unfinite > 0 and raised > 0:
        above = raised % (unfinite + 1)
        below = raised // (unfinite + 1)
        return float(np.nan if above and below else (np.inf if above else -np.inf))
    total = shifted - room if unfinite == 0 else shifted % stride - room
    return float(total) * power((step & _HALF) - _BIAS) / divisor


@compiled_inner
def _put(address: int, at: int, kind: int, value: float) -> None:
    if kind == FLOAT32:
        f32_at(address + 4 * at, 1)[0] = as_float(value)
    else:
        u16_at(address + 2 * at, 1)[0] = narrow_to(kind, value)


@compiled_apart
def _read_slowly(
    values: Any,
    address: int,
    first: int,
    lows: int,
    kind: int,
    low_step: int,
    high_step: int,
    highs: int,
    divisor: int,
) -> None:
    low_room = finite_room(low_step >> 16)
    high_room = finite_room(high_step >> 16)
    for i in range(values.shape[0]):
        word: Any = np.int64(values[i])
        low = (word + low_room) & _HALF
        _put(address, first + i, kind, _number_of(low, low_step, divisor))
        if i < highs:
            high = (((word - (low - low_room)) >> 16) + high_room) & _HALF
            _put(address, first + lows + i, kind, _number_of(high, high_step, divisor))
