"""What a worker does next: the answer to each pass that it ends, as long as no worker dies.

A leader computes its own micro-batches first, then what it is given of others. It asks for its next one when it begins
the present one, so it knows after the forward pass whether that is its last: then it commits it, and its gradients
leave layer by layer. If it races a straggler for the one that this works on, it commits that too, and the straggler is
told to stop. A straggler asks when it is ready, since others could not take what it held in advance.
"""

from paceline.core.help.ledger import Claim
from paceline.sim.engine import world as w
from paceline.sim.help.claims import Claims
from paceline.sim.help.micro_batching import MicroBatching
from paceline.sim.help.packets import PacketContents
from paceline.sim.help.watch import HelpedJob
from paceline.sim.hosts.compute import ANOTHER, LAST, NOT_LAST, SEND


class Passes:
    """Those of one job's workers."""

    def __init__(
        self, job: HelpedJob, claims: Claims, contents: PacketContents, cutting: MicroBatching
    ) -> None:
        self._job, self._claims, self._contents, self._cutting = job, claims, contents, cutting

    def roles_changed(self, now_ns: int) -> None:
        claims, job = self._claims, self._job
        if job.spec.takes_over and claims.owners() and (job.dead or self._cutting.cuts()):
            job.record.helping = 1
            claims.ledgers.begin(job.unfinished())
            for owner in claims.owners():
                claims.open_ledger(owner, now_ns)

    def asked(self, kind: int, rank: int, now_ns: int) -> None:
        self._claims.ledgers.begin(int(self._job.workers[rank].iteration))
        if not self._job.is_cut(rank):
            self._claims.plan_of(rank)
            self._contents.finalise(rank, now_ns)
            self._job.tell(rank, LAST, now_ns)
            return
        owns = rank in self._claims.ledgers.open or (
            rank in self._claims.owners() and self._claims.open_ledger(rank, now_ns)
        )
        owns = owns and not self._claims.plan_of(rank).helps
        if kind == w.FORWARD_DONE:
            (self.owner_forward_done if owns else self.leader_forward_done)(rank, now_ns)
        else:
            (self.owner_micro_batch_done if owns else self.leader_micro_batch_done)(rank, now_ns)

    def owner_forward_done(self, rank: int, now_ns: int) -> None:
        """A straggler half way: the last one, if no helper races it, is committed; its gradients leave as they come."""
        plan = self._claims.plan_of(rank)
        assert plan.held is not None
        if not self._claims.ledgers.holds(plan.held):
            self._job.claims["fenced"] += 1
            self.owner_asks(rank, now_ns)
        elif (
            not self._claims.ledgers.free(rank)
            and not self._claims.ledgers.is_raced(plan.held)
            and self._claims.orphan(rank) < 0
        ):
            self._claims.policy.commit(plan.held)
            self._contents.finalise(rank, now_ns)
            self._job.tell(rank, LAST, now_ns)
        else:
            self._job.tell(rank, NOT_LAST, now_ns)
            if self._claims.ledgers.free(rank) and self.others_are_busy(rank):
                self.owner_asks_ahead(rank, now_ns)

    def owner_micro_batch_done(self, rank: int, now_ns: int) -> None:
        plan = self._claims.plan_of(rank)
        assert plan.held is not None
        took_ns = float(now_ns - plan.began_ns) if plan.began_ns else None
        self._finish(rank, plan.held, took_ns)
        if plan.following and now_ns >= plan.ready_ns:
            plan.held, plan.began_ns = plan.following.pop(0), now_ns
            self._claims.policy.start(plan.held, now_ns)
            self._job.tell(rank, ANOTHER, now_ns)
        else:
            self.owner_asks(rank, now_ns)

    def others_are_busy(self, rank: int) -> bool:
        """Will every other worker's own work last for longer than this worker takes for a micro-batch?"""
        iteration, pace_ns = int(self._job.workers[rank].iteration), round(self._claims.policy.paces.of(rank))
        for other in self._job.alive():
            worker = self._job.workers[other]
            left = (
                self._job.spec.parts - 1 - int(worker.micro)
                if worker.iteration == iteration
                else self._job.spec.parts
            )
            if other != rank and (worker.iteration > iteration or left * self._job.unit_ns <= pace_ns):
                return False
        return not self._job.dead

    def owner_asks_ahead(self, rank: int, now_ns: int) -> None:
        """While no other worker could take it: the straggler's next micro-batch, without a wait between the two."""
        plan = self._claims.plan_of(rank)
        iteration = plan.iteration
        plan.ready_ns = now_ns + 2 * self._job.options.latency

        def decide(then_ns: int) -> None:
            working = plan.held is not None and not plan.following and not plan.helps
            if working and not self.is_over(rank, iteration) and self._claims.ledgers.free(rank):
                got = self._claims.take_own_ahead(rank, then_ns)
                plan.following = [got] if got else []

        self._job.plan(now_ns + self._job.options.latency, decide)

    def owner_asks(self, rank: int, now_ns: int) -> None:
        """A slow worker asks when it is ready: what it held in advance, others could not take."""
        plan = self._claims.plan_of(rank)
        plan.held = None
        iteration = plan.iteration
        self._job.plan(
            now_ns + self._job.options.latency, lambda then_ns: self.owner_claims(rank, iteration, then_ns)
        )

    def owner_claims(self, rank: int, iteration: int, now_ns: int) -> None:
        plan = self._claims.plans[rank]
        if self.is_over(rank, iteration):
            return
        if plan.following:
            plan.held = plan.following.pop(0)
            self._claims.policy.start(plan.held, now_ns)
        else:
            plan.held = self._claims.take_own(rank, now_ns)
            plan.stopped = plan.held is None and self._claims.ledgers.free(rank) > 0
            if plan.stopped:
                self.later(rank, SEND, now_ns)
                return
            if plan.held is None:
                plan.held = self._claims.take_orphan(rank, now_ns)
        plan.began_ns = now_ns
        if plan.held is None and self._claims.counts_bits():
            # It is done with its own, and others are not: it helps them as a leader does.
            taken = self._claims.choose(rank, now_ns, now_ns + self._job.options.latency)
            if taken:
                plan.helps, plan.held = True, taken[0]
        what = ANOTHER if plan.held else SEND
        self.later(rank, what, now_ns)

    def owner_fenced(self, rank: int, iteration: int, now_ns: int) -> None:
        """A helper has committed what this straggler works on: it stops, and sends what it has."""
        plan = self._claims.plans[rank]
        if self.is_over(rank, iteration) or plan.held is None or self._claims.ledgers.holds(plan.held):
            return
        if plan.following or plan.helps:
            # There is more for it to do: it will see when it asks.
            return
        worker = self._job.workers[rank]
        unready = worker.phase == w.FORWARD and worker.remaining != 0
        if worker.phase in (w.ASKING, w.BLOCKED) or unready:
            # It asks soon, or still lacks results of the iteration before: it will see for itself.
            return
        self._job.claims["fenced"] += 1
        plan.held = None
        self._contents.finalise(rank, now_ns)
        self._job.tell(rank, SEND, now_ns)

    def leader_forward_done(self, rank: int, now_ns: int) -> None:
        """A leader half way: is there another one to come? It asked when it began this one."""
        plan = self._claims.plan_of(rank)
        if plan.held is None and self._job.workers[rank].micro + 1 < self._job.spec.parts:
            self._job.tell(rank, NOT_LAST, now_ns)
            return
        if not plan.asked:
            self.ask_ahead(rank, now_ns)
        if now_ns < plan.ready_ns:
            iteration = plan.iteration
            self._job.plan(
                plan.ready_ns,
                lambda then_ns: (
                    None if self.is_over(rank, iteration) else self.leader_forward_done(rank, then_ns)
                ),
            )
        elif plan.following:
            self._job.tell(rank, NOT_LAST, now_ns)
        else:
            self.wait_at_gate(rank, LAST if self.commit(rank, now_ns) else SEND, now_ns)

    def commit(self, rank: int, now_ns: int) -> bool:
        """The present micro-batch is the last: it is this worker's. False if another worker was quicker."""
        plan = self._claims.plans[rank]
        if plan.held is None or plan.committed:
            return True
        is_ours, fenced = self._claims.policy.commit(plan.held)
        if not is_ours:
            self._job.claims["fenced"] += 1
            plan.held = None
            return False
        plan.committed = True
        for other in fenced:
            self._tell_fenced(other.worker, plan.iteration, now_ns)
        return True

    def _finish(self, rank: int, held: Claim, took_ns: float | None) -> None:
        counts, _ = self._claims.policy.finish(rank, held, took_ns)
        if not counts:
            self._job.claims["fenced"] += 1

    def _tell_fenced(self, owner: int, iteration: int, now_ns: int) -> None:
        """A straggler hears that a helper has committed what it works on; a leader sees when it asks."""
        if owner in self._claims.ledgers.open:
            at_ns = now_ns + self._job.options.latency
            self._job.plan(at_ns, lambda then_ns: self.owner_fenced(owner, iteration, then_ns))

    def wait_at_gate(self, rank: int, order: int, now_ns: int) -> None:
        """Leaders begin their last backward passes together: their sums then fill side by side in the switch.

        The first to be ready would only wait for results, with its sums in aggregators that cannot be complete.
        """
        self._claims.plans[rank].gate = order
        self.open_gate(now_ns)

    def open_gate(self, now_ns: int) -> None:
        """Let the leaders go if none of them still computes something that comes before."""
        iteration = self._claims.ledgers.iteration
        # A straggler that helps is one of them.
        helping = {
            rank
            for rank in self._job.alive()
            if self._claims.plans[rank].helps and self._claims.plans[rank].iteration == iteration
        }
        leaders = [
            rank for rank in self._job.alive() if rank not in self._claims.ledgers.open or rank in helping
        ]
        ready = []
        for rank in leaders:
            plan, worker = self._claims.plans[rank], self._job.workers[rank]
            if worker.iteration > iteration or self._job.sends(rank):
                continue
            if plan.iteration != iteration or plan.gate < 0:
                return
            ready.append(rank)
        for rank in ready:
            if self._claims.adoptable(rank) >= 0:
                # The worker that was to compute a dead one's part has come to straggle itself.
                self.reconsider(rank, now_ns)
                return
        for rank in ready:
            self._contents.finalise(rank, now_ns)
            self._job.tell(rank, self._claims.plans[rank].gate, now_ns)

    def reconsider(self, rank: int, now_ns: int) -> None:
        """There is something to compute again: a leader at the gate may take it."""
        plan = self._claims.plans[rank]
        order, plan.gate, plan.asked = plan.gate, -1, False
        if order == LAST:
            self.leader_forward_done(rank, now_ns)
        else:
            plan.following = self._claims.choose(rank, now_ns, now_ns)
            self.leader_micro_batch_done(rank, now_ns)

    def leader_micro_batch_done(self, rank: int, now_ns: int) -> None:
        """A leader has ended a micro-batch: the next of its own, or the one that it asked for."""
        plan = self._claims.plan_of(rank)
        if plan.held is not None:
            self._finish(rank, plan.held, None)
        plan.held, plan.committed = None, False
        micro = int(self._job.workers[rank].micro)
        if micro < self._job.spec.parts and not plan.helps:
            self._job.tell(rank, ANOTHER, now_ns)
            if micro + 1 == self._job.spec.parts:
                self.ask_ahead(rank, now_ns)
        elif plan.following:
            plan.held = plan.following.pop(0)
            plan.began_ns = now_ns
            self._claims.policy.start(plan.held, now_ns)
            self._job.tell(rank, ANOTHER, now_ns)
            if not plan.following:
                self.ask_ahead(rank, now_ns)
        elif not plan.asked:
            # What it was to compute next has been taken back.
            self.ask_ahead(rank, now_ns)
            iteration = plan.iteration
            self._job.plan(
                plan.ready_ns,
                lambda then_ns: (
                    None if self.is_over(rank, iteration) else self.leader_micro_batch_done(rank, then_ns)
                ),
            )
        else:
            self.wait_at_gate(rank, SEND, now_ns)

    def ask_ahead(self, rank: int, now_ns: int) -> None:
        """Ask for the next micro-batch while the present one is computed."""
        plan = self._claims.plan_of(rank)
        plan.asked = plan.pending = True
        plan.ready_ns = now_ns + 2 * self._job.options.latency
        iteration, ready_ns = plan.iteration, now_ns + round(self._claims.policy.paces.of(rank))

        def decide(then_ns: int) -> None:
            plan.pending = False
            if not self.is_over(rank, iteration):
                plan.following = self._claims.choose(rank, then_ns, ready_ns)

        self._job.plan(now_ns + self._job.options.latency, decide)

    def later(self, rank: int, what: int, now_ns: int) -> None:
        """The answer is on its way."""
        iteration = self._claims.plans[rank].iteration

        def arrives(then_ns: int) -> None:
            if not self.is_over(rank, iteration):
                if what == SEND:
                    self._contents.finalise(rank, then_ns)
                self._job.tell(rank, what, then_ns)

        self._job.plan(now_ns + self._job.options.latency, arrives)

    def is_over(self, rank: int, iteration: int) -> bool:
        """Has the worker died, or gone on, since an answer was planned?"""
        plan = self._claims.plans[rank]
        return (
            rank in self._job.dead
            or plan.iteration != iteration
            or plan.final
            or self._job.record.failed_ns != 0
        )

    def end_window(self, now_ns: int) -> None:
        if (
            self._job.record.helping
            and not self._claims.owners()
            and not (self._job.workers.helped != 0).any()
        ):
            self._claims.ledgers.begin(self._job.unfinished())
            self._job.record.helping = int(bool(self._claims.ledgers.open))
        if any(plan.gate >= 0 and not plan.final for plan in self._claims.plans):
            self.open_gate(now_ns)
