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

from paceline.core.numbers.layout import (
    BLOCKS,
    DATA,
    DTYPES,
    EXACT,
    EXPONENTS,
    HALVES,
    INTEGERS,
    LAYOUT,
    OPS,
    PEAKS,
    PLACE,
    WHOLE,
    find_place,
    lay_out,
)
from paceline.core.numbers.payload import read_chunk, write_chunk
from paceline.core.numbers.residual import GivenPart
from paceline.live.agent.agent import TensorMismatchError
from paceline.torch.failover.heartbeat import DEAD_S
from paceline.torch.failover.pending import ReductionQueue
from paceline.torch.rendezvous import StorePrefix

LOOK_S = 0.25
"""Between two looks at who is gone, when Gloo has failed."""
Int32Array = npt.NDArray[np.int32]
_ROUNDS = {
    INTEGERS: (DATA,),
    EXACT: (WHOLE,),
    BLOCKS: (EXPONENTS, DATA),
    HALVES: (EXPONENTS, PEAKS, DATA),
}


class ChunkedReduction:
    """All chunks of a tensor, with the agent's arithmetic: round by round, what needs no more than the rounds before.

    Each kind of chunk in `rounds` is written, summed over the workers, and read before the next.
    """

    def __init__(
        self, array: npt.NDArray[Any], kind: str, op: str, elements: int, workers: int, wire: int
    ) -> None:
        """`array` is the worker's input; it is only read."""
        self._array, self._kind, self._op = array, DTYPES[kind], OPS[op]
        layouts = np.zeros(1, LAYOUT).view(np.recarray)
        self._layout: Any = layouts[0]
        self._place: Any = np.zeros(1, PLACE).view(np.recarray)[0]
        lay_out(self._layout, array.shape[0], self._kind, self._op, elements, workers, wire)
        self._exponents = np.zeros(max(1, int(self._layout.blocks + self._layout.patches)), np.int32)
        self.rounds = _ROUNDS[int(self._layout.mode)]

    def _chunks(self, only: int) -> Iterator[int]:
        """Sets `place` to each chunk of one kind in turn; where it begins among those."""
        begin = 0
        for local in range(int(self._layout.chunks)):
            find_place(self._layout, local, self._place)
            if int(self._place.kind) == only:
                yield begin
                begin += int(self._place.count)

    def write(self, only: int) -> Int32Array:
        """A round's integers; they may be summed in place."""
        buffer = np.zeros(sum(int(self._place.count) for _ in self._chunks(only)), np.int32)
        values, base = self._array.ctypes.data, buffer.ctypes.data
        for begin in self._chunks(only):
            write_chunk(self._layout, self._place, values, self._kind, self._exponents, base + 4 * begin)
        return buffer

    def read(self, only: int, sums: Int32Array, target: npt.NDArray[Any]) -> None:
        """Take the sums of a round; after the last, `target` holds the result."""
        values, base = target.ctypes.data, sums.ctypes.data
        for begin in self._chunks(only):
            at = base + 4 * begin
            status = read_chunk(self._layout, self._place, values, self._kind, self._op, self._exponents, at)
            if status != 0:
                raise TensorMismatchError("the workers reduce different tensors")

    def agreed(self) -> GivenPart:
        """What the workers have agreed on, after the last round."""
        layout = self._layout
        return GivenPart(int(layout.numbers), self._exponents, int(layout.elements), int(layout.workers))


def warm_up() -> None:
    """Compile, or load, what a reduction over Gloo needs: not when the network has just failed."""
    for size in (1, 5000):
        values = np.ones(size, np.float32)
        chunks = ChunkedReduction(values, "float32", "sum", 2048, 1, 32)
        for only in chunks.rounds:
            chunks.read(only, chunks.write(only), values)


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
        wire: int = 32,
    ) -> tuple[bool, GivenPart]:
        """All-reduce `source` of all workers into `target`; whether every worker was `ready`, and what was agreed."""
        chunks = ChunkedReduction(source, kind, op, self.elements, self._workers, wire)
        all_ready = False
        for number, only in enumerate(chunks.rounds):
            ints = chunks.write(only)
            if number == 0:
                ints = np.append(ints, np.int32(ready))
            self._sum(ints, timeout_s)
            if number == 0:
                all_ready = int(ints[-1]) == self._workers
            chunks.read(only, ints, target)
        return all_ready, chunks.agreed()

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
            if entry.feedback is not None:
                source = self._queue.keep(entry)
        target = np.empty_like(entry.array) if entry.done else entry.array
        try:
            all_ready, agreed = self._carrier.reduce(
                source, entry.kind, entry.op, target, ready, entry.timeout_s, entry.wire
            )
        except TensorMismatchError as error:
            raise DistBackendError(str(error)) from error
        except RuntimeError as error:
            raise _blame(str(error), watch) from error
        self.seq += 1
        with self._lock:
            done_before, entry.done = entry.done, True
            self._queue.finish(entry, (agreed,))
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
