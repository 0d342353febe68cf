"""The reductions of one worker, numbered: which are under way, which are done, whose inputs are still kept.

Why inputs are kept. A path may fail while some workers have a result and others have not. They then do it
again over Gloo, all of them, from what they put in; the arithmetic is the same
(`torch/failover/gloo_replay.py`), so a worker that has the result already gets the very same bits and throws
them away. No step is lost, none is counted twice.

How long. Reduction k may begin only when all up to `floor(k)` are done here; the sizes are the same on all
workers, and so is `floor`. A worker that has the result of k knows that everyone began k, so that everyone
has the results up to `floor(k)`: those inputs can go. What any worker still lacks, every worker still keeps.

Pure bookkeeping: no thread, no lock, no clock.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.numbers.residual import Given, GivenPart
from paceline.torch.feedback import Feedback

COUNT_MAX = 64
"""Reductions under way at a time."""
BYTES_MAX = 128 << 20
"""Bytes under way at a time; one larger reduction goes alone."""


@dataclass
class PendingReduction:
    """One reduction: `array` is worked on in place; `kept` is what was in it, with the residual that was added."""

    array: npt.NDArray[Any]
    kind: str
    op: str
    priority: int
    timeout_s: float
    tell: Callable[[Exception | None], None]
    """Called once, when it has ended."""
    wire: int = 32
    """Bits of a number on the wire."""
    feedback: Feedback | None = None
    """What rounding took from the tensor's contribution before, where that is to be made good."""
    seq: int = -1
    """Its number, the same on all workers."""
    kept: npt.NDArray[Any] | None = None
    begun_s: float = 0.0
    handle: Any = None
    """The agent's, once it is under way."""
    done: bool = False
    """Its result is here."""
    floor: int = -1
    """It may begin when all reductions up to this number are done here."""
    end_bytes: int = 0
    """Bytes of all reductions up to this one."""


@dataclass
class ReductionQueue:
    """Entries in order of submission, from the oldest that is kept."""

    count_max: int = COUNT_MAX
    bytes_max: int = BYTES_MAX
    entries: deque[PendingReduction] = field(default_factory=deque)
    next_seq: int = 0
    """The number that the next one gets."""
    next_to_begin: int = 0
    lowest_open: int = 0
    """The first that is not done here."""
    _ends: deque[tuple[int, int]] = field(default_factory=lambda: deque([(-1, 0)]))
    """`seq` and `end_bytes` of those that may still be the floor of a later one."""
    _pool: dict[int, list[npt.NDArray[np.uint8]]] = field(default_factory=dict)
    """Memory for inputs, by its size: fresh memory is slow."""

    def add(self, entry: PendingReduction) -> None:
        """Number an entry."""
        entry.seq = self.next_seq
        self.next_seq += 1
        entry.end_bytes = self._ends[-1][1] + entry.array.nbytes
        # The first reduction from whose end on there is room for this one; the one before it, if there is none.
        while len(self._ends) > 1 and self._too_far(self._ends[0], entry):
            self._ends.popleft()
        entry.floor = self._ends[0][0]
        self._ends.append((entry.seq, entry.end_bytes))
        self.entries.append(entry)

    def _too_far(self, end: tuple[int, int], entry: PendingReduction) -> bool:
        seq, end_bytes = end
        return entry.seq - seq > self.count_max or entry.end_bytes - end_bytes > self.bytes_max

    def get(self, seq: int) -> PendingReduction | None:
        """The entry of that number, if it is there (still, or already)."""
        if not self.entries or not self.entries[0].seq <= seq < self.next_seq:
            return None
        return self.entries[seq - self.entries[0].seq]

    def may_begin(self) -> PendingReduction | None:
        """The next entry to send, if everything that must be done before it is."""
        entry = self.get(self.next_to_begin)
        return entry if entry is not None and self.lowest_open > entry.floor else None

    def begin(self, entry: PendingReduction, now_s: float) -> None:
        """Keep what is in it; it is under way from now on. One that was under way before starts from its input."""
        if entry.kept is not None:
            np.copyto(entry.array, entry.kept)
        else:
            self.keep(entry)
        entry.begun_s = now_s
        self.next_to_begin = entry.seq + 1

    def keep(self, entry: PendingReduction) -> npt.NDArray[Any]:
        """Its input, which nobody changes, with the tensor's residual."""
        if entry.kept is None:
            if entry.feedback is not None:
                entry.feedback.add_to(entry.array)
            entry.kept = self._buffer(entry.array)
            np.copyto(entry.kept, entry.array)
        return entry.kept

    def finish(self, entry: PendingReduction, agreed: Sequence[GivenPart] = ()) -> None:
        """Its result is here, by what the workers agreed on; forget inputs that nobody can ask for any more."""
        entry.done = True
        if entry.feedback is not None and entry.kept is not None:
            before_seq = entry.feedback.seq
            before = entry.feedback.follow(entry.seq, Given(entry.kept, agreed))
            if before is not None and (not self.entries or before_seq < self.entries[0].seq):
                self._give(before)
        self.next_to_begin = max(self.next_to_begin, entry.seq + 1)
        while (first := self.get(self.lowest_open)) is not None and first.done:
            self.lowest_open += 1
        while self.entries and self.entries[0].done and self.entries[0].seq <= entry.floor:
            self._give_back(self.entries.popleft())

    def under_way(self) -> list[PendingReduction]:
        """Begun and not done."""
        return [e for e in self.entries if not e.done and e.seq < self.next_to_begin]

    def open_entries(self) -> list[PendingReduction]:
        """Not done, begun or not."""
        return [e for e in self.entries if not e.done]

    def _buffer(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        free = self._pool.get(array.nbytes)
        memory = free.pop() if free else np.empty(array.nbytes, np.uint8)
        return memory.view(array.dtype)

    def _give_back(self, entry: PendingReduction) -> None:
        if entry.kept is None:
            return
        if entry.feedback is None or not entry.feedback.holds(entry.kept):
            self._give(entry.kept)
        entry.kept = None

    def _give(self, array: npt.NDArray[Any]) -> None:
        if len(self._pool) > self.count_max:
            self._pool.clear()
        self._pool.setdefault(array.nbytes, []).append(array.view(np.uint8))
