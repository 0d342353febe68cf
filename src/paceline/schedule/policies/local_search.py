"""The two local searches of bco-plus: over lists (what is served first) and over plans (what runs where).

Both walk with late acceptance: a step is kept if it is no worse than the walk was some steps ago, which
needs no temperature and forgets slowly. They return the best they saw, and read no clock themselves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.schedule.contention import Floats, Ints, Problem

Genes = tuple[Ints, Ints, Ints]
"""Order of the list, way to spread, who holds back the others."""
MEMORY = 30


@dataclass(frozen=True)
class Candidate:
    """A judged plan; `energy` is the score with a tie-break."""

    score: float
    energy: float
    order: Ints
    gpus: Ints
    not_before: Floats
    end: Floats
    source: str


def over_lists(
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


def over_plans(
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
