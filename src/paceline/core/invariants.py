"""Invariants of the core, as functions that look at its state and say what is wrong with it.

Each gives a list of sentences, one a violation; an empty list is good news. They change nothing and may be
called between any two calls of the core, by a test after every packet or by a driver at the end of a run.

- exactly once: every container (aggregator, custodian chunk, packet) holds the sum over exactly its mask and share;
- nothing left out: what claims to be complete has every contribution of its level;
- no aggregator leaked: what is empty is blank, `used` counts what is held, a job that left holds nothing;
- a sender's counts are true: how many chunks of it are unfinished, lost, credited, asked about, behind;
- every chunk ended: a sender has a result for all that it was given, and nothing is still in flight.

What the contributions are is for the caller to say, in a `Truth`. Sums are compared modulo 2**32, as they are
kept. Without values (rows of width zero) the masks are still checked.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from paceline.core.bits import ALL_SHARES, bit, owner_bit, popcount
from paceline.core.custodian.program import FINISHED, OPEN, Custodians
from paceline.core.sender.program import CREDITED, FLIGHT_STATES, IDLE, LOST, SENT, Senders
from paceline.core.switch.memory import ANSWERED, EMPTY, FILLING, HELD, STATE_NAMES
from paceline.core.switch.program import Switch
from paceline.core.wire import CUSTODY, GRADIENT, PARTIAL, RESULT

Values = Any
"""A row of integers, as wide as the payload."""


class Truth(NamedTuple):
    """What the contributions really are."""

    share_of: Callable[[int, int, int, int, int], Values]
    """(job, level, rack, position, chunk): what a bit stands for; at level 2 `position` is a whole rack."""
    total_of: Callable[[int, int], Values]
    """(job, chunk): the sum over everyone."""
    part_of: Callable[[int, int, int, int], Values] | None = None
    """(job, owner, share, chunk): what these micro-batches of a worker stand for; where nobody is helped, none."""


def positions(mask: Any) -> list[int]:
    """The contributions in a mask, by their places."""
    word = int(mask)
    return [place for place in range(64) if word >> place & 1]


def _wrapped(values: Any) -> Any:
    return np.asarray(values, dtype=np.int64).astype(np.uint32)


def sum_over(truth: Truth, job: int, level: int, rack: int, mask: Any, chunk: int, width: int) -> Any:
    """The sum that a container with this mask must hold, modulo 2**32."""
    total = np.zeros(width, dtype=np.int64)
    for place in positions(mask):
        total += np.asarray(truth.share_of(job, level, rack, place, chunk), dtype=np.int64)[:width]
    return _wrapped(total)


def sum_over_share(truth: Truth, job: int, owner: Any, share: Any, chunk: int, width: int) -> Any:
    """The sum that a container holds besides its mask, modulo 2**32."""
    if int(share) == 0:
        return _wrapped(np.zeros(width, dtype=np.int64))
    assert truth.part_of is not None, "a share, and nobody is helped"
    return _wrapped(truth.part_of(job, int(owner), int(share), chunk)[:width])


def check_aggregators(switch: Switch, truth: Truth) -> list[str]:
    """Exactly once and nothing left out, over all switch memory."""
    wrong = []
    width = switch.memory.values.shape[1]
    for at in np.flatnonzero(switch.memory.slots.state != EMPTY):
        slot = switch.memory.slots[at]
        job, level, chunk, state = int(slot.job), int(slot.level), int(slot.chunk), int(slot.state)
        name = f"aggregator {at} ({STATE_NAMES[state]}, job {job}, chunk {chunk}, mask {int(slot.mask):#x})"
        wanted = int(slot.fan_in if level == 1 else slot.fan_in_upper)
        whole = slot.share == ALL_SHARES and slot.owner >> 6 == slot.rack and not slot.flag & CUSTODY
        found = popcount(slot.mask) + int(whole)
        if int(slot.mask) == 0 and int(slot.share) == 0:
            wrong.append(f"{name} holds no contribution")
        if int(slot.share) and level == 1 and slot.mask & owner_bit(int(slot.owner), int(slot.rack)):
            wrong.append(f"{name} holds a worker by its bit and by shares")
        if state in (HELD, ANSWERED) and found != wanted:
            wrong.append(f"{name} is complete with {found} of {wanted} contributions")
        if state == FILLING and found >= wanted:
            wrong.append(f"{name} is full and was not given out")
        if state == ANSWERED:
            expected = _wrapped(truth.total_of(job, chunk)[:width])
        else:
            expected = sum_over(truth, job, level, int(slot.rack), slot.mask, chunk, width)
            expected = expected + sum_over_share(truth, job, slot.owner, slot.share, chunk, width)
        if not np.array_equal(_wrapped(switch.memory.values[at]), expected):
            wrong.append(f"{name} does not hold the sum over its mask")
    for at in np.flatnonzero(switch.memory.slots.left != 0):
        slot = switch.memory.slots[at]
        job, chunk = int(slot.left) - 1, int(slot.chunk)
        expected = _wrapped(truth.total_of(job, chunk)[:width])
        if slot.state != EMPTY or not np.array_equal(_wrapped(switch.memory.values[at]), expected):
            wrong.append(f"aggregator {at} does not hold the sum of job {job}, chunk {chunk}, that has left")
    return wrong


def check_custody(custodians: Custodians, truth: Truth) -> list[str]:
    """Exactly once and nothing left out, over all chunks that custodians keep."""
    wrong = []
    width = custodians.values.shape[2]
    racks = custodians.masks.shape[2]
    for k, at in np.argwhere((custodians.chunks.state == OPEN) | (custodians.chunks.state == FINISHED)):
        entry = custodians.chunks[k, at]
        job, chunk = int(custodians.state[k].job), int(entry.chunk)
        name = f"custodian {k}, job {job}, chunk {chunk}"
        if entry.state == FINISHED:
            expected = _wrapped(truth.total_of(job, chunk)[:width])
        else:
            expected = sum_over(truth, job, 2, 0, entry.racks, chunk, width)
            for rack in range(racks):
                if not int(entry.racks) >> rack & 1:
                    mask = custodians.masks[k, at, rack]
                    expected = expected + sum_over(truth, job, 1, rack, mask, chunk, width)
            for owner, share in zip(custodians.owners[k, at], custodians.shares[k, at], strict=True):
                if owner >= 0:
                    expected = expected + sum_over_share(truth, job, owner, share, chunk, width)
                    if custodians.masks[k, at, owner >> 6] & bit(int(owner) & 63):
                        wrong.append(f"{name} counts worker {owner} by its bit and by shares")
            if np.count_nonzero(custodians.owners[k, at] >= 0) != entry.owners:
                wrong.append(f"{name} has lost count of its owners")
            if popcount(entry.racks) >= custodians.state[k].fan_in_upper:
                wrong.append(f"{name} has every contribution and made no result")
        if not np.array_equal(_wrapped(custodians.values[k, at]), expected):
            wrong.append(f"{name} does not hold the sum over its masks")
    return wrong


def check_packet(packet: Any, values: Values, truth: Truth) -> list[str]:
    """A sum on its way holds exactly its mask; a result holds everyone."""
    job, chunk, width = int(packet.job), int(packet.chunk), len(values)
    if packet.kind == RESULT:
        if not np.array_equal(_wrapped(values), _wrapped(truth.total_of(job, chunk)[:width])):
            return [f"result of job {job}, chunk {chunk} is not the sum over everyone"]
    elif packet.kind in (GRADIENT, PARTIAL):
        level, rack = int(packet.level), int(packet.rack)
        expected = sum_over(truth, job, level, rack, packet.mask, chunk, width)
        expected = expected + sum_over_share(truth, job, packet.owner, packet.share, chunk, width)
        if not np.array_equal(_wrapped(values), expected):
            return [f"packet of job {job}, chunk {chunk} is not the sum over its mask {int(packet.mask):#x}"]
    return []


def check_accounts(switch: Switch) -> list[str]:
    """No aggregator leaked: blank when empty, owned by an active job, counted once in `used`."""
    wrong = []
    for s in range(switch.config.shape[0]):
        first, slots = int(switch.config[s].first), int(switch.config[s].slots)
        own = switch.memory.slots[first : first + slots]
        for i in np.flatnonzero((own.state == EMPTY) != (own.job < 0)):
            wrong.append(
                f"switch {s}, aggregator {i}: state {STATE_NAMES[own[i].state]} with job {own[i].job}"
            )
        for i in np.flatnonzero((own.state == EMPTY) & (own.mask != 0)):
            wrong.append(f"switch {s}, aggregator {i}: empty with mask {int(own[i].mask):#x}")
        for job in range(switch.jobs.shape[1]):
            record = switch.jobs[s, job]
            held = int(np.count_nonzero((own.state != EMPTY) & (own.job == job)))
            if held != record.used:
                wrong.append(f"switch {s}: job {job} holds {held} aggregators, {record.used} are counted")
            if held > 0 and record.active == 0:
                wrong.append(f"switch {s}: job {job} has left and holds {held} aggregators")
            if record.active != 0 and held > record.slots_max:
                wrong.append(
                    f"switch {s}: job {job} holds {held} aggregators and may hold {record.slots_max}"
                )
    return wrong


def check_senders(senders: Senders) -> list[str]:
    """What a sender counts of its chunks in flight is what they are."""
    wrong = []
    for i in range(senders.state.shape[0]):
        sender = senders.state[i]
        flights = senders.flights[i, : sender.span]
        unfinished = (flights.state == SENT) | (flights.state == LOST) | (flights.state == CREDITED)
        counts = {
            "unfinished": unfinished,
            "lost": flights.state == LOST,
            "credited": flights.state == CREDITED,
            "asking": flights.asks != 0,
        }
        if sender.pool == 0:
            counts["behind"] = unfinished & (flights.chunk <= sender.highest_done)
        for name, found in counts.items():
            if np.count_nonzero(found) != sender[name]:
                wrong.append(
                    f"sender {i} (job {sender.job}, worker {sender.worker}) counts {sender[name]} chunks {name},"
                    f" {np.count_nonzero(found)} are"
                )
    return wrong


def check_ended(senders: Senders) -> list[str]:
    """Every chunk that was released has its result, and nothing is in flight or given up."""
    wrong = []
    for i in range(senders.state.shape[0]):
        sender = senders.state[i]
        name = f"sender {i} (job {sender.job}, worker {sender.worker})"
        if sender.failed != 0:
            wrong.append(f"{name} gave up")
        if sender.unfinished != 0 or sender.lost != 0:
            wrong.append(f"{name} has {sender.unfinished} chunks unfinished, {sender.lost} to be resent")
        if sender.pool == 0 and sender.oldest != sender.released:
            wrong.append(f"{name} has results up to {sender.oldest} of {sender.released} chunks")
        for flight in senders.flights[i, : sender.span]:
            if flight.state != IDLE:
                wrong.append(f"{name}: chunk {flight.chunk} is {FLIGHT_STATES[flight.state]}")
            elif sender.pool != 0 and flight.chunk < sender.released:
                wrong.append(f"{name}: chunk {flight.chunk} was released and never sent")
    return wrong
