"""Who computes which micro-batch of a straggler: the ledger [ours, after SA-ATP's idea].

A straggler's iteration is cut into at most 64 micro-batches. Each is FREE, then CLAIMED by one worker for the time of
a lease, then COMPUTED; when all are, the ledger is FROZEN and `share_of` says who contributes what. The owner claims
from the head and helpers from the tail, so that they meet. A lease that runs out frees the micro-batch and fences
the late worker: its claim number is no longer the right one. When nothing is free, an idle worker may take a second
claim on the micro-batch whose first claim is the oldest; the first of the two to finish is recorded and the other
is fenced. Nothing may be sent for the owner before the ledger is frozen: so each micro-batch is in exactly one share.

A worker that knows that its claim is its last may COMMIT it, and need not wait for its end: nobody gets a second
claim on it, its lease does not run out, and the ledger can be frozen. From then on it is in that worker's share, and
gradients can be sent layer by layer during its backward pass.

When a worker dies (`leave`), all that it held or had computed is free again. After the freeze that also thaws the
ledger, since shares that others may already have sent are no longer the whole: the caller begins a new epoch, and the
survivors' shares count from the next freeze on.

With `keep` the first micro-batches are for the owner alone, as long as it lives. A straggler that keeps one takes part
in every sum, so nobody can run further ahead of it than a sender's span; with `keep` 0 the caller bounds that by
the senders' `limit`.
"""

from typing import Any, NamedTuple

import numpy as np

from paceline.compile.decorators import compiled
from paceline.core.bits import ALL_SHARES, MICRO_BATCHES_MAX, NO_BITS, share_bits

FREE = 0
CLAIMED = 1
COMPUTED = 2
COMMITTED = 3
BATCH_STATES = ("free", "claimed", "computed", "committed")

NOBODY = -1

BATCH = np.dtype(
    [
        ("claim", "i8"),  # number of the first claim; 0: none
        ("second_claim", "i8"),  # number of the second claim, that of a racer
        ("claimed_ns", "i8"),  # when the first claim was given
        ("lease_ns", "i8"),  # when the first claim ends, if it is not renewed
        ("second_lease_ns", "i8"),  # when the second one does
        ("worker", "i4"),  # who has the first claim; -1: nobody
        ("second", "i4"),  # who has the second; -1: nobody
        ("state", "i4"),  # one of `BATCH_STATES`
    ],
    align=True,
)
"""A micro-batch: who works on it under which claim numbers, and until when."""

LEDGER = np.dtype(
    [
        ("claims", "i8"),  # claims given so far: the number of the newest
        ("lease_ns", "i8"),  # how long a claim lasts without being renewed
        ("owner", "i4"),  # the worker whose micro-batches these are
        ("frozen", "i4"),  # 1: no more claims are given
        ("keep", "i4"),  # the first so many micro-batches are for the owner alone
    ],
    align=True,
)


class Ledger(NamedTuple):
    """One straggler's iteration: `state[0]` and `batches[m]`."""

    state: Any
    batches: Any


def new_ledger(owner: int, micro_batches: int, lease_ns: int, keep: int = 0) -> Ledger:
    """All of the owner's micro-batches are free; the first `keep` of them are for the owner alone."""
    if not 1 <= micro_batches <= MICRO_BATCHES_MAX:
        raise ValueError(f"a ledger has 1..{MICRO_BATCHES_MAX} micro-batches, not {micro_batches}")
    state = np.zeros(1, dtype=LEDGER).view(np.recarray)
    state[0].owner, state[0].lease_ns, state[0].keep = owner, lease_ns, keep
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
    expire(ledger, now_ns)
    batches = ledger.batches
    count = batches.shape[0]
    kept = 0 if worker == state.owner else state.keep
    for step in range(count - kept):
        m = step if worker == state.owner else count - 1 - step
        if batches[m].state == FREE:
            _take(ledger, m, worker, now_ns)
            return m
    oldest = NOBODY
    for m in range(kept, count):
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
def adopt(ledger: Ledger, worker: int, now_ns: int) -> int:
    """This worker claims all that is free at once, for an owner that is gone; gives how many there were."""
    claimed = 0
    if ledger.state[0].frozen == 0:
        expire(ledger, now_ns)
        for m in range(ledger.batches.shape[0]):
            if ledger.batches[m].state == FREE:
                _take(ledger, m, worker, now_ns)
                claimed += 1
    return claimed


