"""The backend `paceline` of `torch.distributed`.

A `ProcessGroup` in Python around an inner Gloo group. All-reduces of one dense tensor (SUM and AVG;
float32, bfloat16, float16, int32) go to a *reducer*: shared memory, the network, or both. Everything else,
and every collective that torch may add, goes to Gloo (`gloo_fallback`): the inner group is registered as this
group's backend for CPU tensors, and as that of a plain group which does what is not overridden here. Tensors on
devices come to either by way of the host (`staging`).

Whether an all-reduce is ours depends only on what all ranks have in common: format, operation, number of
tensors. So all ranks take the same way.
"""

import atexit
import os
import threading
import weakref
from collections import Counter, deque
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import DistBackendError, ProcessGroup
from torch.futures import Future

from paceline.core.priority import priority as priority_of
from paceline.torch.feedback import TensorMemory, memory_of
from paceline.torch.gloo_fallback import hand_over, plain_group, register_gloo
from paceline.torch.journal import Journal
from paceline.torch.passport import make_passport
from paceline.torch.reduce.choose import make_reducer
from paceline.torch.serial_thread import CallbackThreads
from paceline.torch.settings import GroupRequest, RemainingTime
from paceline.torch.staging import DeviceStaging, on_device
from paceline.torch.work import (
    DRAIN_S,
    KINDS,
    PacelineWork,
    Reducer,
    Reduction,
    copy_back,
    dense_of,
    error_of,
    flat_array,
    op_name,
    supported,
    untraced,
)

_ProcessGroup: Any = ProcessGroup
_torch: Any = torch
_allow_inflight: Any = c10d._allow_inflight_collective_as_graph_input

DEFAULT_PRIORITY = 128
"""Of a job that nobody has told how long it will take."""

HANDED_ELEMENTS, HANDED = 64, 64
"""So many of the latest asynchronous reductions of so few elements are kept: see `PacelineGroup._handed`."""

GROUPS: "weakref.WeakSet[PacelineGroup]" = weakref.WeakSet()
"""The groups of this process, for `paceline.torch.status()`."""


