"""Hosts: workers that compute layer by layer and exchange gradients, and custodians.

An iteration: the forward pass goes through the layers in order, each waiting for its own result of the
iteration before; the backward pass goes back and releases each layer's gradient as it is computed. So the
layers near the input are released last and needed first. Chunks are numbered in the order of release,
without end: chunk = iteration * chunks + place.
"""

from paceline.dataplane import custodian as custody
from paceline.dataplane import sender as sending
from paceline.dataplane.bits import mix
from paceline.dataplane.compiled import compiled_inner
from paceline.dataplane.sender import NEVER_NS
from paceline.dataplane.switch import admit_job, release_job
from paceline.dataplane.wire import ANSWER, COLLISION, FLUSH, PULL, RESULT
from paceline.sim import ring
from paceline.sim.fabric import send_from_host
from paceline.sim.links import copy_packet, drop_reference, peek_free, take
from paceline.sim.queue import set_time
from paceline.sim.world import (
    BACKWARD,
    BLOCKED,
    DELIVERED,
    DRAINING,
    FINISHED,
    FORWARD,
    JITTER_SEED,
    JOBS_LEFT,
    RING,
    TIMERS,
    WORKERS,
    World,
    contribution,
    endpoint_of,
)


@compiled_inner
def wake_at(world: World, endpoint: int, time_ns: int) -> None:
    """Make sure that the endpoint's timer fires at `time_ns` or earlier."""
    entity = world.control[TIMERS] + endpoint
    if time_ns < world.queue.time_ns[entity]:
        set_time(world.queue, entity, time_ns)


@compiled_inner
def start_worker(world: World, w: int, now_ns: int) -> None:
    worker = world.workers[w]
    worker.iteration = 0
    worker.iteration_ns = now_ns
    worker.layer = 0
    _begin_forward(world, w, now_ns)


@compiled_inner
def _compute_ns(world: World, w: int, nominal_ns: int) -> int:
    """Compute time of this worker in this iteration: its slowness, and a seeded jitter of up to the given share."""
    worker = world.workers[w]
    time_ns = nominal_ns * worker.slow_num // worker.slow_den
    if worker.jitter_num > 0:
        noise = mix(world.control[JITTER_SEED], w * 1_000_003 + worker.iteration)
        time_ns += time_ns * (worker.jitter_num * (noise & 0xFFFF) >> 16) // 1_000_000
    return max(1, time_ns)


@compiled_inner
def _begin_forward(world: World, w: int, now_ns: int) -> None:
    """Start the forward pass of `worker.layer`, or wait for its result."""
    worker = world.workers[w]
    if worker.iteration > 0 and world.pending[w, worker.layer] > 0:
        worker.phase = BLOCKED
        worker.due_ns = NEVER_NS
        worker.blocked_ns -= now_ns
        return
    worker.phase = FORWARD
    worker.due_ns = now_ns + _compute_ns(world, w, world.layers[worker.job, worker.layer].forward_ns)
    wake_at(world, w, worker.due_ns)


