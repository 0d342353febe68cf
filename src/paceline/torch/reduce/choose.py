"""Which reducer a group gets: alone, one host, or several workers with or without a switch."""

from typing import Any

from paceline.core.wire import CONTRIBUTORS_MAX
from paceline.live.hostmem.group import HostGroup, HostMemoryError, host_identity
from paceline.torch.journal import Journal
from paceline.torch.reduce.host import HostReducer, InnerReducer, LoneReducer
from paceline.torch.rendezvous import RankPlace, StorePrefix, find_rank_place
from paceline.torch.settings import GroupRequest, Settings
from paceline.torch.work import Reducer

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
