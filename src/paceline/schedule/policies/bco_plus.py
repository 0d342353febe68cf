"""bco-plus, ours: SJF-BCO's plan, then backfilling, then local search judged by the exact evaluator.

1. Start: SJF-BCO (with and without its one-server variant), so that the result is never worse.
2. Backfilling: serve the waiting jobs whenever GPUs fall free (`placement.run_list`), longest or widest first.
3. Search over the order of that list, over who may spread and who holds back those behind it.
4. Search over the plan itself: move a job to other servers, swap the GPUs of two jobs, reorder the queues,
   or let a job wait for another to end (which the first three cannot do, and contention sometimes rewards).

Every candidate is judged by the event-driven model. The budget is work, so many evaluations, and so the plan of a seed
is the same to the bit on any machine under any load. `budget_s` is a cap by the clock on top, counted from the end of
step 1; where it strikes, the settings say so (`capped`). The search stops early when the lower bound is reached.

**No job pays for the average** (`no_later`): a job ends at most so many times as late as under first fit, counted from
its arrival. First fit's own plan is then among the first candidates. An online run tells when each job would have ended
had first fit planned from the beginning (`Problem.latest`); where that cannot be kept, as little is late as possible.

Both searches walk with late acceptance: a step is kept if it is no worse than the walk was some steps ago, which
needs no temperature and forgets slowly. They give the best they saw, and read no clock themselves.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from paceline.schedule import bounds, placement, timeline
from paceline.schedule.model import Floats, Ints, Problem
from paceline.schedule.plan import Objective, Plan, score
from paceline.schedule.policies.first_fit import FirstFit
from paceline.schedule.policies.sjf_bco import SjfBco

WORK, WORK_MIN = 2500, 40
"""Evaluations of a plan, if nobody asks for another number: the most, and the fewest."""
JOBS_JUDGED = 400_000
"""Jobs that all evaluations together judge, about: a plan of many jobs is judged less often, and takes as long."""
ONGOING = 60
"""Evaluations of each plan of an online run."""


Genes = tuple[Ints, Ints, Ints]
"""Order of the list, way to spread, who holds back the others."""
MEMORY = 30
"""Steps that late acceptance looks back."""
LATE = 1e3
"""What a unit of time beyond a job's latest end costs a plan, in units of the score: a plan that keeps to them wins."""


@dataclass(frozen=True)
class Candidate:
    """A judged plan; `energy` is the score with a tie-break, and what ends too late costs."""

    score: float
    energy: float
    order: Ints
    gpus: Ints
    not_before: Floats
    end: Floats
    source: str


