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
        ("job", "i4"),  # its job's number
        ("endpoint", "i4"),  # its own number, as packets name it in `custodian`
        ("epoch", "i4"),  # partial sums of other epochs do not count
        ("ring", "i4"),  # places for chunks: twice the senders' span
        ("reminders", "i4"),  # 1: it sends reminders to the switch
        ("eager", "i4"),  # 1: a chunk that came by a flush is asked for at once
        ("pulls", "i4"),  # 1: it sends pulls to the workers
        ("fan_in_upper", "i4"),  # racks of the job
        ("count", "i4"),  # integers in a full packet
        ("slots", "i8"),  # aggregators that its job may use
        ("patience_ns", "i8"),  # how long a chunk waits before others are asked for it
        ("patience_max_ns", "i8"),  # the longest wait, back-off included
        ("patience_led_ns", "i8"),  # the wait of a chunk that some leaders have brought; 0: `patience_ns`
        ("patience_min_ns", "i8"),  # least patience where it follows round trips
        ("patience_helping_ns", "i8"),  # least patience while a straggler is waited for; 0: none is
        ("patience_rtts", "f8"),  # patience in round trips of the worker beside it; 0: `patience_ns` stays
        ("timer_ns", "i8"),  # when `handle_timeout` is to be called next
        ("low", "i8"),  # no chunk below this is open
        ("high", "i8"),  # no chunk from here on was ever opened
        ("cursor", "i8"),  # the chunk where the present round of questions goes on
        ("now_ns", "i8"),  # the time of that round
        ("passed", "i8"),  # the highest chunk that is done; -1: none
        ("reach", "i8"),  # how many of the oldest open chunks are asked for
        ("seen", "i8"),  # how many open chunks the present round has come by
        ("reorder_chunks", "i8"),  # a chunk is overtaken by one done so many chunks ahead
        ("rounds", "i8"),  # the worker's `rounds` when patience was last set
    ],
    align=True,
)
"""A custodian."""

CUSTODIAN_CHUNK = np.dtype(
    [
        ("chunk", "i8"),  # the chunk in this place; -1: none yet
        ("racks", "u8"),  # racks that are complete, as bits
        ("due_ns", "i8"),  # when others are asked for it
        ("index", "i8"),  # the aggregator that the first packet named
        ("offer", "i8"),  # another aggregator, which the result offers for this place
        ("attempts", "i4"),  # how often others were asked for it
        ("window", "i4"),  # the least window of the workers that are counted, in chunks
        ("state", "u1"),  # one of `CHUNK_STATES`
        ("flag", "u1"),  # flags of its result: collision, congestion
        ("priority", "u1"),  # of the first packet; its result and questions have it too
        ("owners", "u1"),  # how many workers are counted in part
        ("led", "u1"),  # with custody: `NOT_LED`, `LED_IN_PART` (some leaders are in) or `LED` (all are)
        ("custody", "u1"),  # 1: its leaders go on without the others
    ],
    align=True,
)
"""What a custodian keeps of a chunk."""

NOT_LED = 0
LED_IN_PART = 1
LED = 2


class Custodians(NamedTuple):
    """Custodians of a driver: custodian k is `state[k]`, its chunks are in place `at` = chunk % ring."""

    state: Any  # [k]: a `CUSTODIAN`
    chunks: Any  # [k, at]: a `CUSTODIAN_CHUNK`
    masks: Any  # [k, at, rack]: workers that are counted, as bits
    fan_in: Any  # [k, rack]: workers of a rack
    values: Any  # [k, at, lane]: the sum
    counters: Any  # [k, counter], by `COUNTER_NAMES`
    owners: Any  # [k, at, i]: workers that are counted in part; -1: none
    shares: Any  # [k, at, i]: their micro-batches that are counted
    leads: Any  # [k, at, rack]: leaders that are counted, as bits


def new_custodians(count: int, ring: int, racks: int, width: int, owners: int = 4) -> Custodians:
    """Room for `count` custodians of `ring` chunks each, for jobs that span at most `racks` racks.

    At most `owners` workers can be helped at a time: shares of more of them are refused.
    """
    count = max(count, 1)
    chunks = np.zeros((count, ring), dtype=CUSTODIAN_CHUNK).view(np.recarray)
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
