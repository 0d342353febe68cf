"""Hosts: what workers send and receive, and custodians.

Gradients are released in the backward pass (`compute.py`), so the layers near the input are released last and
needed first. Chunks are numbered in the order of release, without end: chunk = iteration * chunks + place.
"""

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.bits import NO_BITS
from paceline.core.custodian import program as custody
from paceline.core.sender import program as sending
from paceline.core.sender.program import NEVER_NS
from paceline.core.switch.program import admit_job
from paceline.core.wire import ACK, NACK, RESULT
from paceline.sim.engine.event_queue import set_time
from paceline.sim.engine.links import copy_packet, drop_reference, peek_free, take
from paceline.sim.engine.world import (
    DELIVERED,
    RING,
    TIMERS,
    WORKERS,
    World,
    endpoint_of,
    post,
)
from paceline.sim.hosts import ring, tcp
from paceline.sim.hosts.compute import begin_iteration, compute_done, fail_job, layer_progress
from paceline.sim.hosts.values import check_result, contribution, fill_helped


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
            begin_iteration(world, w, now_ns)
            set_time(world.queue, world.control[TIMERS] + w, world.workers[w].due_ns)


@compiled_apart
def new_epoch(world: World, j: int, now_ns: int) -> None:
    """A job's custodians have lost their state: they and the workers go on in the next epoch."""
    job = world.jobs[j]
    if job.started == 0 or job.done_ns != 0 or job.failed_ns != 0:
        return
    epoch = 0
    for w in range(job.first_worker, job.first_worker + job.workers):
        # The dead have not heard of the latest.
        epoch = max(epoch, world.senders.state[w].epoch + 1)
    for c in range(job.workers * job.on_workers + job.custodians):
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
    if job.transport == RING:
        ring.pump(world, w, now_ns)
        return
    while worker.hold == 0 and sending.poll_transmit(world.senders, w, pool.packets[peek_free(pool)], now_ns):
        p = take(pool)
        packet = pool.packets[p]
        place = packet.chunk - worker.first_chunk
        priority = world.priorities[worker.job, step, world.layer_of[job.table + place]]
        packet.priority = sending.effective_priority(packet, priority)
        leaders = world.senders.state[w].leaders
        if job.on_workers != 0 and (job.custodians == 0 or leaders != NO_BITS):
            packet.custodian = custody.custodian_for(packet.chunk, job.workers, leaders, packet.epoch)
        elif job.custodians > 1:
            packet.custodian = job.workers + packet.chunk % job.custodians
        else:
            packet.custodian = job.workers * job.custodians
        if width > 0 and packet.count > 0:
            if worker.helped != 0:
                fill_helped(world, w, p)
            else:
                for lane in range(width):
                    pool.values[p, lane] = contribution(worker.job, worker.rank, packet.chunk, lane)
        post(world, host, p, -1)


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
        if job.on_workers != 0:
            custody.follow(world.custodians, job.first_custodian + worker.rank, world.senders.state[w])
        if world.pool.values.shape[1] > 0:
            check_result(world, w, p)
        layer = world.layer_of[job.table + packet.chunk - worker.first_chunk]
        layer_progress(world, w, layer, 1, now_ns)
        return True
    return _at_worker_asked(world, w, p, now_ns)


@compiled_apart
def _ring_at_worker(world: World, w: int, p: int, ecn: int, now_ns: int) -> bool:
    if not ring.at_worker(world, w, p, ecn, now_ns):
        return False
    _take_buckets(world, w, now_ns)
    return True


@compiled_apart
def _take_buckets(world: World, w: int, now_ns: int) -> None:
    """What a ring's worker has all of: its layers' results are there."""
    j = world.workers[w].job
    bucket = ring.next_complete(world, w)
    while bucket >= 0:
        for layer in range(world.buckets[j, bucket].layer_low, world.buckets[j, bucket].layer_high + 1):
            layer_progress(world, w, layer, world.pending[w, layer], now_ns)
        bucket = ring.next_complete(world, w)


@compiled_apart
def _at_worker_asked(world: World, w: int, p: int, now_ns: int) -> bool:
    """A custodian counts a chunk; or it pulls: give it the result if it is here, else send again."""
    packet = world.pool.packets[p]
    if packet.kind == ACK:
        return bool(sending.handle_ack(world.senders, w, packet, now_ns))
    if packet.kind == NACK:
        return bool(sending.handle_nack(world.senders, w, packet, now_ns))
    wanted = sending.handle_pull(world.senders, w, packet)
    if wanted == sending.ANSWER_IT:
        _answer(world, w, p)
    return bool(wanted == sending.POLL)


@compiled_inner
def _answer(world: World, w: int, p: int) -> None:
    """Give a custodian the result that it asks for, and the aggregator index that goes on with it."""
    q = copy_packet(world.pool, p)
    packet = world.pool.packets[q]
    sending.answer_pull(world.senders, w, packet, world.senders.state[w].count)
    for lane in range(world.pool.values.shape[1]):
        world.pool.values[q, lane] = world.held[w, packet.chunk % world.held.shape[1], lane]
    post(world, world.endpoints[w].host, q, endpoint_of(world, packet.job, packet.custodian))


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
        compute_done(world, w, now_ns)
    if job.transport == RING:
        if world.connections[w].handled_ns <= now_ns:
            ring.handle_messages(world, w, now_ns)
            ring.release(world, w)
            _take_buckets(world, w, now_ns)
        if world.connections[w].timer_ns <= now_ns and not tcp.handle_timeout(world, w, now_ns):
            fail_job(world, worker.job, now_ns)
        return True
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
    if job.transport == RING:
        return int(min(worker.due_ns, tcp.wake_ns(world, e)))
    return int(min(worker.due_ns, world.senders.state[e].timer_ns))