@dataclass(frozen=True)
class BcoPlus:
    """The policy."""

    seed: int = 0
    budget_s: float | None = None
    """At most so long, by the clock; None: as long as the work takes."""
    evaluations: int | None = None
    """The work; default: by the number of jobs, and `ONGOING` for each plan of an online run."""
    horizon: float | None = None
    no_later: float | None = None
    """No job's completion time is more than so many times that under first fit; None: whatever the score gains."""
    name: str = "bco-plus"
    online: bool = False
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False)

    def plan(self, problem: Problem, objective: Objective = "makespan") -> Plan:
        allowed = self.evaluations
        if allowed is None:
            allowed = ONGOING if problem.ongoing else default_work(len(problem.jobs))
        spent, capped = 0, False

        def may_go_on(share: float) -> bool:
            # One more evaluation within this share of the whole budget?
            nonlocal spent, capped
            if spent >= share * allowed:
                return False
            if self.budget_s is not None and self.clock() - began >= share * self.budget_s:
                capped = True
                return False
            spent += 1
            return True

        goal = bounds.lower_bound(problem).value_s / problem.unit_s if objective == "makespan" else 0.0
        rng = np.random.default_rng(self.seed)
        first = self._start(problem, objective)
        latest, kept = self._latest(problem, objective)
        best = min((first, *kept), key=lambda candidate: energy(candidate.score, candidate.end, latest))
        best = replace(best, energy=energy(best.score, best.end, latest))
        began = self.clock()
        lists = [self._from_list(problem, objective, latest, *genes) for genes in starts(problem)]
        champion = min(range(len(lists)), key=lambda i: lists[i].energy)
        best = min((best, lists[champion]), key=lambda candidate: candidate.energy)
        if best.score > goal * (1 + 1e-9):
            genes = list(starts(problem))[champion]
            found = search_lists(
                genes,
                lambda g: self._from_list(problem, objective, latest, *g),
                lambda: may_go_on(0.6),
                rng,
                goal,
                [j for j in range(len(problem.jobs)) if j not in problem.pinned],
            )
            best = min((best, found), key=lambda candidate: candidate.energy)
        if best.score > goal * (1 + 1e-9):
            best = search_plans(
                problem,
                best,
                lambda c: judged(problem, c, objective, latest),
                lambda: may_go_on(1.0),
                rng,
                goal,
            )
        reasons = [self._reason(problem, first, best, j) for j in range(len(problem.jobs))]
        settings = {
            "start": first.score * problem.unit_s, "evaluations": spent, "work": allowed, "capped": capped,
            "seed": self.seed,
        }  # fmt: skip
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

    def _latest(self, problem: Problem, objective: Objective) -> tuple[Floats | None, list[Candidate]]:
        """When each job must have ended, and the plan of first fit that shows how; nothing where nobody asks."""
        if self.no_later is None:
            return None, []
        plan, zeros = FirstFit(horizon=self.horizon).plan(problem, objective), np.zeros(len(problem.jobs))
        found = judged(
            problem, Candidate(0.0, 0.0, plan.order, plan.gpus, zeros, zeros, "first fit"), objective
        )
        arrival = problem.jobs_t.arrival
        latest = arrival + max(1.0, self.no_later) * (found.end - arrival)
        for j in problem.latest.keys() - problem.pinned.keys():
            latest[j] = problem.latest[j]
        latest[list(problem.pinned)] = np.inf  # they run, wherever that is
        return latest, [found]

    def _from_list(
        self,
        problem: Problem,
        objective: Objective,
        latest: Floats | None,
        order: Ints,
        mode: Ints,
        hold: Ints,
    ) -> Candidate:
        jobs = problem.jobs_t
        pinned = np.zeros(len(order), dtype=np.bool_)
        held = np.zeros(jobs.base[-1], dtype=np.int64)
        for j, gpus in problem.pinned.items():
            pinned[j] = True
            held[jobs.base[j] : jobs.base[j + 1]] = gpus
        start, end, gpus = placement.run_list(
            jobs, problem.cluster_t, problem.price_t, order, mode, hold.astype(np.bool_), pinned, held
        )
        by_start = np.lexsort((np.arange(len(order)), start)).astype(np.int64)
        value = score(problem, end, objective)
        return Candidate(value, energy(value, end, latest), by_start, gpus, start, end, "backfilling")

    def _reason(self, problem: Problem, first: Candidate, best: Candidate, j: int) -> str:
        base = problem.jobs_t.base
        mine, before = (plan.gpus[base[j] : base[j + 1]] for plan in (best, first))
        if best is first:
            return "SJF-BCO's own placement: the search found none better"
        where = problem.cluster.by_server([int(g) for g in mine])
        kind = "on one server" if len(where) == 1 else f"spread over {len(where)} servers"
        moved = "kept where SJF-BCO put it" if np.array_equal(mine, before) else f"found by {best.source}"
        gain = 1.0 - best.score / first.score
        better = f"{gain:.1%} better than" if gain >= 0.0005 else "as good as"
        return f"{moved}, {kind}; the whole plan is {better} SJF-BCO's"


