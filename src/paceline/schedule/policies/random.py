"""RAND, the paper's random baseline: any GPUs within the load limit, which is searched as for the others."""

from dataclasses import dataclass

import numpy as np

from paceline.schedule import packing
from paceline.schedule.contention import Problem
from paceline.schedule.plans import Objective, Plan
from paceline.schedule.policies import load_limited
from paceline.schedule.policies.load_limited import Rules, Trial


@dataclass(frozen=True)
class Random:
    """The policy; the same seed gives the same plan."""

    seed: int = 0
    horizon: float | None = None
    sweep: int | None = None
    name: str = "rand"
    online: bool = False

    def plan(self, problem: Problem, objective: Objective = "makespan") -> Plan:
        order = load_limited.smallest_first(problem)
        rules = Rules(packing.RANDOM, packing.RANDOM)
        draws = np.random.default_rng(self.seed).random(int(problem.jobs_t.base[-1]))

        def try_limit(theta: float) -> Trial | None:
            return load_limited.attempt(problem, order, rules, theta, 0, objective, draws)

        sweep = load_limited.default_sweep(problem) if self.sweep is None else self.sweep
        best = load_limited.search_limit(problem, try_limit, self.horizon, sweep)
        limit = best.theta * problem.unit_s
        reasons = [f"random GPUs (seed {self.seed}) with load up to {limit:.4g} s"] * len(problem.jobs)
        settings = {"theta": limit, "seed": self.seed}
        return Plan(order, best.gpus, np.zeros(len(problem.jobs)), reasons, settings)
