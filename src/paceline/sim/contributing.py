"""What the packets of a worker hold: its own contribution, less what it gave, and what it took.

With one straggler, packets tell shares of it. With several, or in several racks, they tell bits alone: every worker
keeps its bit, whatever it has taken or given, and since the ledgers part the work, the sum over all bits is that over
all samples. Either way a worker's part is final before its first packet of the iteration.
"""

from typing import Any

import numpy as np

from paceline.dataplane import sender as sending
from paceline.sim.claiming import WAITING, Claiming
from paceline.sim.takeover import is_whole


class Contributing(Claiming):
    """A coordinator that says what packets hold, and whether that is all there has to be."""

    def finalise(self, rank: int, now_ns: int) -> None:
        """Fix what a worker's packets of this iteration hold, before the first of them."""
        plan = self.plans[rank]
        plan.final = True
        if self.settled != self.ledgers.iteration:
            # With several stragglers each worker keeps its bit, whatever it has taken or given: bits alone are
            # counted, and since the ledgers part the work, the sum over all bits is the sum over all samples.
            self.settled = self.ledgers.iteration
            # In several racks always: a rack's sum with another rack's shares would be none.
            self.by_shares = not self.spread and (len(self.ledgers.open) <= 1 or bool(self.dead))
            self.carriers = {}
        carries = 0 if rank in self.ledgers.open else 1 << rank
        for adopted in plan.adopted:
            carries |= 1 << adopted
        shares = {}
        for owner in self.ledgers.open:
            share = self.ledgers.share(owner, rank)
            if is_whole(share):
                carries |= 1 << owner
            elif share and not carries >> owner & 1:
                shares[owner] = share
        self.contribute(rank, carries, shares)

    def contribute(self, rank: int, carries: int, shares: dict[int, int]) -> None:
        """What a worker's packets hold: whole contributions, and shares of others'."""
        worker: Any = self.workers[rank]
        worker.helped = int(carries != 1 << rank or bool(shares))
        worker.carries = np.uint64(carries)
        self.world.shares[self.first + rank] = 0
        for owner, share in shares.items():
            self.world.shares[self.first + rank, owner] = share
        if self.spread and self.policy != "switchml":
            if self.dead:
                self.show_bits(rank)
                self.see_cover(rank)
            return
        if self.policy == "switchml" or not self.by_shares:
            carries = 1 << rank | sum(1 << dead for dead, by in self.carriers.items() if by == rank)
            shares = {}
        # Where packets tell shares, everyone has some of one owner at most.
        ((owner, share),) = shares.items() or ((0, 0),)
        if self.policy != "switchml":
            sending.set_share(
                self.world.senders,
                self.first + rank,
                np.uint64(carries),
                self.seats.owner(owner) if share else 0,
                np.uint64(share),
            )
        if self.dead and not self.by_shares:
            self.see_cover(rank)

    def see_cover(self, rank: int) -> None:
        """Where bits alone are counted, the bit of a dead worker waits until its work has been taken."""
        worker = self.workers[rank]
        carried = self.seats.carried(rank) if self.spread else rank in self.carriers.values()
        if carried and not self.is_covered(self.exchange_of(rank)):
            worker.hold = WAITING
        elif worker.hold == WAITING:
            worker.hold = 0

    def exchange_of(self, rank: int) -> int:
        """The iteration whose sums a worker sends, or is about to send."""
        plan = self.plans[rank]
        return max(int(self.workers[rank].first_chunk) // self.chunks, plan.iteration if plan.final else 0)

    def is_covered(self, iteration: int) -> bool:
        """Has somebody taken all that the dead have left undone in an iteration?

        Of one before that of the ledgers somebody has all results; of a later one nobody has begun to stand in.
        """
        if iteration != self.ledgers.iteration:
            return iteration < self.ledgers.iteration
        for owner in self.dead:
            self.open_ledger(owner, 0)
        return not any(
            self.ledgers.free(owner) and (owner in self.dead or self.is_final(owner))
            for owner in self.ledgers.open
        )
