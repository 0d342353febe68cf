"""The event loop: the earliest entity acts, until every job has ended.

Events are a packet's arrival, an endpoint's timer, and the run's own clock (a job arrives, something dies, a
sample is due). Integer nanoseconds; the same seed gives the same run, bit for bit.
"""

import numpy as np

from paceline.compile.decorators import compiled, compiled_apart, compiled_inner
from paceline.core.bits import chance, next_random
from paceline.sim.engine.event_queue import NEVER_NS, set_time, time_of
from paceline.sim.engine.forwarding import at_stack, at_switch
from paceline.sim.engine.links import DETOURS, NO_STACK, copy_packet, dequeue, drop_reference, enqueue
from paceline.sim.engine.world import (
    CLOCK,
    COORDINATOR,
    CUSTODIAN_FORGETS,
    DUPLICATE,
    DUPLICATED,
    EVENTS,
    JOBS_LEFT,
    LOSS,
    LOST,
    MAIL,
    NEXT_DEATH,
    NEXT_SAMPLE_NS,
    NOW_NS,
    OUT,
    REORDER,
    REORDERED,
    SAMPLE_EVERY_NS,
    SAMPLES,
    SWITCH_DIES,
    TIMERS,
    WORKERS,
    World,
    post,
)
from paceline.sim.hosts.compute import fail_job
from paceline.sim.hosts.endpoints import (
    at_custodian,
    at_worker,
    custodian_timer,
    new_epoch,
    next_wake_ns,
    pump,
    start_job,
    worker_timer,
)

ENDED = 0
PAUSED = 1
POOL_LOW_ROOM = 2
TIMED_OUT = 3
STUCK = 4
COORDINATE = 5
"""A worker asks its coordinator, or a coordinator wanted to be woken: see `coordinator.py`."""


@compiled
def run(world: World, events: int, room: int, horizon_ns: int) -> int:
    """Go on for at most `events` events; why it stopped. Before each event `room` packets must be free."""
    control = world.control
    timers = control[TIMERS]
    clock = control[CLOCK]
    workers = control[WORKERS]
    for _ in range(events):
        if control[JOBS_LEFT] <= 0:
            return ENDED
        if world.pool.meta[0] < room:
            return POOL_LOW_ROOM
        entity = int(world.queue.nodes[1].entity)
        now_ns = world.queue.nodes[1].time_ns
        if now_ns == NEVER_NS:
            return STUCK
        if now_ns > horizon_ns:
            return TIMED_OUT
        # A timer may be set to a time that has passed: it runs now.
        now_ns = max(now_ns, control[NOW_NS])
        control[NOW_NS] = now_ns
        control[EVENTS] += 1
        if entity == clock:
            _tick(world, now_ns)
            continue
        if entity == control[COORDINATOR]:
            set_time(world.queue, entity, NEVER_NS)
            return COORDINATE
        endpoint = entity - timers
        may_send = False
        if entity < timers:
            p, ecn, endpoint = dequeue(world.links, world.queue, world.pool, entity, now_ns)
            link = world.links.state[entity]
            if link.detour >= 0 and _strike(world, link.detour, p, ecn, endpoint, now_ns):
                endpoint = -1
            elif link.stack != NO_STACK:
                at_stack(world, entity, p, ecn, endpoint, now_ns)
                endpoint = -1
            elif link.to_switch != 0:
                world.pool.packets[p].flag |= ecn
                at_switch(world, link.to, p, endpoint, now_ns)
                endpoint = -1
            elif world.host_dead[link.to] != 0:
                drop_reference(world.pool, p)
                endpoint = -1
            elif endpoint < workers:
                may_send = at_worker(world, endpoint, p, ecn, now_ns)
                drop_reference(world.pool, p)
            else:
                at_custodian(world, endpoint, p, ecn, now_ns)
        elif endpoint < workers:
            may_send = worker_timer(world, endpoint, now_ns)
        else:
            custodian_timer(world, endpoint, now_ns)
        if may_send:
            pump(world, endpoint, now_ns)
        if endpoint >= 0:
            wake_ns = next_wake_ns(world, endpoint)
            if entity >= timers or wake_ns < time_of(world.queue, timers + endpoint):
                set_time(world.queue, timers + endpoint, wake_ns)
        for i in range(control[OUT]):
            link_out, p_out, to_out = world.outbox[i, 0], world.outbox[i, 1], world.outbox[i, 2]
            enqueue(world.links, world.queue, world.pool, link_out, p_out, to_out, now_ns)
        control[OUT] = 0
        if control[MAIL] > 0:
            return COORDINATE
    return PAUSED


