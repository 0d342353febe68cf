"""When somebody dies: the others compute its part, now and in every later iteration.

The iteration whose results are incomplete is looked at. What the dead one held or had computed there is free again,
and its own micro-batches are a ledger without an owner. A new epoch begins: partial sums are void, results stay, and
whatever has no result yet is sent again. Leaders that still compute take from the ledgers as always. Leaders that
have sent everything and wait are called back: they hold their packets, compute what is free, and send again with the
larger share. If a result of every chunk is with somebody, nothing is computed again: it is pulled.

A helper has shares of one owner. An owner that no helper has room for is adopted: one helper computes all that is
left of it, and carries its bit.
"""

from paceline.sim import world as w
from paceline.sim.claiming import RECALLED, WAITING
from paceline.sim.helping import Helping
from paceline.sim.orders import WAKE, tell_job
from paceline.sim.takeover import WorkPlan


class StandingIn(Helping):
    """The coordinator of a job with help, deaths included."""

    def died(self, rank: int, now_ns: int) -> None:
        if not self.takes_over or self.policy == "switchml":
            without = "under switchml" if self.takes_over else "without takeover"
            self.fail(now_ns, f"worker {rank} died, and {without} nobody can stand in for it")
            return
        self.record.needed = len(self.alive())
        if self.record.finished >= self.record.needed:
            tell_job(self.world, self.j, False, now_ns)
            return
        self.record.helping = 1
        iteration = self.unfinished()
        self.ledgers.begin(iteration)
        self.ledgers.leave(rank)
        self.open_ledger(rank, now_ns)
        self.cut(True)
        for other in self.part_owners():
            self.owner_asks(other, now_ns)
        self.redistribute(iteration, now_ns)

    def tick(self, now_ns: int) -> None:
        super().tick(now_ns)
        running = self.record.done_ns == 0 and self.record.failed_ns == 0
        if running and self.dead:
            self.let_go(now_ns)
            if self.nobody_comes():
                self.redistribute(self.ledgers.iteration, now_ns)
        if running and self.has_custody and not self.without_dedicated and self.dead_custodians():
            # The workers can keep sums themselves.
            self.without_dedicated = True
            self.say(now_ns, "death", None, "a dedicated custodian died: workers keep sums from now on")
            self.roles_changed(now_ns)

    def redistribute(self, iteration: int, now_ns: int) -> None:
        """A new epoch, and who waits computes what is free now."""
        if self.spread:
            alone = self.seats.choose_carriers(self.dead, self.alive(), self.leaders)
            if alone:
                names = ", ".join(map(str, alone))
                self.fail(now_ns, f"worker {names} died, and nobody is left who could carry its part")
                return
        end = (iteration + 1) * self.chunks
        complete = any(int(self.senders[rank].oldest) >= end for rank in self.alive())
        recalled = [] if complete or iteration != self.ledgers.iteration else self.waiting(end)
        for rank in recalled:
            self.workers[rank].hold = RECALLED
        if self.spread:
            for rank in self.alive():
                # What is complete is asked for; what was sent before the death must not go out again as it is.
                if self.workers[rank].hold == 0 and not (complete and self.exchange_of(rank) <= iteration):
                    self.see_cover(rank)
        elif not self.by_shares and self.settled == iteration:
            self.choose_carriers(recalled)
        self.begin_epoch_of_roles(now_ns)
        for rank in self.alive():
            plan = self.plans[rank]
            if plan.iteration == self.ledgers.iteration and plan.gate >= 0 and not plan.final:
                self.reconsider(rank, now_ns)
        for rank in recalled:
            if self.plans[rank].iteration != iteration:
                self.plans[rank] = WorkPlan(iteration, final=True)
            self.say(now_ns, "recall", rank, f"has sent iteration {iteration}; computes what is free again")
            self.compute_more(rank, iteration, now_ns)

    def choose_carriers(self, recalled: list[int]) -> None:
        """Where bits alone are counted, one worker that has yet to send carries the bit of a dead one."""
        ready = recalled + [
            rank for rank in self.alive() if not self.plans[rank].final and rank not in recalled
        ]
        for dead in self.dead:
            if self.carriers.get(dead) not in self.alive() and ready:
                self.carriers[dead] = ready[0]

    def waiting(self, end: int) -> list[int]:
        """Those who have sent all of an iteration, lack results of it, and have nothing else to do."""
        return [
            rank
            for rank in self.alive()
            if self.workers[rank].phase in (w.BLOCKED, w.DRAINING)
            and int(self.senders[rank].oldest) < end
            and self.workers[rank].hold != RECALLED
        ]

    def nobody_comes(self) -> bool:
        """Is there work of the dead that nobody is going to do, and somebody who waits for its result?"""
        iteration = self.ledgers.iteration
        end = (iteration + 1) * self.chunks
        if self.unfinished() != iteration or any(int(self.senders[r].oldest) >= end for r in self.alive()):
            return False
        busy = any(not self.is_final(rank) or self.workers[rank].hold == RECALLED for rank in self.alive())
        return not busy and not self.is_covered(iteration) and bool(self.waiting(end))

    def let_go(self, now_ns: int) -> None:
        """Those who carry a dead worker's bit may send as soon as its work has been taken."""
        for rank in self.alive():
            if self.workers[rank].hold != WAITING:
                continue
            if self.is_covered(self.exchange_of(rank)):
                self.workers[rank].hold = 0
                self.tell(rank, WAKE, now_ns)

    def compute_more(self, rank: int, iteration: int, now_ns: int) -> None:
        """A recalled worker takes the next free micro-batch, or is ready to send again."""
        if rank in self.dead or self.record.failed_ns != 0 or self.record.done_ns != 0:
            return
        plan = self.plans[rank]
        owner = -1 if self.ledgers.iteration != iteration else self.free_for(rank, plan)
        got = self.ledgers.take(owner, rank, now_ns) if owner >= 0 else None
        if got is None:
            self.resume(rank, iteration, now_ns)
            return
        if self.counts_bits():
            plan.owner = plan.owner if plan.owner >= 0 else owner
        elif rank not in self.ledgers.open and plan.owner in (-1, owner):
            plan.owner = owner
        elif owner != rank:
            plan.adopted.add(owner)
        self.claims["first"] += 1
        self.say_claim(rank, got, False, now_ns)
        worker = self.workers[rank]
        took_ns = self.unit_ns * int(worker.slow_num) // int(worker.slow_den)

        def done(then_ns: int) -> None:
            if rank not in self.dead and self.ledgers.iteration == iteration:
                self.ledgers.finish(got)
            self.compute_more(rank, iteration, then_ns)

        self.plan(now_ns + took_ns + 2 * self.latency_ns, done)

    def free_for(self, rank: int, plan: WorkPlan) -> int:
        """Whose free micro-batches a recalled worker may compute; -1 if nobody's."""
        free = [
            owner
            for owner in self.ledgers.open
            if self.ledgers.free(owner) and self.adopter(owner) in (-1, rank)
        ]
        if self.counts_bits():
            return max(free, key=self.load, default=-1)
        if rank in self.ledgers.open:
            bound = rank
        elif plan.owner < 0:
            return max(free, key=self.load, default=-1)
        else:
            bound = plan.owner
        if bound in free:
            return bound
        return self.adoptable(rank)

    def resume(self, rank: int, iteration: int, now_ns: int) -> None:
        """Send again what has no result, with all that was computed."""
        self.workers[rank].hold = 0
        if self.ledgers.iteration == iteration:
            self.finalise(rank, now_ns)
        self.let_go(now_ns)
        self.tell(rank, WAKE, now_ns)
