"""Reductions over Gloo, between two generations of agents: the last path, and bit for bit the same.

A reduction that agents could not finish is done again here, by workers of which some may have its result already. So
Gloo must give the very same bits. The chunks of a tensor are integers, and integer sums are the same in any order:
written into one buffer, summed by Gloo, and read back, they give what the agents would have given
(`ChunkedReduction`).

All workers begin with the first reduction that one of them has no result of, and go on in order (`GlooReplay`). Each
reduction also carries one flag a worker: "I am ready to leave this path". The sum tells every worker, at the same
reduction, that all are.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch._C._distributed_c10d import Store
from torch.distributed import DistBackendError, ProcessGroupGloo

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
from paceline.live.agent.agent import TensorMismatchError
from paceline.torch.failover.heartbeat import DEAD_S
from paceline.torch.failover.pending import ReductionQueue
from paceline.torch.rendezvous import StorePrefix

LOOK_S = 0.25
"""Between two looks at who is gone, when Gloo has failed."""
Int32Array = npt.NDArray[np.int32]


class ChunkedReduction:
    """All chunks of a tensor at once, with the agent's arithmetic: `agreement` is to be summed first, then `rest`.

    `write_agreement` and `read_agreement` are for the exponents (and for tensors that need one round only), then come
    `write_rest` and `read_rest`. A round's buffer may be empty: it is then skipped.
    """

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
        self.agreement: Int32Array = np.zeros(first_round, np.int32)
        self.rest: Int32Array = np.zeros(array.shape[0] if self._mode in (BLOCKS, INTEGERS) else 0, np.int32)

    def write_agreement(self) -> Int32Array:
        """The first round's integers; they may be summed in place."""
        if self.agreement.size:
            self._write(self.agreement, *self._first_round())
        return self.agreement

    def read_agreement(self, target: npt.NDArray[Any]) -> None:
        """Take the sums of the first round."""
        if self.agreement.size:
            self._read(self.agreement, target, *self._first_round())

    def write_rest(self) -> Int32Array:
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

    def _write(self, buffer: Int32Array, stride: int, only: int) -> None:
        values, base = self._array.ctypes.data, buffer.ctypes.data
        for _ in self._chunks(only):
            at = base + 4 * int(self._place.first) * stride
            write_chunk(self._layout, self._place, values, self._kind, self._exponents, at)

    def _read(self, buffer: Int32Array, target: npt.NDArray[Any], stride: int, only: int) -> None:
        values, base = target.ctypes.data, buffer.ctypes.data
        for _ in self._chunks(only):
            at = base + 4 * int(self._place.first) * stride
            status = read_chunk(self._layout, self._place, values, self._kind, self._op, self._exponents, at)
            if status != 0:
                raise TensorMismatchError("the workers reduce different tensors")


def warm_up() -> None:
    """Compile, or load, what a reduction over Gloo needs: not when the network has just failed."""
    for size in (1, 5000):
        values = np.ones(size, np.float32)
        chunks = ChunkedReduction(values, "float32", "sum", 2048, 1)
        chunks.write_agreement()
        chunks.read_agreement(values)
        chunks.write_rest()
        chunks.read_rest(values)


class GlooCarrier:
    """A Gloo group of the workers."""

    def __init__(self, store: Store, worker: int, workers: int, elements: int, timeout_s: float) -> None:
        self._workers, self.elements = workers, elements  # `elements`: integers of a chunk, as agents cut it
        warm_up()
        self._group: Any = ProcessGroupGloo(store, worker, workers, timeout=timedelta(seconds=timeout_s))

    def reduce(
        self,
        source: npt.NDArray[Any],
        kind: str,
        op: str,
        target: npt.NDArray[Any],
        ready: bool,
        timeout_s: float,
    ) -> bool:
        """All-reduce `source` of all workers into `target`; True if every worker was `ready`."""
        chunks = ChunkedReduction(source, kind, op, self.elements, self._workers)
        first = chunks.write_agreement()
        message = np.concatenate([np.array([int(ready)], np.int32), first])
        self._sum(message, timeout_s)
        chunks.agreement[:] = message[1:]
        chunks.read_agreement(target)
        rest = chunks.write_rest()
        if rest.size:
            self._sum(rest, timeout_s)
            chunks.read_rest(target)
        return int(message[0]) == self._workers

    def _sum(self, ints: Int32Array, timeout_s: float) -> None:
        options: Any = torch.distributed.AllreduceOptions()
        options.timeout = timedelta(seconds=timeout_s)
        self._group.allreduce([torch.from_numpy(ints)], options).wait()

    def abort(self) -> None:
        """End the reductions that wait in here."""
        with suppress(RuntimeError):
            self._group.abort()

    def close(self) -> None:
        """Close the connections."""
        self._group.shutdown()


class GlooReplay:
    """One worker's side; `seq` is the next reduction that goes over Gloo."""

    def __init__(self, carrier: GlooCarrier, queue: ReductionQueue, lock: threading.RLock) -> None:
        self._carrier, self._queue, self._lock = carrier, queue, lock
        self.seq = 0

    def agree(self, keys: StorePrefix, workers: int, watch: Callable[[], None]) -> int:
        """All say where they are (`at/`); all begin where the one is that has the fewest results.

        `watch` is called meanwhile, and raises where waiting is in vain.
        """
        self.seq = min(int(keys.get(f"at/{other}", watch=watch)) for other in range(workers))
        return self.seq

    def step(self, ready: bool, watch: Callable[[], None], ended: Callable[[bool], None]) -> bool:
        """Do the next reduction, if it has been submitted; `ready`: this worker could leave after it.

        `ended(all_ready)` is called under the lock when it has its result. If Gloo fails, `watch` raises why.
        """
        with self._lock:
            entry = self._queue.get(self.seq)
        if entry is None:
            return False
        source = entry.array if entry.kept is None else entry.kept
        target = np.empty_like(entry.array) if entry.done else entry.array
        try:
            all_ready = self._carrier.reduce(source, entry.kind, entry.op, target, ready, entry.timeout_s)
        except TensorMismatchError as error:
            raise DistBackendError(str(error)) from error
        except RuntimeError as error:
            raise _blame(str(error), watch) from error
        self.seq += 1
        with self._lock:
            done_before, entry.done = entry.done, True
            self._queue.finish(entry)
            ended(all_ready)
        if not done_before:
            entry.tell(None)
        return True


def _blame(reason: str, watch: Callable[[], None]) -> DistBackendError:
    """Gloo failed too: `watch` raises if a rank is gone; else the error for a failure without a name."""
    end = time.monotonic() + DEAD_S + 4.0
    while time.monotonic() < end:
        watch()
        time.sleep(LOOK_S)
    return DistBackendError(f"neither agents nor Gloo can reduce: {reason}")
