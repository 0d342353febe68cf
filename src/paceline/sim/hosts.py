"""Hosts: workers that compute layer by layer and exchange gradients, and custodians.

An iteration: the forward pass goes through the layers in order, each waiting for its own result of the
iteration before; the backward pass goes back and releases each layer's gradient as it is computed. So the
layers near the input are released last and needed first. Chunks are numbered in the order of release,
without end: chunk = iteration * chunks + place.
"""

from paceline.dataplane import custodian as custody
from paceline.dataplane import sender as sending
from paceline.dataplane.bits import mix
from paceline.dataplane.compiled import compiled_apart, compiled_inner
from paceline.dataplane.sender import NEVER_NS
from paceline.dataplane.switch import admit_job, release_job
from paceline.dataplane.wire import ACK, ANSWER, COLLISION, FLUSH, RESULT
from paceline.sim import ring
from paceline.sim.links import copy_packet, drop_reference, peek_free, take
from paceline.sim.queue import set_time
from paceline.sim.world import (
    BACKWARD,
    BLOCKED,
    CLOCK,
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
    post,
)


@compiled_inner
def _compute_ns(world: World, w: int, nominal_ns: int) -> int:
    """Compute time of this worker in this iteration: its slowness and a seeded jitter."""
    worker = world.workers[w]
    time_ns = nominal_ns * worker.slow_num // worker.slow_den
    if worker.jitter_num > 0:
        noise = mix(world.control[JITTER_SEED], w * 1_000_003 + worker.iteration)
        time_ns += time_ns * (worker.jitter_num * (noise & 0xFFFF) >> 16) // 1_000_000
    return int(max(1, time_ns))


@compiled_inner
def _begin_forward(world: World, w: int, now_ns: int) -> None:
    """Start the forward pass of `worker.layer`, or wait for its result."""
    worker = world.workers[w]
    if worker.iteration > 0 and world.pending[w, worker.layer] > 0:
        worker.phase = BLOCKED
        worker.due_ns = NEVER_NS
        worker.blocked_ns -= now_ns
    else:
        worker.phase = FORWARD
        nominal_ns = world.layers[worker.job, worker.layer].forward_ns
        worker.due_ns = now_ns + _compute_ns(world, w, nominal_ns)


@compiled_apart
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
        if worker.layer == 0:
            _end_backward(world, w, now_ns)
            return
        worker.layer -= 1
    worker.due_ns = now_ns + _compute_ns(world, w, world.layers[worker.job, worker.layer].backward_ns)


@compiled_apart
def _end_backward(world: World, w: int, now_ns: int) -> None:
    worker = world.workers[w]
    if worker.iteration + 1 < world.jobs[worker.job].iterations:
        worker.released = 0
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
    unblocks = worker.phase == BLOCKED and layer == worker.layer and world.pending[w, layer] <= 0
    if unblocks or (worker.remaining == 0 and worker.phase == DRAINING):
        _advance(world, w, now_ns)


@compiled_apart
def _advance(world: World, w: int, now_ns: int) -> None:
    """What a worker waited for has come: its next layer, or its end."""
    worker = world.workers[w]
    if worker.phase == DRAINING:
        _finish_worker(world, w, now_ns)
    else:
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
        _end_job(world, worker.job, now_ns)


@compiled_apart
def fail_job(world: World, j: int, now_ns: int) -> None:
    """A worker gave up: the job ends without its result."""
    job = world.jobs[j]
    if job.done_ns == 0 and job.failed_ns == 0:
        job.failed_ns = now_ns
        _end_job(world, j, now_ns)


@compiled_inner
def _end_job(world: World, j: int, now_ns: int) -> None:
    """Leave the switches; what is still on its way finds nobody, and timers go quiet by themselves.

    The clock looks for jobs that waited for this one.
    """
    world.control[JOBS_LEFT] -= 1
    set_time(world.queue, world.control[CLOCK], now_ns)
    for s in range(world.switch.config.shape[0]):
        release_job(world.switch, s, j)


