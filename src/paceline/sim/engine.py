"""The event loop: the earliest entity acts, until every job has ended.

Events are a packet's arrival, an endpoint's timer, and the run's own clock (a job arrives, something dies, a
sample is due). Integer nanoseconds; the same seed gives the same run, bit for bit.
"""

from paceline.dataplane.bits import chance, next_random
from paceline.dataplane.compiled import compiled, compiled_inner
from paceline.sim.fabric import at_switch
from paceline.sim.hosts import at_custodian, at_worker, custodian_timer, fail_job, start_job, worker_timer
from paceline.sim.links import DETOURS, copy_packet, dequeue, drop_reference, enqueue
from paceline.sim.queue import NEVER_NS, set_time
from paceline.sim.world import (
    CLOCK,
    DUPLICATE,
    DUPLICATED,
    EVENTS,
    JOBS_LEFT,
    LOSS,
    LOST,
    NEXT_DEATH,
    NEXT_SAMPLE_NS,
    NOW_NS,
    POOL_LOW,
    REORDER,
    REORDERED,
    SAMPLE_EVERY_NS,
    SAMPLES,
    TIMERS,
    WORKERS,
    World,
)

ENDED = 0
PAUSED = 1
POOL_LOW_ROOM = 2
TIMED_OUT = 3
STUCK = 4


@compiled
def run(world: World, events: int, room: int, horizon_ns: int) -> int:
    """Go on for at most `events` events; why it stopped. Before each event `room` packets must be free."""
    control = world.control
    timers = control[TIMERS]
    clock = control[CLOCK]
    workers = control[WORKERS]
    times = world.queue.time_ns
    winner = world.queue.winner
    for _ in range(events):
        if control[JOBS_LEFT] <= 0:
            return ENDED
        if world.pool.meta[0] < room:
            return POOL_LOW_ROOM
        entity = winner[1]
        now_ns = times[entity]
        if now_ns == NEVER_NS:
            return STUCK
        if now_ns > horizon_ns:
            return TIMED_OUT
        control[NOW_NS] = now_ns
        control[EVENTS] += 1
        if entity < timers:
            _arrival(world, entity, now_ns)
        elif entity < timers + workers:
            worker_timer(world, entity - timers, now_ns)
        elif entity < clock:
            custodian_timer(world, entity - timers, now_ns)
        else:
            _tick(world, now_ns)
    return PAUSED


@compiled_inner
def _arrival(world: World, at: int, now_ns: int) -> None:
    """A packet reaches the end of a link; faults may strike it there, once for each link."""
    p, ecn, to = dequeue(world.links, world.queue, at)
    link = world.links.state[at]
    if link.detour >= 0 and _strike(world, at, p, ecn, to, now_ns):
        return
    if link.to_switch != 0:
        world.pool.packets[p].flag |= ecn
        at_switch(world, link.to, p, to, now_ns)
        return
    if world.host_dead[link.to] != 0:
        drop_reference(world.pool, p)
    elif to < world.control[WORKERS]:
        at_worker(world, to, p, ecn, now_ns)
        drop_reference(world.pool, p)
    else:
        at_custodian(world, to, p, ecn, now_ns)


@compiled_inner
def _strike(world: World, at: int, p: int, ecn: int, to: int, now_ns: int) -> bool:
    """Faults: True if the packet does not arrive now."""
    control = world.control
    link = world.links.state[at]
    if chance(world.random, 0, control[LOSS]):
        control[LOST] += 1
        drop_reference(world.pool, p)
        return True
    if chance(world.random, 0, control[DUPLICATE]):
        control[DUPLICATED] += 1
        q = copy_packet(world.pool, p)
        world.pool.packets[q].flag |= ecn
        enqueue(world.links, world.queue, world.pool, _detour(world, link.detour), q, to, now_ns)
    if chance(world.random, 0, control[REORDER]):
        control[REORDERED] += 1
        enqueue(world.links, world.queue, world.pool, _detour(world, link.detour), p, to, now_ns)
        return True
    return False


@compiled_inner
def _detour(world: World, first: int) -> int:
    return int(first + int(next_random(world.random, 0) >> 33) % DETOURS)


@compiled_inner
def _tick(world: World, now_ns: int) -> None:
    """The run's clock: what is due now, and when it is due next."""
    control = world.control
    next_ns = NEVER_NS
    for j in range(world.jobs.shape[0]):
        job = world.jobs[j]
        if job.started == 0 and job.failed_ns == 0:
            if job.arrival_ns <= now_ns:
                record = world.switch.jobs[0, j]
                start_job(world, j, record.pool_base, record.pool_size, now_ns)
            else:
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
def _sample(world: World, now_ns: int) -> None:
    """Note how many aggregators each job holds; when the table is full, keep every second row."""
    control = world.control
    rows = world.samples.shape[0]
    if control[SAMPLES] == rows:
        for i in range(rows // 2):
            world.samples[i, :] = world.samples[2 * i, :]
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
    control[POOL_LOW] = min(control[POOL_LOW], world.pool.meta[0])


@compiled_inner
def _die(world: World, i: int, now_ns: int) -> None:
    """A switch loses its aggregation program and memory; a host falls silent."""
    death = world.deaths[i]
    if death.is_switch != 0:
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
