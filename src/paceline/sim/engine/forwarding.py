"""Where packets go: from a switch's verdict to links.

Link numbers: uplink of host h is h, its downlink is H + h; from leaf r to upper switch u is
2H + rU + u, and back 2H + RU + rU + u. In a star there are no upper switches. All packets of a chunk meet at
the same upper switch.

Servers beside the hub of a star may be the switches (`World.server_of`): leaf 0 is then a hub that only forwards, and
the servers stand where upper switches do. As a program does, such a switch sends a result to each worker by itself.

Where hosts run programs (a worker with its custodian, a dedicated custodian, a switch), each program has a *stack*: a
pseudo-link to the same node. A program that has handled everything sleeps. The next packet wakes it, and it runs after
a delay that is drawn anew; what comes meanwhile waits behind, and is handled in one go, each packet at its cost. So
packets are handled late, and in batches, as on real hosts. What exceeds the receive buffer is lost. Programs may share
the few cores of one machine: a program that is woken then waits for the core that is free first, and holds it as long
as it has packets to handle.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.bits import mix, next_random
from paceline.core.switch.program import (
    CONSUMED,
    DOWN,
    DOWN_ONE,
    DROPPED,
    TO_CUSTODIAN,
    TO_WORKER,
    handle_packet,
)
from paceline.core.wire import GRADIENT
from paceline.sim.engine.links import FS_PER_NS, STACK_OF_ENDPOINT, copy_packet, drop_reference
from paceline.sim.engine.world import (
    FORWARDED,
    HOSTS,
    LEAVES,
    TRAIN_BYTES,
    TURN_NS,
    UPPERS,
    World,
    endpoint_of,
    post,
)


@compiled_inner
def _upper_of(world: World, packet: Any) -> int:
    uppers = world.control[UPPERS]
    return int(mix(packet.job, packet.chunk) % uppers) if uppers > 1 else 0


@compiled_inner
def _link_up(world: World, leaf: int, upper: int) -> int:
    return int(2 * world.control[HOSTS] + leaf * world.control[UPPERS] + upper)


@compiled_inner
def _link_down(world: World, leaf: int, upper: int) -> int:
    return int(2 * world.control[HOSTS] + (world.control[LEAVES] + leaf) * world.control[UPPERS] + upper)


@compiled_inner
def _spread(world: World, s: int, p: int) -> None:
    """Multicast to the job's members below: hosts share the packet, rack switches get copies."""
    packet = world.pool.packets[p]
    leaves = world.control[LEAVES]
    hosts = world.control[HOSTS]
    slot = s * world.jobs.shape[0] + packet.job
    first = world.member_first[slot]
    last = world.member_first[slot + 1]
    world.control[FORWARDED] += last - first
    for i in range(first, last):
        member = world.members[i]
        if world.server_of.shape[1] > 0:
            # Copies: each may be marked on its own way from the hub on.
            post(world, _link_down(world, 0, s - leaves), copy_packet(world.pool, p), member)
        elif s < leaves:
            packet.references += 1
            post(world, hosts + world.endpoints[member].host, p, member)
        else:
            post(world, _link_down(world, member, s - leaves), copy_packet(world.pool, p), -1)
    drop_reference(world.pool, p)


@compiled_apart
def _at_hub(world: World, p: int, to: int) -> None:
    """A hub only forwards: to the endpoint that a packet is for, or to the switch of its chunk."""
    world.control[FORWARDED] += 1
    if to >= 0:
        post(world, world.control[HOSTS] + world.endpoints[to].host, p, to)
    else:
        packet = world.pool.packets[p]
        server = world.server_of[packet.job, packet.chunk % world.server_of.shape[1]]
        post(world, _link_up(world, 0, server - 1), p, -1)


@compiled_inner
def at_switch(world: World, s: int, p: int, to: int, now_ns: int) -> None:
    """A packet arrives at a switch: run the switch program, then do what it says."""
    if s == 0 and world.server_of.shape[1] > 0:
        _at_hub(world, p, to)
        return
    packet = world.pool.packets[p]
    came_as = packet.kind
    verdict = handle_packet(world.switch, s, packet, world.pool.values, p, now_ns)
    if verdict == CONSUMED or verdict == DROPPED:
        drop_reference(world.pool, p)
        return
    endpoint = to
    if verdict == DOWN and to < 0:
        job = world.jobs[packet.job]
        if came_as != GRADIENT or job.copies == 0:
            _spread(world, s, p)
            return
        # A result made here: its custodian gets a copy, to answer those who lose theirs.
        q = copy_packet(world.pool, p)
        _spread(world, s, p)
        p = q
        packet = world.pool.packets[p]
        endpoint = endpoint_of(world, packet.job, packet.custodian)
    leaves = world.control[LEAVES]
    if endpoint < 0:
        if verdict == TO_CUSTODIAN:
            endpoint = endpoint_of(world, packet.job, packet.custodian)
        elif verdict == TO_WORKER:
            job = world.jobs[packet.job]
            endpoint = job.first_worker + np.int64(packet.worker) % job.workers
    world.control[FORWARDED] += 1
    if endpoint >= 0 and world.endpoints[endpoint].leaf == s:
        link = world.control[HOSTS] + world.endpoints[endpoint].host
    elif s < leaves:
        link = _link_up(world, s, _upper_of(world, packet))
    else:
        leaf = packet.rack if verdict == DOWN_ONE and endpoint < 0 else world.endpoints[endpoint].leaf
        link = _link_down(world, leaf, s - leaves)
    post(world, link, p, endpoint)


@compiled_apart
def at_stack(world: World, link: int, p: int, ecn: int, to: int, now_ns: int) -> None:
    """A packet has arrived at a node by a link: it waits for the program there."""
    carrier = world.links.state[link]
    stack = carrier.stack
    if stack == STACK_OF_ENDPOINT:
        stack = world.stack_of[to]
    record = world.links.state[stack]
    if record.length == 0 and record.busy_fs <= now_ns * FS_PER_NS:
        place = next_random(world.random, 1) >> np.uint64(40)
        delay_ns = world.wakes_ns[np.int64(place) % world.wakes_ns.shape[0]]
        record.busy_fs = (now_ns + delay_ns) * FS_PER_NS
        if carrier.length > 0:
            # More follow in the same train, and arrive with it.
            record.busy_fs += min(
                max(0, carrier.busy_fs - now_ns * FS_PER_NS), world.control[TRAIN_BYTES] * carrier.fs_per_byte
            )
        _take_core(world, record)
    if world.cores_fs.shape[0] > 0:
        world.cores_fs[record.core] = max(world.cores_fs[record.core], record.busy_fs) + record.packet_fs
    if ecn != 0:
        # Others may hold the same packet, without the mark.
        q = copy_packet(world.pool, p)
        world.pool.packets[q].flag |= ecn
        drop_reference(world.pool, p)
        p = q
    post(world, stack, p, to)


@compiled_apart
def _take_core(world: World, stack: Any) -> None:
    """A program that is woken gets the core that is free first, and begins its turn when it is."""
    if world.cores_fs.shape[0] > 0:
        core = 0
        for other in range(1, world.cores_fs.shape[0]):
            if world.cores_fs[other] < world.cores_fs[core]:
                core = other
        stack.core = core
        stack.busy_fs = max(stack.busy_fs, world.cores_fs[core])
    stack.busy_fs += world.control[TURN_NS] * FS_PER_NS
