"""Tensors under way: which chunk belongs where, what may be sent, and what a result completes."""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled, compiled_apart, compiled_inner
from paceline.core.custodian import program as custody
from paceline.core.numbers.layout import DATA, INT32, WHOLE, find_place, i32_at, row_at, sendable
from paceline.core.numbers.payload import read_chunk
from paceline.core.sender import program as sending
from paceline.live.agent.state import (
    DISAGREED,
    DONE,
    DROP_COUNT,
    DUPLICATES,
    EVENT_FAILED,
    EXPONENT_UNKNOWN,
    FAILED,
    NO_FAILURE,
    PENDING,
    RESULTS,
    STATE_OFFSET,
    TASK,
    TENSORS,
    Loop,
)
from paceline.live.hostmem.words import futex
from paceline.live.net.syscalls import address_of, memcpy, write

_TASK_BYTES = TASK.itemsize
_WAIT_PRIVATE = 128
_WAKE_PRIVATE = 129
_EVERYONE = 2**31 - 1


@compiled_apart
def take_tasks(loop: Loop, now_ns: int) -> None:
    """Number the chunks of newly submitted tensors, and let go what may go."""
    control = loop.control[0]
    while control.taken < control.head:
        slot = control.taken % loop.tasks.shape[0]
        task = loop.tasks[slot]
        control.taken += 1
        task.first = control.next_chunk
        task.remaining = loop.layouts[slot].chunks
        task.agreed = 0
        task.peaked = 0
        task.deadline_ns = now_ns + task.timeout_ns
        control.next_chunk += task.remaining
        if control.failed != NO_FAILURE:
            _end(loop, slot, FAILED)
        elif task.remaining == 0:
            _end(loop, slot, DONE)
    _advance(loop)
    open_gate(loop)


@compiled_apart
def open_gate(loop: Loop) -> None:
    """Release the chunks whose exponents are known, in order."""
    control = loop.control[0]
    while control.gate < control.taken:
        slot = control.gate % loop.tasks.shape[0]
        task = loop.tasks[slot]
        layout = loop.layouts[slot]
        if task.state == PENDING:
            allowed = sendable(layout, task.agreed, task.peaked)
            sending.release(loop.senders, 0, task.first + allowed)
            if allowed < layout.chunks:
                return
        control.gate += 1


@compiled_inner
def agreements(layout: Any, task: Any) -> int:
    """How many exponents and steps the workers of a tensor agree on."""
    return int(layout.blocks + layout.patches if task.number_kind != INT32 else 0)


@compiled_apart
def locate(loop: Loop, chunk: int, place: Any) -> None:
    """Find the tensor of a chunk that is sent for the first time, and what of it the chunk carries."""
    control = loop.control[0]
    low = control.tail
    high = control.taken
    while high - low > 1:
        middle = (low + high) // 2
        if loop.tasks[middle % loop.tasks.shape[0]].first <= chunk:
            low = middle
        else:
            high = middle
    slot = low % loop.tasks.shape[0]
    find_place(loop.layouts[slot], chunk - loop.tasks[slot].first, place)
    place.chunk = chunk
    place.task = low


