"""Roles in the transport: who leads, who straggles, and the epochs in which they do.

With custody a change of roles begins an epoch: leaders complete sums at their own fan-in and keep them among
themselves, stragglers' packets never hold an aggregator (`dataplane/roles.py`). Takeover alone changes no role there.
With both, custody is for what takeover does not reach: a slow link.
"""

import numpy as np

from paceline.dataplane import sender as sending
from paceline.dataplane.straggler import BANDWIDTH_STRAGGLER, COMPUTE_STRAGGLER, LEADING
from paceline.sim.build import Setup
from paceline.sim.cutting import Cutting
from paceline.sim.orders import WAKE
from paceline.sim.seats import Seats
from paceline.sim.watching import Plan

REORDER_CHUNKS = 24
REORDER_RTTS = 1.0
"""With custodians on many hosts: acknowledgements and results overtake each other by so much, and nothing is lost."""


class Roles(Cutting):
    """A coordinator that turns what was noticed into roles."""

    def __init__(self, setup: Setup, j: int, plan: Plan) -> None:
        super().__init__(setup, j, plan)
        self.takes_over, self.has_custody = self.job.takes_over, self.job.has_custody
        self.leaders = set(range(self.n))
        self.helps = False
        self.seats = Seats([setup.place.leaf_of_host[host] for host in setup.place.worker_hosts[j]])
        self.spread = self.seats.are_spread
        self.without_dedicated = False
        self.plain = setup.scenario.transport
        self.plain_patience_ns = setup.scenario.custodians.patience

    def roles_changed(self, now_ns: int) -> None:
        if self.has_custody and (self.leaders_now() != (self.leaders, self.helps) or self.moves_custodians()):
            self.begin_epoch_of_roles(now_ns)

    def begin_epoch_of_roles(self, now_ns: int) -> None:
        """Leaders and stragglers as they are known now; without custody, or without leaders, everyone is equal."""
        self.begin_epoch(*self.leaders_now(), now_ns)

    def leaders_now(self) -> tuple[set[int], bool]:
        """Who leads, and whether they complete sums without the others."""
        alive = self.alive()
        leaders = {rank for rank in alive if self.role(rank) == LEADING}
        helps = self.needs_custody() and bool(leaders) and len(leaders) < len(alive)
        return (leaders if helps else set(alive)), helps

    def needs_custody(self) -> bool:
        """Is a straggler to be waited for by custodians? Not where takeover is there for it."""
        held_up = any(self.role(rank) == BANDWIDTH_STRAGGLER for rank in self.alive())
        return self.has_custody and (held_up or not self.takes_over)

    def moves_custodians(self) -> bool:
        """Must workers keep sums that somebody else kept?"""
        return self.without_dedicated and int(self.senders[self.alive()[0]].leaders) == 0

    def owners(self) -> list[int]:
        """Whose work others may take: the dead, and compute stragglers while somebody leads and it is worth it."""
        slow = [rank for rank in self.alive() if self.role(rank) == COMPUTE_STRAGGLER]
        return sorted(self.dead) + (slow if self.pays and self.somebody_leads() else [])

    def somebody_leads(self) -> bool:
        return any(self.role(rank) == LEADING for rank in self.alive())

    def begin_epoch(self, leaders: set[int], helps: bool, now_ns: int) -> None:
        """Everyone alive goes on in the next epoch; what has no result yet is sent again in it.

        With help, leaders complete sums without the others, whose packets never hold an aggregator. Where a rack has
        nobody left, no switch can complete a sum: all go to their custodians.
        """
        self.leaders, self.helps = leaders, helps
        if self.spread and self.dead:
            helps = helps or self.seats.is_rack_lost(self.alive())
        epoch = int(self.senders.epoch.max()) + 1
        chosen = helps or len(leaders) < self.n or self.without_dedicated
        keepers = sum(1 << rank for rank in leaders) if chosen else 0
        for rank in self.alive():
            lags = int(helps and rank not in leaders)
            if self.spread and self.dead:
                self.show_bits(rank)
            sending.take_role(
                self.world.senders,
                self.first + rank,
                epoch,
                int(helps),
                lags,
                np.uint64(keepers),
                self.fan_in(rank, leaders, helps),
            )
            self.tell(rank, WAKE, now_ns)
        self.be_patient(helps)
        names = ", ".join(map(str, sorted(leaders)))
        what = f"workers {names} complete sums without the others" if helps else "all workers complete sums"
        self.say(now_ns, "epoch", None, f"epoch {epoch}: {what}")

    def fan_in(self, rank: int, leaders: set[int], helps: bool) -> int:
        """How many bits complete the sum in a worker's rack."""
        if not self.spread:
            return len(leaders) if helps else self.n
        return self.seats.fan_in(self.seats.racks[rank], leaders if helps else None)

    def show_bits(self, rank: int) -> None:
        """In several racks bits alone are counted: a worker's own, and those of the dead that it carries."""
        mask, owner, share = self.seats.part(rank)
        sending.set_share(self.world.senders, self.first + rank, np.uint64(mask), owner, np.uint64(share))

    def be_patient(self, helps: bool) -> None:
        """Sums that wait for a straggler need no reminder for a while, and many custodians answer out of order."""
        self.senders.reorder_chunks = (
            max(REORDER_CHUNKS, self.plain.reorder_chunks) if helps else self.plain.reorder_chunks
        )
        self.senders.reorder_rtts = (
            max(REORDER_RTTS, self.plain.reorder_rtts) if helps else self.plain.reorder_rtts
        )
        if self.record.on_workers != 0:
            first = int(self.record.first_custodian)
            keepers = self.world.custodians.state[first : first + self.n]
            keepers.patience_ns = self.help.patience if helps else self.plain_patience_ns
            keepers.patience_led_ns = self.plain_patience_ns
