"""What the packets of a helped job tell: bits in masks, shares, and the epoch of the present roles.

**Epochs.** A change of leaders begins an epoch of the transport, in which everyone alive goes on.

**Contents.** A worker's packets hold its own contribution, less what it gave, and what it took. With one straggler,
packets tell shares of it. With several, or in several racks, they tell bits alone: every worker keeps its bit, whatever
it has taken or given, and since the ledgers split the work, the sum over all bits is that over all samples. Either way
the contents of a worker's packets are final before its first packet of the iteration.

**Racks.** A mask names workers of one rack. In a job of several racks rack switches complete as if nobody were
helped, since every worker keeps its bit. The bit of a dead worker is carried by a survivor of its rack. Where a rack
has no survivor, a worker of another rack carries it as all shares of that worker, of one such worker each: a packet has
one owner.
"""

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from paceline.core.bits import ALL_SHARES, place_of
from paceline.core.help.detect import Leaders, choose_leaders
from paceline.core.help.ledger import is_whole
from paceline.core.sender import program as sending
from paceline.sim.build.arrays import Setup
from paceline.sim.help.claims import WAITING, Claims
from paceline.sim.help.watch import HelpedJob, ProgressWatch
from paceline.sim.hosts.compute import WAKE

REORDER_CHUNKS = 24
REORDER_RTTS = 1.0
"""With custodians on many hosts: acknowledgements and results overtake each other by so much, and nothing is lost."""


class Racks:
    """Where a job's workers are: racks, places in the racks' masks, and who carries the bits of the dead."""

    def __init__(self, racks: list[int]) -> None:
        self.racks = racks
        self.places = [racks[:rank].count(rack) for rank, rack in enumerate(racks)]
        self.carriers: dict[int, int] = {}
        """The survivor that carries the bit of a dead worker, by the dead one."""

    def owner(self, rank: int) -> int:
        """What the header's `owner` says of a worker."""
        return int(place_of(self.racks[rank], self.places[rank]))

    def carried(self, rank: int) -> list[int]:
        """The dead whose bits a worker carries."""
        return sorted(dead for dead, by in self.carriers.items() if by == rank)

    def part(self, rank: int) -> tuple[int, int, int]:
        """Mask, owner and share of a worker's packets where bits alone are counted."""
        mask, owner, share = 1 << self.places[rank], 0, 0
        for dead in self.carried(rank):
            if self.racks[dead] == self.racks[rank]:
                mask |= 1 << self.places[dead]
            else:
                owner, share = self.owner(dead), int(ALL_SHARES)
        return mask, owner, share

    def show_bits(self, job: HelpedJob, rank: int) -> None:
        """In several racks bits alone are counted: a worker's own, and those of the dead that it carries."""
        mask, owner, share = self.part(rank)
        sending.set_share(job.world.senders, job.first + rank, np.uint64(mask), owner, np.uint64(share))

    def fan_in(self, rack: int, leaders: Iterable[int] | None = None) -> int:
        """Bits that complete a rack's sum: everyone's, or those that its leaders carry."""
        if leaders is None:
            return self.racks.count(rack)
        bits = [self.part(rank)[0].bit_count() for rank in leaders if self.racks[rank] == rack]
        return max(1, sum(bits))

    def is_rack_lost(self, alive: Collection[int]) -> bool:
        """Has a rack no survivor? Then its sum comes together at a custodian only."""
        return set(self.racks) != {self.racks[rank] for rank in alive}

    def choose_carriers(self, dead: set[int], alive: list[int], leaders: Collection[int]) -> list[int]:
        """Find a carrier for every dead worker's bit; gives the dead workers that have none."""
        self.carriers = {gone: by for gone, by in self.carriers.items() if by in alive}
        alone = []
        for gone in sorted(dead - self.carriers.keys()):
            kin = [rank for rank in alive if self.racks[rank] == self.racks[gone]]
            free = kin or [rank for rank in alive if not self.part(rank)[2]]
            if not free:
                alone.append(gone)
                continue
            self.carriers[gone] = min(
                free, key=lambda rank: (rank not in leaders, len(self.carried(rank)), rank)
            )
        return alone