@compiled_apart
def start_job(world: World, j: int, pool_base: int, pool_size: int, now_ns: int) -> None:
    """The job arrives: switches admit it, workers begin."""
    job = world.jobs[j]
    job.started = 1
    job.started_ns = now_ns
    for s in range(world.switch.config.shape[0]):
        admit_job(world.switch, s, j, 255, pool_base, pool_size)
    for w in range(job.first_worker, job.first_worker + job.workers):
        if world.workers[w].dead == 0:
            _begin_forward(world, w, now_ns)
            set_time(world.queue, world.control[TIMERS] + w, world.workers[w].due_ns)


@compiled_apart
def new_epoch(world: World, j: int, now_ns: int) -> None:
    """A job's custodians have lost their state: they and the workers go on in the next epoch."""
    job = world.jobs[j]
    if job.started == 0 or job.done_ns != 0 or job.failed_ns != 0:
        return
    epoch = world.senders.state[job.first_worker].epoch + 1
    for c in range(job.workers if job.on_workers != 0 else job.custodians):
        custody.forget(world.custodians, job.first_custodian + c, epoch)
    for w in range(job.first_worker, job.first_worker + job.workers):
        sending.change_epoch(world.senders, w, epoch)
        set_time(world.queue, world.control[TIMERS] + w, now_ns)


