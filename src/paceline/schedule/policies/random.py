"""RAND, the paper's random baseline: any GPUs within the load limit, which is searched as for the others."""

from dataclasses import dataclass

import numpy as np

from paceline.schedule import placement
from paceline.schedule.model import Problem
from paceline.schedule.plan import Objective, Plan
from paceline.schedule.policies import load_limited


@dataclass(frozen=True)
class Random:
    """The policy; the same seed gives the same plan."""

    seed: int = 0
    horizon: float | None = None
    sweep: int | None = None
    name: str = "rand"
    online: bool = False

    def plan(self, problem: Problem, objective: Objective = "makespan") -> Plan:
        draws = np.random.default_rng(self.seed).random(int(problem.jobs_t.base[-1]))
        best = load_limited.search_rule(problem, placement.RANDOM, objective, self.horizon, self.sweep, draws)
        limit = best.theta * problem.unit_s
        reasons = [f"random GPUs (seed {self.seed}) with load up to {limit:.4g} s"] * len(problem.jobs)
        order = load_limited.smallest_first(problem)
        settings = {"theta": limit, "seed": self.seed}
        return Plan(order, best.gpus, np.zeros(len(problem.jobs)), reasons, settings)