class Epochs:
    """Roles become epochs of the transport."""

    def __init__(self, setup: Setup, job: HelpedJob, watch: ProgressWatch, racks: Racks) -> None:
        self._job, self._watch, self._racks = job, watch, racks
        self.now = Leaders(frozenset(range(job.n)), False)
        self.without_dedicated = False
        """A dedicated custodian is dead: the workers keep sums."""
        self._transport = setup.scenario.transport
        self._patience_ns = setup.scenario.custodians.patience

    def roles_changed(self, now_ns: int) -> None:
        if self._job.spec.has_custody and (self._leaders() != self.now or self._moves_custodians()):
            self.begin(now_ns)

    def begin(self, now_ns: int) -> None:
        """Everyone alive goes on in the next epoch; what has no result yet is sent again in it.

        With help, leaders complete sums without the others, whose packets never hold an aggregator. Where a rack has
        no survivor, no switch can complete a sum: all go to their custodians.
        """
        job, racks = self._job, self._racks
        self.now = self._leaders()
        leaders, helps = self.now.ranks, self.now.without_others
        if job.spans_racks and job.dead:
            helps = helps or racks.is_rack_lost(job.alive())
        epoch = int(job.senders.epoch.max()) + 1
        chosen = helps or len(leaders) < job.n or self.without_dedicated
        keepers = sum(1 << rank for rank in leaders) if chosen else 0
        for rank in job.alive():
            if job.spans_racks and job.dead:
                racks.show_bits(job, rank)
            sending.take_role(
                job.world.senders,
                job.first + rank,
                epoch,
                int(helps),
                int(helps and rank not in leaders),
                np.uint64(keepers),
                self._fan_in(rank, leaders, helps),
            )
            job.tell(rank, WAKE, now_ns)
        self._set_patience(helps)
        names = ", ".join(map(str, sorted(leaders)))
        what = f"workers {names} complete sums without the others" if helps else "all workers complete sums"
        job.say(now_ns, "epoch", None, f"epoch {epoch}: {what}")

    def _leaders(self) -> Leaders:
        spec = self._job.spec
        return choose_leaders(self._watch.roles(), spec.has_custody, spec.takes_over)

    def _moves_custodians(self) -> bool:
        """Must workers keep sums that somebody else kept?"""
        return self.without_dedicated and int(self._job.senders[self._job.alive()[0]].leaders) == 0

    def _fan_in(self, rank: int, leaders: frozenset[int], helps: bool) -> int:
        """How many bits complete the sum in a worker's rack."""
        if not self._job.spans_racks:
            return len(leaders) if helps else self._job.n
        return self._racks.fan_in(self._racks.racks[rank], leaders if helps else None)

    def _set_patience(self, helps: bool) -> None:
        """Sums that wait for a straggler need no reminder for a while, and many custodians answer out of order."""
        job, transport = self._job, self._transport
        job.senders.reorder_chunks = (
            max(REORDER_CHUNKS, transport.reorder_chunks) if helps else transport.reorder_chunks
        )
        job.senders.reorder_rtts = (
            max(REORDER_RTTS, transport.reorder_rtts) if helps else transport.reorder_rtts
        )
        if job.record.on_workers != 0:
            first = int(job.record.first_custodian)
            keepers = job.world.custodians.state[first : first + job.n]
            keepers.patience_ns = job.options.patience if helps else self._patience_ns
            keepers.patience_led_ns = self._patience_ns


class PacketContents:
    """What packets of a job hold, and whether that is all there has to be."""

    def __init__(self, job: HelpedJob, claims: Claims, racks: Racks) -> None:
        self._job, self._claims, self._racks = job, claims, racks
        self.carriers: dict[int, int] = {}
        """In one rack, where bits alone are counted: the survivor that carries the bit of a dead worker."""

    def finalise(self, rank: int, now_ns: int) -> None:
        """Fix what a worker's packets of this iteration hold, before the first of them."""
        plan = self._claims.plans[rank]
        plan.final = True
        if self._claims.settled != self._claims.ledgers.iteration:
            self._claims.settled = self._claims.ledgers.iteration
            # In several racks bits alone: a sum of one rack has no room for shares of another.
            self._claims.by_shares = not self._job.spans_racks and (
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
        if self._job.spans_racks and self._job.policy != "switchml":
            if self._job.dead:
                self._racks.show_bits(self._job, rank)
                self.update_hold(rank)
            return
        if self._job.policy == "switchml" or not self._claims.by_shares:
            carries = 1 << rank | sum(1 << dead for dead, by in self.carriers.items() if by == rank)
            shares = {}
        # Where packets tell shares, a worker has shares of one owner at most.
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
        carried = self._racks.carried(rank) if self._job.spans_racks else rank in self.carriers.values()
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
        """Has all that the dead left undone in an iteration been taken by others?

        Of an iteration before that of the ledgers some worker has all results; of a later one nothing has been taken.
        """
        if iteration != self._claims.ledgers.iteration:
            return iteration < self._claims.ledgers.iteration
        for owner in self._job.dead:
            self._claims.open_ledger(owner, 0)
        return not any(
            self._claims.ledgers.free(owner) and (owner in self._job.dead or self._claims.is_final(owner))
            for owner in self._claims.ledgers.open
        )
