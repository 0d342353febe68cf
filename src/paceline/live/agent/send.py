"""The sending half of an agent: contributions, and results of its custodian.

A contribution goes to the switch as a gradient, or, where there is no switch, to the chunk's custodian as a partial. A
custodian's result goes to the switch, which spreads it, or to each worker. What an agent has for itself never
leaves it.

On its way out a packet needs room, its header and tag, and the train to its destination: `make_room`, `finish`,
`dispatch`; one without payload goes by `send_small`.
"""

from typing import Any

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.auth import seal
from paceline.core.bits import NO_BITS, popcount
from paceline.core.custodian import program as custody
from paceline.core.custodian.state import Custodians
from paceline.core.numbers.layout import i32_at, row_at
from paceline.core.numbers.payload import write_chunk
from paceline.core.priority import service_of
from paceline.core.sender import program as sending
from paceline.core.wire import (
    ACK,
    CUSTODY,
    HEADER_BYTES,
    NACK,
    PARTIAL,
    PATH,
    QUERY,
    RESULT,
    clear,
    encode_at,
)
from paceline.live.agent.state import (
    BY_SWITCH,
    COUNT_UNKNOWN,
    NO_ROOM,
    PARTIALS_DIRECT,
    PINGS,
    SEND_BLOCKED,
    Loop,
    Out,
)
from paceline.live.agent.tensors import agreements, locate, take_result
from paceline.live.net.syscalls import memcpy
from paceline.live.net.udp import flush, post, room_for


@compiled_inner
def shard_of(loop: Loop, chunk: int) -> Any:
    """The address of the shard that sums a chunk: 32 in a row share one, so that trains stay whole."""
    return loop.switch[(chunk >> 5) % loop.control[0].shards]


@compiled_apart
def make_room(out: Out, room: int) -> int:
    """Where a packet of up to `room` bytes can be written; -1 while the kernel takes no more."""
    start = room_for(out.outbox, room)
    if start < 0:
        if flush(out.control[0].fd, out.outbox) != 0:
            out.control[0].blocked = 1
            out.counters[SEND_BLOCKED] += 1
            return -1
        start = 0
    return int(start)


@compiled_apart
def finish(out: Out, packet: Any, start: int) -> int:
    """Header and tag of the packet at `start`; its length."""
    control = out.control[0]
    length = encode_at(packet, out.outbox.data, start)
    out.outbox.cells[0].service = service_of(packet.priority)
    seal(control.key0, control.key1, out.outbox.data, start, length, control.full != 0)
    return int(length)


@compiled_apart
def dispatch(out: Out, start: int, length: int, destination: Any) -> bool:
    """Put a finished packet into a train; where there is none left, the trains go first."""
    if destination == NO_BITS:
        return False
    if post(out.outbox, start, length, destination):
        return True
    if flush(out.control[0].fd, out.outbox) != 0:
        out.control[0].blocked = 1
        out.counters[NO_ROOM] += 1
        return False
    return bool(post(out.outbox, start, length, destination))


@compiled_apart
def send_small(out: Out, packet: Any, destination: Any) -> None:
    """A packet without payload."""
    start = make_room(out, HEADER_BYTES)
    if start >= 0:
        dispatch(out, start, finish(out, packet, start), destination)


@compiled_apart
def blank(loop: Loop, packet: Any, kind: int, chunk: int) -> None:
    """A packet without payload from this worker, to nobody yet."""
    sender = loop.senders.state[0]
    clear(packet, kind)
    packet.job = sender.job
    packet.chunk = chunk
    packet.epoch = sender.epoch
    packet.fan_in = sender.fan_in
    packet.fan_in_upper = sender.fan_in_upper
    packet.rack = sender.rack
    packet.worker = sender.worker
    packet.custodian = sender.worker


@compiled_apart
def ping_switch(loop: Loop) -> None:
    """Ask every shard whether it is there: a query to the own custodian, which a living switch brings back.

    One without payload, and one of full size: a path that carries the first alone is of no use.
    """
    for shard in range(loop.control[0].shards):
        for full in range(2):
            count = full * loop.control[0].elements
            size = HEADER_BYTES + 4 * count
            start = make_room(loop.out, size)
            if start < 0:
                return
            packet = loop.packets[2]
            blank(loop, packet, QUERY, 0)
            packet.count = count
            loop.outbox.data[start + HEADER_BYTES : start + size] = 0
            if dispatch(loop.out, start, finish(loop.out, packet, start), loop.switch[shard]):
                loop.counters[PINGS] += 1
                loop.control[0].asked += full