@compiled_apart
def take_result(loop: Loop, packet: Any, payload: int, now_ns: int) -> None:
    """A result for this worker, from wherever: news are read into their tensor, and kept for others."""
    control = loop.control[0]
    place = loop.places[packet.chunk % loop.places.shape[0]]
    if place.chunk == packet.chunk and place.count != packet.count:
        loop.counters[DROP_COUNT] += 1
        return
    if sending.handle_result(loop.senders, 0, packet, now_ns) != sending.NEW:
        loop.counters[DUPLICATES] += 1
        return
    loop.counters[RESULTS] += 1
    slot = place.task % loop.tasks.shape[0]
    task = loop.tasks[slot]
    layout = loop.layouts[slot]
    if task.state != PENDING:
        return
    if control.pool == 0:
        at = packet.chunk % loop.held.shape[0]
        loop.held_counts[at] = packet.count
        memcpy(control.held + 4 * at * control.elements, payload, 4 * packet.count)
        if packet.custodian == control.worker:
            loop.counts[packet.chunk % loop.counts.shape[0]] = packet.count
            custody.keep_result(loop.custodians, 0, packet, row_at(payload, packet.count), 0, now_ns)
    exponents = i32_at(task.exponents, agreements(layout, task))
    if read_chunk(layout, place, task.address, task.number_kind, task.op, exponents, payload) != 0:
        fail(loop, DISAGREED, now_ns)
        return
    if place.kind != DATA and place.kind != WHOLE:
        while (
            task.agreed < layout.sections
            and exponents[task.agreed * layout.section_blocks] != EXPONENT_UNKNOWN
        ):
            task.agreed += 1
        while task.peaked < layout.sections and _has_peaks(layout, task.peaked, exponents):
            task.peaked += 1
        open_gate(loop)
    task.remaining -= 1
    if task.remaining == 0:
        loop.counters[TENSORS] += 1
        _end(loop, slot, DONE)
        _advance(loop)


@compiled_apart
def _has_peaks(layout: Any, section: int, exponents: Any) -> bool:
    """Are the peaks of a section all known? A peak chunk brings all of its own at once."""
    in_section = layout.section_chunks * layout.chunk_patches
    first = section * in_section
    end = min(layout.patches, first + in_section)
    while first < end:
        if exponents[layout.blocks + first] == EXPONENT_UNKNOWN:
            return False
        first += layout.elements
    return True


@compiled_apart
def _end(loop: Loop, slot: int, state: int) -> None:
    """A tensor is done or has failed: tell who waits."""
    control = loop.control[0]
    loop.tasks[slot].state = state
    futex(loop.control[0].task_address + slot * _TASK_BYTES + STATE_OFFSET, _WAKE_PRIVATE, _EVERYONE, 0)
    if loop.tasks[slot].waited == 0:
        write(control.notify_fd, control.one, 8)


@compiled_inner
def _advance(loop: Loop) -> None:
    control = loop.control[0]
    while control.tail < control.taken and loop.tasks[control.tail % loop.tasks.shape[0]].state != PENDING:
        control.tail += 1


@compiled_apart
def fail(loop: Loop, reason: int, now_ns: int) -> None:
    """This worker's stream cannot go on: everything under way ends, and says what was missing."""
    control = loop.control[0]
    if control.failed != NO_FAILURE:
        return
    sender = loop.senders.state[0]
    control.failed_chunk = sender.oldest
    control.failed_ticket = control.tail
    control.failed_custodian = custody.custodian_for(
        sender.oldest, control.workers, sender.leaders, sender.epoch
    )
    control.failed = reason
    sender.failed = 1
    note(loop, EVENT_FAILED, reason, 0, now_ns)
    for ticket in range(control.tail, control.taken):
        slot = ticket % loop.tasks.shape[0]
        if loop.tasks[slot].state == PENDING:
            _end(loop, slot, FAILED)
    _advance(loop)


@compiled_apart
def note(loop: Loop, code: int, value: int, reason: int, now_ns: int, worker: int = -1) -> None:
    """An event for the user; `worker`: whose reason it is, if not our own."""
    control = loop.control[0]
    event = loop.events[control.events % loop.events.shape[0]]
    event.time_ns = now_ns
    event.code = code
    event.value = value
    event.reason = reason
    event.worker = worker
    control.events += 1
    write(control.notify_fd, control.one, 8)


@compiled
def _sleep(address: int, value: int, timeout: int) -> None:
    futex(address, _WAIT_PRIVATE, value, timeout)


def sleep_while(address: int, value: int, timeout_s: float) -> None:
    """Sleep while the 32-bit word at `address` has this value, at most for `timeout_s`; may return early."""
    timeout = np.array([int(timeout_s), int(timeout_s % 1.0 * 1e9)], dtype=np.int64)
    _sleep(address, value, address_of(timeout))
