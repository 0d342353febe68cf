"""What an agent keeps: its records and arrays, made by Python and worked on by the compiled loop.

The two sides meet in `control`, `tasks` and `events`: Python writes a task and then raises `control.head`; the loop
ends a task by its `state` and wakes who waits for it. Nothing else is written by both.
"""

from typing import Any, NamedTuple

import numpy as np

from paceline.compile.decorators import bundle
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
        ("computed", "i8"),  # chunks that it has submitted
        ("sent", "i8"),  # chunks that have left its host
        ("finished", "i8"),  # chunks whose results it has
        ("window", "i8"),  # its window, in chunks
        ("epoch", "i8"),  # the epoch it is in; -1: it has said nothing yet
        ("unanswered", "i8"),  # questions since its last answer
        ("suspected", "i8"),  # windows in a row in which its link seemed slow
        ("doubts", "i8"),  # such suspicions in a row that were wrong
        ("confirmed", "i8"),  # 1: the present suspicion has proved right
    ],
    align=True,
)
"""What a worker last said of itself, and what the coordinator thinks of its link."""

WATCH = np.dtype(
    [
        ("window_ns", "i8"),  # how often the coordinator asks and judges
        ("due_ns", "i8"),  # when it does so next
        ("highest", "i8"),  # the most chunks that anyone had submitted a window ago
        ("highest_sent", "i8"),  # the most chunks that had left a host a window ago
        ("goal", "i8"),  # the iteration ends when everyone has finished this chunk
        ("iteration_windows", "i8"),  # windows since the iteration began
        ("quiet", "i8"),  # windows in a row in which nothing moved
        ("progress", "i8"),  # the sum of all progress, to see whether anything moves
        ("patience_ns", "i8"),  # a custodian's patience while a straggler is waited for
        ("memory_at", "i8"),  # address of `Roles.memory`
        ("leaders", "u8"),  # who leads, as bits; 0: all
        ("helps", "i4"),  # 1: stragglers are helped
        ("watches", "i4"),  # 1: this worker is the coordinator
        ("asked", "i4"),  # 1: the others have been asked at least once
    ],
    align=True,
)
"""The coordinator's own: when a window ends, and what it compares with."""

SAID = np.dtype(
    [
        ("computed", "i8"),  # chunks whose gradients the worker had computed
        ("delivered", "i8"),  # chunks that it had delivered
        ("behind_by", "i8"),  # chunks behind the median of the leaders
        ("median", "i8"),  # what the leaders had delivered
        ("median_computed", "i8"),  # what the leaders had computed
        ("leaders", "u8"),  # who leads from then on, as bits; 0: all
        ("worker", "i4"),  # whose role changed
        ("behind_windows", "i4"),  # windows in a row in which it was behind
        ("clean_iterations", "i4"),  # iterations in a row in which it was not
        ("role", "i4"),  # its new role, one of `ROLE_NAMES`
    ],
    align=True,
)
"""The figures behind an event about a role, as they were then."""


class Roles(NamedTuple):
    """Who leads and who straggles: everyone's progress, and what was decided by it."""

    watch: Any  # [0]: a `WATCH`
    reports: Any  # [worker]: a `REPORT`
    racks: Any  # [worker]: the rack it is in
    detection: Detection
    scratch: Any  # [worker]: room for a median
    said: Any  # [i]: a `SAID` for `events[i]`
    memory: Any  # the kernel's answer about packets that have not left


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
BECAUSE_UP = 5
BECAUSE_DOWN = 6
BECAUSE_NARROW = 7
BECAUSE_LOSSY = 8
BECAUSE_LAST = BECAUSE_LOSSY
REASONS = (
    "",
    "the switch does not answer",
    "asked to",
    "the switch answers",
    "by the switch there was hardly any progress",
    "packets to the switch do not arrive",
    "packets from the switch do not arrive",
    "packets of full size do not come back from the switch",
    "most questions to the switch are lost, and hardly any results come",
)
REASONS_OF_OTHERS = (
    "",
    "worker {} gets no answer from the switch",
    "",
    "",
    "worker {} made hardly any progress by the switch",
    "packets from worker {} to the switch do not arrive",
    "packets from the switch to worker {} do not arrive",
    "packets of full size do not come back from the switch to worker {}",
    "most questions of worker {} to the switch are lost",
)

