"""Error feedback for float32 in the 16-bit form: what rounding takes from a contribution is added to the next one.

A worker puts x + r into a sum, where r is its *residual*: what the contribution before has lost, x' - q * rint(x' / q)
with the step q of its patch. Errors of rounding then do not add up from step to step: after any number of sums, what
all contributions together have lost is the last residual, at most q / 2 a number.

A residual is not kept, it follows from what is: the contribution and the steps that the workers have agreed on
(`Given`). Both are the same by every path, so residuals are too.

Patches in which a worker has a NaN or an infinity leave no residual: a sum that no optimizer will use has lost nothing
that should come later. Where x + r would be no finite number, x goes as it is.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.compile.decorators import compiled, compiled_inner
from paceline.core.numbers.blocks import power
from paceline.core.numbers.halves import patch_range, step_parts
from paceline.core.numbers.layout import (
    BLOCK_ELEMENTS,
    ELEMENTS_MIN,
    FLOAT32,
    HALVES,
    LAYOUT,
    f32_at,
    i32_at,
    lay_out,
)

Array = npt.NDArray[Any]


class GivenPart(NamedTuple):
    """Of a contribution, what went by one way: so many numbers, cut alike."""

    numbers: int
    agreed: Array
    """The exponents of its blocks, and behind them the steps of its patches."""
    elements: int
    workers: int


class Given(NamedTuple):
    """A contribution whose sum has ended."""

    values: Array
    """As it was given, before rounding."""
    parts: Sequence[GivenPart]


def add_residual(values: Array, before: Given) -> None:
    """Add what the contribution before has lost, in place; both are float32 and of one size.

    Parts that did not travel in 16 bits have lost nothing that counts.
    """
    layouts: Any = np.zeros(1, LAYOUT).view(np.recarray)
    begin = 0
    for part in before.parts:
        lay_out(layouts[0], part.numbers, FLOAT32, 0, part.elements, part.workers, 16)
        if layouts[0].mode == HALVES and part.agreed.size == layouts[0].blocks + layouts[0].patches:
            at = 4 * begin
            _add(layouts[0], values.ctypes.data + at, before.values.ctypes.data + at, part.agreed.ctypes.data)
        begin += part.numbers


def warm_up() -> None:
    """Compile, or load, what a first residual needs: not between two steps of a training."""
    layouts: Any = np.zeros(1, LAYOUT).view(np.recarray)
    values = np.zeros(BLOCK_ELEMENTS + 1, np.float32)
    lay_out(layouts[0], values.size, FLOAT32, 0, ELEMENTS_MIN, 1, 16)
    agreed = np.full(int(layouts[0].blocks + layouts[0].patches), 1 << 16, np.int32)
    add_residual(values, Given(values, [GivenPart(values.size, agreed, ELEMENTS_MIN, 1)]))


@compiled
def _add(layout: Any, address: int, before: int, agreed: int) -> None:
    steps = i32_at(agreed + 4 * layout.blocks, layout.patches)
    for patch in range(layout.patches):
        begin, end = patch_range(layout, patch)
        unfinite, exponent = step_parts(steps[patch])
        if begin < end and unfinite == 0:
            values = f32_at(address + 4 * begin, end - begin)
            _add_patch(values, f32_at(before + 4 * begin, end - begin), exponent)


@compiled
def _add_patch(values: Any, before: Any, exponent: int) -> None:
    if -100 <= exponent <= 100:
        scale, step = np.float32(power(-exponent)), np.float32(power(exponent))
        for i in range(values.shape[0]):
            values[i] = _sum(values[i], np.float32(before[i] - np.float32(np.rint(before[i] * scale)) * step))
    else:
        for i in range(values.shape[0]):
            number = np.float64(before[i])
            lost = number - np.rint(number * power(-exponent)) * power(exponent)
            values[i] = _sum(values[i], np.float32(lost))


@compiled_inner
def _sum(value: Any, lost: Any) -> Any:
    both = np.float32(value + lost)
    return both if np.isfinite(both) else value
