"""What goes into a measured all-reduce, and whether what came out is right.

Each rank's tensor repeats a tile of random numbers of its own. Everybody can make everybody's tile, so everybody knows
the exact sum. The tile's length is a prime: a piece that arrives in a wrong place does not go unseen.

**Right** means, for integers, equal. For floats, within the error that the method states: in fixed point
`n * q / 2` (q the step of the shared exponent, `core/numbers/fixedpoint.py`; in the 16-bit form the step of a patch
that holds every rank's largest number, `core/numbers/halves.py`) plus one rounding to the type; in a sum of
floats, as Gloo and one host's shared memory make it, `n - 1` roundings of sums no larger than the sum of
magnitudes. And bitwise the same on every rank, which the ranks compare by a digest.
"""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.numbers.fixedpoint import block_exponent, sum_bits
from paceline.core.numbers.halves import error_bound
from paceline.core.numbers.layout import BLOCK_ELEMENTS

TILE = 1_000_003
SIGNIFICANT_BITS = {"float32": 24, "bfloat16": 8, "float16": 11, "int32": 31}
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4}
INT_MAX = 2**20
"""Of a rank's integers: 64 of them add up without overflow."""


def tile(rank: int, dtype: str, length: int) -> npt.NDArray[Any]:
    """The numbers that rank `rank` repeats, as float32 (exactly representable in `dtype`) or int32."""
    generator = np.random.default_rng([7, rank])
    if dtype == "int32":
        return generator.integers(-INT_MAX, INT_MAX, length, dtype=np.int32)
    return rounded(generator.standard_normal(length, dtype=np.float32), dtype)


def rounded(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[np.float32]:
    """float32 numbers cut to what `dtype` can hold."""
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return values


class Reference:
    """The exact sum over all ranks, and how far a result may be from it."""

    def __init__(self, ranks: int, dtype: str, length: int, wire: int | None = None) -> None:
        self._wire = wire
        self.dtype = dtype
        self.length = length
        self.sum: npt.NDArray[np.float64] = np.zeros(length)
        magnitude = np.zeros(length)
        exponent = -1000
        peaks = []
        for rank in range(ranks):
            values = tile(rank, dtype, length)
            self.sum += values
            magnitude += np.abs(values, dtype=np.float64)
            if dtype != "int32":
                exponent = max(exponent, int(block_exponent(values)))
                peaks.append(float(np.abs(values).max()))
        if dtype == "int32":
            self.fixed_point = self.halves = self.float_sum = np.zeros(length)
            return
        rounding = 2.0 ** -SIGNIFICANT_BITS[dtype]
        step = 2.0 ** (exponent - sum_bits(ranks))
        self.fixed_point = ranks * step / 2 * (1 + rounding) + rounding * np.abs(self.sum)
        self.halves = error_bound(peaks, max(peaks)) * (1 + rounding) + rounding * np.abs(self.sum)
        self.float_sum = (ranks - 1) * rounding * magnitude * (1 + ranks * rounding) + rounding * np.abs(
            self.sum
        )

    def wrong(self, values: npt.NDArray[Any], *, fixed_point: bool) -> int:
        """How many of a result's elements (float32 or int32) are too far from the exact sum."""
        in_halves = self._wire != 32 and ITEM_BYTES[self.dtype] == 2 and len(values) > BLOCK_ELEMENTS
        fixed = self.halves if in_halves else self.fixed_point
        allowed = fixed if fixed_point else self.float_sum
        count = 0
        for start in range(0, len(values), self.length):
            part = values[start : start + self.length]
            off = np.abs(part - self.sum[: len(part)])
            count += int(np.count_nonzero(~(off <= allowed[: len(part)])))  # not <=: a NaN is wrong
        return count


def digest(values: npt.NDArray[Any]) -> bytes:
    """Eight bytes that differ where results differ."""
    return hashlib.blake2b(values.data.cast("B"), digest_size=8).digest()
