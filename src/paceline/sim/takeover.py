"""Who computes which micro-batch: the ledgers of one job, and what each worker does next.

The owner of a ledger is a straggler, or a dead worker. A straggler takes its micro-batches from the head, one after the
other; a leader computes its own first, then takes from the tail. A leader asks for its next micro-batch when it
begins the present one, so it knows at half time whether that is its last: then it commits it, and its gradients
leave layer by layer. When nothing is free, it may race the straggler for the one that this works on, if it would be
done with it sooner; half way through, it commits that too, and the straggler is told to stop. Where there are several
stragglers, one that is done with its own does as leaders do: it may be slow no more.

What a worker contributes is final before its first packet of the iteration: a micro-batch that is computed or
committed never changes hands, but by a death, and then a new epoch begins. So nobody needs to wait for the freeze.
"""

from dataclasses import dataclass, field
from typing import Any

from paceline.dataplane.ledger import (
    CLAIMED,
    COMMITTED,
    COMPUTED,
    FREE,
    Ledger,
    claim,
    claim_number,
    commit,
    finish,
    leave,
    new_ledger,
    renew,
)
from paceline.dataplane.shares import ALL_SHARES, share_bits

Claim = tuple[int, int, int]
"""Owner, micro-batch, claim number."""


@dataclass
class WorkPlan:
    """What the coordinator knows of one worker's iteration."""

    iteration: int = -1
    held: Claim | None = None
    """The micro-batch of somebody's ledger that it works on."""
    following: list[Claim] = field(default_factory=list)
    asked: bool = False
    """Has it asked for what follows?"""
    pending: bool = False
    """... and the coordinator has not answered yet."""
    ready_ns: int = 0
    """When the answer is with it."""
    owner: int = -1
    """Whose micro-batches it has taken: one owner's where packets tell shares, and those it adopted as a whole."""
    helps: bool = False
    """A straggler that is done with its own, and takes others' as a leader does."""
    stopped: bool = False
    """A straggler that leaves the rest of its own to helpers."""
    adopted: set[int] = field(default_factory=set)
    committed: bool = False
    """Nobody else can take what it works on any more."""
    gate: int = -1
    """The order that it gets when all leaders are ready for their last backward pass; -1 if it is not."""
    final: bool = False
    began_ns: int = 0


class Ledgers:
    """Those of one iteration, by owner."""

    def __init__(self, parts: int, unit_ns: int, lease_ns: int) -> None:
        self.parts, self.unit_ns, self.lease_ns = parts, unit_ns, lease_ns
        self.iteration = -1
        self.open: dict[int, Ledger] = {}
        self.pace_ns: dict[int, float] = {}
        """How long an owner takes for a micro-batch, as last seen."""

    def begin(self, iteration: int) -> None:
        """An iteration's ledgers are void in the next."""
        if iteration > self.iteration:
            self.iteration = iteration
            self.open = {}

    def create(self, owner: int, done: int, working: bool, now_ns: int) -> None:
        """A ledger in the middle of the owner's iteration: what it has done and works on is its own."""
        ledger = new_ledger(owner, self.parts, self.lease_ns, keep=1 if working or done else 0)
        for _ in range(done):
            m = claim(ledger, owner, now_ns)
            finish(ledger, m, claim_number(ledger, m, owner))
        if working and done < self.parts:
            claim(ledger, owner, now_ns)
        self.open[owner] = ledger

    def free(self, owner: int) -> int:
        return int((self.open[owner].batches.state == FREE).sum())

    def given(self, owner: int) -> int:
        """How many of the owner's micro-batches others compute, or have computed."""
        batches = self.open[owner].batches
        return int(((batches.state != FREE) & (batches.worker != owner)).sum())

    def drop(self, owner: int, worker: int) -> None:
        """What a helper has of an owner's micro-batches is free again."""
        leave(self.open[owner], worker)

    def takers(self, owner: int) -> set[int]:
        """Who has a claim on some of the owner's micro-batches, or has computed some."""
        return {int(batch.worker) for batch in self.open[owner].batches if batch.state != FREE}

    def holders(self, owner: int) -> set[int]:
        """Who works on some of the owner's micro-batches now, or is about to."""
        return {int(batch.worker) for batch in self.open[owner].batches if batch.state == CLAIMED}

    def of(self, owner: int, worker: int) -> list[int]:
        """The micro-batches that are in a worker's share."""
        batches = self.open[owner].batches
        return [
            m
            for m in range(self.parts)
            if batches[m].worker == worker and batches[m].state in (COMPUTED, COMMITTED)
        ]

    def share(self, owner: int, worker: int) -> int:
        word = 0
        for m in self.of(owner, worker):
            word |= int(share_bits(m, self.parts))
        return word

    def take(self, owner: int, worker: int, now_ns: int) -> Claim | None:
        """A claim, first or second; None if there is nothing to be had."""
        ledger = self.open[owner]
        m = claim(ledger, worker, now_ns)
        return (owner, m, int(claim_number(ledger, m, worker))) if m >= 0 else None

    def start(self, held: Claim, now_ns: int) -> None:
        """A worker begins with what it claimed ahead."""
        owner, m, number = held
        if renew(self.open[owner], m, number, now_ns) and self.open[owner].batches[m].claim == number:
            self.open[owner].batches[m].claimed_ns = now_ns

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

    def leave(self, worker: int) -> list[int]:
        """A worker is gone; the owners whose ledgers have something to do again."""
        return [owner for owner, ledger in self.open.items() if leave(ledger, worker) > 0]

    def owner_done_ns(self, owner: int, now_ns: int, fallback_ns: float) -> tuple[float, float]:
        """When the owner will be done with what it works on, and how long it takes for one."""
        pace_ns = self.pace_ns.get(owner, fallback_ns)
        batches = self.open[owner].batches
        began = [int(b.claimed_ns) for b in batches if b.state == CLAIMED and b.worker == owner]
        if not began:
            return float(now_ns), pace_ns
        pace_ns = max(pace_ns, float(now_ns - min(began)))
        return min(began) + len(began) * pace_ns, pace_ns

    def first_claim(self, owner: int) -> Claim | None:
        """What an owner works on."""
        batches = self.open[owner].batches
        for m in range(self.parts):
            if batches[m].state == CLAIMED and batches[m].worker == owner:
                return owner, m, int(batches[m].claim)
        return None

    def worth_taking(self, owner: int, now_ns: int, done_ns: int, owner_works: bool) -> bool:
        """Would a worker that is done with one of the owner's at `done_ns` be sooner than the owner itself?"""
        free = self.free(owner)
        if not owner_works:
            return free > 0
        present_ns, pace_ns = self.owner_done_ns(owner, now_ns, 2.0 * self.unit_ns)
        if free > 0:
            return present_ns + free * pace_ns > done_ns
        batches: Any = self.open[owner].batches
        raceable = any(
            b.state == CLAIMED and b.worker == owner and b.second < 0 for b in batches[self.keep(owner) :]
        )
        return raceable and present_ns > done_ns + 0.1 * self.unit_ns

    def keep(self, owner: int) -> int:
        return int(self.open[owner].state[0].keep)


def is_whole(share: int) -> bool:
    """Do these micro-batches make a whole contribution?"""
    return share == int(ALL_SHARES)
