"""Who leads, who straggles, and who computes what: detection, and the ledger of micro-batches [ours].

SA-ATP lets leading workers help a straggling one [PAPERS 2]. Two decisions stand before any help, and both
are pure functions of what is passed in: *who straggles*, and *which worker computes which micro-batch of it*.

**Detection.** Each window the caller reports, for every worker, how far its gradients are computed and how far
they are delivered, both in chunks since the start of the job. A worker is behind if it has delivered more than
`theta_chunks` less than the median of the leaders. Behind for `windows` windows in a row, it straggles; after
`clean_iterations` whole iterations without being behind, it leads again. What it is slow at is told apart:
if its computation is behind as well, it is a compute straggler, else a bandwidth straggler. `explain` says in
words what was decided, with the figures.

**Ledger.** A straggler's iteration is cut into at most 64 micro-batches. Each is FREE, then CLAIMED by one
worker for the time of a lease, then COMPUTED; when all are, the ledger is FROZEN and `shares` says who
contributes what. The straggler claims from the head and helpers from the tail, so that they meet. A lease
that runs out frees the micro-batch and fences the late worker: its claim number is no longer the right one.
When nothing is free, an idle worker may take a second claim on the micro-batch whose first claim is the
oldest; the first of the two to finish is recorded and the other is fenced. Nothing may be sent for the
straggler before the ledger is frozen: so each micro-batch is in exactly one share.
"""

from typing import Any, NamedTuple

import numpy as np

from paceline.dataplane.bits import NO_BITS, bit
from paceline.dataplane.compiled import compiled

LEADING = 0
COMPUTE_STRAGGLER = 1
BANDWIDTH_STRAGGLER = 2
ROLE_NAMES = ("leading", "compute straggler", "bandwidth straggler")

FREE = 0
CLAIMED = 1
COMPUTED = 2
BATCH_STATES = ("free", "claimed", "computed")

NOBODY = -1
MICRO_BATCHES_MAX = 64

WORKER = np.dtype(
    [
        ("computed", "i8"),
        ("delivered", "i8"),
        ("behind_by", "i8"),
        ("behind_windows", "i4"),
        ("clean_iterations", "i4"),
        ("behind_in_iteration", "i4"),
        ("role", "i4"),
    ],
    align=True,
)
"""What detection keeps of a worker."""

OPTIONS = np.dtype([("theta_chunks", "i8"), ("windows", "i4"), ("clean_iterations", "i4")], align=True)

BATCH = np.dtype(
    [
        ("claim", "i8"),
        ("second_claim", "i8"),
        ("claimed_ns", "i8"),
        ("lease_ns", "i8"),
        ("second_lease_ns", "i8"),
        ("worker", "i4"),
        ("second", "i4"),
        ("state", "i4"),
    ],
    align=True,
)
"""A micro-batch: who works on it under which claim numbers, and until when."""

LEDGER = np.dtype([("claims", "i8"), ("lease_ns", "i8"), ("owner", "i4"), ("frozen", "i4")], align=True)


class Detection(NamedTuple):
    """`workers[rank]`, the options, and the median that the last window was judged by."""

    workers: Any
    options: Any
    median: Any


class Ledger(NamedTuple):
    """One straggler's iteration: `state[0]` and `batches[m]`."""

    state: Any
    batches: Any


def new_detection(workers: int, theta_chunks: int, windows: int = 2, clean_iterations: int = 2) -> Detection:
    """Everyone leads."""
    options = np.zeros(1, dtype=OPTIONS).view(np.recarray)
    options[0].theta_chunks, options[0].windows = theta_chunks, windows
    options[0].clean_iterations = clean_iterations
    records = np.zeros(workers, dtype=WORKER).view(np.recarray)
    return Detection(records, options, np.zeros(2, dtype=np.int64))


