"""bco-plus, ours: SJF-BCO's plan, then backfilling, then local search judged by the exact evaluator.

1. Start: SJF-BCO (with and without its one-server variant), so that the result is never worse.
2. Backfilling: serve the waiting jobs whenever GPUs fall free (`dispatch.py`), longest or widest first.
3. Search over the order of that list, over who may spread and who holds back those behind it.
4. Search over the plan itself: move a job to other servers, swap the GPUs of two jobs, reorder the queues,
   or let a job wait for another to end (which the first three cannot do, and contention sometimes rewards).

Every candidate is judged by the event-driven model. With `evaluations` the search is reproducible to the
bit; with `budget_s` it stops by the clock, counted from the end of step 1. It stops early when the
lower bound is reached.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from paceline.schedule import bounds, dispatch, timeline
from paceline.schedule.contention import Floats, Ints, Problem
from paceline.schedule.plans import Objective, Plan, score
from paceline.schedule.policies import local_search
from paceline.schedule.policies.local_search import Candidate
from paceline.schedule.policies.sjf_bco import SjfBco

ONGOING = 60
"""Evaluations of each plan of an online run."""


@dataclass(frozen=True)
class BcoPlus:
    """The policy; `evaluations` (if given) replaces the time budget."""

    seed: int = 0
    budget_s: float = 2.0
    evaluations: int | None = None
    horizon: float | None = None
    name: str = "bco-plus"
    online: bool = False
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False)

    def plan(self, problem: Problem, objective: Objective = "makespan") -> Plan:
        allowed = ONGOING if problem.ongoing and self.evaluations is None else self.evaluations
        spent = 0

        def may_go_on(share: float) -> bool:
            # One more evaluation within this share of the whole budget?
            nonlocal spent
            spent += 1
            if allowed is not None:
                return spent <= share * allowed
            return self.clock() - began < share * self.budget_s

        goal = bounds.lower_bound(problem).value_s / problem.unit_s if objective == "makespan" else 0.0
        rng = np.random.default_rng(self.seed)
        best = first = self._start(problem, objective)
        began = self.clock()
        lists = [self._from_list(problem, objective, *genes) for genes in starts(problem)]
        champion = min(range(len(lists)), key=lambda i: lists[i].energy)
        best = min((best, lists[champion]), key=lambda candidate: candidate.energy)
        if best.score > goal * (1 + 1e-9):
            genes = list(starts(problem))[champion]
            found = local_search.over_lists(
                genes,
                lambda g: self._from_list(problem, objective, *g),
                lambda: may_go_on(0.6),
                rng,
                goal,
                [j for j in range(len(problem.jobs)) if j not in problem.pinned],
            )
            best = min((best, found), key=lambda candidate: candidate.energy)
        if best.score > goal * (1 + 1e-9):
            best = local_search.over_plans(
                problem, best, lambda c: judged(problem, c, objective), lambda: may_go_on(1.0), rng, goal
            )
        reasons = [self._reason(problem, first, best, j) for j in range(len(problem.jobs))]
        settings = {"start": first.score * problem.unit_s, "evaluations": spent, "seed": self.seed}
        return Plan(best.order, best.gpus, best.not_before, reasons, settings)

    def _start(self, problem: Problem, objective: Objective) -> Candidate:
        zeros = np.zeros(len(problem.jobs))
        plans = [
            SjfBco(fa_ffp="prose", horizon=self.horizon).plan(problem, objective),
            SjfBco(fa_ffp="one-server", horizon=self.horizon).plan(problem, objective),
        ]
        candidates = [
            judged(problem, Candidate(0.0, 0.0, plan.order, plan.gpus, zeros, zeros, "sjf-bco"), objective)
            for plan in plans
        ]
        # By the score alone, so that a better tie-break never costs makespan.
        return min(candidates, key=lambda candidate: candidate.score)

    def _from_list(
        self, problem: Problem, objective: Objective, order: Ints, mode: Ints, hold: Ints
    ) -> Candidate:
        jobs = problem.jobs_t
        pinned = np.zeros(len(order), dtype=np.bool_)
        held = np.zeros(jobs.base[-1], dtype=np.int64)
        for j, gpus in problem.pinned.items():
            pinned[j] = True
            held[jobs.base[j] : jobs.base[j + 1]] = gpus
        start, end, gpus = dispatch.run_list(
            jobs, problem.cluster_t, problem.price_t, order, mode, hold.astype(np.bool_), pinned, held
        )
        by_start = np.lexsort((np.arange(len(order)), start)).astype(np.int64)
        value = score(problem, end, objective)
        return Candidate(value, energy(value, end), by_start, gpus, start, end, "backfilling")

    def _reason(self, problem: Problem, first: Candidate, best: Candidate, j: int) -> str:
        base = problem.jobs_t.base
        mine, before = (plan.gpus[base[j] : base[j + 1]] for plan in (best, first))
        if best is first:
            return "SJF-BCO's own placement: the search found none better"
        where = problem.cluster.by_server([int(g) for g in mine])
        kind = "on one server" if len(where) == 1 else f"spread over {len(where)} servers"
        moved = "kept where SJF-BCO put it" if np.array_equal(mine, before) else f"found by {best.source}"
        gain = 1.0 - best.score / first.score
        return f"{moved}, {kind}; the whole plan is {gain:.1%} better than SJF-BCO's"


def energy(value: float, end: Floats) -> float:
    """The score with a slight preference for jobs that end early, so that plateaus have a slope."""
    return value + 1e-4 * float(end.mean())


def judged(problem: Problem, candidate: Candidate, objective: Objective) -> Candidate:
    """The candidate with its score by the judge."""
    _, end = timeline.run(problem, candidate.order, candidate.gpus, candidate.not_before)
    value = score(problem, end, objective)
    return Candidate(
        value,
        energy(value, end),
        candidate.order,
        candidate.gpus,
        candidate.not_before,
        end,
        candidate.source,
    )


def starts(problem: Problem) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Lists to begin with: an order, a way to spread, and who holds back the others."""
    n = len(problem.jobs)
    gpus, times = problem.jobs_t.gpus, problem.shortest
    keys = (-times, -gpus * times, -gpus - times / times.max(), times, gpus * times)
    widest = problem.cluster.gpus_max
    for key in keys:
        order = np.argsort(key, kind="stable").astype(np.int64)
        for mode in (dispatch.LOCAL, dispatch.FEWEST, dispatch.QUIETEST):
            for hold in (np.zeros(n, dtype=np.int64), (gpus > widest / 2).astype(np.int64)):
                yield order, np.full(n, mode, dtype=np.int64), hold
