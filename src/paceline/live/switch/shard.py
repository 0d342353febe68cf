"""A shard's loop: packets in, the switch program, packets out; compiled, without the GIL, asleep when idle.

    run_shard    until another thread calls (`cells.called`); then Python does what was asked, and runs it again

A packet is served if it decodes, its job is admitted, its tag is genuine, it comes from the address that is bound to
its sender, names no worker, custodian or rack that its job has not, and its job has something left of a crowded shard's
turn (`turns`). Anything else is dropped, counted by reason, and never answered. What the verdict of the core means for
sockets is in `_send`.

The shard's records belong to its thread alone. Another thread that wants to change them calls `ShardThread.call` with a
function; the loop leaves the compiled code after the batch at hand, the function runs there, and the loop goes on.
"""

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np

from paceline.compile.decorators import compiled_apart, compiled_inner, compiled_loop
from paceline.core.auth import is_genuine, seal
from paceline.core.priority import service_of
from paceline.core.switch.program import CONSUMED, DOWN, DOWN_ONE, DROPPED, TO_CUSTODIAN, UP, handle_packet
from paceline.core.wire import (
    FLAGS_OF_HOSTS,
    FROM_SWITCH,
    GRADIENT,
    HEADER_BYTES,
    OK,
    decode_at,
    encode_at,
)
from paceline.live.net.syscalls import FOREVER_NS, close_waiter, memcpy, now_ns, wait, wake
from paceline.live.net.udp import discard, flush, post, receive, room_for
from paceline.live.switch import pcap
from paceline.live.switch.arrivals import note_arrival
from paceline.live.switch.faults import HOLD_NS, copies, is_on, misplace
from paceline.live.switch.shard_state import (
    ARRIVALS,
    CHUNK_WINDOW,
    CHUNKS_A_SHARD_LOG2,
    DROP_EPOCH_JUMP,
    DROP_JOB,
    DROP_NO_ROOM,
    DROP_PLACE,
    DROP_REPLAY,
    DROP_SHARE,
    DROP_SIZE,
    DROP_SOURCE,
    DROP_TAG,
    DROP_UNBOUND,
    EPOCH_JUMP_MAX,
    Shard,
)
from paceline.live.switch.turns import (
    ARRIVAL_UNITS,
    COPY_UNITS,
    DROP_UNITS,
    end_turn,
    may_be_served,
    spend,
)

NOBODY = np.uint64(0)
_SEND_TRIES = 10
_SEND_WAIT_NS = 1_000_000
CALL_TIMEOUT_S = 10.0
T = TypeVar("T")


@compiled_loop
def run_shard(shard: Shard) -> None:
    """Serve packets until `cells.called` is set (and the waiter woken, should it sleep)."""
    cells = shard.cells[0]
    while cells.called == 0:
        segments = receive(cells.fd, shard.inbox)
        time_ns = now_ns(shard.waiter)
        if is_on(shard.faults):
            segments = misplace(shard.faults, shard.inbox, segments, cells.inbox, time_ns)
        if segments == 0:
            late = shard.faults.settings[0].waiting > 0
            wait(shard.waiter, HOLD_NS if late else FOREVER_NS, False)
            cells.asleep_ns += now_ns(shard.waiter) - time_ns
            continue
        cells.batches += 1
        _note_held(shard, time_ns)
        for i in range(segments):
            _serve(shard, i, time_ns)
        _send_all(shard)
        end_turn(shard, now_ns(shard.waiter))
        if shard.capture.cells[0].fd >= 0:
            pcap.write_out(shard.capture)


@compiled_apart
def _note_held(shard: Shard, time_ns: int) -> None:
    """What each job has held since the batch before: only packets change it."""
    elapsed_ns = time_ns - shard.cells[0].looked_ns
    shard.cells[0].looked_ns = time_ns
    for job in range(shard.jobs.shape[0] - 1):
        entry = shard.jobs[job]
        if entry.active != 0:
            entry.held_ns += shard.switch.jobs[0, job].used * elapsed_ns


