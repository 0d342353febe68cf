"""Claims on micro-batches: which ledgers are open, and what a worker that is ready gets from them.

A helper takes from the owner with most left to do for each of its helpers. Where packets tell shares it takes from one
owner an iteration: a packet has room for no more. Where bits alone are counted, as with several stragglers, it
takes from the owner furthest behind at the moment, and stragglers that are done with their own take as well. A
straggler that would need longer for one more of its own than its helpers for all that is left leaves it to them. A
dead worker that no helper has room for is adopted: one helper computes all of it, and carries its bit.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from paceline.core.help.detect import choose_owners
from paceline.core.help.ledger import Claim
from paceline.core.help.takeover import Grant, TakeoverPolicy, find_adoptable, find_orphan
from paceline.sim.help.micro_batching import MicroBatching
from paceline.sim.help.watch import HelpedJob, ProgressWatch

RECALLED = 1
"""A worker's `hold`: it has sent, and computes something more before it sends again."""
WAITING = 2
"""A worker's `hold`: it is ready, but what its packets stand for is not computed yet."""


@dataclass
class WorkPlan:
    """What the coordinator knows of one worker's iteration."""

    iteration: int = -1
    held: Claim | None = None
    """The micro-batch of a ledger that it works on."""
    following: list[Claim] = field(default_factory=list)
    asked: bool = False
    """Has it asked for what follows?"""
    pending: bool = False
    """... and the coordinator has not answered yet."""
    ready_ns: int = 0
    """When the answer is with it."""
    owner: int = -1
    """The first owner whose micro-batches it has taken; the only one, where packets tell shares. -1: none."""
    helps: bool = False
    """A straggler that is done with its own, and takes others' as a leader does."""
    stopped: bool = False
    """A straggler that leaves the rest of its own to helpers."""
    adopted: set[int] = field(default_factory=set)
    committed: bool = False
    """No other worker can take what it works on any more."""
    gate: int = -1
    """The order that it gets when all leaders are ready for their last backward pass; -1 if it is not."""
    final: bool = False
    began_ns: int = 0


