"""Ring all-reduce between hosts, as the baseline that everyone knows: reduce-scatter, then all-gather.

Each bucket of layers is cut into one segment a worker. In step s of 2(N-1) worker r sends segment (r - s) mod
N to its successor; it may send a packet of step s as soon as it has received that packet of step s-1, so the
steps are pipelined. A worker's packets to its successor form one flow, numbered in the order of sending; the
data-plane sender carries it, with receipts from the successor: cumulative, every few packets, and at once
for what comes out of order or last.
"""

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.sender import program as sending
from paceline.core.wire import ECN, FLUSH, PARTIAL, RECEIPT
from paceline.sim.engine.links import copy_packet
from paceline.sim.engine.world import RING_ACK_EVERY, World, post
from paceline.sim.hosts.values import contribution


@compiled_inner
def successor(world: World, w: int) -> int:
    """The next worker of the ring."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    return int(job.first_worker + (worker.rank + 1) % job.workers)


@compiled_inner
def _bucket_of(world: World, j: int, place: int) -> int:
    """The bucket that a flow number within an iteration belongs to."""
    bucket = 0
    while bucket + 1 < world.jobs[j].buckets and place >= world.buckets[j, bucket + 1].first:
        bucket += 1
    return bucket


@compiled_apart
def release(world: World, w: int) -> None:
    """Let the sender go as far as gradients and received packets allow."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    sender = world.senders.state[w]
    layers_ready = worker.iteration * job.layers + worker.released
    steps = 2 * (job.workers - 1)
    while True:
        iteration = sender.released // job.flows
        start = iteration * job.flows
        bucket = world.buckets[worker.job, _bucket_of(world, worker.job, sender.released - start)]
        first = start + bucket.first
        if sender.released < first + bucket.packets:
            if layers_ready < (iteration + 1) * job.layers - bucket.layer_low:
                return
            sender.released = first + bucket.packets
        limit = min(worker.received + bucket.packets, first + steps * bucket.packets)
        if limit <= sender.released:
            return
        sender.released = limit


@compiled_apart
def _locate(world: World, j: int, flow: int) -> tuple[int, int, int, int, int]:
    """A flow number as (parity of its iteration, first place, packets a segment, step, packet)."""
    job = world.jobs[j]
    iteration = flow // job.flows
    place = flow - iteration * job.flows
    bucket = world.buckets[j, _bucket_of(world, j, place)]
    offset = place - bucket.first
    step = offset // bucket.packets
    return iteration, bucket.place, bucket.packets, step, offset - step * bucket.packets


@compiled_inner
def _unit(world: World, j: int, iteration: int, place: int) -> int:
    """A number for a packet's worth of gradient, the same on all workers and different in each iteration."""
    return int(iteration * world.ring_values.shape[2] + place)


@compiled_apart
def fill(world: World, w: int, p: int) -> None:
    """Make a polled packet one of this ring, with its values if they are carried."""
    packet = world.pool.packets[p]
    packet.kind = PARTIAL
    packet.priority = 0
    packet.custodian = 0
    width = world.pool.values.shape[1]
    if width == 0:
        return
    worker = world.workers[w]
    workers = world.jobs[worker.job].workers
    iteration, first, packets, step, k = _locate(world, worker.job, packet.chunk)
    place = first + (worker.rank - step) % workers * packets + k
    for lane in range(width):
        if step == 0:
            value = contribution(worker.job, worker.rank, _unit(world, worker.job, iteration, place), lane)
        else:
            value = world.ring_values[w, iteration & 1, place, lane]
        world.pool.values[p, lane] = value


@compiled_apart
def wants_receipt(world: World, w: int, flow: int) -> bool:
    """May nothing follow this packet for a while, so that its receipt must not wait for more packets?"""
    sender = world.senders.state[w]
    if sender.unfinished >= sender.window or sender.next >= sender.oldest + sender.span:
        return True
    if world.senders.flights[w, flow % sender.span].resends > 0:
        return True
    _, _, packets, _, k = _locate(world, world.workers[w].job, flow)
    return bool(k == packets - 1)


@compiled_apart
def at_worker(world: World, w: int, p: int, ecn: int, now_ns: int) -> bool:
    """A packet of the ring: data from the predecessor or a receipt from the successor; True for news."""
    packet = world.pool.packets[p]
    if packet.kind == RECEIPT:
        marked = (packet.flag | ecn) & ECN != 0
        news = sending.handle_receipts(world.senders, w, packet.index, marked, now_ns)
        if packet.chunk >= packet.index:
            packet.flag = 0
            sending.handle_result(world.senders, w, packet, now_ns)
        return bool(news > 0 or packet.chunk >= packet.index)
    if packet.kind != PARTIAL:
        return False
    worker = world.workers[w]
    flow = packet.chunk
    span = world.ring_seen.shape[1]
    in_order = flow == worker.received
    fresh = flow >= worker.received and world.ring_seen[w, flow % span] != flow + 1
    if fresh:
        world.ring_seen[w, flow % span] = flow + 1
        _take(world, w, p, flow)
        while world.ring_seen[w, worker.received % span] == worker.received + 1:
            worker.received += 1
        release(world, w)
    if not in_order or packet.flag & FLUSH or worker.received % world.control[RING_ACK_EVERY] == 0:
        _receipt(world, w, p, ecn, now_ns)
    return bool(fresh)


@compiled_apart
def _take(world: World, w: int, p: int, flow: int) -> None:
    """Add the own share to a partial sum, or keep a finished one."""
    width = world.pool.values.shape[1]
    if width == 0:
        return
    worker = world.workers[w]
    workers = world.jobs[worker.job].workers
    iteration, first, packets, step, k = _locate(world, worker.job, flow)
    place = first + (worker.rank - 1 - step) % workers * packets + k
    for lane in range(width):
        value = world.pool.values[p, lane]
        if step < workers - 1:
            value += contribution(worker.job, worker.rank, _unit(world, worker.job, iteration, place), lane)
        world.ring_values[w, iteration & 1, place, lane] = value


@compiled_apart
def _receipt(world: World, w: int, p: int, ecn: int, now_ns: int) -> None:
    worker = world.workers[w]
    job = world.jobs[worker.job]
    q = copy_packet(world.pool, p)
    packet = world.pool.packets[q]
    packet.kind = RECEIPT
    packet.count = 0
    packet.flag = ecn
    packet.index = worker.received
    to = job.first_worker + (worker.rank + job.workers - 1) % job.workers
    post(world, world.endpoints[w].host, q, to)


@compiled_apart
def next_complete(world: World, w: int) -> int:
    """The next bucket of which everything has come, checked if values are carried; -1 if there is none."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    b = worker.receive_bucket % job.buckets
    iteration = worker.receive_bucket // job.buckets
    bucket = world.buckets[worker.job, b]
    end = iteration * job.flows + bucket.first + 2 * (job.workers - 1) * bucket.packets
    if worker.received < end:
        return -1
    worker.receive_bucket += 1
    for place in range(bucket.place, bucket.place + job.workers * bucket.packets):
        _check(world, w, iteration, place)
    return int(b)


@compiled_apart
def _check(world: World, w: int, iteration: int, place: int) -> None:
    width = world.pool.values.shape[1]
    if width == 0:
        return
    worker = world.workers[w]
    job = world.jobs[worker.job]
    job.checked += 1
    right = True
    for lane in range(width):
        total = 0
        for rank in range(job.workers):
            total += contribution(worker.job, rank, _unit(world, worker.job, iteration, place), lane)
        right &= world.ring_values[w, iteration & 1, place, lane] == total
    if not right:
        job.wrong += 1
