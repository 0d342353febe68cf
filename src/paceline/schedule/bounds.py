"""Lower bounds on the makespan, and the paper's approximation ratio, for one instance.

`l_j`, the least time a job can take over all placements (`Problem.shortest`), stands for its duration:

- longest: a job cannot end before it has arrived and run;
- area: the GPU time of the jobs that arrive from r on, spread over all GPUs, after r;
- width (ours): jobs that cannot run side by side. For a threshold e, a job wider than N - e counts as the
  whole cluster and one narrower than e as nothing; the area of what counts is still a bound;
- side by side (ours): of the k widest jobs only so many fit at once, so some run one after another.

The paper proves the ratio `n_g * phi * u / l` (theorem 2): n_g the most GPUs of a job, phi how far two
placements of one job can lie apart, l and u the bounds on execution times. Ours: l and u are taken over all
jobs of the instance, phi as `max_j u_j / l_j`, so that the ratio can be computed and checked.
"""

from dataclasses import dataclass

import numpy as np

from paceline.schedule.model import Floats, Ints, Problem


@dataclass(frozen=True)
class LowerBound:
    """The best bound in seconds, and the argument that gives it."""

    value_s: float
    argument: str


def lower_bound(problem: Problem, preemptive: bool = False) -> LowerBound:
    """The best of all bounds; `preemptive` leaves out the one that needs jobs to run in one piece."""
    gpus, total = problem.jobs_t.gpus, problem.cluster.gpus_total
    candidates = {
        "longest job": float((problem.jobs_t.arrival + problem.shortest).max()),
        "area": area(problem, problem.shortest, gpus, total),
        "width": max(
            area(problem, problem.shortest, counted(gpus, total, int(e)), total)
            for e in np.unique(np.concatenate((gpus, total + 1 - gpus)))
        ),
        "side by side": side_by_side(problem.shortest, gpus, total),
    }
    if preemptive:
        del candidates["side by side"]
    argument = max(candidates, key=lambda name: candidates[name])
    value = candidates[argument]
    if problem.price_t.slotted:
        value = float(np.ceil(value - 1e-9))
    return LowerBound(value * problem.unit_s, argument)


def area(problem: Problem, shortest: Floats, counts: Ints, total: int) -> float:
    """max over r of r + (GPU time of the jobs that arrive at r or later) / all GPUs."""
    arrival = problem.jobs_t.arrival
    order = np.argsort(-arrival, kind="stable")
    later = np.cumsum((shortest * counts)[order]) / total
    return float((arrival[order] + later).max())


def counted(gpus: Ints, total: int, e: int) -> Ints:
    """Widths that count for threshold e: all of the cluster above N - e, nothing below e."""
    if 2 * e > total:
        return np.where(gpus >= e, total, 0)
    return np.where(gpus > total - e, total, np.where(gpus < e, 0, gpus))


def side_by_side(shortest: Floats, gpus: Ints, total: int) -> float:
    """At most m = N // (k-th width) of the k widest jobs run at once, so some place serves ceil(k / m)."""
    order = np.argsort(-gpus, kind="stable")
    best = 0.0
    for k in range(1, len(order) + 1):
        if k < len(order) and gpus[order[k]] == gpus[order[k - 1]]:
            continue
        places = total // int(gpus[order[k - 1]])
        times = np.sort(shortest[order[:k]])
        rounds = -(-k // places)
        best = max(best, float(times[:rounds].sum()))
    return best


@dataclass(frozen=True)
class Ratio:
    """The approximation ratio of SJF-BCO for one instance, and its factors."""

    n_g: int
    phi: float
    upper_s: float
    lower_s: float

    @property
    def value(self) -> float:
        return self.n_g * self.phi * self.upper_s / self.lower_s


def approximation_ratio(problem: Problem) -> Ratio:
    """n_g * phi * u / l."""
    return Ratio(
        n_g=max(job.gpus for job in problem.jobs),
        phi=float((problem.longest / problem.shortest).max()),
        upper_s=float(problem.longest.max()) * problem.unit_s,
        lower_s=float(problem.shortest.min()) * problem.unit_s,
    )
