"""The state of a simulation: plain arrays of records, grouped; nothing here acts.

Endpoints are numbered: workers of all jobs first, then custodians. A packet names endpoints within its job
(`worker`, `custodian`: ranks first, then dedicated custodians); `endpoint_of` translates.

Entities of the event queue: links (detours included), then one timer for each endpoint, then the clock of
the run itself (arrivals, deaths, samples), then the clock of the coordinators (`sim/help/coordinator.py`).
"""

from typing import Any, NamedTuple

import numpy as np

from paceline.compile.decorators import compiled_inner
from paceline.core.custodian.program import Custodians
from paceline.core.sender.program import Senders
from paceline.core.switch.program import Switch
from paceline.sim.engine.event_queue import Queue
from paceline.sim.engine.links import Links, Pool

ABSENT = 0
FORWARD = 1
BLOCKED = 2
"""Before the forward pass of a layer whose result has not come yet."""
BACKWARD = 3
DRAINING = 4
"""The last backward pass is over; the last results are awaited."""
FINISHED = 5
MICRO_FORWARD = 6
"""The forward pass of a micro-batch in one piece: nothing waits inside it."""
MICRO_BACKWARD = 7
"""The backward pass of a micro-batch after which another one comes: its gradient is kept, not sent."""
ASKING = 8
"""Between two passes, until the job's coordinator has said what comes next."""
PHASE_NAMES = (
    "absent", "forward", "blocked", "backward", "draining", "finished", "micro-forward", "micro-backward",
    "asking",
)  # fmt: skip

IN_NETWORK = 0
RING = 1

JOB = np.dtype(
    [
        ("arrival_ns", "i8"),
        ("done_ns", "i8"),
        ("failed_ns", "i8"),
        ("chunks", "i8"),
        ("table", "i8"),
        ("flows", "i8"),
        ("iterations", "i4"),
        ("first_worker", "i4"),
        ("workers", "i4"),
        ("first_custodian", "i4"),
        ("custodians", "i4"),
        ("on_workers", "i4"),
        ("layers", "i4"),
        ("buckets", "i4"),
        ("transport", "i4"),
        ("replicate", "i4"),
        ("started", "i4"),
        ("finished", "i4"),
        ("wrong", "i8"),
        ("checked", "i8"),
        ("forward_ns", "i8"),
        ("backward_ns", "i8"),
        ("spell_low_ns", "i8"),
        ("spell_high_ns", "i8"),
        ("spell_num", "i8"),
        ("spell_chance", "i8"),
        ("micro_batches", "i4"),
        ("cut_from", "i4"),
        ("cut_until", "i4"),
        ("helping", "i4"),
        ("needed", "i4"),
        ("started_ns", "i8"),
        ("after_first", "i4"),
        ("after_count", "i4"),
    ],
    align=True,
)

WORKER = np.dtype(
    [
        ("due_ns", "i8"),
        ("first_chunk", "i8"),
        ("remaining", "i8"),
        ("done_ns", "i8"),
        ("blocked_ns", "i8"),
        ("slow_num", "i8"),
        ("slow_den", "i8"),
        ("jitter_num", "i8"),
        ("received", "i8"),
        ("piece_ns", "i8"),
        ("work_ns", "i8"),
        ("spell_until_ns", "i8"),
        ("carries", "u8"),
        ("helped", "i4"),
        ("micro", "i4"),
        ("cut", "i4"),
        ("hold", "i4"),
        ("job", "i4"),
        ("rank", "i4"),
        ("phase", "i4"),
        ("layer", "i4"),
        ("iteration", "i4"),
        ("released", "i4"),
        ("send_bucket", "i4"),
        ("receive_bucket", "i4"),
        ("dead", "i4"),
    ],
    align=True,
)

