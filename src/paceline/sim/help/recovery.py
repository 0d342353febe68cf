"""When a worker dies: the others compute its part, now and in every later iteration.

The iteration whose results are incomplete is looked at. What the dead one held or had computed there is free again,
and its own micro-batches are a ledger without an owner. A new epoch begins: partial sums are void, results stay, and
whatever has no result yet is sent again. Leaders that still compute take from the ledgers as always. Leaders that
have sent everything and wait are called back: they hold their packets, compute what is free, and send again with the
larger share. If some worker has a result of every chunk, nothing is computed again: it is pulled.

A helper has shares of one owner. An owner that no helper has room for is adopted: one helper computes all that is
left of it, and carries its bit.
"""

from paceline.core.help.takeover import Grant, choose_carriers
from paceline.sim.engine import world as w
from paceline.sim.help.claims import RECALLED, WAITING, Claims, WorkPlan
from paceline.sim.help.micro_batching import MicroBatching
from paceline.sim.help.packets import Epochs, PacketContents, Racks
from paceline.sim.help.passes import Passes
from paceline.sim.help.watch import HelpedJob
from paceline.sim.hosts.compute import WAKE, tell_job


class Recovery:
    """What happens to a job whose workers die."""

    def __init__(
        self,
        job: HelpedJob,
        cutting: MicroBatching,
        racks: Racks,
        epochs: Epochs,
        claims: Claims,
        contents: PacketContents,
        passes: Passes,
    ) -> None:
        self._job, self._cutting, self._racks, self._epochs = job, cutting, racks, epochs
        self._claims, self._contents, self._passes = claims, contents, passes

    def died(self, rank: int, now_ns: int) -> None:
        if not self._job.spec.takes_over or self._job.policy == "switchml":
            without = "under switchml" if self._job.spec.takes_over else "without takeover"
            self._job.fail(now_ns, f"worker {rank} died, and {without} nobody can stand in for it")
            return
        self._job.record.needed = len(self._job.alive())
        if self._job.record.finished >= self._job.record.needed:
            tell_job(self._job.world, self._job.j, False, now_ns)
            return
        self._job.record.helping = 1
        iteration = self._job.unfinished()
        self._claims.ledgers.begin(iteration)
        self._claims.ledgers.leave(rank)
        self._claims.open_ledger(rank, now_ns)
        self._cutting.cut(True)
        for other in self._claims.drop_extra_owners():
            self._passes.owner_asks(other, now_ns)
        self.redistribute(iteration, now_ns)

    def end_window(self, now_ns: int) -> None:
        running = self._job.is_running()
        if running and self._job.dead:
            self.let_go(now_ns)
            if self.nobody_comes():
                self.redistribute(self._claims.ledgers.iteration, now_ns)
        if (
            running
            and self._job.spec.has_custody
            and not self._epochs.without_dedicated
            and self._job.dead_custodians()
        ):
            # The workers can keep sums themselves.
            self._epochs.without_dedicated = True
            self._job.say(now_ns, "death", None, "a dedicated custodian died: workers keep sums from now on")
            self._epochs.roles_changed(now_ns)
            self._passes.roles_changed(now_ns)

    def redistribute(self, iteration: int, now_ns: int) -> None:
        """A new epoch, and workers that wait compute what is free now."""
        if self._job.spans_racks:
            alone = self._racks.choose_carriers(self._job.dead, self._job.alive(), self._epochs.now.ranks)
            if alone:
                names = ", ".join(map(str, alone))
                self._job.fail(now_ns, f"worker {names} died, and nobody is left who could carry its part")
                return
        end = (iteration + 1) * self._job.chunks
        complete = any(int(self._job.senders[rank].oldest) >= end for rank in self._job.alive())
        recalled = [] if complete or iteration != self._claims.ledgers.iteration else self.waiting(end)
        for rank in recalled:
            self._job.workers[rank].hold = RECALLED
        if self._job.spans_racks:
            for rank in self._job.alive():
                # What is complete is asked for; what was sent before the death must not go out again as it is.
                if self._job.workers[rank].hold == 0 and not (
                    complete and self._contents.exchange_of(rank) <= iteration
                ):
                    self._contents.update_hold(rank)
        elif not self._claims.by_shares and self._claims.settled == iteration:
            self.choose_carriers(recalled)
        self._epochs.begin(now_ns)
        for rank in self._job.alive():
            plan = self._claims.plans[rank]
            if plan.iteration == self._claims.ledgers.iteration and plan.gate >= 0 and not plan.final:
                self._passes.reconsider(rank, now_ns)
        for rank in recalled:
            if self._claims.plans[rank].iteration != iteration:
                self._claims.plans[rank] = WorkPlan(iteration, final=True)
            self._job.say(
                now_ns, "recall", rank, f"has sent iteration {iteration}; computes what is free again"
            )
            self.compute_more(rank, iteration, now_ns)

    def choose_carriers(self, recalled: list[int]) -> None:
        """Where bits alone are counted, one worker that has yet to send carries the bit of a dead one."""
        ready = recalled + [
            rank for rank in self._job.alive() if not self._claims.plans[rank].final and rank not in recalled
        ]
        contents = self._contents
        contents.carriers = choose_carriers(contents.carriers, self._job.dead, self._job.alive(), ready)

    def waiting(self, end: int) -> list[int]:
        """Workers that have sent all of an iteration, lack results of it, and have nothing else to do."""
        return [
            rank
            for rank in self._job.alive()
            if self._job.workers[rank].phase in (w.BLOCKED, w.DRAINING)
            and int(self._job.senders[rank].oldest) < end
            and self._job.workers[rank].hold != RECALLED
        ]

    def nobody_comes(self) -> bool:
        """Is there work of the dead that no worker is going to do, and a worker that waits for its result?"""
        iteration = self._claims.ledgers.iteration
        end = (iteration + 1) * self._job.chunks
        if self._job.unfinished() != iteration or any(
            int(self._job.senders[r].oldest) >= end for r in self._job.alive()
        ):
            return False
        busy = any(
            not self._claims.is_final(rank) or self._job.workers[rank].hold == RECALLED
            for rank in self._job.alive()
        )
        return not busy and not self._contents.is_covered(iteration) and bool(self.waiting(end))

    def let_go(self, now_ns: int) -> None:
        """A worker that carries a dead one's bit may send as soon as the dead one's work has been taken."""
        for rank in self._job.alive():
            if self._job.workers[rank].hold != WAITING:
                continue
            if self._contents.is_covered(self._contents.exchange_of(rank)):
                self._job.workers[rank].hold = 0
                self._job.tell(rank, WAKE, now_ns)

    def compute_more(self, rank: int, iteration: int, now_ns: int) -> None:
        """A recalled worker takes the next free micro-batch, or is ready to send again."""
        if rank in self._job.dead or self._job.record.failed_ns != 0 or self._job.record.done_ns != 0:
            return
        plan = self._claims.plans[rank]
        owner = -1 if self._claims.ledgers.iteration != iteration else self.free_for(rank, plan)
        got = self._claims.policy.take(rank, owner, now_ns) if owner >= 0 else None
        if not isinstance(got, Grant):
            self.resume(rank, iteration, now_ns)
            return
        if self._claims.counts_bits():
            plan.owner = plan.owner if plan.owner >= 0 else owner
        elif rank not in self._claims.ledgers.open and plan.owner in (-1, owner):
            plan.owner = owner
        elif owner != rank:
            plan.adopted.add(owner)
        self._claims.note_claim(rank, got, now_ns)
        worker = self._job.workers[rank]
        took_ns = self._job.unit_ns * int(worker.slow_num) // int(worker.slow_den)

        def done(then_ns: int) -> None:
            if rank not in self._job.dead and self._claims.ledgers.iteration == iteration:
                self._claims.policy.finish(rank, got.claim, None)
            self.compute_more(rank, iteration, then_ns)

        self._job.plan(now_ns + took_ns + 2 * self._job.options.latency, done)

    def free_for(self, rank: int, plan: WorkPlan) -> int:
        """The owner whose free micro-batches a recalled worker may compute; -1: none."""
        free = [
            owner
            for owner in self._claims.ledgers.open
            if self._claims.ledgers.free(owner) and self._claims.adopter(owner) in (-1, rank)
        ]
        if self._claims.counts_bits():
            return self._claims.policy.neediest(free)
        if rank in self._claims.ledgers.open:
            bound = rank
        elif plan.owner < 0:
            return self._claims.policy.neediest(free)
        else:
            bound = plan.owner
        if bound in free:
            return bound
        return self._claims.adoptable(rank)

    def resume(self, rank: int, iteration: int, now_ns: int) -> None:
        """Send again what has no result, with all that was computed."""
        self._job.workers[rank].hold = 0
        if self._claims.ledgers.iteration == iteration:
            self._contents.finalise(rank, now_ns)
        self.let_go(now_ns)
        self._job.tell(rank, WAKE, now_ns)
