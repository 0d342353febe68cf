"""Error feedback of `PACELINE_WIRE=16`: whose contribution is the one before.

A tensor is known by its memory: what is at the same place of the same storage, with the same shape, is the tensor of
the step before. So a bucket of DDP has feedback from step to step, and so has a gradient that is zeroed in place; a
tensor that is made anew each time has none, and neither have the buckets that DDP forms anew after the first step.
The address alone would not do: an allocator gives it to any tensor, and two runs would differ by chance. A storage is
known as long as it lives, by a weak reference, and no other is taken for it.

What is remembered of a tensor is its latest contribution, as it was given: memory of its size, which the way over Gloo
keeps anyway until no worker can need it (`failover/pending.py`).
"""

import threading
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from paceline.core.numbers.layout import BLOCK_ELEMENTS
from paceline.core.numbers.residual import Given, add_residual

_Storage: Any = StorageWeakRef


class TensorMemory(NamedTuple):
    """Which tensor it is, for as long as its storage lives."""

    storage: Any
    key: tuple[Any, ...]

    def part(self, begin: int) -> "TensorMemory":
        """A part of it, which is reduced by itself."""
        return TensorMemory(self.storage, (*self.key, begin))


def memory_of(tensor: torch.Tensor) -> TensorMemory | None:
    """None for what does not travel in 16 bits with feedback: other formats than float32, and what is small."""
    if tensor.dtype != torch.float32 or tensor.numel() <= BLOCK_ELEMENTS:
        return None
    storage = _Storage(tensor.untyped_storage())
    return TensorMemory(storage, (storage.cdata, tensor.storage_offset(), tensor.shape, tensor.stride()))


class Feedback:
    """One tensor's latest contribution whose sum has ended."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.seq = -1
        """The number of its reduction."""
        self._given: Given | None = None

    def over(self) -> bool:
        """Its tensor is no more."""
        return bool(self._storage.expired())

    def holds(self, values: npt.NDArray[Any]) -> bool:
        """Is this the contribution that it needs?"""
        return self._given is not None and self._given.values is values

    def add_to(self, values: npt.NDArray[Any]) -> None:
        """The residual, in place."""
        if self._given is not None:
            add_residual(values, self._given)

    def follow(self, seq: int, given: Given) -> npt.NDArray[Any] | None:
        """A reduction has ended; the contribution that is not needed here any more, if it is another one.

        Reductions that are done again over Gloo end twice, and with the same steps.
        """
        if seq <= self.seq:
            return None
        before, self._given, self.seq = self._given, given, seq
        return None if before is None else before.values


class FeedbackStore:
    """The tensors of one group on one rank."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Feedback] = {}
        self._lock = threading.Lock()

    def of(self, memory: TensorMemory) -> Feedback:
        """A tensor's. The one that was asked for longest ago is forgotten if it is no more."""
        with self._lock:
            found = self._known.pop(memory.key, None) or Feedback(memory.storage)
            longest_ago = next(iter(self._known), None)
            if longest_ago is not None and self._known[longest_ago].over():
                del self._known[longest_ago]
            self._known[memory.key] = found
            return found

    def __len__(self) -> int:
        return len(self._known)