@compiled_inner
def _compute_done(world: World, w: int, now_ns: int) -> None:
    """A pass over one layer has ended: go on to the next, and release the gradient."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    if worker.phase == FORWARD:
        if worker.layer + 1 < job.layers:
            worker.layer += 1
            _begin_forward(world, w, now_ns)
            return
        worker.first_chunk = worker.iteration * job.chunks
        worker.remaining = job.chunks
        worker.phase = BACKWARD
        for layer in range(job.layers):
            world.pending[w, layer] = world.layers[worker.job, layer].chunks
    else:
        layer = world.layers[worker.job, worker.layer]
        worker.released += 1
        if job.workers == 1:
            layer_progress(world, w, worker.layer, layer.chunks, now_ns)
        elif job.transport == RING:
            ring.release(world, w)
        else:
            sending.release(world.senders, w, worker.first_chunk + layer.first + layer.chunks)
        pump(world, w, now_ns)
        if worker.layer == 0:
            _end_backward(world, w, now_ns)
            return
        worker.layer -= 1
    worker.due_ns = now_ns + _compute_ns(world, w, world.layers[worker.job, worker.layer].backward_ns)
    wake_at(world, w, worker.due_ns)


@compiled_inner
def _end_backward(world: World, w: int, now_ns: int) -> None:
    worker = world.workers[w]
    worker.released = 0
    if worker.iteration + 1 < world.jobs[worker.job].iterations:
        worker.iteration += 1
        worker.layer = 0
        _begin_forward(world, w, now_ns)
        return
    worker.phase = DRAINING
    worker.due_ns = NEVER_NS
    if worker.remaining == 0:
        _finish_worker(world, w, now_ns)


@compiled_inner
def layer_progress(world: World, w: int, layer: int, chunks: int, now_ns: int) -> None:
    """Results of `chunks` chunks of a layer have come."""
    worker = world.workers[w]
    world.pending[w, layer] -= chunks
    worker.remaining -= chunks
    if worker.remaining == 0:
        worker.iterations_ns = now_ns
        if worker.phase == DRAINING:
            _finish_worker(world, w, now_ns)
            return
    if worker.phase == BLOCKED and layer == worker.layer and world.pending[w, layer] <= 0:
        worker.blocked_ns += now_ns
        _begin_forward(world, w, now_ns)


@compiled_inner
def _finish_worker(world: World, w: int, now_ns: int) -> None:
    worker = world.workers[w]
    worker.phase = FINISHED
    worker.done_ns = now_ns
    job = world.jobs[worker.job]
    job.finished += 1
    if job.finished == job.workers:
        job.done_ns = now_ns
        _end_job(world, worker.job)


@compiled_inner
def fail_job(world: World, j: int, now_ns: int) -> None:
    """A worker gave up: the job ends without its result."""
    job = world.jobs[j]
    if job.done_ns != 0 or job.failed_ns != 0:
        return
    job.failed_ns = now_ns
    _end_job(world, j)


@compiled_inner
def _end_job(world: World, j: int) -> None:
    job = world.jobs[j]
    world.control[JOBS_LEFT] -= 1
    for s in range(world.switch.config.shape[0]):
        release_job(world.switch, s, j)
    timers = world.control[TIMERS]
    for w in range(job.first_worker, job.first_worker + job.workers):
        set_time(world.queue, timers + w, NEVER_NS)
    count = job.workers if job.on_workers != 0 else job.custodians
    for c in range(count):
        set_time(world.queue, timers + world.control[WORKERS] + job.first_custodian + c, NEVER_NS)


@compiled_inner
def start_job(world: World, j: int, pool_base: int, pool_size: int, now_ns: int) -> None:
    job = world.jobs[j]
    job.started = 1
    for s in range(world.switch.config.shape[0]):
        admit_job(world.switch, s, j, 255, pool_base, pool_size)
    for w in range(job.first_worker, job.first_worker + job.workers):
        if world.workers[w].dead == 0:
            start_worker(world, w, now_ns)


@compiled_inner
def pump(world: World, w: int, now_ns: int) -> None:
    """Send whatever the worker may send now."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    host = world.endpoints[w].host
    senders = world.senders
    pool = world.pool
    width = pool.values.shape[1]
    step = worker.iteration * world.priorities.shape[1] // job.iterations
    last = -1
    while True:
        p = peek_free(pool)
        packet = pool.packets[p]
        if not sending.poll_transmit(senders, w, packet, now_ns):
            break
        take(pool)
        if job.transport == RING:
            last = p
            ring.fill(world, w, p)
            send_from_host(world, host, p, ring.successor(world, w), now_ns)
            continue
        place = packet.chunk - worker.first_chunk
        packet.priority = world.priorities[worker.job, step, world.layer_of[job.table + place]]
        if job.on_workers != 0:
            packet.custodian = custody.custodian_for(packet.chunk, job.workers, packet.epoch)
        elif job.custodians > 0:
            packet.custodian = job.workers + packet.chunk % job.custodians
        else:
            packet.custodian = 0
        for lane in range(width):
            pool.values[p, lane] = contribution(worker.job, worker.rank, packet.chunk, lane)
        send_from_host(world, host, p, -1, now_ns)
    if last >= 0:
        # Nothing follows this packet for now: its receipt must not wait for more.
        pool.packets[last].flag |= FLUSH
    wake_at(world, w, senders.state[w].timer_ns)


@compiled_inner
def at_worker(world: World, w: int, p: int, ecn: int, now_ns: int) -> None:
    """A packet has arrived for a worker; other copies of it may be on their way elsewhere."""
    packet = world.pool.packets[p]
    worker = world.workers[w]
    world.control[DELIVERED] += 1
    job = world.jobs[worker.job]
    if worker.dead != 0 or packet.job != worker.job or job.failed_ns != 0 or job.done_ns != 0:
        return
    if job.transport == RING:
        if ring.at_worker(world, w, p, ecn, now_ns):
            bucket = ring.next_complete(world, w)
            while bucket >= 0:
                for layer in range(
                    world.buckets[worker.job, bucket].layer_low, world.buckets[worker.job, bucket].layer_high + 1
                ):
                    layer_progress(world, w, layer, world.pending[w, layer], now_ns)
                bucket = ring.next_complete(world, w)
            pump(world, w, now_ns)
        return
    if packet.kind == RESULT:
        flag = packet.flag
        packet.flag |= ecn
        news = sending.handle_result(world.senders, w, packet, now_ns)
        packet.flag = flag
        if news == sending.NEW:
            _take_result(world, w, p, now_ns)
            pump(world, w, now_ns)
    elif packet.kind == PULL and custody.is_asked(packet, world.senders.state[w].rack, world.senders.state[w].mask):
        if sending.holds_result(world.senders, w, packet.chunk):
            _answer(world, w, p, now_ns)
        elif sending.resend(world.senders, w, packet.chunk):
            pump(world, w, now_ns)