@compiled_apart
def tell_done(loop: Loop, peer: int, kind: int) -> None:
    """Tell a worker up to where this one has all results: it `HAS` them, or it `LEAVES` and asks for the same."""
    start = make_room(loop.out, HEADER_BYTES)
    if start >= 0:
        packet = loop.packets[2]
        blank(loop, packet, kind, loop.senders.state[0].oldest)
        packet.custodian = peer
        dispatch(loop.out, start, finish(loop.out, packet, start), loop.peers[peer])


@compiled_apart
def tell_path(loop: Loop, peer: int, state: int) -> None:
    """Tell a worker whether this one uses the switch, could, or cannot and why."""
    control = loop.control[0]
    packet = loop.packets[2]
    blank(loop, packet, PATH, loop.senders.state[0].oldest)
    control.path_said += 1
    packet.custodian = peer
    packet.index = control.path_said
    packet.window = control.left_because
    packet.offer = state
    send_small(loop.out, packet, loop.peers[peer])


BATCH = 64
"""Contributions between two looks at what has arrived."""
_DIRECT_NS = 1_000_000_000
"""A worker that has lately sent straight to us is answered straight."""


@compiled_apart
def _send_query(loop: Loop, packet: Any, start: int, now_ns: int) -> None:
    """A question to the switch and, behind it, the custodian; where the switch is not asked, the own one is at once."""
    control = loop.control[0]
    own = packet.custodian == control.worker
    if control.path == BY_SWITCH and not (own and packet.flag & CUSTODY):
        dispatch(loop.out, start, finish(loop.out, packet, start), shard_of(loop, packet.chunk))
    elif own:
        ask_own(loop, packet, now_ns)
    else:
        dispatch(loop.out, start, finish(loop.out, packet, start), loop.peers[packet.custodian])


@compiled_apart
def ask_own(loop: Loop, packet: Any, now_ns: int) -> None:
    """The own custodian has the result (its copy for us was lost), counts our contribution, or lacks it."""
    at = packet.chunk % loop.counts.shape[0]
    if loop.custodians.chunks[0, at].chunk < packet.chunk:
        loop.counts[at] = COUNT_UNKNOWN
    staging = loop.control[0].staging
    if take_partial(loop.custodians, packet, staging, loop.control[0].elements, now_ns) == custody.NOTHING:
        return
    if packet.kind == RESULT:
        packet.count = loop.counts[at]
        take_result(loop, packet, staging, now_ns)
    elif packet.kind == ACK:
        sending.handle_ack(loop.senders, 0, packet, now_ns)
    elif packet.kind == NACK:
        sending.handle_nack(loop.senders, 0, packet, now_ns)
    else:
        sending.handle_pull(loop.senders, 0, packet)


@compiled_apart
def acknowledge(loop: Loop, packet: Any, now_ns: int) -> None:
    """A custodian's receipt for the workers in the packet's mask: they look for their own bit."""
    control = loop.control[0]
    by_switch = control.path == BY_SWITCH
    if by_switch:
        send_small(loop.out, packet, shard_of(loop, packet.chunk))
    one = popcount(packet.mask) == 1
    for peer in range(control.workers):
        direct = not by_switch or now_ns - loop.peer_direct[peer] < _DIRECT_NS
        if peer != control.worker and direct and (peer == packet.worker or not one):
            send_small(loop.out, packet, loop.peers[peer])
    if not by_switch:
        sending.handle_ack(loop.senders, 0, packet, now_ns)


@compiled_apart
def take_partial(custodians: Custodians, packet: Any, payload: int, lanes: int, now_ns: int) -> int:
    """The custodian's program on a packet whose payload is at an address; its verdict."""
    return int(custody.handle_packet(custodians, 0, packet, row_at(payload, lanes), 0, now_ns))


@compiled_apart
def _send_partial(loop: Loop, packet: Any, start: int, payload: int, now_ns: int) -> None:
    """A contribution straight to its custodian, which may be here."""
    control = loop.control[0]
    packet.kind = PARTIAL
    loop.counters[PARTIALS_DIRECT] += 1
    if packet.custodian != control.worker:
        dispatch(loop.out, start, finish(loop.out, packet, start), loop.peers[packet.custodian])
        return
    loop.counts[packet.chunk % loop.counts.shape[0]] = packet.count
    verdict = take_partial(loop.custodians, packet, payload, packet.count, now_ns)
    if verdict == custody.NOTHING:
        return
    if packet.kind == ACK:
        sending.handle_ack(loop.senders, 0, packet, now_ns)
        return
    if packet.kind != RESULT:
        # Ours is counted, and overlaps with nobody's.
        return
    # The result stands where the contribution was written.
    packet.count = loop.counts[packet.chunk % loop.counts.shape[0]]
    if verdict == custody.MULTICAST:
        length = finish(loop.out, packet, start)
        for peer in range(control.workers):
            if peer != control.worker:
                dispatch(loop.out, start, length, loop.peers[peer])
    take_result(loop, packet, payload, now_ns)