@compiled_inner
def _serve(shard: Shard, i: int, time_ns: int) -> None:
    """One packet: checks, the switch program, and what leaves."""
    cells = shard.cells[0]
    segment = shard.inbox.segments[i]
    start, length = segment.start, segment.length
    packet = shard.packets[0]
    reason = decode_at(shard.inbox.data, start, length, packet)
    job = shard.jobs.shape[0] - 1
    if reason == OK:
        if packet.job >= job or shard.jobs[packet.job].active == 0:
            reason = DROP_JOB
        else:
            job = packet.job
            reason = _judge(shard, start, length, segment.source)
            if reason == OK and not may_be_served(shard, job, time_ns):
                reason = DROP_SHARE
                spend(shard.jobs[job], DROP_UNITS)
    if reason != OK:
        shard.drops[job, reason] += 1
        return
    if shard.capture.cells[0].fd >= 0:
        pcap.record(
            shard.capture, cells.inbox + start, length, segment.source, shard.capture.cells[0].own, time_ns
        )
    packet.flag &= FLAGS_OF_HOSTS
    entry = shard.jobs[job]
    entry.heard_ns = time_ns
    spend(entry, ARRIVAL_UNITS)
    entry.packets_in += 1
    entry.bytes_in += length
    if packet.kind == GRADIENT:
        entry.highest = max(entry.highest, packet.chunk)
        if packet.level == 1:
            arrival = shard.arrivals[job, packet.chunk % ARRIVALS]
            note_arrival(shard.members[job, packet.worker], arrival, packet.worker, packet.chunk, time_ns)
    memcpy(cells.values, cells.inbox + start + HEADER_BYTES, length - HEADER_BYTES)
    verdict = handle_packet(shard.switch, 0, packet, shard.values, 0, time_ns)
    if verdict != CONSUMED and verdict != DROPPED:
        _send(shard, packet, verdict, time_ns)


@compiled_inner
def _judge(shard: Shard, start: int, length: int, source: Any) -> int:
    """May this packet of an admitted job be served? `OK`, or the reason why not."""
    packet = shard.packets[0]
    entry = shard.jobs[packet.job]
    if not is_genuine(entry.key0, entry.key1, shard.inbox.data, start, length, shard.cells[0].full_tag != 0):
        return DROP_TAG
    if (
        packet.worker >= entry.workers
        or packet.custodian >= entry.workers
        or packet.rack >= entry.racks
        or packet.fan_in > entry.workers
        or packet.fan_in_upper != entry.racks
    ):
        return DROP_PLACE
    if not _is_from_its_sender(shard, packet, source):
        return DROP_SOURCE
    if packet.count > shard.values.shape[1]:
        return DROP_SIZE
    if packet.kind == GRADIENT:
        if packet.epoch > shard.switch.jobs[0, packet.job].epoch + EPOCH_JUMP_MAX:
            return DROP_EPOCH_JUMP
        if packet.chunk < entry.highest - CHUNK_WINDOW:
            return DROP_REPLAY
    return OK


@compiled_inner
def _shard_of(packet: Any, shards: int) -> int:
    return int((packet.chunk >> CHUNKS_A_SHARD_LOG2) % max(shards, 1))


@compiled_inner
def _is_from_its_sender(shard: Shard, packet: Any, source: Any) -> bool:
    """A worker, a custodian, or (in a job of several racks) a neighbouring switch, at its bound address.

    What a switch has sent is never a worker's: it would go round between two addresses for ever.
    """
    if shard.switch.config[0].level > 1:
        found = False
        for rack in range(shard.jobs[packet.job].racks):
            found |= _rack_address(shard, packet, rack) == source
        return bool(found)
    # What a custodian sends bears its number in `custodian`, and the worker it is about in `worker`.
    members = shard.members
    if packet.flag & FROM_SWITCH == 0 and (
        members[packet.job, packet.worker].address == source
        or members[packet.job, packet.custodian].address == source
    ):
        return True
    return bool(shard.jobs[packet.job].racks > 1 and _upper_address(shard, packet) == source)


@compiled_inner
def _rack_address(shard: Shard, packet: Any, rack: int) -> Any:
    shards = shard.rack_shards[packet.job, rack]
    return shard.racks[packet.job, rack, _shard_of(packet, shards)]


@compiled_inner
def _upper_address(shard: Shard, packet: Any) -> Any:
    return shard.upper[_shard_of(packet, shard.cells[0].upper_shards)]