@compiled_inner
def _take_result(world: World, w: int, p: int, now_ns: int) -> None:
    """A new result: check it if values are carried, keep it for others, count it for its layer."""
    packet = world.pool.packets[p]
    worker = world.workers[w]
    job = world.jobs[worker.job]
    width = world.pool.values.shape[1]
    if width > 0:
        place = packet.chunk % world.held.shape[1]
        job.checked += 1
        right = True
        for lane in range(width):
            total = 0
            for rank in range(job.workers):
                total += contribution(worker.job, rank, packet.chunk, lane)
            world.held[w, place, lane] = world.pool.values[p, lane]
            right &= world.pool.values[p, lane] == total
        if not right:
            job.wrong += 1
    layer = world.layer_of[job.table + packet.chunk - worker.first_chunk]
    layer_progress(world, w, layer, 1, now_ns)


@compiled_inner
def _answer(world: World, w: int, p: int, now_ns: int) -> None:
    """Give a custodian the result that it asks for, and the aggregator index that goes on with it."""
    q = copy_packet(world.pool, p)
    packet = world.pool.packets[q]
    sender = world.senders.state[w]
    packet.kind = ANSWER
    packet.flag = COLLISION
    packet.count = sender.count
    packet.worker = sender.worker
    packet.rack = sender.rack
    packet.offer = world.senders.flights[w, packet.chunk % sender.span].index
    for lane in range(world.pool.values.shape[1]):
        world.pool.values[q, lane] = world.held[w, packet.chunk % world.held.shape[1], lane]
    to = endpoint_of(world, packet.job, packet.custodian)
    send_from_host(world, world.endpoints[w].host, q, to, now_ns)


@compiled_inner
def at_custodian(world: World, e: int, p: int, ecn: int, now_ns: int) -> None:
    """A packet has arrived for a custodian, which owns it now."""
    k = e - world.control[WORKERS]
    pool = world.pool
    packet = pool.packets[p]
    world.control[DELIVERED] += 1
    j = world.custodians.state[k].job
    job = world.jobs[j]
    if job.failed_ns != 0 or job.done_ns != 0:
        drop_reference(pool, p)
        return
    packet.flag |= ecn
    verdict = custody.handle_packet(world.custodians, k, packet, pool.values, p, now_ns)
    wake_at(world, e, world.custodians.state[k].timer_ns)
    host = world.endpoints[e].host
    if verdict == custody.NOTHING:
        drop_reference(pool, p)
    elif verdict == custody.UNICAST:
        send_from_host(world, host, p, job.first_worker + packet.worker, now_ns)
    elif job.replicate == 0:
        send_from_host(world, host, p, -1, now_ns)
    else:
        for w in range(job.first_worker + 1, job.first_worker + job.workers):
            send_from_host(world, host, copy_packet(pool, p), w, now_ns)
        send_from_host(world, host, p, job.first_worker, now_ns)


@compiled_inner
def worker_timer(world: World, w: int, now_ns: int) -> None:
    """A worker's timer: its computation, its retransmissions, or both."""
    worker = world.workers[w]
    set_time(world.queue, world.control[TIMERS] + w, NEVER_NS)
    job = world.jobs[worker.job]
    if worker.dead != 0 or job.done_ns != 0 or job.failed_ns != 0:
        return
    if worker.due_ns <= now_ns:
        _compute_done(world, w, now_ns)
    sender = world.senders.state[w]
    if sender.timer_ns <= now_ns:
        sending.handle_timeout(world.senders, w, now_ns)
        if sender.failed != 0:
            fail_job(world, worker.job, now_ns)
            return
        pump(world, w, now_ns)
    wake_at(world, w, min(worker.due_ns, sender.timer_ns))


@compiled_inner
def custodian_timer(world: World, e: int, now_ns: int) -> None:
    """A custodian's timer: reminders and pulls for chunks that have waited too long."""
    k = e - world.control[WORKERS]
    set_time(world.queue, world.control[TIMERS] + e, NEVER_NS)
    custodian = world.custodians.state[k]
    if custodian.timer_ns <= now_ns:
        custody.handle_timeout(world.custodians, k, now_ns)
        while custody.poll_transmit(world.custodians, k, world.pool.packets[peek_free(world.pool)]):
            p = take(world.pool)
            send_from_host(world, world.endpoints[e].host, p, -1, now_ns)
    wake_at(world, e, custodian.timer_ns)
