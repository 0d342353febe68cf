"""All chunks of a tensor at once: the agent's arithmetic, for any carrier that sums int32.

A reduction that could not be finished over the network is done again over another carrier, by workers of
which some may have its result already. So the carrier must give the very same bits. The chunks of a tensor
are integers, and integer sums are the same in any order: written into one buffer, summed by anything that
adds int32, and read back, they give what the agents would have given.

Two rounds: `write_agreement` and `read_agreement` for the exponents (and for tensors that need one round
only), then `write_rest` and `read_rest`. A round's buffer may be empty: it is then skipped."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.numbers.blocks import read_chunk, write_chunk
from paceline.core.numbers.layout import (
    BLOCKS,
    DATA,
    DTYPES,
    EXPONENTS,
    INTEGERS,
    LAYOUT,
    OPS,
    PLACE,
    WHOLE,
    find_place,
    lay_out,
)
from paceline.live.agent.handle import TensorMismatchError

Ints = npt.NDArray[np.int32]


class BulkReduction:
    """One tensor's chunks: `agreement` is to be summed first, then `rest`."""

    def __init__(self, array: npt.NDArray[Any], kind: str, op: str, elements: int, workers: int) -> None:
        """`array` is the worker's input; it is only read."""
        self._array, self._kind, self._op = array, DTYPES[kind], OPS[op]
        layouts = np.zeros(1, LAYOUT).view(np.recarray)
        self._layout: Any = layouts[0]
        self._place: Any = np.zeros(1, PLACE).view(np.recarray)[0]
        lay_out(self._layout, array.shape[0], self._kind, self._op, elements, workers)
        self._exponents = np.zeros(max(1, int(self._layout.blocks)), np.int32)
        self._mode = int(self._layout.mode)
        first_round = int(self._layout.sections) * elements if self._mode == BLOCKS else 0
        if self._mode not in (BLOCKS, INTEGERS):
            first_round = elements
        self.agreement: Ints = np.zeros(first_round, np.int32)
        self.rest: Ints = np.zeros(array.shape[0] if self._mode in (BLOCKS, INTEGERS) else 0, np.int32)

    def write_agreement(self) -> Ints:
        """The first round's integers; they may be summed in place."""
        if self.agreement.size:
            self._write(self.agreement, *self._first_round())
        return self.agreement

    def read_agreement(self, target: npt.NDArray[Any]) -> None:
        """Take the sums of the first round."""
        if self.agreement.size:
            self._read(self.agreement, target, *self._first_round())

    def write_rest(self) -> Ints:
        """The second round's integers."""
        if self.rest.size:
            self._write(self.rest, 1, DATA)
        return self.rest

    def read_rest(self, target: npt.NDArray[Any]) -> None:
        """Take the sums of the second round: `target` then holds the result."""
        if self.rest.size:
            self._read(self.rest, target, 1, DATA)

    def _first_round(self) -> tuple[int, int]:
        if self._mode == BLOCKS:
            return int(self._layout.elements), EXPONENTS
        return 0, WHOLE

    def _chunks(self, only: int) -> Iterator[None]:
        """Sets `place` to each chunk of one kind in turn."""
        for local in range(int(self._layout.chunks)):
            find_place(self._layout, local, self._place)
            if int(self._place.kind) == only:
                yield

    def _write(self, buffer: Ints, stride: int, only: int) -> None:
        values, base = self._array.ctypes.data, buffer.ctypes.data
        for _ in self._chunks(only):
            at = base + 4 * int(self._place.first) * stride
            write_chunk(self._layout, self._place, values, self._kind, self._exponents, at)

    def _read(self, buffer: Ints, target: npt.NDArray[Any], stride: int, only: int) -> None:
        values, base = target.ctypes.data, buffer.ctypes.data
        for _ in self._chunks(only):
            at = base + 4 * int(self._place.first) * stride
            status = read_chunk(self._layout, self._place, values, self._kind, self._op, self._exponents, at)
            if status != 0:
                raise TensorMismatchError("the workers reduce different tensors")


def warm_up() -> None:
    """Compile, or load, what a reduction needs: not when the network has just failed."""
    for size in (1, 5000):
        values = np.ones(size, np.float32)
        bulk = BulkReduction(values, "float32", "sum", 2048, 1)
        bulk.write_agreement()
        bulk.read_agreement(values)
        bulk.write_rest()
        bulk.read_rest(values)
