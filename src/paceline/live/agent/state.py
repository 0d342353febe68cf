"""What an agent keeps: its records and arrays, made by Python and worked on by the compiled loop.

The two sides meet in `control`, `tasks` and `events`: Python writes a task and then raises `control.head`; the loop
ends a task by its `state` and wakes who waits for it. Nothing else is written by both.
"""

from typing import Any, NamedTuple

import numpy as np

from paceline.core.custodian.state import Custodians, new_custodians
from paceline.core.help.detect import Detection, new_detection
from paceline.core.numbers.layout import LAYOUT, PLACE
from paceline.core.progress import PROGRESS
from paceline.core.sender.program import Senders, new_senders
from paceline.core.wire import ERROR_NAMES, new_packets
from paceline.live.net.syscalls import Waiter, address_of
from paceline.live.net.udp import Inbox, Outbox, new_inbox, new_outbox

REPORT = np.dtype(
    [
        ("computed", "i8"),
        ("sent", "i8"),
        ("finished", "i8"),
        ("window", "i8"),
        ("epoch", "i8"),
        ("unanswered", "i8"),
        ("suspected", "i8"),
        ("doubts", "i8"),
        ("confirmed", "i8"),
    ],
    align=True,
)
"""What a worker last said of itself: chunks submitted, sent and finished, its window, its epoch (-1: it has said
nothing yet); and how often it has been asked since. For how many windows a slow link is suspected, how many such
suspicions in a row were wrong, and whether the present one has proved right."""

WATCH = np.dtype(
    [
        ("window_ns", "i8"),
        ("due_ns", "i8"),
        ("highest", "i8"),
        ("highest_sent", "i8"),
        ("goal", "i8"),
        ("iteration_windows", "i8"),
        ("quiet", "i8"),
        ("progress", "i8"),
        ("patience_ns", "i8"),
        ("memory_at", "i8"),
        ("leaders", "u8"),
        ("helps", "i4"),
        ("watches", "i4"),
        ("asked", "i4"),
    ],
    align=True,
)
"""The coordinator's own: when a window ends, and what it compares with. `leaders` (0: all) is every worker's role."""

SAID = np.dtype(
    [
        ("computed", "i8"),
        ("delivered", "i8"),
        ("behind_by", "i8"),
        ("median", "i8"),
        ("median_computed", "i8"),
        ("leaders", "u8"),
        ("worker", "i4"),
        ("behind_windows", "i4"),
        ("clean_iterations", "i4"),
        ("role", "i4"),
    ],
    align=True,
)
"""The figures behind an event about a role, as they were then."""


class Roles(NamedTuple):
    """`racks` is every worker's rack; `said[i]` belongs to `events[i]`; `memory` is for a question to the kernel."""

    watch: Any
    reports: Any
    racks: Any
    detection: Detection
    scratch: Any
    said: Any
    memory: Any


def new_roles(workers: int, events: int, theta_chunks: int, windows: int, clean_iterations: int) -> Roles:
    """Everyone leads, and nobody is watched."""
    reports = np.zeros(workers, dtype=REPORT).view(np.recarray)
    reports.epoch = -1
    watch = np.zeros(1, dtype=WATCH).view(np.recarray)
    memory = np.zeros(16, dtype=np.uint32)
    watch[0].memory_at = address_of(memory)
    return Roles(
        watch=watch,
        reports=reports,
        racks=np.zeros(workers, dtype=np.int64),
        detection=new_detection(workers, theta_chunks, windows, clean_iterations),
        scratch=np.zeros(workers, dtype=np.int64),
        said=np.zeros(events, dtype=SAID).view(np.recarray),
        memory=memory,
    )


PENDING = 0
DONE = 1
FAILED = 2

BY_SWITCH = 0
BY_CUSTODIANS = 1
PATH_NAMES = ("switch", "custodian")