USES = 0
CANNOT = 1
WAITS_TO_USE = 2
HAS_PROVED = 3
"""What a worker tells the others of itself and the switch (`wire.PATH`)."""

COMMAND_SWITCH = 1
COMMAND_CUSTODIANS = 2
COMMAND_PROBE = 4
COMMAND_FORGIVE = 8

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
        # Written by Python.
        ("head", "i8"),  # tasks submitted so far: the next one's number
        ("stop", "i8"),  # 1: the loop ends after this turn
        ("closing", "i8"),  # 1: the loop ends when the others have all results
        ("command", "i8"),  # `COMMAND_*` that the loop has yet to take
        ("key0", "u8"),  # the job's key, first half
        ("key1", "u8"),  # and second half
        ("silence_ns", "i8"),  # a switch that is silent for so long is dead
        ("hold_off_ns", "i8"),  # how long a switch that was left twice is not tried again; doubled each time
        ("notify_fd", "i8"),  # eventfd of the notifying thread
        ("fd", "i8"),  # the socket
        ("one", "i8"),  # address of the number 1, which is written to `notify_fd`
        ("task_address", "i8"),  # address of `tasks`
        ("held", "i8"),  # address of `held`
        ("staging", "i8"),  # address of `staging`
        ("all_workers", "u8"),  # every worker's bit
        ("workers", "i4"),  # workers of the job
        ("worker", "i4"),  # this worker's number
        ("job", "i4"),  # the job's number at the switch
        ("elements", "i4"),  # integers in a full packet
        ("full", "i4"),  # 1: tags cover the payload as well as the header
        ("pool", "i4"),  # 1: SwitchML, without custodians
        ("shards", "i4"),  # shards of the switch; 0: there is no switch
        ("next_job", "i4"),  # the job's number at the switch that `COMMAND_SWITCH` is about
        ("reminds", "i4"),  # 1: custodians send reminders where there is a switch
        # Written by the loop.
        ("taken", "i8"),  # tasks that the loop has taken over
        ("tail", "i8"),  # the oldest task that has not ended
        ("gate", "i8"),  # the oldest task that has chunks which may not be sent yet
        ("next_chunk", "i8"),  # the first chunk of the next task
        ("path_since_ns", "i8"),  # since when contributions go their present way
        ("waiting_since_ns", "i8"),  # since when something is under way on it
        ("ping_due_ns", "i8"),  # when the switch is to be asked next whether it is there
        ("leaves", "i8"),  # how often the switch was left of late
        ("echo_ns", "i8"),  # when a question without payload last came back from the switch
        ("path_said", "i8"),  # how often the others were told of the path
        ("left_because", "i8"),  # why this worker itself left the switch; 0: others did, or it has proved it
        ("step_ns", "i8"),  # how long a turn of the loop takes, of late and at worst
        ("ack_due_ns", "i8"),  # closing: when to tell the others again
        ("pings", "i8"),  # questions to the switch since it was last heard
        ("asked", "i8"),  # questions of full size to the switch since progress became slow
        ("answered", "i8"),  # those that came back
        ("missing", "u8"),  # workers that a custodian lacks, from its pull, as bits
        ("missing_chunk", "i8"),  # the chunk that it pulled
        ("missing_ns", "i8"),  # when it did
        ("failed_chunk", "i8"),  # the oldest chunk without a result when reductions failed
        ("failed_ticket", "i8"),  # the oldest task then
        ("failed_custodian", "i8"),  # the custodian of that chunk
        ("events", "i8"),  # events noted so far
        ("source", "u8"),  # the last datagram's address
        ("source_shard", "i8"),  # the shard that has it; -1: none
        ("source_peer", "i8"),  # the worker that has it; -1: none
        ("path", "i4"),  # `BY_SWITCH` or `BY_CUSTODIANS`
        ("switch_allowed", "i4"),  # 1: contributions may go by the switch
        ("failed", "i4"),  # why reductions fail; `NO_FAILURE`: they do not
        ("blocked", "i4"),  # 1: the kernel takes no packets at the moment
        ("left", "i4"),  # 1: the agent has taken its leave
    ],
    align=True,
)

