"""Packets on their way out of an agent: room, header and tag, the train to their destination; and small ones, whole."""

from typing import Any

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.auth import seal
from paceline.core.bits import NO_BITS
from paceline.core.wire import HEADER_BYTES, QUERY, clear, encode_at
from paceline.live.agent.state import NO_ROOM, PINGS, SEND_BLOCKED, Loop, Out
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
    """Ask every shard whether it is there: a query to the own custodian, which a living switch brings back."""
    packet = loop.packets[2]
    for shard in range(loop.control[0].shards):
        start = make_room(loop.out, HEADER_BYTES)
        if start < 0:
            return
        blank(loop, packet, QUERY, 0)
        if dispatch(loop.out, start, finish(loop.out, packet, start), loop.switch[shard]):
            loop.counters[PINGS] += 1


@compiled_apart
def tell_done(loop: Loop, peer: int, kind: int) -> None:
    """Tell a worker up to where this one has all results: it `HAS` them, or it `LEAVES` and asks for the same."""
    start = make_room(loop.out, HEADER_BYTES)
    if start >= 0:
        packet = loop.packets[2]
        blank(loop, packet, kind, loop.senders.state[0].oldest)
        packet.custodian = peer
        dispatch(loop.out, start, finish(loop.out, packet, start), loop.peers[peer])
