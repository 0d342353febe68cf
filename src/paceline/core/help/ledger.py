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

Plain Python, as both drivers are: a record in an array that Python reads field by field costs it ten times as much.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.core.bits import ALL_SHARES, MICRO_BATCHES_MAX, share_bits

FREE = 0
CLAIMED = 1
COMPUTED = 2
COMMITTED = 3
BATCH_STATES = ("free", "claimed", "computed", "committed")

NOBODY = -1

Claim = tuple[int, int, int]
"""Owner, micro-batch, claim number."""


@dataclass(slots=True)
class MicroBatch:
    """Who works on it under which claim numbers, and until when."""

    state: int = FREE
    """One of `BATCH_STATES`."""
    worker: int = NOBODY
    """Who has the first claim."""
    claim: int = 0
    """Number of the first claim; 0: none."""
    claimed_ns: int = 0
    """When the first claim was given."""
    lease_ns: int = 0
    """When the first claim ends, if it is not renewed."""
    second: int = NOBODY
    """Who has the second claim, that of a racer."""
    second_claim: int = 0
    """Its number; 0: none."""
    second_lease_ns: int = 0
    """When it ends."""

    def drop_first(self) -> None:
        """The first claim is void; the second, if there is one, takes its place."""
        self.worker, self.claim, self.lease_ns = self.second, self.second_claim, self.second_lease_ns
        self.drop_second()
        self.state = CLAIMED if self.worker != NOBODY else FREE

    def drop_second(self) -> None:
        self.second, self.second_claim = NOBODY, 0


