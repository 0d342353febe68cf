"""What a shard of the live switch keeps: who is admitted, from where, and what was counted.

A shard is one thread with one socket and its own aggregators. Only that thread touches this state while it runs; the
control plane asks it to (`ShardThread.call`), and reads counters, which are single words.
"""

from typing import Any, NamedTuple

import numpy as np

from paceline.compile.decorators import bundle
from paceline.core import wire
from paceline.core.switch import program as switch
from paceline.core.switch.program import Switch, new_switches
from paceline.live.net.syscalls import Waiter, address_of, new_waiter
from paceline.live.net.udp import Inbox, Outbox, fit, new_inbox, new_outbox
from paceline.live.switch.faults import InjectedFaults, new_faults
from paceline.live.switch.pcap import Capture, new_capture

WORKERS_MAX = wire.CONTRIBUTORS_MAX
RACKS_MAX = wire.CONTRIBUTORS_MAX
SHARDS_MAX = 64
CHUNKS_A_SHARD_LOG2 = 5
"""So many chunks in a row (as a power of two) use one shard: trains stay whole."""
EPOCH_JUMP_MAX = 256
CHUNK_WINDOW = 1 << 16
"""A gradient that lies further behind its job's newest chunk is a replay: no sender's window is that wide."""
ARRIVALS = 1024
INBOX_MESSAGES = 8
"""Trains of one receive: 512 KiB, which a core's cache holds."""

DROP_JOB = len(wire.ERROR_NAMES)
DROP_TAG = DROP_JOB + 1
DROP_SOURCE = DROP_JOB + 2
DROP_PLACE = DROP_JOB + 3
DROP_SIZE = DROP_JOB + 4
DROP_EPOCH_JUMP = DROP_JOB + 5
DROP_REPLAY = DROP_JOB + 6
DROP_UNBOUND = DROP_JOB + 7
DROP_NO_ROOM = DROP_JOB + 8
DROP_SHARE = DROP_JOB + 9
OWN_DROPS = {
    "unknown_job": "a job that is not admitted here",
    "bad_tag": "its tag is not that of its job's key: forged or damaged",
    "wrong_source": "not from the address that is bound to its sender",
    "bad_place": "a worker, custodian, rack or fan-in that its job does not have",
    "bad_size": "more elements than this switch's memory is wide",
    "epoch_jump": f"an epoch more than {EPOCH_JUMP_MAX} ahead of its job's",
    "replayed": f"a contribution more than {CHUNK_WINDOW} chunks behind its job's newest",
    "nobody_there": "for a worker, rack or upper switch that has no address yet",
    "send_buffer_full": "the kernel had no room to send it",
    "over_share": "beyond its job's share of a crowded shard's time",
}
"""Why a shard drops a packet before, or after, the core has seen it; the codes follow those of decoding."""
DROP_REASONS = (*(name.replace(" ", "_").replace("-", "_") for name in wire.ERROR_NAMES), *OWN_DROPS)
assert len(DROP_REASONS) == DROP_SHARE + 1

CELLS = np.dtype(
    [
        ("called", "i8"),  # 1: another thread wants something done
        ("values", "i8"),  # address of `values`
        ("inbox", "i8"),  # address of the inbox's data
        ("outbox", "i8"),  # address of the outbox's data
        ("batches", "i8"),  # batches of packets so far
        ("looked_ns", "i8"),  # up to when `held_ns` of the jobs is counted
        ("turn_ns", "i8"),  # when this turn began (`turns`)
        ("asleep_ns", "i8"),  # how long of it the shard had nothing to do
        ("backlog_turns", "i8"),  # turns in a row at whose end the socket's queue was long
        ("limited_until_ns", "i8"),  # until then each job has its share of a turn and no more
        ("memory", "i8"),  # address of `memory`
        ("fd", "i4"),  # the socket
        ("upper_shards", "i4"),  # shards of the upper switch; 0: there is none
        ("full_tag", "i4"),  # 1: tags cover the payload as well as the header
    ],
    align=True,
)
JOB = np.dtype(
    [
        ("key0", "u8"),  # its key, first half
        ("key1", "u8"),  # and second half
        ("heard_ns", "i8"),  # when its last genuine packet came
        ("highest", "i8"),  # the highest chunk of its gradients
        ("packets_in", "i8"),  # packets of it that were served
        ("bytes_in", "i8"),  # their bytes
        ("packets_out", "i8"),  # packets sent for it
        ("bytes_out", "i8"),  # their bytes
        ("held_ns", "i8"),  # aggregators times the nanoseconds that it held them
        ("work_ns", "i8"),  # the shard's time that it took
        ("units", "i8"),  # its packets and their copies in this turn, weighted (`turns`)
        ("left", "i8"),  # units that it may still use in this turn, if the shard is crowded
        ("active", "i4"),  # 1: it is admitted
        ("workers", "i4"),  # how many workers it has
        ("racks", "i4"),  # and how many racks
    ],
    align=True,
)
MEMBER = np.dtype(
    [
        ("address", "u8"),  # the worker's address; 0: not bound yet
        ("lag_ns", "i8"),  # sum of how much later than the first contribution its own came
        ("arrivals", "i8"),  # contributions that this sum is over
        ("heard_ns", "i8"),  # when the last of them came
        ("peak_ns", "i8"),  # largest lag of this round (`arrivals`)
        ("peaks_ns", "i8"),  # sum of those of the rounds before
        ("rounds", "i8"),  # and how many these were
        ("pause_ns", "i8"),  # how long its pauses are of late
        ("paused_ns", "i8"),  # when that was set
        ("rack", "i4"),  # the rack it is in
        ("pad", "i4"),  # makes up eight bytes
    ],
    align=True,
)
ARRIVAL = np.dtype(
    [
        ("chunk", "i8"),  # the chunk; -1: none yet
        ("first_ns", "i8"),  # when its first contribution came
        ("seen", "u8"),  # mask of the workers whose contribution came
    ]
)


