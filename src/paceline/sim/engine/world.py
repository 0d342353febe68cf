"""The state of a simulation: plain arrays of records, grouped.

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
"""Not there yet, or gone."""
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

IN_NETWORK = 0
RING = 1

LAYERS = 0
"""The forward pass of a layer waits for its own result."""
DDP = 1
"""The forward pass waits for all results, as DistributedDataParallel does."""

JOB = np.dtype(
    [
        ("arrival_ns", "i8"),  # when it comes
        ("started_ns", "i8"),  # when it started
        ("done_ns", "i8"),  # when it ended; 0: it has not
        ("failed_ns", "i8"),  # when it failed; 0: it has not
        ("started", "i4"),  # 1: it has started
        ("after_first", "i4"),  # the first of its predecessors in `World.after`
        ("after_count", "i4"),  # how many predecessors it has
        ("first_worker", "i4"),  # its first worker, of all in the run
        ("workers", "i4"),  # how many workers it has
        ("needed", "i4"),  # workers that must finish: those that are not dead
        ("finished", "i4"),  # workers that have finished
        ("first_custodian", "i4"),  # its first custodian, of all in the run
        ("custodians", "i4"),  # dedicated custodians
        ("copies", "i4"),  # 1: a dedicated custodian gets a copy of each result that the switch makes
        ("on_workers", "i4"),  # 1: its workers' hosts are custodians, too
        ("transport", "i4"),  # IN_NETWORK or RING
        ("replicate", "i4"),  # 1: a custodian sends each worker a copy of a result (ps)
        ("iterations", "i4"),  # how many it does
        ("layers", "i4"),  # of its model
        ("chunks", "i8"),  # packets of gradient an iteration and worker
        ("table", "i8"),  # its first entry in `World.layer_of`
        ("forward_ns", "i8"),  # forward pass of an iteration, on a worker that is not slow
        ("backward_ns", "i8"),  # backward pass of an iteration, likewise
        (
            "overhead_ns",
            "i8",
        ),  # processor time for a message of a ring, or a layer of a sum in the network: the mean
        ("overhead_spread", "f8"),  # by what share of it iterations are off at most
        ("overlap", "i4"),  # LAYERS or DDP: what the next forward pass waits for
        ("micro_batches", "i4"),  # parts of an iteration that is cut
        ("cut_from", "i4"),  # the first iteration that is cut
        ("cut_until", "i4"),  # the first after it that is not
        ("helping", "i4"),  # 1: workers ask the coordinator after each pass
        ("spell_low_ns", "i8"),  # shortest slow spell
        ("spell_high_ns", "i8"),  # longest slow spell
        ("spell_num", "i8"),  # slowness in a spell, in millionths
        ("spell_chance", "i8"),  # that a spell begins with an iteration, of 65536
        ("flows", "i8"),  # ring: packets that a worker sends an iteration
        ("buckets", "i4"),  # ring: how many it has
        ("checked", "i8"),  # results compared with the true sum
        ("wrong", "i8"),  # results that differed
    ],
    align=True,
)

WORKER = np.dtype(
    [
        ("job", "i4"),  # its job
        ("rank", "i4"),  # its number within the job
        ("dead", "i4"),  # 1: its host has died
        ("phase", "i4"),  # what it does: FORWARD, BLOCKED, ...
        ("iteration", "i4"),  # the one it computes
        ("layer", "i4"),  # the one it computes or waits for
        ("cut", "i4"),  # parts of this iteration; 1: it is not cut
        ("micro", "i4"),  # micro-batches of its own that it has computed in this iteration
        ("released", "i4"),  # layers whose gradients may go, in this iteration
        ("due_ns", "i8"),  # when the pass that it computes ends
        ("piece_ns", "i8"),  # how long that pass takes on a worker that is not slow
        ("work_ns", "i8"),  # the same of all passes that it has ended in this iteration
        ("blocked_ns", "i8"),  # waited for results so far; less the time of its beginning during a wait
        ("done_ns", "i8"),  # when it finished
        ("first_chunk", "i8"),  # the first chunk of the iteration whose results it awaits
        ("remaining", "i8"),  # results of that iteration that have not come, in chunks
        ("slow_num", "i8"),  # slowness: num / den times as long
        ("slow_den", "i8"),
        ("jitter_num", "i8"),  # largest jitter, in millionths of the time
        ("processor_num", "i8"),  # how much of its computing takes a core that others want too, in millionths
        ("spell_until_ns", "i8"),  # end of its slow spell
        ("helped", "i4"),  # 1: its packets hold something else than its own whole contribution
        ("carries", "u8"),  # ranks whose whole contributions its packets hold, as bits
        ("hold", "i4"),  # 0: it may send; else why it must not (`sim/help/claims.py`)
        ("received", "i8"),  # ring: packets from its predecessor, in order, without a gap
        ("receive_bucket", "i4"),  # ring: the first bucket that is not complete, counted over all iterations
    ],
    align=True,
)

LAYER = np.dtype(
    [
        ("forward_ns", "i8"),  # on a worker that is not slow
        ("backward_ns", "i8"),
        ("chunks", "i8"),  # packets of its gradient
        (
            "ready",
            "i8",
        ),  # packets of the iteration that may go once its gradient, and those of later layers, are there
    ],
    align=True,
)
BUCKET = np.dtype(
    [
        ("first", "i8"),  # its first flow number in the iteration
        ("packets", "i8"),  # packets of a segment
        ("place", "i8"),  # its first place in `World.ring_values`
        ("layer_low", "i4"),  # the layers that it covers, from
        ("layer_high", "i4"),  # to, inclusive
        ("message", "i8"),  # packets of a message, of which a segment has several
        ("messages", "i8"),  # messages of a segment
    ],
    align=True,
)
"""Ring only: layers whose gradients are reduced together."""
ENDPOINT = np.dtype([("host", "i4"), ("leaf", "i4")], align=True)
"""Where an endpoint is."""
HOST_DIES = 0
SWITCH_DIES = 1
CUSTODIAN_FORGETS = 2
DEATH = np.dtype(
    [
        ("time_ns", "i8"),  # when
        ("kind", "i4"),  # HOST_DIES, SWITCH_DIES or CUSTODIAN_FORGETS
        ("what", "i4"),  # the host, the switch, or the job whose custodians forget
    ],
    align=True,
)

# Places in `World.control`: where the run is, and what has been counted ...
NOW_NS = 0
EVENTS = 1
FORWARDED = 2  # packets, by switches
DELIVERED = 3  # packets, to endpoints
LOST = 4
DUPLICATED = 5
REORDERED = 6
JOBS_LEFT = 7  # that have neither ended nor failed
NEXT_DEATH = 8  # the next row of `deaths`
NEXT_SAMPLE_NS = 9
SAMPLE_EVERY_NS = 10
SAMPLES = 11  # rows of `samples` in use
OUT = 12  # rows of `outbox` in use
MAIL = 13  # rows of `mail` in use
# ... how large the network is, and where entities of the event queue begin ...
HOSTS = 14
LEAVES = 15
UPPERS = 16
WORKERS = 17
TIMERS = 18  # the first endpoint's timer; links come before
CLOCK = 19  # the run's own clock
COORDINATOR = 20  # the coordinators' clock
# ... and settings.
LOSS = 21  # probabilities, as thresholds of a random word
DUPLICATE = 22
REORDER = 23
RING_ACK_EVERY = 24  # packets a receipt
JITTER_SEED = 25
TRAIN_BYTES = 26
TURN_NS = 27
PACKET_BYTES = 28  # of a whole data packet
CONTROL_SIZE = 29

FORWARD_DONE = 0
MICRO_BATCH_DONE = 1
"""Kinds of mail: a worker has ended the forward pass of a micro-batch, or all of it."""


class World(NamedTuple):
    """Everything a run reads and writes."""

    control: Any
    """Numbers of the run as a whole; places are named above."""
    random: Any
    """One random word for faults, one for programs that wake up."""
    queue: Queue
    links: Links
    pool: Pool
    """Packets in flight."""
    switch: Switch
    senders: Senders
    """One for each worker."""
    custodians: Custodians
    jobs: Any
    """`JOB` records."""
    workers: Any
    """`WORKER` records, those of a job side by side."""
    pending: Any
    """`[worker, layer]`: chunks of the layer whose results have not come."""
    layers: Any
    """`[job, layer]`: `LAYER` records."""
    layer_of: Any
    """The layer of each chunk of an iteration; a job's part begins at its `table`."""
    priorities: Any
    """`[job, step of its life, layer]`."""
    buckets: Any
    """`[job, bucket]`: `BUCKET` records."""
    members: Any
    """What is below each switch: endpoints under a leaf, leaves under an upper switch."""
    member_first: Any
    """Where the members of a switch and job begin: at `switch * jobs + job`."""
    endpoints: Any
    """`ENDPOINT` records: workers, then custodians."""
    host_dead: Any
    """By host: 1 if it has died."""
    held: Any
    """`[worker, chunk modulo, lane]`: results that a worker keeps for custodians, when values are carried."""
    connections: Any
    """Ring: each worker's connection to its successor, `CONNECTION` records of `hosts/tcp.py`."""
    segments: Any
    """Ring, `[worker, flow modulo]`: what was sent on it, `SEGMENT` records."""
    ring_seen: Any
    """Ring, `[worker, flow modulo]`: the flow number received there, plus one."""
    ring_values: Any
    """Ring, `[worker, parity of the iteration, place, lane]`: sums so far, when values are carried."""
    deaths: Any
    """`DEATH` records in the order of time."""
    after: Any
    """For each job in turn, the jobs that must have ended before it starts."""
    samples: Any
    """`[sample, job]`: aggregators held."""
    sample_ns: Any
    """When each sample was taken."""
    outbox: Any
    """`[row]`: link, packet, endpoint; what an event sends."""
    left_out: Any
    """`[job, parity of the iteration]`: ranks that the sums are without, as bits."""
    mail: Any
    """`[row]`: kind, worker; what workers ask their coordinators."""
    shares: Any
    """`[worker, owner]`: the micro-batches of another of its job that a worker's packets hold."""
    server_of: Any
    """`[job, place of a chunk]`: the switch that sums it, where servers beside a hub are the switches; else empty."""
    stack_of: Any
    """The stack of each endpoint's program, where hosts run programs."""
    wakes_ns: Any
    """How late programs wake up, to draw from."""
    cores_fs: Any
    """When each core is free of packets, where programs share some."""
    computing_ns: Any
    """When each of these cores is free of passes. Programs that handle packets need little at a time, and go first."""


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
def free_core(world: World) -> int:
    """The core that is free of passes first; -1 where servers share none."""
    core = -1
    for other in range(world.computing_ns.shape[0]):
        if core < 0 or world.computing_ns[other] < world.computing_ns[core]:
            core = other
    return core


@compiled_inner
def work_on_core(world: World, time_ns: int, now_ns: int) -> int:
    """When so much work is done that begins as soon as a core is free."""
    core = free_core(world)
    if core < 0:
        return now_ns + time_ns
    end_ns = max(now_ns, world.computing_ns[core]) + time_ns
    world.computing_ns[core] = end_ns
    return int(end_ns)


@compiled_inner
def overhead_ns(world: World, j: int, iteration: int) -> int:
    """What a message, or a layer, of this iteration costs a worker's processor: evenly spread over iterations.

    All workers of a job have it alike. Few iterations are enough for the mean: golden steps leave no gap.
    """
    job = world.jobs[j]
    place = ((world.control[JITTER_SEED] + iteration * 2_654_435_769) & 0xFFFFFFFF) / 2.0**32
    return int(job.overhead_ns * max(0.0, 1.0 + job.overhead_spread * (2.0 * place - 1.0)))


def new_records(shape: Any, dtype: np.dtype[Any]) -> Any:
    """Zeroed records, addressable by field name."""
    return np.zeros(shape, dtype=dtype).view(np.recarray)