@compiled_apart
def _strike(world: World, detour: int, p: int, ecn: int, to: int, now_ns: int) -> bool:
    """Faults: True if the packet does not arrive now. Detours lead to the same node, later."""
    control = world.control
    if chance(world.random, 0, control[LOSS]):
        control[LOST] += 1
        drop_reference(world.pool, p)
        return True
    if chance(world.random, 0, control[DUPLICATE]):
        control[DUPLICATED] += 1
        q = copy_packet(world.pool, p)
        world.pool.packets[q].flag |= ecn
        post(world, detour + _draw(world), q, to)
    if chance(world.random, 0, control[REORDER]):
        control[REORDERED] += 1
        post(world, detour + _draw(world), p, to)
        return True
    return False


@compiled_inner
def _draw(world: World) -> int:
    return int(next_random(world.random, 0) >> np.uint64(33)) % DETOURS


@compiled_apart
def _tick(world: World, now_ns: int) -> None:
    """The run's clock: what is due now, and when it is due next."""
    control = world.control
    next_ns = NEVER_NS
    for j in range(world.jobs.shape[0]):
        job = world.jobs[j]
        if job.started == 0 and job.failed_ns == 0:
            if job.arrival_ns <= now_ns and not _must_wait(world, j):
                record = world.switch.jobs[0, j]
                start_job(world, j, record.pool_base, record.pool_size, now_ns)
            elif job.arrival_ns > now_ns:
                next_ns = min(next_ns, job.arrival_ns)
    while control[NEXT_DEATH] < world.deaths.shape[0] and world.deaths[control[NEXT_DEATH]].time_ns <= now_ns:
        _die(world, control[NEXT_DEATH], now_ns)
        control[NEXT_DEATH] += 1
    if control[NEXT_DEATH] < world.deaths.shape[0]:
        next_ns = min(next_ns, world.deaths[control[NEXT_DEATH]].time_ns)
    if control[NEXT_SAMPLE_NS] <= now_ns:
        _sample(world, now_ns)
    next_ns = min(next_ns, control[NEXT_SAMPLE_NS])
    set_time(world.queue, control[CLOCK], next_ns)


@compiled_inner
def _must_wait(world: World, j: int) -> bool:
    """Is a job that comes before this one still to end? Its end wakes the clock."""
    job = world.jobs[j]
    for i in range(job.after_first, job.after_first + job.after_count):
        before = world.jobs[world.after[i]]
        if before.done_ns == 0 and before.failed_ns == 0:
            return True
    return False


@compiled_apart
def _sample(world: World, now_ns: int) -> None:
    """Note how many aggregators each job holds; when the table is full, keep every second row."""
    control = world.control
    rows = world.samples.shape[0]
    if control[SAMPLES] == rows:
        for i in range(rows // 2):
            for j in range(world.samples.shape[1]):
                world.samples[i, j] = world.samples[2 * i, j]
            world.sample_ns[i] = world.sample_ns[2 * i]
        control[SAMPLES] = rows // 2
        control[SAMPLE_EVERY_NS] *= 2
    row = control[SAMPLES]
    world.sample_ns[row] = now_ns
    for j in range(world.jobs.shape[0]):
        used = 0
        for s in range(world.switch.config.shape[0]):
            used += world.switch.jobs[s, j].used
        world.samples[row, j] = used
    control[SAMPLES] = row + 1
    control[NEXT_SAMPLE_NS] = now_ns + control[SAMPLE_EVERY_NS]


@compiled_apart
def _die(world: World, i: int, now_ns: int) -> None:
    """A switch loses its aggregation program and memory; a host falls silent; custodians forget."""
    death = world.deaths[i]
    if death.kind == CUSTODIAN_FORGETS:
        new_epoch(world, death.what, now_ns)
        return
    if death.kind == SWITCH_DIES:
        config = world.switch.config[death.what]
        config.dead = 1
        for at in range(config.first, config.first + config.slots):
            slot = world.switch.memory.slots[at]
            if slot.job >= 0:
                world.switch.jobs[death.what, slot.job].used -= 1
            slot.job = -1
            slot.state = 0
        return
    world.host_dead[death.what] = 1
    for w in range(world.control[WORKERS]):
        if world.endpoints[w].host == death.what:
            world.workers[w].dead = 1
            job = world.jobs[world.workers[w].job]
            if job.workers == 1:
                fail_job(world, world.workers[w].job, now_ns)