@compiled
def _take(ledger: Ledger, m: int, worker: int, now_ns: int) -> None:
    state = ledger.state[0]
    batch = ledger.batches[m]
    state.claims += 1
    batch.state = CLAIMED
    batch.worker = worker
    batch.claim = state.claims
    batch.claimed_ns = now_ns
    batch.lease_ns = now_ns + state.lease_ns


@compiled
def claim_number(ledger: Ledger, m: int, worker: int) -> int:
    """The number under which this worker holds micro-batch `m`; 0 if it does not hold it."""
    batch = ledger.batches[m]
    if (batch.state == CLAIMED or batch.state == COMMITTED) and batch.worker == worker:
        return int(batch.claim)
    if batch.state == CLAIMED and batch.second == worker:
        return int(batch.second_claim)
    return 0


@compiled
def renew(ledger: Ledger, m: int, number: int, now_ns: int) -> bool:
    """Still at work: the lease runs anew. False: the claim is fenced, the work is not wanted any more."""
    batch = ledger.batches[m]
    if batch.state == COMMITTED:
        return bool(batch.claim == number)
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
    if batch.state != COMMITTED and not commit(ledger, m, number):
        return False
    if batch.claim != number:
        return False
    batch.state = COMPUTED
    return True


@compiled
def commit(ledger: Ledger, m: int, number: int) -> bool:
    """The claim is this worker's last and will be finished: nobody else's from now on. False: fenced."""
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
    batch.state = COMMITTED
    return True


@compiled
def leave(ledger: Ledger, worker: int) -> int:
    """A worker is gone: what it held or had computed must be computed by others; gives how much that is.

    If the ledger was frozen and this is not 0, it is frozen no more: begin a new epoch.
    """
    freed = 0
    if worker == ledger.state[0].owner:
        ledger.state[0].keep = 0
    for m in range(ledger.batches.shape[0]):
        batch = ledger.batches[m]
        if batch.second == worker:
            batch.second = NOBODY
            batch.second_claim = 0
        if batch.worker == worker and batch.state != FREE:
            _drop_first(batch)
            freed += batch.state == FREE
    if freed > 0:
        ledger.state[0].frozen = 0
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
def expire(ledger: Ledger, now_ns: int) -> None:
    """Claims whose leases have run out are void."""
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
    """Fix who contributes what, if everything is computed or committed; only a death changes it."""
    for m in range(ledger.batches.shape[0]):
        if ledger.batches[m].state != COMPUTED and ledger.batches[m].state != COMMITTED:
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
                mask |= share_bits(m, ledger.batches.shape[0])
    return np.uint64(mask)


Claim = tuple[int, int, int]
"""Owner, micro-batch, claim number."""


