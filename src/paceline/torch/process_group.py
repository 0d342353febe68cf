"""The backend `paceline` of `torch.distributed`.

A `ProcessGroup` in Python around an inner Gloo group. All-reduces of one dense CPU tensor (SUM and AVG;
float32, bfloat16, float16, int32) go to a *reducer*: shared memory, the network, or both. Everything else,
and every collective that torch may add, goes to Gloo (`falling_through`): the inner group is registered as this
group's backend for CPU tensors, and as that of a plain group which does what is not overridden here.

Whether an all-reduce is ours depends only on what all ranks have in common: format, operation, number of
tensors. So all ranks take the same way.
"""

import atexit
import os
import weakref
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroup, ProcessGroupGloo

from paceline.priority import priority as priority_of
from paceline.torch.falling_through import hand_over, plain_group, register_gloo
from paceline.torch.journal import Journal
from paceline.torch.making import make_reducer
from paceline.torch.reduction import (
    DEFAULT_PRIORITY,
    DRAIN_S,
    KINDS,
    Reducer,
    Reduction,
    flat_array,
    op_name,
    supported,
)
from paceline.torch.remaining import Expected
from paceline.torch.settings import read_settings
from paceline.torch.work import PacelineWork

_ProcessGroup: Any = ProcessGroup

GROUPS: "weakref.WeakSet[PacelineGroup]" = weakref.WeakSet()
"""The groups of this process, for `paceline.torch.status()`."""


class PacelineGroup(_ProcessGroup):  # type: ignore[misc]
    """A group whose all-reduces go through shared memory and the switch."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, name: str) -> None:
        super().__init__(rank, size)
        self._timeout_s = timeout.total_seconds()
        self.inner: Any = ProcessGroupGloo(store, rank, size, timeout=timeout)
        register_gloo(self, self.inner)
        self._plain = plain_group(rank, size, self.inner)
        self.journal = Journal(name, rank)
        settings = read_settings()
        self._expected = Expected(settings)
        self.reducer: Reducer = make_reducer(
            store, rank, size, self._timeout_s, settings, self.journal, name, self.inner
        )
        self._closed = False
        self.process = os.getpid()
        GROUPS.add(self)
        # The last to be registered is the first to be called: before the agents end theirs.
        atexit.unregister(close_all)
        atexit.register(close_all)

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """One tensor in a list, as torch calls it."""
        if opts is None or not hasattr(opts, "reduceOp"):
            opts = _options(opts, timeout)
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if not supported(tensors, opts.reduceOp) or self._closed:
            self.journal.count("through_gloo")
            return self.inner.allreduce(tensors, opts)
        seconds = opts.timeout.total_seconds()
        return self.reduce_tensor(
            tensors[0],
            op_name(opts.reduceOp),
            timeout_s=seconds if seconds > 0 else self._timeout_s,
            blocking=not opts.asyncOp,
        )

    def reduce_tensor(
        self,
        tensor: torch.Tensor,
        op: str = "sum",
        *,
        priority: int | None = None,
        timeout_s: float | None = None,
        blocking: bool = False,
    ) -> PacelineWork:
        """All-reduce with a priority (0..255) in the switch, by default that of the time the job has left.

        `blocking` says that the caller will wait at once.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        work = PacelineWork([tensor], limit_s)
        if tensor.numel() == 0:
            work.end()
            return work
        dense = tensor if tensor.is_contiguous() else tensor.contiguous()
        if dense is not tensor:
            work.before_end(lambda: _copy(tensor, dense))
        number = self.default_priority() if priority is None else priority
        reduction = Reduction(flat_array(dense), KINDS[tensor.dtype], op, number, limit_s, work)
        if not (blocking and self.reducer.try_now(reduction)):
            self.reducer.submit(reduction)
        return work

    def default_priority(self) -> int:
        """That of a whole gradient of a job with so much time left; the middle where nobody has told it."""
        remaining_s = self._expected.remaining_s()
        return DEFAULT_PRIORITY if remaining_s is None else priority_of(remaining_s, 1.0, 0, 1)

    def status(self) -> dict[str, Any]:
        """Path, priority, counters and events of this group."""
        return {
            "group": self.journal.group,
            "rank": self.rank(),
            "ranks": self.size(),
            "priority": self.default_priority(),
            **self.reducer.status(),
            **self.journal.shown(),
        }

    def shutdown(self) -> None:
        """What `destroy_process_group` calls; a second time does nothing."""
        self._close(DRAIN_S)

    def abort(self) -> None:
        """End without waiting for others."""
        self._close(0.0)

    def _close(self, drain_s: float) -> None:
        if self._closed:
            return
        self._closed = True
        self.reducer.close(drain_s)
        GROUPS.discard(self)
        self.inner.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """The time limit of reductions from now on."""
        self._timeout_s = timeout.total_seconds()
        self.inner.set_timeout(timeout)

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        """The backend's name."""
        return "paceline"


hand_over(PacelineGroup, "_plain")


def close_all() -> None:
    """At the end of a program that has not destroyed its groups.

    A thread that comes back from C++ into an interpreter that ends is torn out of it, and the process aborts.
    """
    for group in list(GROUPS):
        if group.process == os.getpid():  # a copy of this process has neither its threads nor its connections
            group.abort()


def _options(op: Any, timeout: timedelta | None) -> Any:
    """`allreduce(tensor, op, timeout)` as options."""
    options: Any = torch.distributed.AllreduceOptions()
    if op is not None:
        options.reduceOp = op
    if timeout is not None:
        options.timeout = timeout
    return options


def _copy(tensor: torch.Tensor, dense: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(dense)


def create(options: Any, _backend_options: Any = None) -> PacelineGroup:
    """The function that torch calls to make a group (`extended_api`)."""
    name = options.group_id or "0"
    return PacelineGroup(options.store, options.group_rank, options.group_size, options.timeout, name)
