"""What SJF-BCO and its baselines share: place all jobs under a load limit theta, and search for the limit.

The paper bisects theta over [1, T]: a limit that improves the best makespan so far sends the search to
smaller limits, anything else to larger ones (algorithm 1). A limit under which some job does not fit counts
as T, never as the makespan of the jobs placed so far. The makespan is not monotone in theta, so bisection
can miss the best limit; ours: a grid of `sweep` further limits between the lower bound and three times it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from paceline.schedule import placement, timeline
from paceline.schedule.kernels import announce
from paceline.schedule.model import Floats, Ints, Problem
from paceline.schedule.plan import Objective, score

STEPS = 1200
"""The paper's T in slots; elsewhere the horizon is cut into as many steps."""


@dataclass(frozen=True)
class Trial:
    """One complete placement that was judged."""

    score: float
    theta: float
    kappa: int
    gpus: Ints
    end: Floats


@dataclass(frozen=True)
class Rules:
    """Which rule places jobs of up to kappa GPUs, which the larger ones, and lambda."""

    small: int
    large: int
    spread: float = 1.0


def smallest_first(problem: Problem) -> Ints:
    """Jobs by GPUs ascending, ties as given; those that already run come first, then higher priorities."""
    keys = [(j not in problem.pinned, -job.priority, job.gpus) for j, job in enumerate(problem.jobs)]
    return np.array(sorted(range(len(keys)), key=lambda j: keys[j]), dtype=np.int64)


def attempt(
    problem: Problem,
    order: Ints,
    rules: Rules,
    theta: float,
    kappa: int,
    objective: Objective,
    draws: Floats | None = None,
) -> Trial | None:
    """Place every job under this limit and judge the result; None when a job does not fit."""
    announce()
    jobs, cluster = problem.jobs_t, problem.cluster_t
    initial = np.zeros(problem.cluster.gpus_total)
    for j, gpus in problem.pinned.items():
        initial[gpus] += problem.shortest[j]
    free = order[len(problem.pinned) :]
    placed, gpus = placement.place_all(
        jobs,
        cluster,
        free,
        problem.shortest,
        initial,
        theta,
        kappa,
        rules.small,
        rules.large,
        rules.spread,
        np.zeros(jobs.base[-1]) if draws is None else draws,
    )
    if placed < len(free):
        return None
    for j, held in problem.pinned.items():
        gpus[jobs.base[j] : jobs.base[j + 1]] = held
    _, end = timeline.run(problem, order, gpus)
    return Trial(score(problem, end, objective), theta, kappa, gpus, end)


def floor_of(problem: Problem) -> float:
    """The least limit worth trying: nobody's load can stay below the average, nor below one job."""
    work = float((problem.shortest * problem.jobs_t.gpus).sum())
    return max(work / problem.cluster.gpus_total, float(problem.shortest.max()))


def search_rule(
    problem: Problem,
    rule: int,
    objective: Objective,
    horizon: float | None,
    sweep: int | None,
    draws: Floats | None = None,
) -> Trial:
    """The best trial when one rule places all jobs, whatever their size."""
    order, rules = smallest_first(problem), Rules(rule, rule)

    def try_limit(theta: float) -> Trial | None:
        return attempt(problem, order, rules, theta, 0, objective, draws)

    return search_limit(problem, try_limit, horizon, sweep)


def search_limit(
    problem: Problem,
    try_limit: Callable[[float], Trial | None],
    horizon: float | None,
    sweep: int | None,
) -> Trial:
    """The best trial over the paper's bisection of [1, T] and our grid; T doubles while nothing fits.

    `sweep` limits are tried besides the bisection; by default 32, or none when planning anew at every event, where
    time is short.
    """
    floor = floor_of(problem)
    points = sweep if sweep is not None else 0 if problem.ongoing else 32
    top = 4.0 * floor if horizon is None else horizon
    while True:
        best = bisect(try_limit, top / STEPS)
        for theta in grid(floor, points):
            trial = try_limit(theta)
            if trial is not None and (best is None or trial.score < best.score):
                best = trial
        if best is not None:
            return best
        top *= 2.0


def bisect(try_limit: Callable[[float], Trial | None], step: float) -> Trial | None:
    """Algorithm 1's search over theta = step, 2 step, ... STEPS step."""
    left, right = 1, STEPS
    best: Trial | None = None
    while left <= right:
        middle = (left + right) // 2
        trial = try_limit(middle * step)
        if trial is not None and (best is None or trial.score <= best.score):
            best = trial
            right = middle - 1
        else:
            left = middle + 1
    return best


def grid(floor: float, points: int) -> Iterable[float]:
    """Limits from the floor to three times it, equally far apart in ratio."""
    return [float(theta) for theta in np.geomspace(floor, 3.0 * floor, points)] if points else []
