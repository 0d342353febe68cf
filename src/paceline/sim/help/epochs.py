"""Roles become epochs of the transport: a change of leaders begins one, in which everyone alive goes on."""

import numpy as np

from paceline.core.help.roles import Leaders, choose_leaders
from paceline.core.sender import program as sending
from paceline.sim.build.arrays import Setup
from paceline.sim.help.helped_job import HelpedJob
from paceline.sim.help.orders import WAKE
from paceline.sim.help.racks import Racks
from paceline.sim.help.watch import Watch

REORDER_CHUNKS = 24
REORDER_RTTS = 1.0
"""With custodians on many hosts: acknowledgements and results overtake each other by so much, and nothing is lost."""


class Epochs:
    """Those of one job."""

    def __init__(self, setup: Setup, job: HelpedJob, watch: Watch, racks: Racks) -> None:
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
        nobody left, no switch can complete a sum: all go to their custodians.
        """
        job, racks = self._job, self._racks
        self.now = self._leaders()
        leaders, helps = self.now.ranks, self.now.without_others
        if racks.are_spread and job.dead:
            helps = helps or racks.is_rack_lost(job.alive())
        epoch = int(job.senders.epoch.max()) + 1
        chosen = helps or len(leaders) < job.n or self.without_dedicated
        keepers = sum(1 << rank for rank in leaders) if chosen else 0
        for rank in job.alive():
            if racks.are_spread and job.dead:
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
        if not self._racks.are_spread:
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
