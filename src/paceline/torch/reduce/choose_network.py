"""A group of several workers: its exchange, and the reducer around it."""

import os
from typing import Any

from torch._C._distributed_c10d import PrefixStore

from paceline.live.hostmem.group import HostGroup
from paceline.live.net.sockets import elements_for
from paceline.torch.failover.agent_path import AgentPath, own_address, take_ticket
from paceline.torch.failover.exchange import Exchange
from paceline.torch.failover.gloo_carrier import GlooCarrier
from paceline.torch.failover.lifelines import Lifelines
from paceline.torch.journal import Journal
from paceline.torch.reduce.network import DirectReducer, TwoLevelReducer
from paceline.torch.reduce.reduction import Reducer
from paceline.torch.rendezvous import Keys, Place
from paceline.torch.settings import Settings

MEET_S = 10.0
"""So long the workers wait for each other's connection; all have told their addresses before."""


def make_network_reducer(
    store: Any,
    keys: Keys,
    place: Place,
    host: HostGroup | None,
    timeout_s: float,
    settings: Settings,
    journal: Journal,
    name: str,
) -> Reducer:
    """`host` is there where several ranks of this host are one worker."""
    exchange = None
    if place.local_rank == 0:
        exchange = make_exchange(store, keys, place, timeout_s, settings, journal, name)
    if host is None:
        assert exchange is not None
        return DirectReducer(exchange)
    return TwoLevelReducer(host, exchange, place.ranks, place.workers, keys, journal)


def make_exchange(
    store: Any, keys: Keys, place: Place, timeout_s: float, settings: Settings, journal: Journal, name: str
) -> Exchange:
    """The network side of the first rank of each worker."""
    address, mtu = own_address(settings, os.environ.get("MASTER_ADDR", ""))
    keys.set(f"mtu/{place.worker}", str(mtu))
    smallest = min(int(keys.get(f"mtu/{other}")) for other in range(place.workers))
    elements = elements_for(smallest)
    lifelines = Lifelines(
        keys.part("lifelines/"), place.worker, place.workers, address, min(timeout_s, MEET_S)
    )
    carrier_store = PrefixStore("paceline-gloo/", store)
    carrier = GlooCarrier(carrier_store, place.worker, place.workers, elements, timeout_s)
    job = f"{settings.job}/{name}"

    def make_path(generation: int, attempt: int) -> AgentPath:
        part = keys.part(f"generation/{generation}/{attempt}/")
        return AgentPath(part, place.worker, place.workers, settings, address, timeout_s, job)

    return Exchange(
        keys,
        place.worker,
        place.leaders,
        carrier,
        make_path,
        lambda: take_ticket(settings, job, place.workers, elements),
        journal,
        timeout_s,
        lifelines,
    )