NO_FAILURE = 0
TIMED_OUT = 1
SWITCH_SILENT = 2
DISAGREED = 3
CLOSED = 4

EVENT_PATH = 1
EVENT_FAILED = 2
EVENT_STRAGGLES = 3
EVENT_LEADS_AGAIN = 4
EVENT_EPOCH = 5
EVENT_SLOW = 6
EVENTS_KEPT = 64
BECAUSE_SILENT = 1
BECAUSE_ASKED = 2
BECAUSE_ANSWERS = 3
BECAUSE_SLOW = 4
REASONS = (
    "",
    "the switch does not answer",
    "asked to",
    "the switch answers",
    "by the switch there was hardly any progress",
)

WISH_SWITCH = 1
WISH_CUSTODIANS = 2
WISH_PROBE = 4

EXPONENT_UNKNOWN = 9999
COUNT_UNKNOWN = -1
SHARDS_MAX = 64

_COUNTERS = (
    "results",
    "duplicates",
    "partials_direct",
    "answers",
    "pulls_heard",
    "pings",
    "path_changes",
    "send_blocked",
    "no_room",
    "drop_wrong_job",
    "drop_bad_tag",
    "drop_unknown_source",
    "drop_bad_worker",
    "drop_bad_epoch",
    "drop_far_chunk",
    "drop_bad_mask",
    "drop_wrong_count",
    "drop_wrong_kind",
    "tensors",
    "waits",
    "reports",
    "role_changes",
    "standstills",
)
COUNTER_NAMES = _COUNTERS + tuple(f"drop_{name.replace(' ', '_')}" for name in ERROR_NAMES[1:])
(
    RESULTS,
    DUPLICATES,
    PARTIALS_DIRECT,
    ANSWERS,
    PULLS_HEARD,
    PINGS,
    PATH_CHANGES,
    SEND_BLOCKED,
    NO_ROOM,
    DROP_JOB,
    DROP_TAG,
    DROP_SOURCE,
    DROP_WORKER,
    DROP_EPOCH,
    DROP_CHUNK,
    DROP_MASK,
    DROP_COUNT,
    DROP_KIND,
    TENSORS,
    WAITS,
    REPORTS,
    ROLE_CHANGES,
    STANDSTILLS,
) = range(len(_COUNTERS))
DROP_HEADER = len(_COUNTERS) - 1
"""Plus the decoder's error code, which is at least 1."""

CONTROL = np.dtype(
    [
        # written by Python
        ("head", "i8"),
        ("stop", "i8"),
        ("closing", "i8"),
        ("wish", "i8"),
        ("key0", "u8"),
        ("key1", "u8"),
        ("silence_ns", "i8"),
        ("hold_off_ns", "i8"),
        ("notify_fd", "i8"),
        ("fd", "i8"),
        ("one", "i8"),
        ("task_address", "i8"),
        ("held", "i8"),
        ("staging", "i8"),
        ("all_workers", "u8"),
        ("workers", "i4"),
        ("worker", "i4"),
        ("job", "i4"),
        ("elements", "i4"),
        ("full", "i4"),
        ("pool", "i4"),
        ("shards", "i4"),
        ("racks", "i4"),
        ("reminds", "i4"),
        # written by the loop
        ("taken", "i8"),
        ("tail", "i8"),
        ("gate", "i8"),
        ("next_chunk", "i8"),
        ("wish_seen", "i8"),
        ("path_since_ns", "i8"),
        ("waiting_since_ns", "i8"),
        ("ping_due_ns", "i8"),
        ("leaves", "i8"),
        ("step_ns", "i8"),
        ("ack_due_ns", "i8"),
        ("pings", "i8"),
        ("missing", "u8"),
        ("missing_chunk", "i8"),
        ("missing_ns", "i8"),
        ("failed_chunk", "i8"),
        ("failed_ticket", "i8"),
        ("failed_custodian", "i8"),
        ("failed_heard_ns", "i8"),
        ("events", "i8"),
        ("source", "u8"),
        ("source_shard", "i8"),
        ("source_peer", "i8"),
        ("path", "i4"),
        ("switch_allowed", "i4"),
        ("failed", "i4"),
        ("blocked", "i4"),
        ("left", "i4"),
    ],
    align=True,
)