class PacelineGroup(_ProcessGroup):  # type: ignore[misc]
    """A group whose all-reduces go through shared memory and the switch."""

    def __init__(self, request: GroupRequest) -> None:
        super().__init__(request.rank, request.size)  # torch's class takes no store from a subclass
        self._request = request
        rank, size = request.rank, request.size
        self._timeout_s = request.timeout.total_seconds()
        self.inner: Any = request.make_gloo()
        register_gloo(self, self.inner)
        self._plain = plain_group(request.store, rank, size, self.inner)
        self.journal = Journal(request.name, rank)
        settings = request.settings
        self._passport = make_passport(
            settings.passport, settings.job, request.name, rank, size, self.journal
        )
        self._remaining = RemainingTime(request.settings)
        self._callbacks = CallbackThreads()
        self._open: set[PacelineWork] = set()  # works that have not ended
        self._staging: DeviceStaging | None = None
        self._splits: Counter[str] = Counter()  # how many groups were split off, by the ranks in them
        # torch's C++ keeps its half of a Work only. `DDP.join` hands it one of a single number and drops ours.
        self._handed: deque[PacelineWork] = deque(maxlen=HANDED)
        self.reducer: Reducer = make_reducer(request, self.journal, self.inner)
        self._closed = False
        self._closing = threading.Lock()
        self.process = os.getpid()
        GROUPS.add(self)
        # The last to be registered is the first to be called: before the agents end theirs.
        atexit.unregister(close_all)
        atexit.register(close_all)

    # --- all-reduce ----------------------------------------------------------------------------------------

    @untraced
    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """One tensor in a list, as torch calls it."""
        if opts is None or not hasattr(opts, "reduceOp"):
            opts = _options(opts, timeout)
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if not supported(tensors, opts.reduceOp):
            self.journal.count("through_gloo")
            return self.over_gloo("allreduce", tensors, opts)
        seconds = opts.timeout.total_seconds()
        return self.reduce_tensor(
            tensors[0],
            op_name(opts.reduceOp),
            timeout_s=seconds if seconds > 0 else self._timeout_s,
            blocking=not opts.asyncOp,
        )

    @untraced
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
        if not _torch.autograd._profiler_enabled():
            return self._reduce(tensor, op, priority, timeout_s, blocking)
        record: Any = torch.autograd.profiler.record_function("paceline:all_reduce")
        ended: Any = Future()
        record.__enter__()
        record._call_end_callbacks_on_future(ended)
        try:
            work = self._reduce(tensor, op, priority, timeout_s, blocking)
        except BaseException:
            ended.set_result(None)
            raise
        # Before anybody who waits goes on: a profile that is over has freed the event that would be ended.
        work.when_ended(lambda _error: ended.set_result(None))
        return work

    def _reduce(
        self, tensor: torch.Tensor, op: str, priority: int | None, timeout_s: float | None, blocking: bool
    ) -> PacelineWork:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        number = self.default_priority() if priority is None else priority
        if tensor.device.type == "cpu":
            work = self._begin(tensor, op, number, limit_s, blocking=blocking)
        else:
            work = self._keep_open(self._devices().all_reduce(tensor, op, number, limit_s))
        if not blocking:
            if tensor.numel() <= HANDED_ELEMENTS:
                self._handed.append(work)
            if _allow_inflight():
                work.register()
        return work

    def _begin(
        self,
        tensor: torch.Tensor,
        op: str,
        priority: int,
        limit_s: float,
        *,
        blocking: bool = False,
        staged: bool = False,
        memory: TensorMemory | None = None,
    ) -> PacelineWork:
        """Begin with a CPU tensor; `staged`: it is a part of one on a device (`memory`), and its turn has come."""
        if self._closed:
            raise DistBackendError("the group is closed")
        dense = dense_of(tensor)
        work = PacelineWork([tensor], limit_s, self._callbacks)
        if dense is not tensor:
            work.before_end(partial(copy_back, tensor, dense))
        if self._request.settings.wire != 16:
            memory = None
        elif not staged:
            memory = memory_of(tensor)
        reduction = Reduction(flat_array(dense), KINDS[tensor.dtype], op, priority, limit_s, work, memory)
        noted = self.journal.begin(reduction.array.shape[0], reduction.kind, op, limit_s)
        behind = None if staged else self._staging
        if tensor.numel() == 0:
            work.end()
        elif behind is not None and not behind.is_idle():
            self._keep_open(work)
            behind.behind(partial(self.reducer.submit, reduction))
        elif not (blocking and self.reducer.try_now(reduction)):
            self._keep_open(work)
            self.reducer.submit(reduction)
        work.when_ended(noted.end)
        if self._passport is not None:
            work.when_ended(partial(self._passport.note, noted.number, reduction))
        return work

    def _keep_open(self, work: PacelineWork) -> PacelineWork:
        """Barriers wait for it."""
        self._open.add(work)
        work.when_ended(lambda _error: self._open.discard(work))
        return work

    def _devices(self) -> DeviceStaging:
        """Made with the first tensor on a device."""
        if self._closed:
            raise DistBackendError("the group is closed")
        if self._staging is None:
            begin = partial(self._begin, staged=True)
            self._staging = DeviceStaging(begin, self._request.size, self._callbacks)
        return self._staging

    def over_gloo(self, name: str, *args: Any, **more: Any) -> Any:
        """A collective of the inner group, by its name; tensors on devices go there as copies."""
        collective = getattr(self._plain, name)
        if on_device(args):
            return self._keep_open(self._devices().call(collective, self._timeout_s, args, more))
        return collective(*args, **more)

    def default_priority(self) -> int:
        """That of a whole gradient of a job with so much time left; the middle where nobody has told it."""
        remaining_s = self._remaining.seconds()
        return DEFAULT_PRIORITY if remaining_s is None else priority_of(remaining_s, 1.0, 0, 1)

    # --- barriers ------------------------------------------------------------------------------------------

    @untraced
    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Behind everything that this rank has begun, over Gloo as over shared memory and the network.

        A blocking one comes back when that is done on all ranks; an asynchronous one when it is done here and all
        ranks have come.
        """
        if not isinstance(opts, c10d.BarrierOptions):
            timeout = opts if timeout is None else timeout
            opts = c10d.BarrierOptions()
            if timeout is not None:
                opts.timeout = timeout
        before = list(self._open)
        if not opts.asyncOp:
            for work in before:
                work.wait()
        theirs = self._plain.barrier(opts)
        return theirs if not before or not opts.asyncOp else self._after_all(theirs, before)

    def _after_all(self, theirs: Any, ours: list[PacelineWork]) -> PacelineWork:
        """A Work that ends when all of these have."""
        whole = PacelineWork([], self._timeout_s, self._callbacks)
        self._open.add(whole)
        whole.when_ended(lambda _error: self._open.discard(whole))
        errors: list[Exception | None] = []

        def one_ended(error: Exception | None) -> None:
            errors.append(error)
            if len(errors) == len(ours) + 1:
                whole.end(next((error for error in errors if error is not None), None))

        for work in ours:
            work.when_ended(one_ended)
        theirs.get_future().add_done_callback(lambda done: one_ended(error_of(done)))
        return whole

    @untraced
    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Gloo's, behind this rank's reductions: the first rank names who has not come.

        `torch.distributed.monitored_barrier` is for groups with the name "gloo" alone; this is called on the group.
        """
        for work in list(self._open):
            work.wait()
        self._plain.monitored_barrier(timeout, wait_all_ranks)

    # --- what torch asks of a group --------------------------------------------------------------------------

    @untraced
    def split_group(
        self,
        ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> "PacelineGroup | None":
        """A group of some of this group's ranks, in their order here; None on the others."""
        if device_types is not None and all(torch.device(device).type != "cpu" for device in device_types):
            raise ValueError(f"this group has CPU tensors only, not {device_types}")
        members = sorted(ranks)
        if self.rank() not in members:
            return None
        title = ":".join((self._request.name, "split", "_".join(map(str, members))))
        self._splits[title] += 1
        name = group_name or f"{title}:{self._splits[title]}"
        part = PacelineGroup(self._request.part(members, name, timeout, opts))
        part._set_group_name(name)
        part._set_group_desc(group_desc or f"{self.group_desc}:split")
        return part

    def global_ranks(self) -> list[int]:
        """This group's ranks in the whole job."""
        return list(self._request.global_ranks or range(self._request.size))

    def get_group_store(self) -> Any:
        """The store in which the ranks of this group have met."""
        return self._request.store

    def _get_sequence_number_for_group(self) -> int:
        """Collectives that this group has begun, whichever way they go."""
        return int(self.inner._get_sequence_number_for_group()) + self.journal.begun

    def status(self) -> dict[str, Any]:
        """Path, priority, counters, the latest reductions and events of this group."""
        return {
            "group": self.journal.group,
            "rank": self.rank(),
            "ranks": self.size(),
            "priority": self.default_priority(),
            **self.reducer.status(),
            **self.journal.shown(),
        }

    @untraced
    def set_timeout(self, timeout: timedelta) -> None:
        """The time limit of reductions from now on."""
        self._timeout_s = timeout.total_seconds()
        self.inner.set_timeout(timeout)

    @untraced
    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        """The backend's name."""
        return "paceline"

    # --- the end -------------------------------------------------------------------------------------------

    @untraced
    def shutdown(self) -> None:
        """What `destroy_process_group` calls; a second time does nothing."""
        self._close(DRAIN_S, self.inner.shutdown)

    @untraced
    def abort(self) -> None:
        """End without waiting for others; what is under way ends with an error."""
        self._close(0.0, self.inner.abort)

    def _close(self, drain_s: float, close_gloo: Any) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        if self._staging is not None:
            self._staging.drain(drain_s)
        self.reducer.close(drain_s)
        if self._staging is not None:
            self._staging.close()
        GROUPS.discard(self)
        close_gloo()
        self._callbacks.close()
        if self._passport is not None:
            self._passport.close()
        self._handed.clear()


hand_over(PacelineGroup)


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


def create(options: Any, backend_options: Any = None) -> PacelineGroup:
    """The function that torch calls to make a group (`extended_api`)."""
    return PacelineGroup(GroupRequest.of_torch(options, backend_options))
