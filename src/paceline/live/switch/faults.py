"""Faults on purpose, for tests of a live switch: packets that are lost, doubled or late, by a seed.

`misplace` works on a batch that has just arrived, before anything else sees it: it takes packets out, appends copies,
and holds some back in a spare part of the inbox until `HOLD_NS` have passed. `copies` says how often an outgoing
packet is sent: never, once or twice.
"""

from typing import Any, NamedTuple

import numpy as np

from paceline.compile.decorators import compiled_apart, compiled_inner
from paceline.core.bits import chance, next_random, seed_word, threshold_of
from paceline.core.wire import HEADER_BYTES, MAX_ELEMENTS
from paceline.live.net.syscalls import memcpy
from paceline.live.net.udp import Inbox

HELD = 64
HELD_BYTES = HEADER_BYTES + 4 * MAX_ELEMENTS
HOLD_NS = 2_000_000

SETTINGS = np.dtype(
    [
        ("drop", "i8"),  # chance that a packet is lost, each way
        ("duplicate", "i8"),  # chance that it comes twice
        ("reorder", "i8"),  # chance that an arriving one is held back
        ("waiting", "i8"),  # packets that are held back now
        ("count", "i8"),  # packets that were injected or taken out so far
    ]
)
LATE = np.dtype(
    [
        ("due_ns", "i8"),  # when it is to go on
        ("length", "i8"),  # its bytes
        ("source", "u8"),  # its sender's address
        ("taken", "i8"),  # 1: this place is in use
    ]
)


class InjectedFaults(NamedTuple):
    """Chances (as `chance` takes them), what is held back, and the random word."""

    settings: Any
    late: Any
    random: Any


class NewFaults(NamedTuple):
    """Injected faults, and the room they need at the end of the inbox."""

    faults: InjectedFaults
    room_bytes: int


def new_faults(drop: float, duplicate: float, reorder: float, seed: int) -> NewFaults:
    """Probabilities for each packet, each way; lateness for arriving packets."""
    settings = np.zeros(1, dtype=SETTINGS).view(np.recarray)
    settings[0].drop, settings[0].duplicate = threshold_of(drop), threshold_of(duplicate)
    settings[0].reorder = threshold_of(reorder)
    late = np.zeros(HELD, dtype=LATE).view(np.recarray)
    random = np.array([seed_word(seed, 77)], dtype=np.uint64)
    return NewFaults(InjectedFaults(settings, late, random), HELD * HELD_BYTES if reorder > 0 else 0)


@compiled_inner
def is_on(faults: InjectedFaults) -> bool:
    """Is any fault wanted?"""
    settings = faults.settings[0]
    return bool(settings.drop + settings.duplicate + settings.reorder > 0)


@compiled_apart
def misplace(faults: InjectedFaults, inbox: Inbox, segments: int, inbox_address: int, now_ns: int) -> int:
    """Change a batch as chance wants; gives how many packets it has now."""
    settings = faults.settings[0]
    first_late = inbox.data.shape[0] - HELD * HELD_BYTES
    kept = 0
    arrived = segments
    for i in range(arrived):
        segment = inbox.segments[i]
        start, length, source = segment.start, segment.length, segment.source
        if chance(faults.random, 0, settings.drop):
            settings.count += 1
            continue
        if chance(faults.random, 0, settings.duplicate) and segments < inbox.segments.shape[0]:
            settings.count += 1
            copy = inbox.segments[segments]
            copy.start, copy.length, copy.source = start, length, source
            segments += 1
        if chance(faults.random, 0, settings.reorder) and length <= HELD_BYTES:
            place = np.int64(next_random(faults.random, 0) % np.uint64(HELD))
            late = faults.late[place]
            if late.taken == 0:
                settings.count += 1
                memcpy(inbox_address + first_late + place * HELD_BYTES, inbox_address + start, length)
                late.due_ns, late.length, late.source, late.taken = now_ns + HOLD_NS, length, source, 1
                settings.waiting += 1
                continue
        stays = inbox.segments[kept]
        stays.start, stays.length, stays.source = start, length, source
        kept += 1
    for i in range(arrived, segments):
        copy = inbox.segments[i]
        stays = inbox.segments[kept]
        stays.start, stays.length, stays.source = copy.start, copy.length, copy.source
        kept += 1
    if settings.waiting == 0:
        return kept
    for at in range(HELD):
        late = faults.late[at]
        if late.taken != 0 and late.due_ns <= now_ns and kept < inbox.segments.shape[0]:
            stays = inbox.segments[kept]
            stays.start, stays.length = first_late + at * HELD_BYTES, late.length
            stays.source = late.source
            late.taken = 0
            settings.waiting -= 1
            kept += 1
    return kept


@compiled_inner
def copies(faults: InjectedFaults) -> int:
    """How often an outgoing packet is sent."""
    settings = faults.settings[0]
    if chance(faults.random, 0, settings.drop):
        settings.count += 1
        return 0
    if chance(faults.random, 0, settings.duplicate):
        settings.count += 1
        return 2
    return 1