TASK = np.dtype(
    [
        ("ticket", "i8"),
        ("address", "i8"),
        ("exponents", "i8"),
        ("timeout_ns", "i8"),
        ("deadline_ns", "i8"),
        ("first", "i8"),
        ("remaining", "i8"),
        ("agreed", "i8"),
        ("state", "i4"),
        ("number_kind", "i4"),
        ("op", "i4"),
        ("priority", "i4"),
    ],
    align=True,
)
STATE_OFFSET = int(TASK.fields["state"][1]) if TASK.fields is not None else 0

EVENT = np.dtype([("time_ns", "i8"), ("code", "i8"), ("value", "i8"), ("reason", "i8")], align=True)


class Out(NamedTuple):
    """The part of a loop that sends."""

    control: Any
    counters: Any
    outbox: Outbox


class Loop(NamedTuple):
    """All that the compiled loop works on."""

    control: Any
    tasks: Any
    layouts: Any
    places: Any
    senders: Senders
    custodians: Custodians
    counts: Any
    """Lanes of the chunk in each place of the custodian's ring."""
    held: Any
    held_counts: Any
    staging: Any
    packets: Any
    switch: Any
    """Addresses of the switch's shards, as numbers; 0 is none."""
    shard_heard: Any
    peers: Any
    peer_direct: Any
    peer_done: Any
    counters: Any
    events: Any
    roles: Roles
    progress: Any
    one: Any
    inbox: Inbox
    outbox: Outbox
    out: Out
    waiter: Waiter


def _records(count: int, dtype: np.dtype[np.void]) -> Any:
    return np.zeros(count, dtype=dtype).view(np.recarray)


def new_loop(
    tensors: int, span: int, elements: int, racks: int, workers: int, waiter: Waiter, roles: Roles
) -> Loop:
    """Everything blank, the addresses that compiled code needs filled in."""
    control = _records(1, CONTROL)
    counters = np.zeros(len(COUNTER_NAMES), dtype=np.int64)
    outbox = new_outbox()
    loop = Loop(
        control=control,
        tasks=_records(tensors, TASK),
        layouts=_records(tensors, LAYOUT),
        places=_records(span, PLACE),
        senders=new_senders(1, span),
        custodians=new_custodians(1, 2 * span, racks, elements),
        counts=np.zeros(2 * span, dtype=np.int64),
        held=np.zeros((2 * span, elements), dtype=np.int32),
        held_counts=np.zeros(2 * span, dtype=np.int64),
        staging=np.zeros(elements, dtype=np.int32),
        packets=new_packets(3),
        switch=np.zeros(SHARDS_MAX, dtype=np.uint64),
        shard_heard=np.zeros(SHARDS_MAX, dtype=np.int64),
        peers=np.zeros(workers, dtype=np.uint64),
        peer_direct=np.full(workers, -(1 << 60), dtype=np.int64),
        peer_done=np.full(workers, -1, dtype=np.int64),
        counters=counters,
        events=_records(EVENTS_KEPT, EVENT),
        roles=roles,
        progress=_records(1, PROGRESS),
        one=np.ones(1, dtype=np.uint64),
        inbox=new_inbox(),
        outbox=outbox,
        out=Out(control, counters, outbox),
        waiter=waiter,
    )
    loop.places.chunk = -1
    loop.tasks.ticket = -1
    control[0].fd = waiter.cells[0].fd
    control[0].one = address_of(loop.one)
    control[0].task_address = address_of(loop.tasks)
    control[0].held = address_of(loop.held)
    control[0].staging = address_of(loop.staging)
    return loop
