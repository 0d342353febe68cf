"""Takeover, step by step: what each worker of a job does next.

Who straggles is in `watching.py`, roles in the transport in `roles.py`, the ledgers in `takeover.py`, who gets what
from them in `claiming.py`, what packets hold in `contributing.py`. What happens when somebody dies is in
`standing_in.py`.
"""

from paceline.sim import world as w
from paceline.sim.build import NO_ITERATION
from paceline.sim.contributing import Contributing
from paceline.sim.orders import ANOTHER, LAST, NOT_LAST, SEND


class Helping(Contributing):
    """The coordinator of a job with `custody`, `takeover` or `both`, as long as nobody dies."""

    def roles_changed(self, now_ns: int) -> None:
        super().roles_changed(now_ns)
        if self.takes_over and self.owners() and (self.dead or self.record.cut_until == NO_ITERATION):
            self.record.helping = 1
            self.ledgers.begin(self.unfinished())
            for owner in self.owners():
                self.open_ledger(owner, now_ns)

    def unfinished(self) -> int:
        """The first iteration of which somebody lacks results: until then its ledgers are needed."""
        return min(int(self.senders[rank].oldest) for rank in self.alive()) // self.chunks

    # What comes next.

    def asked(self, kind: int, rank: int, now_ns: int) -> None:
        self.ledgers.begin(int(self.workers[rank].iteration))
        if not self.is_cut(rank):
            self.plan_of(rank)
            self.finalise(rank, now_ns)
            self.tell(rank, LAST, now_ns)
            return
        owns = rank in self.ledgers.open or (rank in self.owners() and self.open_ledger(rank, now_ns))
        owns = owns and not self.plan_of(rank).helps
        if kind == w.HALF_DONE:
            (self.owner_half if owns else self.leader_half)(rank, now_ns)
        else:
            (self.owner_whole if owns else self.leader_whole)(rank, now_ns)

    def owner_half(self, rank: int, now_ns: int) -> None:
        """A straggler half way: the last one that nobody races is committed, and its gradients leave as they come."""
        plan = self.plan_of(rank)
        assert plan.held is not None
        if not self.ledgers.holds(plan.held):
            self.claims["fenced"] += 1
            self.owner_asks(rank, now_ns)
        elif not self.ledgers.free(rank) and not self.ledgers.is_raced(plan.held) and self.orphan(rank) < 0:
            self.ledgers.commit(plan.held)
            self.finalise(rank, now_ns)
            self.tell(rank, LAST, now_ns)
        else:
            self.tell(rank, NOT_LAST, now_ns)
            if self.ledgers.free(rank) and self.others_are_busy(rank):
                self.owner_asks_ahead(rank, now_ns)

    def owner_whole(self, rank: int, now_ns: int) -> None:
        plan = self.plan_of(rank)
        assert plan.held is not None
        if plan.began_ns:
            self.ledgers.pace_ns[rank] = float(now_ns - plan.began_ns)
        if not self.ledgers.finish(plan.held):
            self.claims["fenced"] += 1
        if plan.following and now_ns >= plan.ready_ns:
            plan.held, plan.began_ns = plan.following.pop(0), now_ns
            self.ledgers.start(plan.held, now_ns)
            self.tell(rank, ANOTHER, now_ns)
        else:
            self.owner_asks(rank, now_ns)

    def others_are_busy(self, rank: int) -> bool:
        """Is everyone else's own work going to last for longer than this worker takes for a micro-batch?"""
        iteration, pace_ns = int(self.workers[rank].iteration), self.pace_of(rank)
        for other in self.alive():
            worker = self.workers[other]
            left = self.job.parts - 1 - int(worker.micro) if worker.iteration == iteration else self.job.parts
            if other != rank and (worker.iteration > iteration or left * self.unit_ns <= pace_ns):
                return False
        return not self.dead

    def owner_asks_ahead(self, rank: int, now_ns: int) -> None:
        """While nobody else could take it: the straggler's next micro-batch, without a wait between the two."""
        plan = self.plan_of(rank)
        iteration = plan.iteration
        plan.ready_ns = now_ns + 2 * self.latency_ns

        def decide(then_ns: int) -> None:
            working = plan.held is not None and not plan.following and not plan.helps
            if working and not self.is_over(rank, iteration) and self.ledgers.free(rank):
                got = self.ledgers.take(rank, rank, then_ns)
                plan.following = [got] if got else []

        self.plan(now_ns + self.latency_ns, decide)

    def owner_asks(self, rank: int, now_ns: int) -> None:
        """A slow worker asks when it is ready: what it held in advance, others could not take."""
        plan = self.plan_of(rank)
        plan.held = None
        iteration = plan.iteration
        self.plan(now_ns + self.latency_ns, lambda then_ns: self.owner_claims(rank, iteration, then_ns))

    def owner_claims(self, rank: int, iteration: int, now_ns: int) -> None:
        plan = self.plans[rank]
        if self.is_over(rank, iteration):
            return
        if plan.following:
            plan.held = plan.following.pop(0)
            self.ledgers.start(plan.held, now_ns)
        else:
            plan.stopped = self.ledgers.free(rank) > 0 and self.is_better_left(rank, now_ns)
            if plan.stopped:
                self.later(rank, SEND, now_ns)
                return
            owner = rank if self.ledgers.free(rank) else self.orphan(rank)
            plan.held = self.ledgers.take(owner, rank, now_ns) if owner >= 0 else None
            if owner not in (-1, rank):
                plan.adopted.add(owner)
        plan.began_ns = now_ns
        if plan.held is None and self.counts_bits():
            # It is done with its own, and others are not: it helps them as a leader does.
            taken = self.choose(rank, now_ns, now_ns + self.latency_ns)
            if taken:
                plan.helps, plan.held = True, taken[0]
        what = ANOTHER if plan.held else SEND
        self.later(rank, what, now_ns)

    def owner_fenced(self, rank: int, iteration: int, now_ns: int) -> None:
        """Somebody else has committed what this straggler works on: it stops, and sends what it has."""
        plan = self.plans[rank]
        if self.is_over(rank, iteration) or plan.held is None or self.ledgers.holds(plan.held):
            return
        if plan.following or plan.helps:
            # There is more for it to do: it will see when it asks.
            return
        worker = self.workers[rank]
        unready = worker.phase == w.FORWARD and worker.remaining != 0
        if worker.phase in (w.ASKING, w.BLOCKED) or unready:
            # It asks soon, or still lacks results of the iteration before: it will see for itself.
            return
        self.claims["fenced"] += 1
        plan.held = None
        self.finalise(rank, now_ns)
        self.tell(rank, SEND, now_ns)

    def leader_half(self, rank: int, now_ns: int) -> None:
        """A leader half way: is there another one to come? It asked when it began this one."""
        plan = self.plan_of(rank)
        if plan.held is None and self.workers[rank].micro + 1 < self.job.parts:
            self.tell(rank, NOT_LAST, now_ns)
            return
        if not plan.asked:
            self.ask_ahead(rank, now_ns)
        if now_ns < plan.ready_ns:
            iteration = plan.iteration
            self.plan(
                plan.ready_ns,
                lambda then_ns: None if self.is_over(rank, iteration) else self.leader_half(rank, then_ns),
            )
        elif plan.following:
            self.tell(rank, NOT_LAST, now_ns)
        else:
            self.wait_at_gate(rank, LAST if self.commit(rank, now_ns) else SEND, now_ns)

    def commit(self, rank: int, now_ns: int) -> bool:
        """The present micro-batch is the last: it is this worker's. False if somebody else was quicker."""
        plan = self.plans[rank]
        if plan.held is None or plan.committed:
            return True
        if not self.ledgers.commit(plan.held):
            self.claims["fenced"] += 1
            plan.held = None
            return False
        plan.committed = True
        owner, iteration = plan.held[0], plan.iteration
        self.plan(now_ns + self.latency_ns, lambda then_ns: self.owner_fenced(owner, iteration, then_ns))
        return True

    def wait_at_gate(self, rank: int, order: int, now_ns: int) -> None:
        """Leaders begin their last backward passes together: their sums then fill side by side in the switch.

        Who is ready first would only wait for results, with its sums in aggregators that cannot be complete.
        """
        self.plans[rank].gate = order
        self.open_gate(now_ns)

    def open_gate(self, now_ns: int) -> None:
        """Let the leaders go if none of them still computes something that comes before."""
        iteration = self.ledgers.iteration
        # A straggler that helps is one of them.
        helping = {
            rank
            for rank in self.alive()
            if self.plans[rank].helps and self.plans[rank].iteration == iteration
        }
        leaders = [rank for rank in self.alive() if rank not in self.ledgers.open or rank in helping]
        ready = []
        for rank in leaders:
            plan, worker = self.plans[rank], self.workers[rank]
            if worker.iteration > iteration or worker.phase in (w.BACKWARD, w.DRAINING, w.FINISHED):
                continue
            if plan.iteration != iteration or plan.gate < 0:
                return
            ready.append(rank)
        for rank in ready:
            if self.adoptable(rank) >= 0:
                # Whoever was to compute a dead worker's part has come to straggle itself.
                self.reconsider(rank, now_ns)
                return
        for rank in ready:
            self.finalise(rank, now_ns)
            self.tell(rank, self.plans[rank].gate, now_ns)

    def reconsider(self, rank: int, now_ns: int) -> None:
        """There is something to compute again: a leader at the gate may take it."""
        plan = self.plans[rank]
        order, plan.gate, plan.asked = plan.gate, -1, False
        if order == LAST:
            self.leader_half(rank, now_ns)
        else:
            plan.following = self.choose(rank, now_ns, now_ns)
            self.leader_whole(rank, now_ns)

    def leader_whole(self, rank: int, now_ns: int) -> None:
        """A leader has ended a micro-batch: the next of its own, or the one that it asked for."""
        plan = self.plan_of(rank)
        if plan.held is not None and not self.ledgers.finish(plan.held):
            self.claims["fenced"] += 1
        plan.held, plan.committed = None, False
        micro = int(self.workers[rank].micro)
        if micro < self.job.parts and not plan.helps:
            self.tell(rank, ANOTHER, now_ns)
            if micro + 1 == self.job.parts:
                self.ask_ahead(rank, now_ns)
        elif plan.following:
            plan.held = plan.following.pop(0)
            plan.began_ns = now_ns
            self.tell(rank, ANOTHER, now_ns)
            if not plan.following:
                self.ask_ahead(rank, now_ns)
        elif not plan.asked:
            # What it was to compute next has been taken back.
            self.ask_ahead(rank, now_ns)
            iteration = plan.iteration
            self.plan(
                plan.ready_ns,
                lambda then_ns: None if self.is_over(rank, iteration) else self.leader_whole(rank, then_ns),
            )
        else:
            self.wait_at_gate(rank, SEND, now_ns)

    def ask_ahead(self, rank: int, now_ns: int) -> None:
        """Ask for the next micro-batch while the present one is computed."""
        plan = self.plan_of(rank)
        plan.asked = plan.pending = True
        plan.ready_ns = now_ns + 2 * self.latency_ns
        iteration, ready_ns = plan.iteration, now_ns + self.pace_of(rank)

        def decide(then_ns: int) -> None:
            plan.pending = False
            if not self.is_over(rank, iteration):
                plan.following = self.choose(rank, then_ns, ready_ns)

        self.plan(now_ns + self.latency_ns, decide)

    def later(self, rank: int, what: int, now_ns: int) -> None:
        """The answer is on its way."""
        iteration = self.plans[rank].iteration

        def arrives(then_ns: int) -> None:
            if not self.is_over(rank, iteration):
                if what == SEND:
                    self.finalise(rank, then_ns)
                self.tell(rank, what, then_ns)

        self.plan(now_ns + self.latency_ns, arrives)

    def is_over(self, rank: int, iteration: int) -> bool:
        """Has the worker died, or gone on, since an answer was planned?"""
        plan = self.plans[rank]
        return rank in self.dead or plan.iteration != iteration or plan.final or self.record.failed_ns != 0

    def tick(self, now_ns: int) -> None:
        super().tick(now_ns)
        if self.record.helping and not self.owners() and not (self.workers.helped != 0).any():
            self.ledgers.begin(self.unfinished())
            self.record.helping = int(bool(self.ledgers.open))
        if any(plan.gate >= 0 and not plan.final for plan in self.plans):
            self.open_gate(now_ns)
