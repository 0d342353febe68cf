"""The loops of the reduction between ranks of one host: copy, add in rank order, round, divide.

Every sum is taken in the order of the ranks, ((x0 + x1) + x2) + ..., in float32 (int32 for int32), and
rounded to a 16-bit format once, at the end. So the bits depend on the values and on the number of ranks
alone: not on timing, not on how the work was cut, not on which rank did it.

bfloat16 and float16 come as uint16 bit patterns. Blocks of a few kilobytes keep the running sum in the first
cache, and the inner loops simple enough to vectorise."""

from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.compile.decorators import compiled, compiled_inner

FLOAT32, INT32, BFLOAT16, FLOAT16 = 0, 1, 2, 3
KINDS = {"float32": FLOAT32, "int32": INT32, "bfloat16": BFLOAT16, "float16": FLOAT16}

_BLOCK = 1024

_U = np.uint64
"""Unsigned indices: a signed one is tested for counting from the end, and the loop does not vectorise."""

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint16]


@compiled
def copy(source: Array, at: int, target: Array, to: int, count: int) -> None:
    """Copy elements between arrays of one type."""
    a, b = _U(at), _U(to)
    for i in range(_U(count)):
        target[b + i] = source[a + i]


@compiled
def add_slices(shared: Array, stride: int, ranks: int, at: int, target: Array, to: int, count: int) -> None:
    """target[to:] = the sum over ranks of shared[rank * stride + at:], float32 or int32, in rank order."""
    for begin in range(0, count, _BLOCK):
        size = _U(min(_BLOCK, count - begin))
        first = _U(at + begin)
        out = _U(to + begin)
        for i in range(size):
            target[out + i] = shared[first + i]
        for rank in range(1, ranks):
            base = _U(rank * stride + at + begin)
            for i in range(size):
                target[out + i] += shared[base + i]


@compiled
def divide(values: Array, at: int, count: int, divisor: int, kind: int) -> None:
    """Divide in place: float32 rounded once; int32 towards zero, as integer averages are taken elsewhere."""
    first = _U(at)
    if kind == INT32:
        for i in range(_U(count)):
            value = np.int64(values[first + i])
            values[first + i] = value // divisor if value >= 0 else -(-value // divisor)
    else:
        by = np.float32(divisor)
        for i in range(_U(count)):
            values[first + i] = np.float32(np.float32(values[first + i]) / by)


@compiled_inner
def _widen_bf16(pattern: np.uint16) -> np.float32:
    return np.uint32(np.uint32(pattern) << np.uint32(16)).view(np.float32)


@compiled_inner
def _narrow_bf16(value: np.float32) -> np.uint16:
    """To the nearest, ties to even; NaN stays NaN."""
    bits = np.float32(value).view(np.int32)
    magnitude = np.int32(bits & np.int32(0x7FFFFFFF))
    odd = np.int32((bits >> np.int32(16)) & np.int32(1))
    rounded = (
        np.int32(magnitude + np.int32(0x7FFF) + odd) if magnitude <= 0x7F800000 else np.int32(0x7FC00000)
    )
    return np.uint16((rounded >> np.int32(16)) | ((bits >> np.int32(16)) & np.int32(0x8000)))


@compiled_inner
def _widen_f16(pattern: np.uint16) -> np.float32:
    """Exact, infinities and NaN included."""
    magnitude = np.int32(pattern & np.uint16(0x7FFF))
    if magnitude < 0x400:  # subnormal: so many times 2**-24
        value = np.float32(magnitude) * np.float32(2.0**-24)
    elif magnitude < 0x7C00:
        value = np.int32((magnitude << 13) + ((127 - 15) << 23)).view(np.float32)
    else:
        value = np.int32((magnitude << 13) + ((255 - 31) << 23)).view(np.float32)
    return -value if pattern & np.uint16(0x8000) else value


@compiled_inner
def _narrow_f16(value: np.float32) -> np.uint16:
    """To the nearest, ties to even; what is too large becomes infinite, NaN stays NaN."""
    bits = np.float32(value).view(np.int32)
    magnitude = np.int32(bits & np.int32(0x7FFFFFFF))
    odd = np.int32((magnitude >> np.int32(13)) & np.int32(1))
    # Added to 0.5, the last place of a value below 2**-14 is that of a float16 subnormal: the sum rounds it.
    lifted = np.float32(magnitude.view(np.float32) + np.float32(0.5)).view(np.int32)
    pattern = np.int32((magnitude - np.int32((127 - 15) << 23) + np.int32(0xFFF) + odd) >> np.int32(13))
    pattern = np.int32(lifted - np.int32(0x3F000000)) if magnitude < 0x38800000 else pattern
    pattern = np.int32(0x7C00) if magnitude >= 0x477FF000 else pattern
    pattern = np.int32(0x7E00) if magnitude > 0x7F800000 else pattern
    return np.uint16(pattern | ((bits >> np.int32(16)) & np.int32(0x8000)))


@compiled
def widen(source: Bits, at: int, target: Floats, to: int, count: int, kind: int) -> None:
    """16-bit patterns to float32, exact."""
    a, b = _U(at), _U(to)
    if kind == BFLOAT16:
        for i in range(_U(count)):
            target[b + i] = _widen_bf16(source[a + i])
    else:
        for i in range(_U(count)):
            target[b + i] = _widen_f16(source[a + i])


@compiled
def narrow(source: Floats, at: int, target: Bits, to: int, count: int, kind: int) -> None:
    """float32 to 16-bit patterns, rounded to the nearest, ties to even."""
    a, b = _U(at), _U(to)
    if kind == BFLOAT16:
        for i in range(_U(count)):
            target[b + i] = _narrow_bf16(source[a + i])
    else:
        for i in range(_U(count)):
            target[b + i] = _narrow_f16(source[a + i])
