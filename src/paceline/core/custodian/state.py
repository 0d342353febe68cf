"""What custodians keep: verdicts, chunk states, counters, and the records of custodians and their chunks.

`program.py` is the program that runs over this state; a driver makes it with `new_custodians`.
"""

from typing import Any, NamedTuple

import numpy as np

from paceline.core.sender.state import NEVER_NS

NOTHING = 0
MULTICAST = 1
UNICAST = 2
ACKNOWLEDGE = 3
PULL_REST = 4
VERDICT_NAMES = ("nothing", "multicast", "unicast", "acknowledge", "pull the rest")

ABSENT = 0
OPEN = 1
FINISHED = 2
CHUNK_STATES = ("absent", "open", "done")

ACCEPTED = 0
OVERLAPS = 1
OUTDATED = 2
FINISHES = 3
REPLAYS = 4
REMINDERS_SENT = 5
PULLS_SENT = 6
REFUSED = 7
KEPT = 8
ACKS_SENT = 9
COUNTER_NAMES = (
    "accepted",
    "dropped_overlap",
    "dropped_outdated",
    "finished",
    "replayed",
    "reminders",
    "pulls",
    "refused",
    "kept",
    "acks",
)

CUSTODIAN = np.dtype(
    [
        ("job", "i4"),
        ("endpoint", "i4"),
        ("epoch", "i4"),
        ("ring", "i4"),
        ("reminders", "i4"),
        ("eager", "i4"),
        ("pulls", "i4"),
        ("fan_in_upper", "i4"),
        ("count", "i4"),
        ("slots", "i8"),
        ("patience_ns", "i8"),
        ("patience_max_ns", "i8"),
        ("patience_led_ns", "i8"),
        ("patience_min_ns", "i8"),
        ("patience_helping_ns", "i8"),
        ("patience_rtts", "f8"),
        ("timer_ns", "i8"),
        ("low", "i8"),
        ("high", "i8"),
        ("cursor", "i8"),
        ("now_ns", "i8"),
        ("passed", "i8"),
        ("reach", "i8"),
        ("seen", "i8"),
        ("reorder_chunks", "i8"),
        ("rounds", "i8"),
    ],
    align=True,
)
"""A custodian. A chunk waits for `patience_ns` before others are asked for it; one that some of the leaders have
brought waits for `patience_led_ns` (0: as long). With `patience_rtts` the driver lets patience follow the round trip of
the worker beside the custodian."""

CUSTODY = np.dtype(
    [
        ("chunk", "i8"),
        ("racks", "u8"),
        ("due_ns", "i8"),
        ("index", "i8"),
        ("offer", "i8"),
        ("attempts", "i4"),
        ("window", "i4"),
        ("state", "u1"),
        ("flag", "u1"),
        ("priority", "u1"),
        ("owners", "u1"),
        ("led", "u1"),
        ("custody", "u1"),
    ],
    align=True,
)
"""What a custodian keeps of a chunk. `window`: the least of the windows of who is counted; `custody`: its leaders go on
without the others. `owners`: how many workers are counted in part; `led`: with custody, are its
leaders in, or some of them?"""

NOT_LED = 0
LED_IN_PART = 1
LED = 2


class Custodians(NamedTuple):
    """Custodians of a driver: `state[k]`, chunks in `chunks[k, chunk % ring]`, workers in `masks`.

    Workers that are helped have an entry of `owners` (-1: none) and their micro-batches in `shares` beside it;
    `leads` has the leaders whose contributions are counted.
    """

    state: Any
    chunks: Any
    masks: Any
    fan_in: Any
    values: Any
    counters: Any
    owners: Any
    shares: Any
    leads: Any


def new_custodians(count: int, ring: int, racks: int, width: int, owners: int = 4) -> Custodians:
    """Room for `count` custodians of `ring` chunks each, for jobs that span at most `racks` racks.

    At most `owners` workers can be helped at a time: shares of more of them are refused.
    """
    count = max(count, 1)
    chunks = np.zeros((count, ring), dtype=CUSTODY).view(np.recarray)
    chunks.chunk = -1
    state = np.zeros(count, dtype=CUSTODIAN).view(np.recarray)
    state.timer_ns = NEVER_NS
    state.passed = -1
    state.reach = 1
    return Custodians(
        state,
        chunks,
        np.zeros((count, ring, racks), dtype=np.uint64),
        np.ones((count, racks), dtype=np.int64),
        np.zeros((count, ring, width), dtype=np.int32),
        np.zeros((count, len(COUNTER_NAMES)), dtype=np.int64),
        np.full((count, ring, owners), -1, dtype=np.int32),
        np.zeros((count, ring, owners), dtype=np.uint64),
        np.zeros((count, ring, racks), dtype=np.uint64),
    )
