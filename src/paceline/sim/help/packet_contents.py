"""What the packets of a worker hold: its own contribution, less what it gave, and what it took.

With one straggler, packets tell shares of it. With several, or in several racks, they tell bits alone: every worker
keeps its bit, whatever it has taken or given, and since the ledgers part the work, the sum over all bits is that over
all samples. Either way a worker's part is final before its first packet of the iteration.
"""

from typing import Any

import numpy as np

from paceline.core.help.ledger import is_whole
from paceline.core.sender import program as sending
from paceline.sim.help.claims import WAITING, Claims
from paceline.sim.help.helped_job import HelpedJob
from paceline.sim.help.racks import Racks


class PacketContents:
    """What packets of a job hold, and whether that is all there has to be."""

    def __init__(self, job: HelpedJob, claims: Claims, racks: Racks) -> None:
        self._job, self._claims, self._racks = job, claims, racks
        self.carriers: dict[int, int] = {}
        """In one rack, where bits alone are counted: who carries the bit of a dead worker."""

    def finalise(self, rank: int, now_ns: int) -> None:
        """Fix what a worker's packets of this iteration hold, before the first of them."""
        plan = self._claims.plans[rank]
        plan.final = True
        if self._claims.settled != self._claims.ledgers.iteration:
            # With several stragglers each worker keeps its bit, whatever it has taken or given: bits alone are
            # counted, and since the ledgers part the work, the sum over all bits is the sum over all samples.
            self._claims.settled = self._claims.ledgers.iteration
            # In several racks always: a rack's sum with another rack's shares would be none.
            self._claims.by_shares = not self._racks.are_spread and (
                len(self._claims.ledgers.open) <= 1 or bool(self._job.dead)
            )
            self.carriers = {}
        carries = 0 if rank in self._claims.ledgers.open else 1 << rank
        for adopted in plan.adopted:
            carries |= 1 << adopted
        shares = {}
        for owner in self._claims.ledgers.open:
            share = self._claims.ledgers.share(owner, rank)
            if is_whole(share):
                carries |= 1 << owner
            elif share and not carries >> owner & 1:
                shares[owner] = share
        self.contribute(rank, carries, shares)

    def contribute(self, rank: int, carries: int, shares: dict[int, int]) -> None:
        """What a worker's packets hold: whole contributions, and shares of others'."""
        worker: Any = self._job.workers[rank]
        worker.helped = int(carries != 1 << rank or bool(shares))
        worker.carries = np.uint64(carries)
        self._job.world.shares[self._job.first + rank] = 0
        for owner, share in shares.items():
            self._job.world.shares[self._job.first + rank, owner] = share
        if self._racks.are_spread and self._job.policy != "switchml":
            if self._job.dead:
                self._racks.show_bits(self._job, rank)
                self.update_hold(rank)
            return
        if self._job.policy == "switchml" or not self._claims.by_shares:
            carries = 1 << rank | sum(1 << dead for dead, by in self.carriers.items() if by == rank)
            shares = {}
        # Where packets tell shares, everyone has some of one owner at most.
        ((owner, share),) = shares.items() or ((0, 0),)
        if self._job.policy != "switchml":
            sending.set_share(
                self._job.world.senders,
                self._job.first + rank,
                np.uint64(carries),
                self._racks.owner(owner) if share else 0,
                np.uint64(share),
            )
        if self._job.dead and not self._claims.by_shares:
            self.update_hold(rank)

    def update_hold(self, rank: int) -> None:
        """Where bits alone are counted, the bit of a dead worker waits until its work has been taken."""
        worker = self._job.workers[rank]
        carried = self._racks.carried(rank) if self._racks.are_spread else rank in self.carriers.values()
        if carried and not self.is_covered(self.exchange_of(rank)):
            worker.hold = WAITING
        elif worker.hold == WAITING:
            worker.hold = 0

    def exchange_of(self, rank: int) -> int:
        """The iteration whose sums a worker sends, or is about to send."""
        plan = self._claims.plans[rank]
        return max(
            int(self._job.workers[rank].first_chunk) // self._job.chunks, plan.iteration if plan.final else 0
        )

    def is_covered(self, iteration: int) -> bool:
        """Has somebody taken all that the dead have left undone in an iteration?

        Of one before that of the ledgers somebody has all results; of a later one nobody has begun to stand in.
        """
        if iteration != self._claims.ledgers.iteration:
            return iteration < self._claims.ledgers.iteration
        for owner in self._job.dead:
            self._claims.open_ledger(owner, 0)
        return not any(
            self._claims.ledgers.free(owner) and (owner in self._job.dead or self._claims.is_final(owner))
            for owner in self._claims.ledgers.open
        )
