"""A DDP communication hook that gives each bucket its priority in the switch.

    hook = paceline.torch.ddp.PriorityHook(remaining_s=3600)
    model.register_comm_hook(None, hook)

The results of the layers nearest the input are needed first in the next forward pass, so their buckets go
first; and a job with less time left goes before one with more (`paceline.core.priority`, ESA). `remaining_s` is the
time the job still needs when the hook is made; it runs down by itself. Without it, what the planner has told last
(`RemainingTime`); without that, one hour.

DDP forms its buckets anew after the first step, so nothing is remembered of a bucket but its place in its own
step. DDP numbers them as gradients come, from the output to the input.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from paceline.core.priority import priority
from paceline.torch.settings import RemainingTime, read_settings

DEFAULT_REMAINING_S = 3600.0


class PriorityHook:
    """Averages each bucket's gradients over the ranks, with a priority by place and remaining time."""

    def __init__(
        self,
        remaining_s: float | None = None,
        comm_over_comp: float = 1.0,
        group: Any = None,
        rule: Callable[[float, float, int, int], int] = priority,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._told = RemainingTime(read_settings()) if remaining_s is None else None
        if remaining_s is None:
            remaining_s = DEFAULT_REMAINING_S
        self.group, self.rule, self._clock = group, rule, clock
        self.comm_over_comp = comm_over_comp
        self._ends_s = clock() + remaining_s
        self._buckets = 1
        self.__name__ = self.__qualname__ = "paceline_priority_hook"  # DDP logs it

    def set_remaining(self, remaining_s: float) -> None:
        """The job's expected remaining time, as a scheduler sees it now."""
        self._ends_s, self._told = self._clock() + remaining_s, None

    def remaining_s(self) -> float:
        """What is left of it; never less than a second."""
        told = self._told.seconds() if self._told is not None else None
        if told is not None:
            return told
        return max(1.0, self._ends_s - self._clock())

    def priority_of(self, index: int, last: bool) -> int:
        """The priority of the bucket with this number; the last one holds the layers nearest the input."""
        self._buckets = index + 1 if last else max(self._buckets, index + 1)
        from_input = self._buckets - 1 - index
        return self.rule(self.remaining_s(), self.comm_over_comp, from_input, self._buckets)

    def __call__(self, _state: Any, bucket: dist.GradBucket) -> Future[torch.Tensor]:  # type: ignore[name-defined]
        """What DDP calls for each bucket."""
        group: Any = self.group if self.group is not None else dist.group.WORLD
        tensor = bucket.buffer()
        number = self.priority_of(bucket.index(), bucket.is_last())
        if hasattr(group, "reduce_tensor"):
            future = group.reduce_tensor(tensor, "avg", priority=number).get_future()
        else:
            work: Any = dist.all_reduce(tensor.div_(dist.get_world_size(group)), group=group, async_op=True)
            future = work.get_future()
        first: Future[torch.Tensor] = future.then(lambda done: done.value()[0])
        return first