@compiled_inner
def _send(shard: Shard, packet: Any, verdict: int, time_ns: int) -> None:
    """Write what leaves, seal it under its own job's key, and post it to where the verdict says."""
    cells = shard.cells[0]
    size = HEADER_BYTES + 4 * packet.count
    start = room_for(shard.outbox, size)
    if start < 0:
        _send_all(shard)
        start = room_for(shard.outbox, size)
    entry = shard.jobs[packet.job]
    packet.flag |= FROM_SWITCH
    encode_at(packet, shard.outbox.data, start)
    memcpy(cells.outbox + start + HEADER_BYTES, cells.values, size - HEADER_BYTES)
    seal(entry.key0, entry.key1, shard.outbox.data, start, size, cells.full_tag != 0)
    shard.outbox.cells[0].service = service_of(packet.priority)
    top = shard.switch.config[0].level > 1
    first, last = 0, 1
    if verdict == DOWN:
        last = entry.racks if top else entry.workers
    elif verdict == DOWN_ONE:
        first, last = packet.rack, packet.rack + 1
    for position in range(first, last):
        if verdict == DOWN or verdict == DOWN_ONE:
            if top:
                destination = _rack_address(shard, packet, position)
            else:
                destination = shard.members[packet.job, position].address
            if destination == NOBODY and verdict == DOWN and entry.racks > 1:
                # A worker of another rack.
                continue
        elif verdict == UP:
            destination = _upper_address(shard, packet)
        else:
            endpoint = packet.custodian if verdict == TO_CUSTODIAN else packet.worker
            member = shard.members[packet.job, endpoint]
            if top:
                destination = _rack_address(shard, packet, member.rack)
            elif member.address == NOBODY and entry.racks > 1:
                destination = _upper_address(shard, packet)
            else:
                destination = member.address
        if destination == NOBODY:
            shard.drops[packet.job, DROP_UNBOUND] += 1
            continue
        times = copies(shard.faults) if is_on(shard.faults) else 1
        for _ in range(times):
            if not post(shard.outbox, start, size, destination):
                _send_all(shard)
                post(shard.outbox, start, size, destination)
            spend(entry, COPY_UNITS)
            entry.packets_out += 1
            entry.bytes_out += size
            if shard.capture.cells[0].fd >= 0:
                own = shard.capture.cells[0].own
                pcap.record(shard.capture, cells.outbox + start, size, own, destination, time_ns)


@compiled_apart
def _send_all(shard: Shard) -> None:
    """Send what was posted; where the kernel has no room for long, the rest is lost, as on any full link."""
    cells = shard.cells[0]
    for _ in range(_SEND_TRIES):
        if flush(cells.fd, shard.outbox) == 0:
            return
        wait(shard.waiter, _SEND_WAIT_NS, True)
    shard.drops[shard.jobs.shape[0] - 1, DROP_NO_ROOM] += discard(shard.outbox)


class ShardThread:
    """One shard at work; `failed` is told if its loop ends by an error."""

    def __init__(self, number: int, shard: Shard, failed: Callable[[int, BaseException], None]) -> None:
        self.number, self.shard = number, shard
        self._failed = failed
        self._wanted: queue.SimpleQueue[tuple[Callable[[Shard], Any], Future[Any]]] = queue.SimpleQueue()
        self._stopping = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"paceline-shard-{number}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, wanted: Callable[[Shard], T]) -> "Future[T]":
        """Have the shard's thread run `wanted(shard)`."""
        future: Future[T] = Future()
        with self._lock:
            if self._stopping:
                raise RuntimeError("this shard has ended")
            self._wanted.put((wanted, future))
            self._interrupt()
        return future

    def call(self, wanted: Callable[[Shard], T]) -> T:
        """The same, and wait for its answer."""
        return self.ask(wanted).result(CALL_TIMEOUT_S)

    def stop(self) -> None:
        """End the loop after the batch at hand, and wait for its end."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            self._interrupt()
        if self._thread.ident is not None:
            self._thread.join(CALL_TIMEOUT_S)
        if not self._thread.is_alive():
            close_waiter(self.shard.waiter)

    def _interrupt(self) -> None:
        # The mark first: a loop that is not asleep looks at it after each batch.
        self.shard.cells[0].called = 1
        wake(self.shard.waiter)

    def _run(self) -> None:
        try:
            while not self._stopping:
                # Cleared before the queue is emptied: whoever comes later marks it again.
                self.shard.cells[0].called = 0
                self._answer()
                run_shard(self.shard)
            self._answer()
        except BaseException as error:
            self._failed(self.number, error)
            raise

    def _answer(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                wanted, future = self._wanted.get_nowait()
                try:
                    future.set_result(wanted(self.shard))
                except Exception as error:
                    future.set_exception(error)
