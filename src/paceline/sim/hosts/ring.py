"""Ring all-reduce between hosts, as the baseline that everyone knows: reduce-scatter, then all-gather.

Each bucket of layers is cut into one segment a worker, and each segment into messages, at least two. In step s of
2(N-1) worker r sends segment (r - s) mod N to its successor. As in Gloo's ring, a worker has `MESSAGES` messages under
way: the next one goes when the successor has the last but one, and when the last but one from the predecessor has come
and been added. So the sending of one overlaps with the adding of another, and every step pays for a round trip.

A worker's packets to its successor form one flow, numbered in the order of sending, on one connection (`tcp.py`), with
receipts from the successor: cumulative, every few packets, and at once for what comes out of order or last.

A message that has come may cost processor time (`job.overhead_ns`): a worker handles one at a time, and counts it as
added only then. Where all servers are one machine, they share its cores for that with the passes (`compute.py`).
"""

from typing import Any

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.sender.program import NEVER_NS
from paceline.core.wire import ECN, FLUSH, PARTIAL, RECEIPT
from paceline.sim.engine.links import copy_packet, take
from paceline.sim.engine.world import PACKET_BYTES, RING_ACK_EVERY, World, overhead_ns, post, work_on_core
from paceline.sim.hosts import tcp
from paceline.sim.hosts.values import contribution

MESSAGES = 2
"""Messages under way between two neighbours."""


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
    """Let the connection go as far as gradients, received messages and messages under way allow."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    connection = world.connections[w]
    layers_ready = worker.iteration * job.layers + worker.released
    while connection.bucket < job.iterations * job.buckets:
        iteration = connection.bucket // job.buckets
        bucket = world.buckets[worker.job, connection.bucket - iteration * job.buckets]
        if layers_ready < (iteration + 1) * job.layers - bucket.layer_low:
            return
        first = iteration * job.flows + bucket.first
        messages = 2 * (job.workers - 1) * bucket.messages
        while connection.message < messages:
            if connection.message >= MESSAGES:
                before = first + _message_end(bucket, connection.message - MESSAGES)
                if connection.handled < before or connection.oldest < before:
                    return
            connection.released = first + _message_end(bucket, connection.message)
            connection.message += 1
        connection.message = 0
        connection.bucket += 1


@compiled_inner
def _message_end(bucket: Any, message: int) -> int:
    """The first flow number of a bucket that comes after one of its messages."""
    step = message // bucket.messages
    part = message - step * bucket.messages + 1
    return int(step * bucket.packets + min(part * bucket.message, bucket.packets))


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
def pump(world: World, w: int, now_ns: int) -> None:
    """Send what the connection may send now, in trains; the last packet of each wants a receipt."""
    host = world.endpoints[w].host
    sender = world.senders.state[w]
    train = max(1, tcp.TRAIN_BYTES // world.control[PACKET_BYTES])
    while tcp.may_queue(world, w, now_ns):
        packets = 0
        last = -1
        while packets < train:
            flow = tcp.poll(world, w, now_ns)
            if flow < 0:
                break
            tcp.sent(world, w, flow, now_ns)
            last = take(world.pool)
            packet = world.pool.packets[last]
            packet.chunk = flow
            packet.job = sender.job
            packet.worker = sender.worker
            packet.count = sender.count
            packet.flag = 0
            fill(world, w, last)
            post(world, host, last, successor(world, w))
            packets += 1
        if packets == 0:
            return
        world.pool.packets[last].flag |= FLUSH
        tcp.queued(world, w, host, packets, now_ns)


@compiled_apart
def at_worker(world: World, w: int, p: int, ecn: int, now_ns: int) -> bool:
    """A packet of the ring: data from the predecessor or a receipt from the successor; True for news."""
    packet = world.pool.packets[p]
    if packet.kind == RECEIPT:
        # What a receipt tells of the data's way; a mark on its own way says nothing about that.
        news = tcp.handle_receipt(world, w, packet.index, packet.chunk, packet.offer != 0, now_ns)
        release(world, w)
        return bool(news)
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
        handle_messages(world, w, now_ns)
        release(world, w)
    if not in_order or packet.flag & FLUSH or worker.received % world.control[RING_ACK_EVERY] == 0:
        _receipt(world, w, p, ecn, now_ns)
    return bool(fresh)


@compiled_apart
def handle_messages(world: World, w: int, now_ns: int) -> None:
    """Take up the next message that has come whole; when its processor time has passed it is handled."""
    worker = world.workers[w]
    connection = world.connections[w]
    if world.jobs[worker.job].overhead_ns == 0:
        connection.handled = worker.received
        return
    if connection.handled_ns <= now_ns:
        connection.handled = connection.handling
        connection.handled_ns = NEVER_NS
    if connection.handled_ns != NEVER_NS or worker.received == connection.handled:
        return
    end = _end_of_message(world, worker.job, connection.handled)
    if worker.received < end:
        return
    connection.handling = end
    time_ns = overhead_ns(world, worker.job, (end - 1) // world.jobs[worker.job].flows)
    connection.handled_ns = work_on_core(world, time_ns, now_ns)


@compiled_apart
def _end_of_message(world: World, j: int, flow: int) -> int:
    """The first flow number after the message that a flow number belongs to."""
    job = world.jobs[j]
    place = flow % job.flows
    bucket = world.buckets[j, _bucket_of(world, j, place)]
    step = (place - bucket.first) // bucket.packets
    part = ((place - bucket.first) - step * bucket.packets) // bucket.message
    message = step * bucket.messages + part
    return int(flow - place + bucket.first + _message_end(bucket, message))


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
    packet.offer = 1 if (packet.flag | ecn) & ECN else 0
    packet.flag = 0
    packet.index = worker.received
    to = job.first_worker + (worker.rank + job.workers - 1) % job.workers
    post(world, world.endpoints[w].host, q, to)


@compiled_apart
def next_complete(world: World, w: int) -> int:
    """The next bucket of which everything is there and handled, checked if values are carried; -1 if there is none."""
    worker = world.workers[w]
    job = world.jobs[worker.job]
    b = worker.receive_bucket % job.buckets
    iteration = worker.receive_bucket // job.buckets
    bucket = world.buckets[worker.job, b]
    end = iteration * job.flows + bucket.first + 2 * (job.workers - 1) * bucket.packets
    if world.connections[w].handled < end:
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