class Claims:
    """Those of one job: its ledgers, and what every worker holds and is about to."""

    def __init__(
        self, job: HelpedJob, watch: ProgressWatch, cutting: MicroBatching, policy: TakeoverPolicy
    ) -> None:
        self._job, self._watch, self._cutting = job, watch, cutting
        self.policy, self.ledgers = policy, policy.ledgers
        self.plans = [WorkPlan() for _ in range(job.n)]
        self.settled = -1
        """The iteration of which it is settled how packets tell what they hold."""
        self.by_shares = True
        """Do its packets tell shares, or bits alone?"""

    def owners(self) -> list[int]:
        """The workers whose work others may take."""
        return choose_owners(self._watch.roles(), self._job.dead, self._cutting.policy.pays)

    def orphan(self, rank: int) -> int:
        """A dead worker whose part a straggler must compute, since no other worker will; -1: none."""
        adopted = self.plans[rank].adopted
        coming = any(self.may_come(other) for other in self._job.alive() if other != rank)
        return find_orphan(self.ledgers, rank, self._job.dead, adopted, self.adopter, coming)

    def adopter(self, owner: int) -> int:
        """The worker that computes all of a dead worker's part alone, and carries its bit; -1: none."""
        for rank in self._job.alive():
            plan = self.plans[rank]
            if plan.iteration == self.ledgers.iteration and owner in plan.adopted:
                return rank
        return -1

    def may_come(self, rank: int) -> bool:
        """Will this worker ask for something to compute in this iteration, or may it be called back?"""
        if rank in self.ledgers.open:
            return False
        behind = self.ledgers.iteration - int(self._job.workers[rank].iteration)
        final = self.plans[rank].final and self.plans[rank].iteration == self.ledgers.iteration
        computes = behind == 0 and not final and self._job.is_cut(rank)
        return behind > 0 or computes or self._job.workers[rank].hold == RECALLED

    def open_ledger(self, owner: int, now_ns: int) -> bool:
        """The owner's ledger of this iteration, begun where the owner is; False if it has nothing to give."""
        if owner in self.ledgers.open:
            return True
        if owner in self._job.dead:
            self.ledgers.create(owner, self._job.spec.parts, now_ns)
            return True
        if self.settled == self.ledgers.iteration and self.by_shares:
            # Packets of this iteration hold shares of one owner; an aggregator has no room for another's.
            return False
        worker = self._job.workers[owner]
        done = int(worker.micro)
        if (
            worker.iteration != self.ledgers.iteration
            or not self._job.is_cut(owner)
            or self._job.sends(owner)
            or self.plan_of(owner).final
            or self.plan_of(owner).asked
            or done >= self._job.spec.parts
        ):
            return False
        self.ledgers.create(owner, self._job.spec.parts, now_ns, done, working=True)
        self.policy.paces.guess(owner, self._cutting.policy.slowness_of(owner) * self._job.unit_ns)
        plan = self.plan_of(owner)
        # When it began with what it works on is not known.
        plan.held, plan.began_ns = self.ledgers.first_claim(owner), 0
        if plan.held is not None:
            self.policy.start(plan.held, now_ns)
        return True

    def plan_of(self, rank: int) -> WorkPlan:
        """What is known of a worker's present iteration."""
        iteration = int(self._job.workers[rank].iteration)
        if self.plans[rank].iteration != iteration:
            self.plans[rank] = WorkPlan(iteration)
        return self.plans[rank]

    def is_final(self, rank: int) -> bool:
        """Is it fixed what this worker's packets of the iteration hold?"""
        plan, worker = self.plans[rank], self._job.workers[rank]
        if plan.iteration == self.ledgers.iteration and worker.iteration == plan.iteration:
            return plan.final
        # Before a worker straggled or died, workers did not ask.
        return int(worker.iteration) >= self.ledgers.iteration + (0 if self._job.sends(rank) else 1)

    def counts_bits(self) -> bool:
        """Do packets of this iteration tell no shares, so that a helper may have some of several owners?"""
        if self._job.spans_racks or self._job.policy == "switchml":
            return True
        if self.settled == self.ledgers.iteration:
            return not self.by_shares
        return len(self.ledgers.open) > 1 and not self._job.dead

    def drop_extra_owners(self) -> list[int]:
        """A worker has died: packets tell shares from now on, of one owner each.

        A helper of several owners drops all but the first's, and a straggler all that is not its own. Nothing
        of this iteration has been sent yet, or bits alone are counted and nothing need be dropped. Gives the stragglers
        that waited at the gate.
        """
        at_gate: list[int] = []
        if self._job.spans_racks or self.settled == self.ledgers.iteration:
            return at_gate
        for rank in self._job.alive():
            plan = self.plans[rank]
            if plan.iteration != self.ledgers.iteration:
                continue
            kept = rank if rank in self.ledgers.open else plan.owner
            for owner in self.ledgers.open.keys() - plan.adopted - {kept}:
                self.ledgers.drop(owner, rank)
            if plan.held is not None and not self.ledgers.holds(plan.held):
                plan.committed = False
            if any(not self.ledgers.holds(claim) for claim in plan.following):
                plan.following, plan.asked = [], False
            if plan.helps:
                plan.helps, plan.owner = False, -1
                if plan.gate >= 0:
                    plan.gate = -1
                    at_gate.append(rank)
        return at_gate

    def take_own(self, rank: int, now_ns: int) -> Claim | None:
        """The next of a straggler's own; None if there is none, or if its helpers are sooner done with all of them."""
        if not self.ledgers.free(rank):
            return None
        if self._job.dead:
            got = self.policy.take(rank, rank, now_ns)
        else:
            # Where helpers may take from several, they have the others' work to do as well.
            owners = tuple(self.ledgers.open) if self.counts_bits() else (rank,)
            coming = self._coming(rank, owners)
            got = self.policy.claim(rank, now_ns, owners=owners, coming=coming, may_race=False)
        return got.claim if isinstance(got, Grant) else None

    def take_orphan(self, rank: int, now_ns: int) -> Claim | None:
        """A straggler that is done with its own computes a dead worker's part, where no other worker will."""
        owner = self.orphan(rank)
        got = self.policy.take(rank, owner, now_ns) if owner >= 0 else None
        if not isinstance(got, Grant):
            return None
        self.plans[rank].adopted.add(owner)
        return got.claim

    def take_own_ahead(self, rank: int, now_ns: int) -> Claim | None:
        """The straggler's next while it works on another: no other worker comes before it is done."""
        got = self.policy.take(rank, rank, now_ns, ready_ns=now_ns)
        return got.claim if isinstance(got, Grant) else None

    def choose(self, rank: int, now_ns: int, ready_ns: int) -> list[Claim]:
        """The claim that a worker gets that is done with its own: where most is left to do."""
        plan = self.plan_of(rank)
        any_owner = self.counts_bits()
        if rank in self.ledgers.open and not any_owner:
            return []
        owners = [
            owner
            for owner in dict.fromkeys([*self.owners(), *self.ledgers.open])
            if owner != rank
            and self.adopter(owner) in (-1, rank)
            and (plan.owner < 0 or owner == plan.owner or any_owner)
            and self.open_ledger(owner, now_ns)
        ]
        coming = self._coming(rank, owners)
        got = self.policy.claim(rank, now_ns, ready_ns=ready_ns, owners=owners, coming=coming)
        if not isinstance(got, Grant):
            return self.adopt(rank, now_ns)
        if plan.owner < 0:
            plan.owner = got.owner
        self.note_claim(rank, got, now_ns)
        return [got.claim]

    def _coming(self, rank: int, owners: Collection[int]) -> dict[int, float]:
        """The other workers that are sure to ask for micro-batches of these owners, each with its other work before."""
        coming: dict[int, float] = {}
        for other in self._job.alive():
            plan, worker = self.plans[other], self._job.workers[other]
            if (
                other == rank
                or self._job.iteration_of(other) != self.ledgers.iteration
                or not self._job.is_cut(other)
            ):
                continue
            here = plan.iteration == self.ledgers.iteration
            if other in self.ledgers.open and not plan.helps:
                if other in owners and not plan.stopped and not self.is_final(other):
                    coming[other] = 0.0
                continue
            answered = plan.asked and not plan.pending and not plan.following
            elsewhere = plan.owner >= 0 and plan.owner not in owners and not self.counts_bits()
            if not (here and (plan.final or plan.gate >= 0 or answered or elsewhere)):
                own = 0 if plan.helps else max(0, self._job.spec.parts - int(worker.micro))
                coming[other] = float(own * self._job.unit_ns)
        return coming

    def adopt(self, rank: int, now_ns: int) -> list[Claim]:
        """One more micro-batch of a dead worker that this one stands in for alone, if there is one."""
        owner = self.adoptable(rank)
        got = self.policy.take(rank, owner, now_ns) if owner >= 0 else None
        if not isinstance(got, Grant):
            return []
        self.plans[rank].adopted.add(owner)
        self.note_claim(rank, got, now_ns)
        return [got.claim]

    def adoptable(self, rank: int) -> int:
        """A dead worker with something to compute that no helper has room for; -1 if there is none."""

        def somebody_else_helps(owner: int) -> bool:
            return any(self.may_help(other, owner) for other in self._job.alive() if other != rank)

        return find_adoptable(self.ledgers, rank, self._job.dead, somebody_else_helps)

    def may_help(self, rank: int, owner: int) -> bool:
        """Will this worker come to compute some of the owner's, without adopting it as a whole?"""
        plan = self.plans[rank]
        if rank in self.ledgers.open or (
            plan.owner not in (-1, owner) and plan.iteration == self.ledgers.iteration
        ):
            return False
        computes = int(self._job.workers[rank].iteration) == self.ledgers.iteration and self._job.is_cut(rank)
        final = plan.final and plan.iteration == self.ledgers.iteration
        return (computes and not final) or bool(self._job.workers[rank].hold == RECALLED)

    def note_claim(self, rank: int, got: Grant, now_ns: int) -> None:
        self._job.claims["second" if got.is_race else "first"] += 1
        self._job.say(now_ns, "claim", rank, f"micro-batch {got.m} of worker {got.owner}: {got.reason}")