@compiled_inner
def pump(world: World, w: int, now_ns: int) -> None:
    """Send whatever the worker may send now."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    host = world.endpoints[w].host
    pool = world.pool
    width = pool.values.shape[1]
    step = worker.iteration * world.priorities.shape[1] // job.iterations
    last = -1
    while sending.poll_transmit(world.senders, w, pool.packets[peek_free(pool)], now_ns):
        p = take(pool)
        packet = pool.packets[p]
        if job.transport == RING:
            last = p
            ring.fill(world, w, p)
            post(world, host, p, ring.successor(world, w))
            continue
        place = packet.chunk - worker.first_chunk
        packet.priority = world.priorities[worker.job, step, world.layer_of[job.table + place]]
        if job.on_workers != 0:
            packet.custodian = custody.custodian_for(
                packet.chunk, job.workers, world.senders.state[w].leaders, packet.epoch
            )
        elif job.custodians > 1:
            packet.custodian = job.workers + packet.chunk % job.custodians
        else:
            packet.custodian = job.workers * job.custodians
        for lane in range(width):
            pool.values[p, lane] = contribution(worker.job, worker.rank, packet.chunk, lane)
        post(world, host, p, -1)
    if last >= 0 and ring.wants_receipt(world, w, pool.packets[last].chunk):
        pool.packets[last].flag |= FLUSH


@compiled_inner
def at_worker(world: World, w: int, p: int, ecn: int, now_ns: int) -> bool:
    """A packet for a worker, of which others may hold copies; True if the worker may have more to send."""
    packet = world.pool.packets[p]
    worker = world.workers[w]
    world.control[DELIVERED] += 1
    job = world.jobs[worker.job]
    if worker.dead != 0 or packet.job != worker.job or job.failed_ns != 0 or job.done_ns != 0:
        return False
    if job.transport == RING:
        return _ring_at_worker(world, w, p, ecn, now_ns)
    if packet.kind == RESULT:
        flag = packet.flag
        packet.flag |= ecn
        news = sending.handle_result(world.senders, w, packet, now_ns)
        packet.flag = flag
        if news != sending.NEW:
            return False
        if job.on_workers != 0 and packet.custodian == worker.rank:
            custody.keep_result(
                world.custodians, job.first_custodian + worker.rank, packet, world.pool.values, p, now_ns
            )
        if world.pool.values.shape[1] > 0:
            _check_result(world, w, p)
        layer = world.layer_of[job.table + packet.chunk - worker.first_chunk]
        layer_progress(world, w, layer, 1, now_ns)
        return True
    return _at_worker_asked(world, w, p, now_ns)


@compiled_apart
def _ring_at_worker(world: World, w: int, p: int, ecn: int, now_ns: int) -> bool:
    if not ring.at_worker(world, w, p, ecn, now_ns):
        return False
    j = world.workers[w].job
    bucket = ring.next_complete(world, w)
    while bucket >= 0:
        for layer in range(world.buckets[j, bucket].layer_low, world.buckets[j, bucket].layer_high + 1):
            layer_progress(world, w, layer, world.pending[w, layer], now_ns)
        bucket = ring.next_complete(world, w)
    return True


@compiled_apart
def _at_worker_asked(world: World, w: int, p: int, now_ns: int) -> bool:
    """A custodian pulls: give it the result if it is here, else send the contribution again."""
    packet = world.pool.packets[p]
    if packet.kind == ACK:
        return bool(sending.handle_ack(world.senders, w, packet, now_ns))
    wanted = sending.handle_pull(world.senders, w, packet)
    if wanted == sending.ANSWER_IT:
        _answer(world, w, p)
    return bool(wanted == sending.POLL)


@compiled_inner
def _answer(world: World, w: int, p: int) -> None:
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
    post(world, world.endpoints[w].host, q, endpoint_of(world, packet.job, packet.custodian))


@compiled_apart
def _check_result(world: World, w: int, p: int) -> None:
    """Compare a new result with the true sum, and keep it for those whose copy was lost."""
    packet = world.pool.packets[p]
    worker = world.workers[w]
    job = world.jobs[worker.job]
    place = packet.chunk % world.held.shape[1]
    job.checked += 1
    right = True
    for lane in range(world.pool.values.shape[1]):
        total = 0
        for rank in range(job.workers):
            total += contribution(worker.job, rank, packet.chunk, lane)
        world.held[w, place, lane] = world.pool.values[p, lane]
        right &= world.pool.values[p, lane] == total
    if not right:
        job.wrong += 1


@compiled_inner
def at_custodian(world: World, e: int, p: int, ecn: int, now_ns: int) -> None:
    """A packet has arrived for a custodian, which owns it now."""
    k = e - world.control[WORKERS]
    pool = world.pool
    packet = pool.packets[p]
    world.control[DELIVERED] += 1
    job = world.jobs[world.custodians.state[k].job]
    verdict = int(custody.NOTHING)
    if job.failed_ns != 0 or job.done_ns != 0:
        verdict = int(custody.NOTHING)
    elif packet.kind == RESULT:
        custody.keep_result(world.custodians, k, packet, pool.values, p, now_ns)
    else:
        packet.flag |= ecn
        verdict = custody.handle_packet(world.custodians, k, packet, pool.values, p, now_ns)
    host = world.endpoints[e].host
    if verdict == custody.NOTHING:
        drop_reference(pool, p)
    elif verdict == custody.UNICAST:
        post(world, host, p, job.first_worker + packet.worker)
    elif job.replicate == 0:
        post(world, host, p, -1)
    else:
        for w in range(job.first_worker, job.first_worker + job.workers):
            post(world, host, copy_packet(pool, p), w)
        drop_reference(pool, p)


@compiled_apart
def worker_timer(world: World, w: int, now_ns: int) -> bool:
    """A worker's timer: its computation, its retransmissions, or both; False if it has nothing to do."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    if worker.dead != 0 or job.done_ns != 0 or job.failed_ns != 0:
        return False
    if worker.due_ns <= now_ns:
        _compute_done(world, w, now_ns)
    sender = world.senders.state[w]
    if sender.timer_ns <= now_ns:
        sending.handle_timeout(world.senders, w, now_ns)
        if sender.failed != 0:
            fail_job(world, worker.job, now_ns)
    return True


@compiled_apart
def custodian_timer(world: World, e: int, now_ns: int) -> None:
    """A custodian's timer: reminders and pulls for chunks that have waited too long."""
    k = e - world.control[WORKERS]
    custodian = world.custodians.state[k]
    job = world.jobs[custodian.job]
    if job.done_ns != 0 or job.failed_ns != 0:
        custodian.timer_ns = NEVER_NS
    elif custodian.timer_ns <= now_ns:
        custody.handle_timeout(world.custodians, k, now_ns)
        while custody.poll_transmit(world.custodians, k, world.pool.packets[peek_free(world.pool)]):
            post(world, world.endpoints[e].host, take(world.pool), -1)


@compiled_inner
def next_wake_ns(world: World, e: int) -> int:
    """When an endpoint needs its timer next."""
    if e >= world.control[WORKERS]:
        return int(world.custodians.state[e - world.control[WORKERS]].timer_ns)
    worker = world.workers[e]
    job = world.jobs[worker.job]
    if worker.dead != 0 or job.done_ns != 0 or job.failed_ns != 0:
        return int(NEVER_NS)
    return int(min(worker.due_ns, world.senders.state[e].timer_ns))