@compiled_apart
def pump(loop: Loop, now_ns: int) -> int:
    """Send contributions as far as window, room and `BATCH` allow; how many."""
    control = loop.control[0]
    packet = loop.packets[0]
    room = HEADER_BYTES + 4 * control.elements
    sent = 0
    while sent < BATCH:
        start = make_room(loop.out, room)
        if start < 0 or not sending.poll_transmit(loop.senders, 0, packet, now_ns):
            break
        sent += 1
        packet.custodian = 0
        if control.pool == 0:
            leaders = loop.senders.state[0].leaders
            packet.custodian = custody.custodian_for(packet.chunk, control.workers, leaders, packet.epoch)
        if packet.kind == QUERY:
            _send_query(loop, packet, start, now_ns)
            continue
        place = loop.places[packet.chunk % loop.places.shape[0]]
        if place.chunk != packet.chunk:
            locate(loop, packet.chunk, place)
        slot = place.task % loop.tasks.shape[0]
        task = loop.tasks[slot]
        layout = loop.layouts[slot]
        packet.count = place.count
        packet.priority = sending.effective_priority(packet, task.priority)
        payload = loop.outbox.cells[0].buffer + start + HEADER_BYTES
        exponents = i32_at(task.exponents, agreements(layout, task))
        write_chunk(layout, place, task.address, task.number_kind, exponents, payload)
        if control.path == BY_SWITCH:
            dispatch(loop.out, start, finish(loop.out, packet, start), shard_of(loop, packet.chunk))
        else:
            _send_partial(loop, packet, start, payload, now_ns)
    return sent


@compiled_apart
def give_result(loop: Loop, packet: Any, payload: int, alone: bool, now_ns: int) -> None:
    """A custodian's result, to all workers or to the one in `packet.worker`; its payload is at `payload`."""
    control = loop.control[0]
    packet.count = loop.counts[packet.chunk % loop.counts.shape[0]]
    start = make_room(loop.out, HEADER_BYTES + 4 * packet.count)
    if start >= 0:
        memcpy(loop.outbox.cells[0].buffer + start + HEADER_BYTES, payload, 4 * packet.count)
        length = finish(loop.out, packet, start)
        if alone:
            if packet.worker != control.worker:
                dispatch(loop.out, start, length, loop.peers[packet.worker])
        else:
            by_switch = control.path == BY_SWITCH
            if by_switch:
                dispatch(loop.out, start, length, shard_of(loop, packet.chunk))
            for peer in range(control.workers):
                direct = not by_switch or now_ns - loop.peer_direct[peer] < _DIRECT_NS
                if peer != control.worker and direct:
                    dispatch(loop.out, start, length, loop.peers[peer])
    if (packet.worker == control.worker) if alone else (control.path != BY_SWITCH):
        take_result(loop, packet, payload, now_ns)


@compiled_apart
def make_answer(loop: Loop, packet: Any, payload: int) -> None:
    """A pull becomes its answer: the result of `packet.chunk`, held here; `payload` is where it is written."""
    control = loop.control[0]
    at = packet.chunk % loop.held.shape[0]
    sending.answer_pull(loop.senders, 0, packet, loop.held_counts[at])
    memcpy(payload, control.held + 4 * at * control.elements, 4 * packet.count)


@compiled_apart
def send_answer(loop: Loop, packet: Any) -> None:
    """The result of `packet.chunk`, held here, to the custodian that pulls it."""
    control = loop.control[0]
    start = make_room(loop.out, HEADER_BYTES + 4 * control.elements)
    if start < 0:
        return
    make_answer(loop, packet, loop.outbox.cells[0].buffer + start + HEADER_BYTES)
    length = finish(loop.out, packet, start)
    if control.path == BY_SWITCH:
        dispatch(loop.out, start, length, shard_of(loop, packet.chunk))
    else:
        dispatch(loop.out, start, length, loop.peers[packet.custodian])