class Ledger:
    """One straggler's iteration."""

    def __init__(self, owner: int, micro_batches: int, lease_ns: int, keep: int = 0) -> None:
        """All of the owner's micro-batches are free; the first `keep` of them are for the owner alone."""
        if not 1 <= micro_batches <= MICRO_BATCHES_MAX:
            raise ValueError(f"a ledger has 1..{MICRO_BATCHES_MAX} micro-batches, not {micro_batches}")
        self.owner, self.lease_ns, self.keep = owner, lease_ns, keep
        self.batches = [MicroBatch() for _ in range(micro_batches)]
        self.is_frozen = False
        """No more claims are given."""
        self._claims = 0
        """Claims given so far: the number of the newest."""

    def claim(self, worker: int, now_ns: int) -> int:
        """The micro-batch that this worker computes now, or -1; its claim number is then `claim_number`.

        The owner takes the first free one, anyone else the last. With none free, a second claim is given on the
        micro-batch that has been worked on for longest by somebody else.
        """
        if self.is_frozen:
            return NOBODY
        self.expire(now_ns)
        kept = 0 if worker == self.owner else self.keep
        allowed = range(kept, len(self.batches))
        for m in allowed if worker == self.owner else reversed(allowed):
            if self.batches[m].state == FREE:
                self._take(m, worker, now_ns)
                return m
        oldest = self.oldest_rival(worker)
        if oldest != NOBODY:
            self._claims += 1
            batch = self.batches[oldest]
            batch.second, batch.second_claim = worker, self._claims
            batch.second_lease_ns = now_ns + self.lease_ns
        return oldest

    def oldest_rival(self, worker: int) -> int:
        """The micro-batch that has been worked on for longest by somebody else, and that has no second claim; or -1."""
        oldest = NOBODY
        for m in range(0 if worker == self.owner else self.keep, len(self.batches)):
            batch = self.batches[m]
            if batch.state != CLAIMED or batch.worker == worker or batch.second != NOBODY:
                continue
            if oldest == NOBODY or batch.claimed_ns < self.batches[oldest].claimed_ns:
                oldest = m
        return oldest

    def _take(self, m: int, worker: int, now_ns: int) -> None:
        self._claims += 1
        batch = self.batches[m]
        batch.state, batch.worker, batch.claim = CLAIMED, worker, self._claims
        batch.claimed_ns, batch.lease_ns = now_ns, now_ns + self.lease_ns

    def claim_number(self, m: int, worker: int) -> int:
        """The number under which this worker holds micro-batch `m`; 0 if it does not hold it."""
        batch = self.batches[m]
        if batch.state in (CLAIMED, COMMITTED) and batch.worker == worker:
            return batch.claim
        if batch.state == CLAIMED and batch.second == worker:
            return batch.second_claim
        return 0

    def renew(self, m: int, number: int, now_ns: int) -> bool:
        """Still at work: the lease runs anew. False: the claim is fenced, the work is not wanted any more."""
        batch = self.batches[m]
        if batch.state == COMMITTED:
            return batch.claim == number
        if batch.state != CLAIMED or number <= 0:
            return False
        if batch.claim == number:
            batch.lease_ns = now_ns + self.lease_ns
            return True
        if batch.second_claim == number:
            batch.second_lease_ns = now_ns + self.lease_ns
            return True
        return False

    def finish(self, m: int, number: int) -> bool:
        """The gradient of micro-batch `m` is computed under this claim. False: fenced, throw it away."""
        batch = self.batches[m]
        if batch.state != COMMITTED and not self.commit(m, number):
            return False
        if batch.claim != number:
            return False
        batch.state = COMPUTED
        return True

    def commit(self, m: int, number: int) -> bool:
        """The claim is this worker's last and will be finished: nobody else's from now on. False: fenced."""
        batch = self.batches[m]
        if batch.state != CLAIMED or number <= 0 or number not in (batch.claim, batch.second_claim):
            return False
        if batch.second_claim == number:
            batch.worker, batch.claim = batch.second, number
        batch.drop_second()
        batch.state = COMMITTED
        return True

    def leave(self, worker: int) -> int:
        """A worker is gone: what it held or had computed must be computed by others; gives how much that is.

        If the ledger was frozen and this is not 0, it is frozen no more: begin a new epoch.
        """
        freed = 0
        if worker == self.owner:
            self.keep = 0
        for batch in self.batches:
            if batch.second == worker:
                batch.drop_second()
            if batch.worker == worker and batch.state != FREE:
                batch.drop_first()
                freed += batch.state == FREE
        if freed > 0:
            self.is_frozen = False
        return freed

    def expire(self, now_ns: int) -> None:
        """Claims whose leases have run out are void."""
        for batch in self.batches:
            if batch.state != CLAIMED:
                continue
            if batch.second != NOBODY and batch.second_lease_ns <= now_ns:
                batch.drop_second()
            if batch.lease_ns <= now_ns:
                batch.drop_first()

    def freeze(self) -> bool:
        """Fix who contributes what, if everything is computed or committed; only a death changes it."""
        if all(batch.state in (COMPUTED, COMMITTED) for batch in self.batches):
            self.is_frozen = True
            return True
        return False

    def share_of(self, worker: int) -> int:
        """The micro-batches in a worker's share: computed, or committed."""
        word = 0
        for m, batch in enumerate(self.batches):
            if batch.worker == worker and batch.state in (COMPUTED, COMMITTED):
                word |= int(share_bits(m, len(self.batches)))
        return word

    def claims(self, m: int | None = None) -> Iterator[tuple[int, int]]:
        """Worker and number of every claim that is worked on: all of them, or those on one micro-batch."""
        for batch in self.batches if m is None else (self.batches[m],):
            if batch.state == CLAIMED:
                yield batch.worker, batch.claim
                if batch.second != NOBODY:
                    yield batch.second, batch.second_claim


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
        ledger = Ledger(owner, micro_batches, self.lease_ns, keep=1 if working or done else 0)
        for _ in range(done):
            m = ledger.claim(owner, now_ns)
            ledger.finish(m, ledger.claim_number(m, owner))
        if working and done < micro_batches:
            ledger.claim(owner, now_ns)
        self.open[owner] = ledger

    def expire(self, now_ns: int) -> None:
        for ledger in self.open.values():
            ledger.expire(now_ns)

    def is_alive(self, owner: int) -> bool:
        return owner not in self.gone

    def free(self, owner: int) -> int:
        return sum(batch.state == FREE for batch in self.open[owner].batches)

    def given(self, owner: int) -> int:
        """How many of the owner's micro-batches others compute, or have computed."""
        return sum(batch.state != FREE and batch.worker != owner for batch in self.open[owner].batches)

    def given_in(self, owner: int, iteration: int) -> int:
        """As `given`, in a certain iteration: nothing if these are not its ledgers."""
        return self.given(owner) if owner in self.open and iteration == self.iteration else 0

    def takers(self, owner: int) -> set[int]:
        """Who has a claim on some of the owner's micro-batches, or has computed some."""
        return {batch.worker for batch in self.open[owner].batches if batch.state != FREE}

    def holders(self, owner: int) -> set[int]:
        """Who works on some of the owner's micro-batches now, or is about to."""
        return {batch.worker for batch in self.open[owner].batches if batch.state == CLAIMED}

    def claims_on(self, owner: int, m: int | None = None) -> list[tuple[int, int]]:
        """Worker and number of every claim that is worked on: all of the owner's, or those on one micro-batch."""
        return list(self.open[owner].claims(m))

    def raceable(self, owner: int, worker: int) -> tuple[int, int] | None:
        """Holder and number of the claim that the worker would get a second claim against."""
        ledger = self.open[owner]
        oldest = ledger.oldest_rival(worker)
        return (ledger.batches[oldest].worker, ledger.batches[oldest].claim) if oldest != NOBODY else None

    def share(self, owner: int, worker: int) -> int:
        """The share word of what is in a worker's share: computed, or committed."""
        return self.open[owner].share_of(worker)

    def take(self, owner: int, worker: int, now_ns: int) -> Claim | None:
        """A claim, first or second; None if there is nothing to be had."""
        ledger = self.open[owner]
        m = ledger.claim(worker, now_ns)
        return (owner, m, ledger.claim_number(m, worker)) if m >= 0 else None

    def start(self, held: Claim, now_ns: int) -> None:
        """A worker begins with what it claimed ahead."""
        owner, m, number = held
        batch = self.open[owner].batches[m]
        if self.renew(held, now_ns) and batch.claim == number:
            batch.claimed_ns = now_ns

    def renew(self, held: Claim, now_ns: int) -> bool:
        owner, m, number = held
        return self.open[owner].renew(m, number, now_ns)

    def finish(self, held: Claim) -> bool:
        owner, m, number = held
        return self.open[owner].finish(m, number)

    def commit(self, held: Claim) -> bool:
        owner, m, number = held
        return self.open[owner].commit(m, number)

    def is_raced(self, held: Claim) -> bool:
        """Does somebody else work on it too?"""
        owner, m, _ = held
        return self.open[owner].batches[m].second != NOBODY

    def holds(self, held: Claim) -> bool:
        """Is the claim still good?"""
        owner, m, number = held
        batch = self.open[owner].batches[m]
        return batch.state in (CLAIMED, COMMITTED) and number in (batch.claim, batch.second_claim)

    def first_claim(self, owner: int) -> Claim | None:
        """What an owner works on."""
        for m, batch in enumerate(self.open[owner].batches):
            if batch.state == CLAIMED and batch.worker == owner:
                return owner, m, batch.claim
        return None

    def drop(self, owner: int, worker: int) -> int:
        """What a worker has of an owner's micro-batches is free again; gives how many."""
        return self.open[owner].leave(worker)

    def leave(self, worker: int) -> int:
        """A worker is gone: what it held or had computed is for the others; gives how many micro-batches."""
        self.gone.add(worker)
        return sum(self.drop(owner, worker) for owner in self.open)

    def freeze(self) -> bool:
        """Fix who contributes what, once everything in all ledgers is computed."""
        if any(batch.state != COMPUTED for ledger in self.open.values() for batch in ledger.batches):
            return False
        return all(ledger.freeze() for ledger in self.open.values())

    def workers_of(self, owner: int) -> list[int]:
        """For each micro-batch of an owner, the worker whose gradient counts."""
        return [batch.worker for batch in self.open[owner].batches]


def is_whole(share: int) -> bool:
    """Do these micro-batches make a whole contribution?"""
    return share == int(ALL_SHARES)