def default_work(jobs: int) -> int:
    """Evaluations for so many jobs."""
    return max(WORK_MIN, min(WORK, JOBS_JUDGED // max(1, jobs)))


def energy(value: float, end: Floats, latest: Floats | None = None) -> float:
    """The score with a slight preference for jobs that end early, so that plateaus have a slope; late ends cost."""
    late = 0.0 if latest is None else float(np.maximum(0.0, end - latest * (1 + 1e-9)).sum())
    return value + 1e-4 * float(end.mean()) + LATE * late


def judged(
    problem: Problem, candidate: Candidate, objective: Objective, latest: Floats | None = None
) -> Candidate:
    """The candidate with its score by the judge."""
    _, end = timeline.run(problem, candidate.order, candidate.gpus, candidate.not_before)
    value = score(problem, end, objective)
    return Candidate(
        value,
        energy(value, end, latest),
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
        for mode in (placement.LOCAL, placement.FEWEST, placement.QUIETEST):
            for hold in (np.zeros(n, dtype=np.int64), (gpus > widest / 2).astype(np.int64)):
                yield order, np.full(n, mode, dtype=np.int64), hold


def search_lists(
    genes: Genes,
    decode: Callable[[Genes], Candidate],
    may_go_on: Callable[[], bool],
    rng: np.random.Generator,
    goal: float,
    free: Sequence[int],
) -> Candidate:
    """The best candidate found by changing the list while `may_go_on`; `free` are the jobs to be placed."""
    current = best = decode(genes)
    past = [current.energy] * MEMORY
    step = 0
    while may_go_on() and best.score > goal * (1 + 1e-9) and len(free) > 1:
        changed = _change_list(genes, current, rng, free)
        candidate = decode(changed)
        if candidate.energy <= max(past[step % MEMORY], current.energy):
            genes, current = changed, candidate
        past[step % MEMORY] = current.energy
        step += 1
        if candidate.energy < best.energy:
            best = candidate
    return replace(best, source="backfilling and local search over the order")


def _change_list(genes: Genes, current: Candidate, rng: np.random.Generator, free: Sequence[int]) -> Genes:
    order, mode, hold = (part.copy() for part in genes)
    n = len(order)
    kind = rng.random()
    if kind < 0.4:
        # A job among the last to end comes earlier.
        late = [int(j) for j in np.argsort(-current.end, kind="stable")[: max(2, n // 20)]]
        j = late[int(rng.integers(len(late)))]
        place = int(np.flatnonzero(order == j)[0])
        _reinsert(order, place, int(rng.integers(place + 1)))
    elif kind < 0.65:
        _reinsert(order, int(rng.integers(n)), int(rng.integers(n)))
    elif kind < 0.85:
        a, b = (int(i) for i in rng.integers(n, size=2))
        order[a], order[b] = order[b], order[a]
    elif kind < 0.95:
        mode[free[int(rng.integers(len(free)))]] = rng.integers(3)
    else:
        j = free[int(rng.integers(len(free)))]
        hold[j] = 1 - hold[j]
    return order, mode, hold


def _reinsert(order: Ints, source: int, target: int) -> None:
    moved = order[source]
    if target < source:
        order[target + 1 : source + 1] = order[target:source]
    else:
        order[source:target] = order[source + 1 : target + 1]
    order[target] = moved


def search_plans(
    problem: Problem,
    start: Candidate,
    judge: Callable[[Candidate], Candidate],
    may_go_on: Callable[[], bool],
    rng: np.random.Generator,
    goal: float,
) -> Candidate:
    """The best candidate found by moving, swapping, reordering and delaying jobs of a plan."""
    # Queues instead of fixed starts: a list's start times would hold back what a move has freed.
    relaxed = judge(replace(start, not_before=np.zeros(len(problem.jobs))))
    best = start
    current = relaxed if relaxed.energy <= start.energy else start
    past = [current.energy] * MEMORY
    free = [j for j in range(len(problem.jobs)) if j not in problem.pinned]
    step = 0
    while may_go_on() and best.score > goal * (1 + 1e-9) and free:
        candidate = judge(_change_plan(problem, current, rng, free))
        if candidate.energy <= max(past[step % MEMORY], current.energy):
            current = candidate
        past[step % MEMORY] = current.energy
        step += 1
        if candidate.energy < best.energy:
            best = replace(candidate, source="local search over placements")
    return best


def _change_plan(
    problem: Problem, plan: Candidate, rng: np.random.Generator, free: Sequence[int]
) -> Candidate:
    order, gpus, not_before = plan.order.copy(), plan.gpus.copy(), plan.not_before.copy()
    base, held = problem.jobs_t.base, len(problem.pinned)
    j = free[int(rng.integers(len(free)))]
    if rng.random() < 0.5:
        late = [i for i in np.argsort(-plan.end, kind="stable")[:3] if int(i) not in problem.pinned]
        j = int(late[int(rng.integers(len(late)))]) if late else j
    kind = rng.random()
    place = int(np.flatnonzero(order == j)[0])
    if kind < 0.45:
        gpus[base[j] : base[j + 1]] = other_gpus(problem, j, rng)
        not_before[j] = 0.0
        _reinsert(order, place, int(rng.integers(held, len(order))))
    elif kind < 0.65:
        k = free[int(rng.integers(len(free)))]
        if problem.jobs[k].gpus == problem.jobs[j].gpus:
            mine = gpus[base[j] : base[j + 1]].copy()
            gpus[base[j] : base[j + 1]] = gpus[base[k] : base[k + 1]]
            gpus[base[k] : base[k + 1]] = mine
        other = int(np.flatnonzero(order == k)[0])
        order[place], order[other] = order[other], order[place]
    elif kind < 0.85:
        _reinsert(order, place, int(rng.integers(held, len(order))))
    elif kind < 0.95:
        not_before[j] = plan.end[free[int(rng.integers(len(free)))]]
    else:
        not_before[j] = 0.0
    return replace(plan, order=order, gpus=gpus, not_before=not_before)


def other_gpus(problem: Problem, j: int, rng: np.random.Generator) -> Ints:
    """Other GPUs for job j: one server if one is large enough (mostly), else random servers until it fits."""
    g, first = problem.jobs[j].gpus, problem.cluster.first_gpu
    sizes = np.diff(first)
    large = np.flatnonzero(sizes >= g)
    if len(large) and rng.random() < 0.8:
        servers = np.array([large[int(rng.integers(len(large)))]])
    else:
        servers = rng.permutation(len(sizes))
        if rng.random() < 0.5:
            servers = servers[np.argsort(-sizes[servers], kind="stable")]
    taken: list[int] = []
    for s in servers:
        wanted = min(g - len(taken), int(sizes[s]))
        taken.extend(int(first[s]) + int(i) for i in rng.permutation(int(sizes[s]))[:wanted])
        if len(taken) == g:
            break
    return np.sort(np.array(taken, dtype=np.int64))
