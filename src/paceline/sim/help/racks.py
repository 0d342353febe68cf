"""Where a job's workers are: racks, places in the racks' masks, and who carries the bits of the dead.

A mask names workers of one rack. In a job of several racks every worker's packets keep its own bit, whatever it has
taken over or given away: the ledgers part the work, so the sum over all bits is the sum over all samples, and rack
switches complete as if nobody were helped. The bit of a dead worker is carried by a survivor of its rack. Where a
rack has no survivor, somebody of another rack carries it as all shares of that worker, of one such worker each:
a packet has one owner.
"""

from collections.abc import Collection, Iterable

import numpy as np

from paceline.core.help.shares import ALL_SHARES, place_of
from paceline.core.sender import program as sending
from paceline.sim.help.helped_job import HelpedJob


class Racks:
    """Those of one job."""

    def __init__(self, racks: list[int]) -> None:
        self.racks = racks
        self.places = [racks[:rank].count(rack) for rank, rack in enumerate(racks)]
        self.carriers: dict[int, int] = {}
        """Who carries the bit of a dead worker."""

    @property
    def are_spread(self) -> bool:
        """Is there more than one rack?"""
        return len(set(self.racks)) > 1

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
        """Has some rack nobody left? Then its sum comes together at a custodian only."""
        return set(self.racks) != {self.racks[rank] for rank in alive}

    def choose_carriers(self, dead: set[int], alive: list[int], leaders: Collection[int]) -> list[int]:
        """Find somebody for every dead worker's bit; gives those of the dead for whom there is nobody."""
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