class Ledgers:
    """Those of one iteration of a job, by owner."""

    def __init__(self, lease_ns: int) -> None:
        self.lease_ns = lease_ns
        self.iteration = -1
        self.open: dict[int, Ledger] = {}
        self.gone: set[int] = set()
        """Workers that are dead."""

    def begin(self, iteration: int) -> None:
        """An iteration's ledgers are void in the next."""
        if iteration > self.iteration:
            self.iteration = iteration
            self.open = {}

    def create(
        self, owner: int, micro_batches: int, now_ns: int, done: int = 0, working: bool = False
    ) -> None:
        """The owner's ledger, maybe in the middle of its iteration: what it has done and works on is its own."""
        ledger = new_ledger(owner, micro_batches, self.lease_ns, keep=1 if working or done else 0)
        for _ in range(done):
            m = claim(ledger, owner, now_ns)
            finish(ledger, m, claim_number(ledger, m, owner))
        if working and done < micro_batches:
            claim(ledger, owner, now_ns)
        self.open[owner] = ledger

    def expire(self, now_ns: int) -> None:
        for ledger in self.open.values():
            expire(ledger, now_ns)

    def is_alive(self, owner: int) -> bool:
        return owner not in self.gone

    def free(self, owner: int) -> int:
        return int((self.open[owner].batches.state == FREE).sum())

    def given(self, owner: int) -> int:
        """How many of the owner's micro-batches others compute, or have computed."""
        batches = self.open[owner].batches
        return int(((batches.state != FREE) & (batches.worker != owner)).sum())

    def given_in(self, owner: int, iteration: int) -> int:
        """As `given`, in a certain iteration: nothing if these are not its ledgers."""
        return self.given(owner) if owner in self.open and iteration == self.iteration else 0

    def takers(self, owner: int) -> set[int]:
        """Who has a claim on some of the owner's micro-batches, or has computed some."""
        batches = self.open[owner].batches
        return {int(worker) for worker in batches.worker[batches.state != FREE]}

    def holders(self, owner: int) -> set[int]:
        """Who works on some of the owner's micro-batches now, or is about to."""
        batches = self.open[owner].batches
        return {int(worker) for worker in batches.worker[batches.state == CLAIMED]}

    def claims_on(self, owner: int, m: int | None = None) -> list[tuple[int, int]]:
        """Worker and number of every claim that is worked on: all of the owner's, or those on one micro-batch."""
        batches = self.open[owner].batches
        found = []
        for at in np.flatnonzero(batches.state == CLAIMED) if m is None else (m,):
            batch = batches[at]
            if batch.state == CLAIMED:
                found.append((int(batch.worker), int(batch.claim)))
            if batch.state == CLAIMED and batch.second != NOBODY:
                found.append((int(batch.second), int(batch.second_claim)))
        return found

    def raceable(self, owner: int, worker: int) -> tuple[int, int] | None:
        """Holder and number of the claim that the worker would get a second claim against."""
        batches = self.open[owner].batches
        kept = 0 if worker == owner else int(self.open[owner].state[0].keep)
        rivals = (batches.state == CLAIMED) & (batches.worker != worker) & (batches.second == NOBODY)
        rivals[:kept] = False
        if not rivals.any():
            return None
        candidates = np.flatnonzero(rivals)
        batch = batches[candidates[np.argmin(batches.claimed_ns[candidates])]]
        return int(batch.worker), int(batch.claim)

    def share(self, owner: int, worker: int) -> int:
        """The share word of what is in a worker's share: computed, or committed."""
        batches = self.open[owner].batches
        word = 0
        for m, batch in enumerate(batches):
            if batch.worker == worker and batch.state in (COMPUTED, COMMITTED):
                word |= int(share_bits(m, len(batches)))
        return word

    def take(self, owner: int, worker: int, now_ns: int) -> Claim | None:
        """A claim, first or second; None if there is nothing to be had."""
        ledger = self.open[owner]
        m = claim(ledger, worker, now_ns)
        return (owner, int(m), int(claim_number(ledger, m, worker))) if m >= 0 else None

    def start(self, held: Claim, now_ns: int) -> None:
        """A worker begins with what it claimed ahead."""
        owner, m, number = held
        if renew(self.open[owner], m, number, now_ns) and self.open[owner].batches[m].claim == number:
            self.open[owner].batches[m].claimed_ns = now_ns

    def renew(self, held: Claim, now_ns: int) -> bool:
        owner, m, number = held
        return bool(renew(self.open[owner], m, number, now_ns))

    def finish(self, held: Claim) -> bool:
        owner, m, number = held
        return bool(finish(self.open[owner], m, number))

    def commit(self, held: Claim) -> bool:
        owner, m, number = held
        return bool(commit(self.open[owner], m, number))

    def is_raced(self, held: Claim) -> bool:
        """Does somebody else work on it too?"""
        owner, m, _ = held
        return int(self.open[owner].batches[m].second) >= 0

    def holds(self, held: Claim) -> bool:
        """Is the claim still good?"""
        owner, m, number = held
        batch = self.open[owner].batches[m]
        good = batch.state in (CLAIMED, COMMITTED)
        return bool(good and number in (batch.claim, batch.second_claim))

    def first_claim(self, owner: int) -> Claim | None:
        """What an owner works on."""
        batches = self.open[owner].batches
        for m, batch in enumerate(batches):
            if batch.state == CLAIMED and batch.worker == owner:
                return owner, m, int(batch.claim)
        return None

    def drop(self, owner: int, worker: int) -> int:
        """What a worker has of an owner's micro-batches is free again; gives how many."""
        return int(leave(self.open[owner], worker))

    def leave(self, worker: int) -> int:
        """A worker is gone: what it held or had computed is for the others; gives how many micro-batches."""
        self.gone.add(worker)
        return sum(self.drop(owner, worker) for owner in self.open)

    def freeze(self) -> bool:
        """Fix who contributes what, once everything in all ledgers is computed."""
        if any((ledger.batches.state != COMPUTED).any() for ledger in self.open.values()):
            return False
        return all(bool(freeze(ledger)) for ledger in self.open.values())

    def workers_of(self, owner: int) -> list[int]:
        """For each micro-batch of an owner, the worker whose gradient counts."""
        return [int(worker) for worker in self.open[owner].batches.worker]


def is_whole(share: int) -> bool:
    """Do these micro-batches make a whole contribution?"""
    return share == int(ALL_SHARES)