TASK = np.dtype(
    [
        ("ticket", "i8"),  # its number; -1: none
        ("address", "i8"),  # where its numbers are
        ("exponents", "i8"),  # where its blocks' agreed exponents are, and then the steps of its patches
        ("timeout_ns", "i8"),  # the time it may take
        ("deadline_ns", "i8"),  # when that is over
        ("first", "i8"),  # its first chunk in the stream
        ("remaining", "i8"),  # chunks without a result
        ("agreed", "i8"),  # sections whose exponents are known
        ("peaked", "i8"),  # sections whose peaks are known
        ("state", "i4"),  # `PENDING`, `DONE` or `FAILED`; waiting threads sleep on this word
        ("number_kind", "i4"),  # one of `DTYPES`
        ("op", "i4"),  # one of `OPS`
        ("priority", "i4"),  # of its packets
        ("waited", "i4"),  # 1: a thread waits for it, and does what the notifying thread would
    ],
    align=True,
)
STATE_OFFSET = int(TASK.fields["state"][1]) if TASK.fields is not None else 0

EVENT = np.dtype(
    [
        ("time_ns", "i8"),  # when it happened, by the monotonic clock
        ("code", "i8"),  # one of `EVENT_*`
        ("value", "i8"),  # the new path, a cause, a worker, an epoch or a failure, by the code
        ("reason", "i8"),  # one of `BECAUSE_*`, or 0
        ("worker", "i8"),  # whose reason that is; -1: our own
    ],
    align=True,
)


class Out(NamedTuple):
    """The part of a loop that sends."""

    control: Any
    counters: Any
    outbox: Outbox


@bundle
class Loop(NamedTuple):
    """All that the compiled loop works on."""

    control: Any  # [0]: `CONTROL`
    tasks: Any  # [ticket % tensors]: a `TASK`
    layouts: Any  # [ticket % tensors]: its `LAYOUT`
    places: Any  # [chunk % span]: the `PLACE` of a chunk that was sent
    senders: Senders  # one
    custodians: Custodians  # one
    counts: Any  # [chunk % ring]: lanes of the custodian's chunk
    held: Any  # [chunk % ring, lane]: results that are kept for others
    held_counts: Any  # [chunk % ring]: their lanes
    staging: Any  # a payload of our own, on its way to our own custodian
    packets: Any  # [0]: to send, [1]: received, [2]: small ones
    switch: Any  # [shard]: its address, as `sockets.pack_address`; 0: none
    shard_proved: Any  # [shard]: when something of full size last came back from it, or went through it
    shard_heard: Any  # [shard]: when anything last came from it
    peers: Any  # [worker]: its address
    peer_path: (
        Any  # [worker]: what it last told of the switch: `USES`, `CANNOT`, `WAITS_TO_USE`, `HAS_PROVED`
    )
    peer_said: Any  # [worker]: the number of that message
    peer_reason: Any  # [worker]: why it has left the switch, as it said there: `BECAUSE_*`
    peer_oldest: Any  # [worker]: it had all results below this chunk then
    peer_direct: Any  # [worker]: when it last sent here without the switch
    peer_done: Any  # [worker]: it has all results below this chunk; -1: it has not said
    counters: Any  # by `COUNTER_NAMES`
    events: Any  # a ring of `EVENT`
    roles: Roles
    progress: Any  # [0]: a `PROGRESS`
    one: Any  # the number 1, for eventfds
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
        shard_proved=np.zeros(SHARDS_MAX, dtype=np.int64),
        shard_heard=np.zeros(SHARDS_MAX, dtype=np.int64),
        peers=np.zeros(workers, dtype=np.uint64),
        peer_path=np.zeros(workers, dtype=np.int64),
        peer_said=np.zeros(workers, dtype=np.int64),
        peer_reason=np.zeros(workers, dtype=np.int64),
        peer_oldest=np.zeros(workers, dtype=np.int64),
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