@bundle
class Shard(NamedTuple):
    """Everything that one shard's loop works on."""

    cells: Any  # [0]: `CELLS`
    switch: Switch  # one
    waiter: Waiter
    inbox: Inbox
    outbox: Outbox
    packets: Any  # [0]: the header at hand
    values: Any  # [0, lane]: the payload at hand
    jobs: Any  # [job]: a `JOB`; the last row is for unknown jobs
    members: Any  # [job, worker]: a `MEMBER`
    racks: Any  # [job, rack, shard]: addresses of the racks' switches
    rack_shards: Any  # [job, rack]: shards of that switch
    upper: Any  # [shard]: addresses of the upper switch
    arrivals: Any  # [job, chunk % ARRIVALS]: an `ARRIVAL`
    drops: Any  # [job, reason]: packets dropped, by `DROP_REASONS`
    memory: Any  # the kernel's answer about the socket's queues
    faults: InjectedFaults
    capture: Capture


def new_shard(
    fd: int,
    *,
    level: int,
    slots: int,
    jobs: int,
    width: int,
    policy: int,
    stale_ns: int,
    seed: int,
    full_tag: bool,
    faults: tuple[float, float, float],
    pcap_fd: int,
    pcap_bytes: int,
    address: int,
) -> Shard:
    """A shard on an open socket; no job is admitted yet."""
    held = new_faults(*faults, seed)
    inbox, outbox = new_inbox(INBOX_MESSAGES, held.room_bytes), new_outbox()
    fit(outbox, fd)
    values = np.zeros((1, width), dtype=np.int32)
    cells = _records(1, CELLS)
    cells[0].fd, cells[0].full_tag = fd, full_tag
    cells[0].values, cells[0].inbox = address_of(values), address_of(inbox.data)
    cells[0].outbox = address_of(outbox.data)
    memory = np.zeros(16, dtype=np.uint32)
    cells[0].memory = address_of(memory)
    arrivals = _records((jobs, ARRIVALS), ARRIVAL)
    arrivals["chunk"] = -1
    return Shard(
        cells,
        new_switches([level], slots, jobs, width, policy, stale_ns, seed),
        new_waiter(fd),
        inbox,
        outbox,
        wire.new_packets(1),
        values,
        _records(jobs + 1, JOB),
        _records((jobs, WORKERS_MAX), MEMBER),
        np.zeros((jobs, RACKS_MAX, SHARDS_MAX), dtype=np.uint64),
        np.zeros((jobs, RACKS_MAX), dtype=np.int64),
        np.zeros(SHARDS_MAX, dtype=np.uint64),
        arrivals,
        np.zeros((jobs + 1, len(DROP_REASONS)), dtype=np.int64),
        memory,
        held.faults,
        new_capture(pcap_fd, address, pcap_bytes),
    )


def _records(shape: Any, dtype: np.dtype[np.void]) -> Any:
    return np.zeros(shape, dtype=dtype).view(np.recarray)


def admit(
    shard: Shard, job: int, key: tuple[Any, Any], workers: int, racks: int, *, epoch: int, now_ns: int
) -> None:
    """The job's packets are served from now on; what an earlier job with this number left is gone."""
    release(shard, job)
    entry = shard.jobs[job]
    entry.key0, entry.key1 = key
    entry.workers, entry.racks = workers, racks
    entry.heard_ns = now_ns
    entry.active = 1
    shard.switch.jobs[0, job].epoch = epoch


def grant(shard: Shard, job: int, priority_max: int, slots_max: int, pool_base: int, pool_size: int) -> None:
    """What the job may take of this shard's aggregators."""
    epoch = int(shard.switch.jobs[0, job].epoch)
    switch.admit_job(shard.switch, 0, job, priority_max, pool_base, pool_size)
    shard.switch.jobs[0, job].slots_max = slots_max
    shard.switch.jobs[0, job].epoch = epoch


def release(shard: Shard, job: int) -> int:
    """The job leaves: its key, addresses, aggregators and counts are gone. Gives how many aggregators it held."""
    freed = int(switch.release_job(shard.switch, 0, job))
    for records in (shard.jobs[job : job + 1], shard.members[job], shard.racks[job], shard.rack_shards[job]):
        records[...] = np.zeros((), dtype=records.dtype)
    shard.jobs[job].highest = 0
    shard.arrivals["chunk"][job] = -1
    shard.switch.counters[0, job] = 0
    shard.drops[job] = 0
    return freed