@compiled
def end_window(detection: Detection, scratch: Any) -> int:
    """Judge the progress that the caller wrote into `workers`; how many roles changed.

    `scratch` is room for one integer a worker: compiled code creates no array.
    """
    workers = detection.workers
    options = detection.options[0]
    detection.median[0] = _median_of_leaders(workers, scratch, False)
    detection.median[1] = _median_of_leaders(workers, scratch, True)
    changed = 0
    for rank in range(workers.shape[0]):
        worker = workers[rank]
        worker.behind_by = detection.median[0] - worker.delivered
        if worker.behind_by <= options.theta_chunks:
            worker.behind_windows = 0
            continue
        worker.behind_windows += 1
        worker.behind_in_iteration = 1
        if worker.role == LEADING and worker.behind_windows >= options.windows:
            late = detection.median[1] - worker.computed > options.theta_chunks
            worker.role = COMPUTE_STRAGGLER if late else BANDWIDTH_STRAGGLER
            worker.clean_iterations = 0
            changed += 1
    return changed


@compiled
def end_iteration(detection: Detection) -> int:
    """An iteration is over: stragglers that were never behind in it come nearer to leading; how many do now."""
    changed = 0
    for rank in range(detection.workers.shape[0]):
        worker = detection.workers[rank]
        worker.clean_iterations = 0 if worker.behind_in_iteration != 0 else worker.clean_iterations + 1
        worker.behind_in_iteration = 0
        if worker.role != LEADING and worker.clean_iterations >= detection.options[0].clean_iterations:
            worker.role = LEADING
            worker.behind_windows = 0
            changed += 1
    return changed


