"""How a tensor is cut for several switches: each part a tensor of its own, and together bit for bit the whole.

What rounds a sum are the exponents that blocks share and, in the 16-bit form, the steps of patches; both are the
block's own. So parts that are cut between blocks, and that travel in the form of the whole, give the sums of the whole.
A part of `PART_BLOCKS` whole blocks is large enough for every form that the whole can have.

Every worker cuts alike: by the size of the tensor, the weights of the switches, and what was cut before.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from paceline.core.numbers.layout import BLOCK_ELEMENTS, LAYOUT, lay_out

PART_BLOCKS = 2
"""Whole blocks of the least part: more numbers than `BLOCK_ELEMENTS`, from which on 16-bit formats take their form."""


class TensorPart(NamedTuple):
    """A part of a tensor: where it goes, and which of its numbers."""

    switch: int
    begin: int
    end: int


class Splitter:
    """Cuts one tensor after another for switches with `weights`.

    Tensors too small for a part each go to fewer switches, the smallest to one, in turns by weight. Switches of less
    than half the greatest weight get no whole tensors: the time of a sum that waits for one of them would not be
    shared by anybody.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        if not weights or min(weights) < 1:
            raise ValueError("weights are whole numbers above 0")
        self._weights = tuple(weights)
        self._given = [0] * len(weights)  # numbers of tensors that had no part for every switch
        layouts: Any = np.zeros(1, LAYOUT)
        self._layout = layouts.view(np.recarray)[0]
        self._block_chunks, self._chunk_numbers = layouts["block_chunks"], layouts["chunk_numbers"]

    def cut(self, size: int, dtype: int, elements: int, wire: int) -> list[TensorPart]:
        """The parts of the next tensor, in order; `elements` and `wire` as in `lay_out`."""
        chosen = list(range(len(self._weights)))
        # Blocks have more than half of `BLOCK_ELEMENTS`: without this many numbers there are not blocks enough.
        if size >= PART_BLOCKS * BLOCK_ELEMENTS:
            lay_out(self._layout, size, dtype, 0, elements, 1, wire)
            block = int(self._block_chunks[0]) * int(self._chunk_numbers[0])
            while len(chosen) > 1:
                ends = _ends(size // block, [self._weights[s] for s in chosen])
                begins = [0, *ends[:-1]]
                if all(end - begin >= PART_BLOCKS for begin, end in zip(begins, ends, strict=True)):
                    parts = [
                        TensorPart(s, begin * block, end * block)
                        for s, begin, end in zip(chosen, begins, ends, strict=True)
                    ]
                    parts[-1] = parts[-1]._replace(end=size)  # what is no whole block goes with the last
                    if len(chosen) < len(self._weights):
                        self._give(parts)
                    return parts
                chosen.remove(self._to_leave_out(chosen))
        whole = [TensorPart(self._turn_of(size), 0, size)]
        self._give(whole)
        return whole

    def _to_leave_out(self, chosen: list[int]) -> int:
        """The switch with the least weight; of several, the one that was given most."""
        return min(chosen, key=lambda s: (self._weights[s], -self._given[s], -s))

    def _turn_of(self, size: int) -> int:
        """The switch that would be through with all it was given first, of those with at least half the weight."""
        most = max(self._weights)
        able = [s for s, weight in enumerate(self._weights) if 2 * weight >= most]
        # Fractions with a common denominator would be exact too; cross products need none.
        best = able[0]
        for s in able[1:]:
            if (self._given[s] + size) * self._weights[best] < (self._given[best] + size) * self._weights[s]:
                best = s
        return best

    def _give(self, parts: list[TensorPart]) -> None:
        for part in parts:
            self._given[part.switch] += part.end - part.begin


def _ends(total: int, weights: list[int]) -> list[int]:
    """Where each share of `total` ends, in proportion to the weights, rounded to whole numbers."""
    whole = sum(weights)
    ends, so_far = [], 0
    for weight in weights:
        so_far += weight
        ends.append((2 * total * so_far + whole) // (2 * whole))
    return ends
