"""Where packets go: from a switch's verdict, or from a host, to links.

Link numbers: uplink of host h is h, its downlink is H + h; from leaf r to upper switch u is
2H + rU + u, and back 2H + RU + rU + u. In a star there are no upper switches. All packets of a chunk meet at
the same upper switch.
"""

from typing import Any

import numpy as np

from paceline.dataplane.bits import mix
from paceline.dataplane.compiled import compiled_inner
from paceline.dataplane.switch import (
    CONSUMED,
    DOWN,
    DOWN_ONE,
    DROPPED,
    TO_CUSTODIAN,
    TO_WORKER,
    UP,
    handle_packet,
)
from paceline.sim.links import copy_packet, drop_reference, enqueue
from paceline.sim.world import FORWARDED, HOSTS, LEAVES, UPPERS, World, endpoint_of


@compiled_inner
def send_from_host(world: World, host: int, p: int, to: int, now_ns: int) -> None:
    """Put a packet on a host's uplink."""
    enqueue(world.links, world.queue, world.pool, host, p, to, now_ns)


@compiled_inner
def _upper_of(world: World, packet: Any) -> int:
    uppers = world.control[UPPERS]
    if uppers == 1:
        return 0
    return int(mix(packet.job, packet.chunk) % uppers)


@compiled_inner
def _link_up(world: World, leaf: int, upper: int) -> int:
    return int(2 * world.control[HOSTS] + leaf * world.control[UPPERS] + upper)


@compiled_inner
def _link_down(world: World, leaf: int, upper: int) -> int:
    return int(2 * world.control[HOSTS] + (world.control[LEAVES] + leaf) * world.control[UPPERS] + upper)


@compiled_inner
def _towards(world: World, s: int, p: int, endpoint: int, now_ns: int) -> None:
    """One hop from switch `s` on the way to an endpoint."""
    place = world.endpoints[endpoint]
    leaves = world.control[LEAVES]
    if s == place.leaf:
        at = world.control[HOSTS] + place.host
    elif s < leaves:
        at = _link_up(world, s, _upper_of(world, world.pool.packets[p]))
    else:
        at = _link_down(world, place.leaf, s - leaves)
    world.control[FORWARDED] += 1
    enqueue(world.links, world.queue, world.pool, at, p, endpoint, now_ns)


@compiled_inner
def _spread(world: World, s: int, p: int, now_ns: int) -> None:
    """Multicast to the job's members below: hosts share the packet, rack switches get copies."""
    packet = world.pool.packets[p]
    leaves = world.control[LEAVES]
    slot = s * world.jobs.shape[0] + packet.job
    first = world.member_first[slot]
    last = world.member_first[slot + 1]
    if first == last:
        drop_reference(world.pool, p)
        return
    world.control[FORWARDED] += last - first
    if s < leaves:
        hosts = world.control[HOSTS]
        packet.references += last - first - 1
        for i in range(first, last):
            endpoint = world.members[i]
            at = hosts + world.endpoints[endpoint].host
            enqueue(world.links, world.queue, world.pool, at, p, endpoint, now_ns)
        return
    for i in range(first + 1, last):
        q = copy_packet(world.pool, p)
        at = _link_down(world, world.members[i], s - leaves)
        enqueue(world.links, world.queue, world.pool, at, q, -1, now_ns)
    at = _link_down(world, world.members[first], s - leaves)
    enqueue(world.links, world.queue, world.pool, at, p, -1, now_ns)


@compiled_inner
def at_switch(world: World, s: int, p: int, to: int, now_ns: int) -> None:
    """A packet arrives at a switch: run the switch program, then do what it says."""
    packet = world.pool.packets[p]
    verdict = handle_packet(world.switch, s, packet, world.pool.values, p, now_ns)
    if verdict == CONSUMED or verdict == DROPPED:
        drop_reference(world.pool, p)
    elif to >= 0:
        _towards(world, s, p, to, now_ns)
    elif verdict == DOWN:
        _spread(world, s, p, now_ns)
    elif verdict == TO_CUSTODIAN:
        _towards(world, s, p, endpoint_of(world, packet.job, packet.custodian), now_ns)
    elif verdict == UP:
        world.control[FORWARDED] += 1
        at = _link_up(world, s, _upper_of(world, packet))
        enqueue(world.links, world.queue, world.pool, at, p, -1, now_ns)
    elif verdict == TO_WORKER:
        job = world.jobs[packet.job]
        _towards(world, s, p, job.first_worker + np.int64(packet.worker) % job.workers, now_ns)
    elif verdict == DOWN_ONE:
        world.control[FORWARDED] += 1
        at = _link_down(world, packet.rack, s - world.control[LEAVES])
        enqueue(world.links, world.queue, world.pool, at, p, -1, now_ns)
