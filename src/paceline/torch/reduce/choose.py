"""Which reducer a group gets: for one rank, one host, or workers on a network; and the reducers without agents."""

from datetime import timedelta
from typing import Any

from torch.distributed import AllreduceOptions, ReduceOp

from paceline.core.wire import CONTRIBUTORS_MAX
from paceline.live.hostmem.group import HostGroup, HostMemoryError, host_identity
from paceline.torch.journal import Journal
from paceline.torch.rendezvous import RankPlace, StorePrefix, find_rank_place
from paceline.torch.serial_thread import SerialThread
from paceline.torch.settings import GroupRequest, Settings
from paceline.torch.work import DRAIN_S, Reducer, Reduction, error_of

WORKERS_MAX = CONTRIBUTORS_MAX


def make_reducer(request: GroupRequest, journal: Journal, inner: Any) -> Reducer:
    """Meet the other ranks of the group and build what fits; `inner` is the group over Gloo."""
    rank, size, settings = request.rank, request.size, request.settings
    if size == 1:
        return LoneReducer()
    keys = StorePrefix(request.store, "paceline/", request.timeout.total_seconds())
    # A launcher may call groups of slots of one machine servers: each is then a host of its own.
    identity = f"{host_identity()} {settings.server}"
    place = find_rank_place(keys.part("place/"), rank, size, identity, settings.host_reduce)
    # One server may give several ranks and another a single one: all workers reduce in the same two steps.
    host = _share_memory(keys, place, journal) if place.workers < size else None
    if place.workers < size:
        whole = host is not None
        agreed = find_rank_place(keys.part("agreed/"), rank, size, identity, whole)
        if agreed.workers != place.workers:
            # One host of several could not share: then none does, so that all see the same workers.
            if host is not None:
                host.close()
            host, place = None, agreed
    if host is not None and place.workers == 1:
        _say_one_host(settings, journal, place)
        return HostReducer(host, journal)
    if place.workers > WORKERS_MAX:
        if host is not None:
            host.close()
        journal.change("gloo", f"{place.workers} workers are more than the {WORKERS_MAX} of a mask", bad=True)
        return InnerReducer(inner)
    # What one host does not need, it need not load.
    from paceline.torch.reduce.network import make_network_reducer

    return make_network_reducer(request, keys, place, host, journal)


def _share_memory(keys: StorePrefix, place: RankPlace, journal: Journal) -> HostGroup | None:
    local = keys.part(f"memory/{place.worker}/")
    try:
        return HostGroup(place.local_rank, len(place.local), local, place.local)
    except HostMemoryError as error:
        journal.change("no_shared_memory", str(error), bad=True)
        return None


def _say_one_host(settings: Settings, journal: Journal, place: RankPlace) -> None:
    where = f"the {place.ranks} ranks of this group are on one host and reduce in its memory"
    switch = f"; the switch {settings.switch} is not needed for that" if settings.switch else ""
    journal.change("host", where + switch, quiet=place.rank != 0)


class HostReducer:
    """All-reduces one after another; a blocking one that finds the thread idle runs on the caller's own."""

    def __init__(self, host: HostGroup, journal: Journal) -> None:
        self._host, self._journal = host, journal
        self._thread = SerialThread("paceline-host")
        self._closing = False

    def submit(self, reduction: Reduction) -> None:
        self._thread.put(lambda: self._reduce(reduction))

    def try_now(self, reduction: Reduction) -> bool:
        return self._thread.run_if_idle(lambda: self._reduce(reduction))

    def _reduce(self, reduction: Reduction) -> None:
        divisor = reduction.divisor(self._host.ranks)
        try:
            self._host.all_reduce(reduction.array, reduction.kind, divisor, reduction.timeout_s)
        except Exception as error:
            if not self._closing and not self._journal.counters["failed"]:
                self._journal.change("failed", str(error), bad=True)
            reduction.work.end(error)
            return
        self._journal.count("reductions")
        reduction.work.end()

    def status(self) -> dict[str, Any]:
        return {"path": "host", "workers": 1}

    def close(self, drain_s: float = DRAIN_S) -> None:
        self._thread.drain(drain_s)
        self._closing = True
        self._host.close()
        self._thread.close()


class LoneReducer:
    """A group of one rank: the sum over one is what it was."""

    def submit(self, reduction: Reduction) -> None:
        reduction.work.end()

    def try_now(self, reduction: Reduction) -> bool:
        reduction.work.end()
        return True

    def status(self) -> dict[str, Any]:
        return {"path": "alone", "workers": 1}

    def close(self, drain_s: float = DRAIN_S) -> None:
        pass


class InnerReducer:
    """Everything over the inner Gloo group."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def submit(self, reduction: Reduction) -> None:
        options: Any = AllreduceOptions()
        options.reduceOp = ReduceOp.SUM if reduction.op == "sum" else ReduceOp.AVG
        options.timeout = timedelta(seconds=reduction.timeout_s)
        work = self._inner.allreduce([reduction.tensor()], options)
        work.get_future().add_done_callback(lambda done: reduction.work.end(error_of(done)))

    def try_now(self, _reduction: Reduction) -> bool:
        return False

    def status(self) -> dict[str, Any]:
        return {"path": "gloo"}

    def close(self, drain_s: float = DRAIN_S) -> None:
        pass
