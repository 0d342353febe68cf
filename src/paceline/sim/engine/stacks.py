"""Programs on hosts: a packet that has arrived waits until its program runs.

Each program (a worker with its custodian, a dedicated custodian, a switch) has a stack: a pseudo-link to the same node.
A program that has handled everything sleeps. The next packet wakes it, and it runs after a delay that is drawn anew;
what comes meanwhile waits behind, and is handled in one go, each packet at its cost. So packets are handled late, and
in batches, as on real hosts. What exceeds the receive buffer is lost.

Programs may share a machine of a few cores, as where a whole cluster is emulated in one box: a program that is woken
then waits for the core that is free first, and holds it as long as it has packets to handle.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled_apart
from paceline.core.bits import next_random
from paceline.core.wire import ENVELOPE_BYTES, HEADER_BYTES
from paceline.sim.build.topology import UNLIMITED_FS
from paceline.sim.engine.links import FS_PER_NS, NO_STACK, STACK_OF_ENDPOINT, copy_packet, drop_reference
from paceline.sim.engine.world import TRAIN_BYTES, TURN_NS, World, post
from paceline.sim.scenario import Scenario

WAKES = 4096
"""Delays to draw from; a power of two."""


def wake_delays_ns(scenario: Scenario) -> Any:
    """`WAKES` delays, evenly spread over the distribution; compiled code draws one by its place."""
    if not scenario.hosts.wake:
        return np.zeros(1, dtype=np.int64)
    # Sampled and sorted: NumPy has no inverse of the normal distribution, and a table needs no better one.
    normal = np.sort(np.random.default_rng(1).standard_normal(64 * WAKES)).reshape(WAKES, 64).mean(axis=1)
    return np.round(scenario.hosts.wake * np.exp(scenario.hosts.wake_spread * normal)).astype(np.int64)


def fill_stacks(links: Any, scenario: Scenario, first: int, switches: int) -> None:
    """Set up the stacks: those of the switches first, then the others'; and lead the links' packets to them."""
    model = scenario.hosts
    packet_bytes = HEADER_BYTES + ENVELOPE_BYTES + 4 * scenario.network.elements
    for stack in range(first, links.state.shape[0]):
        record = links.state[stack]
        record.queue_fs = record.ecn_fs = UNLIMITED_FS
        record.packet_fs = model.packet * FS_PER_NS
        record.detour, record.stack = -1, NO_STACK
        record.length_max = min(links.time_ns.shape[1], max(1, model.receive_buffer // packet_bytes))
        record.to_switch = int(stack - first < switches)
        record.to = stack - first if record.to_switch else 0
    for at in range(first):
        record = links.state[at]
        if record.to_switch == 0:
            record.stack = STACK_OF_ENDPOINT
        elif model.software_switch:
            record.stack = first + record.to


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