LAYER = np.dtype(
    [("forward_ns", "i8"), ("backward_ns", "i8"), ("chunks", "i8"), ("first", "i8")],
    align=True,
)
BUCKET = np.dtype(
    [("first", "i8"), ("packets", "i8"), ("place", "i8"), ("layer_low", "i4"), ("layer_high", "i4")],
    align=True,
)
"""Ring only: first flow number, packets a segment, first buffer place, and the layers it covers."""
ENDPOINT = np.dtype([("host", "i4"), ("leaf", "i4")], align=True)
HOST_DIES = 0
SWITCH_DIES = 1
CUSTODIAN_FORGETS = 2
DEATH = np.dtype([("time_ns", "i8"), ("kind", "i4"), ("what", "i4")], align=True)
"""Something dies or forgets: a host, a switch, or the custodians of a job."""

NOW_NS = 0
EVENTS = 1
FORWARDED = 2
DELIVERED = 3
LOST = 4
JOBS_LEFT = 5
NEXT_SAMPLE_NS = 6
SAMPLE_EVERY_NS = 7
SAMPLES = 8
NEXT_DEATH = 9
HOSTS = 10
LEAVES = 11
UPPERS = 12
LOSS = 13
DUPLICATE = 14
REORDER = 15
WORKERS = 16
TIMERS = 17
CLOCK = 18
DUPLICATED = 19
REORDERED = 20
RING_ACK_EVERY = 21
JITTER_SEED = 22
OUT = 23
MAIL = 24
COORDINATOR = 25
TRAIN_BYTES = 26
TURN_NS = 27
CONTROL_SIZE = 28

FORWARD_DONE = 0
MICRO_BATCH_DONE = 1
"""Kinds of mail: a worker has ended the forward pass of a micro-batch, or all of it."""


class World(NamedTuple):
    """Everything a run reads and writes."""

    control: Any
    random: Any
    queue: Queue
    links: Links
    pool: Pool
    switch: Switch
    senders: Senders
    custodians: Custodians
    jobs: Any
    workers: Any
    pending: Any
    layers: Any
    layer_of: Any
    priorities: Any
    buckets: Any
    members: Any
    member_first: Any
    endpoints: Any
    host_dead: Any
    held: Any
    ring_seen: Any
    ring_values: Any
    deaths: Any
    after: Any
    samples: Any
    sample_ns: Any
    outbox: Any
    left_out: Any
    mail: Any
    shares: Any
    """`[worker, owner]`: the micro-batches of another of its job that a worker's packets hold."""
    stack_of: Any
    """The stack of each endpoint's program, where hosts run programs."""
    wakes_ns: Any
    """How late programs wake up, to draw from."""
    cores_fs: Any
    """When each core is free, where programs share some."""


@compiled_inner
def post(world: World, link: int, p: int, to: int) -> None:
    """Note a packet for a link; the engine sends what was noted when the event is over."""
    at = world.control[OUT]
    world.outbox[at, 0] = link
    world.outbox[at, 1] = p
    world.outbox[at, 2] = to
    world.control[OUT] = at + 1


@compiled_inner
def endpoint_of(world: World, job: int, number: int) -> int:
    """The endpoint that a job knows under `number`, as a custodian."""
    record = world.jobs[job]
    dedicated = record.workers if record.on_workers == 0 else 0
    return int(world.control[WORKERS] + record.first_custodian + number - dedicated)


@compiled_inner
def contribution(job: int, rank: int, chunk: int, lane: int) -> int:
    """What a worker contributes to a chunk: any number that tells workers, chunks and lanes apart."""
    h = (np.int64(rank) + 1) * 0x2545F491 + (np.int64(job) + 1) * 0x27D4EB2F + lane * 0x165667B1
    h = (h ^ (np.int64(chunk) * 0x9E3779B1)) & 0x7FFFFFFF
    h = ((h ^ (h >> 15)) * 0x2C1B3C6D) & 0x7FFFFFFF
    h = ((h ^ (h >> 13)) * 0x297A2D39) & 0x7FFFFFFF
    return int(((h ^ (h >> 16)) & 0x1FFFFFF) - 0x1000000)


def new_records(shape: Any, dtype: np.dtype[Any]) -> Any:
    """Zeroed records, addressable by field name."""
    return np.zeros(shape, dtype=dtype).view(np.recarray)