@compiled
def _median_of_leaders(workers: Any, scratch: Any, computed: bool) -> int:
    """The lower median over those who lead; over all if nobody does. Insertion sort: there are few."""
    leaders = 0
    for rank in range(workers.shape[0]):
        leaders += workers[rank].role == LEADING
    count = 0
    for rank in range(workers.shape[0]):
        if leaders > 0 and workers[rank].role != LEADING:
            continue
        value = workers[rank].computed if computed else workers[rank].delivered
        place = count
        while place > 0 and scratch[place - 1] > value:
            scratch[place] = scratch[place - 1]
            place -= 1
        scratch[place] = value
        count += 1
    return int(scratch[(count - 1) // 2])


def explain(detection: Detection, rank: int) -> str:
    """In words: what this worker is taken for, and the figures behind it."""
    worker, options = detection.workers[rank], detection.options[0]
    figures = (
        f"delivered {int(worker.delivered)} chunks, {int(worker.behind_by)} behind the leaders' median of "
        f"{int(detection.median[0])}; computed {int(worker.computed)} against a median of {int(detection.median[1])}"
    )
    if worker.role == LEADING:
        return (
            f"worker {rank} leads: {figures}; behind for {int(worker.behind_windows)} of "
            f"{int(options.windows)} windows, theta {int(options.theta_chunks)} chunks"
        )
    return (
        f"worker {rank} is a {ROLE_NAMES[int(worker.role)]}: {figures}; theta {int(options.theta_chunks)} chunks; "
        f"{int(worker.clean_iterations)} of {int(options.clean_iterations)} clean iterations so far"
    )


def new_ledger(owner: int, micro_batches: int, lease_ns: int) -> Ledger:
    """All of the owner's micro-batches are free."""
    if not 1 <= micro_batches <= MICRO_BATCHES_MAX:
        raise ValueError(f"a ledger has 1..{MICRO_BATCHES_MAX} micro-batches, not {micro_batches}")
    state = np.zeros(1, dtype=LEDGER).view(np.recarray)
    state[0].owner, state[0].lease_ns = owner, lease_ns
    batches = np.zeros(micro_batches, dtype=BATCH).view(np.recarray)
    batches.worker = batches.second = NOBODY
    return Ledger(state, batches)


@compiled
def claim(ledger: Ledger, worker: int, now_ns: int) -> int:
    """The micro-batch that this worker computes now, or -1; its claim number is then `claim_number`.

    The owner takes the first free one, anyone else the last. With none free, a second claim is given on the
    micro-batch that has been worked on for longest by somebody else.
    """
    state = ledger.state[0]
    if state.frozen != 0:
        return NOBODY
    _expire(ledger, now_ns)
    batches = ledger.batches
    count = batches.shape[0]
    for step in range(count):
        m = step if worker == state.owner else count - 1 - step
        if batches[m].state == FREE:
            state.claims += 1
            batches[m].state = CLAIMED
            batches[m].worker = worker
            batches[m].claim = state.claims
            batches[m].claimed_ns = now_ns
            batches[m].lease_ns = now_ns + state.lease_ns
            return m
    oldest = NOBODY
    for m in range(count):
        batch = batches[m]
        if batch.state != CLAIMED or batch.worker == worker or batch.second != NOBODY:
            continue
        if oldest == NOBODY or batch.claimed_ns < batches[oldest].claimed_ns:
            oldest = m
    if oldest != NOBODY:
        state.claims += 1
        batches[oldest].second = worker
        batches[oldest].second_claim = state.claims
        batches[oldest].second_lease_ns = now_ns + state.lease_ns
    return oldest


@compiled
def claim_number(ledger: Ledger, m: int, worker: int) -> int:
    """The number under which this worker holds micro-batch `m`; 0 if it does not hold it."""
    batch = ledger.batches[m]
    if batch.state == CLAIMED and batch.worker == worker:
        return int(batch.claim)
    if batch.state == CLAIMED and batch.second == worker:
        return int(batch.second_claim)
    return 0


@compiled
def renew(ledger: Ledger, m: int, number: int, now_ns: int) -> bool:
    """Still at work: the lease runs anew. False: the claim is fenced, the work is not wanted any more."""
    batch = ledger.batches[m]
    if batch.state != CLAIMED or number <= 0:
        return False
    if batch.claim == number and batch.worker != NOBODY:
        batch.lease_ns = now_ns + ledger.state[0].lease_ns
        return True
    if batch.second_claim == number and batch.second != NOBODY:
        batch.second_lease_ns = now_ns + ledger.state[0].lease_ns
        return True
    return False


@compiled
def finish(ledger: Ledger, m: int, number: int) -> bool:
    """The gradient of micro-batch `m` is computed under this claim. False: fenced, throw it away."""
    batch = ledger.batches[m]
    if batch.state != CLAIMED or number <= 0:
        return False
    if batch.second_claim == number and batch.second != NOBODY:
        batch.worker = batch.second
        batch.claim = number
    elif batch.claim != number or batch.worker == NOBODY:
        return False
    batch.second = NOBODY
    batch.second_claim = 0
    batch.state = COMPUTED
    return True


@compiled
def leave(ledger: Ledger, worker: int) -> int:
    """A worker is gone before the freeze: what it held or had computed must be computed by others."""
    freed = 0
    if ledger.state[0].frozen != 0:
        return 0
    for m in range(ledger.batches.shape[0]):
        batch = ledger.batches[m]
        if batch.second == worker:
            batch.second = NOBODY
            batch.second_claim = 0
        if batch.worker == worker and batch.state != FREE:
            _drop_first(batch)
            freed += batch.state == FREE
    return freed


@compiled
def _drop_first(batch: Any) -> None:
    """The first claim is void; the second, if there is one, takes its place."""
    batch.worker = batch.second
    batch.claim = batch.second_claim
    batch.lease_ns = batch.second_lease_ns
    batch.second = NOBODY
    batch.second_claim = 0
    batch.state = CLAIMED if batch.worker != NOBODY else FREE


@compiled
def _expire(ledger: Ledger, now_ns: int) -> None:
    for m in range(ledger.batches.shape[0]):
        batch = ledger.batches[m]
        if batch.state != CLAIMED:
            continue
        if batch.second != NOBODY and batch.second_lease_ns <= now_ns:
            batch.second = NOBODY
            batch.second_claim = 0
        if batch.lease_ns <= now_ns:
            _drop_first(batch)


@compiled
def freeze(ledger: Ledger) -> bool:
    """Fix who contributes what, if everything is computed; from now on nothing changes."""
    for m in range(ledger.batches.shape[0]):
        if ledger.batches[m].state != COMPUTED:
            return False
    ledger.state[0].frozen = 1
    return True


@compiled
def share_of(ledger: Ledger, worker: int) -> np.uint64:
    """The micro-batches that a worker contributes; empty before the freeze, when nobody may send."""
    mask = NO_BITS
    if ledger.state[0].frozen != 0:
        for m in range(ledger.batches.shape[0]):
            if ledger.batches[m].worker == worker:
                mask |= bit(m)
    return np.uint64(mask)
