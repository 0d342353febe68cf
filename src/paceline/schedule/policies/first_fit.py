"""FF, the paper's first-fit baseline: the first GPUs, server by server, whose load stays within theta.

The paper does not print its FF; without a limit everything would land on the first server. Here it takes
the first server that can hold the whole job within the limit, else the first GPUs in order, and gets the
same search over theta as SJF-BCO, which is its best setting.
"""

from dataclasses import dataclass

import numpy as np

from paceline.schedule import placement
from paceline.schedule.model import Problem
from paceline.schedule.plan import Objective, Plan
from paceline.schedule.policies import load_limited
from paceline.schedule.policies.load_limited import Rules


@dataclass(frozen=True)
class FirstFit:
    """The policy; `theta` fixes the limit (in units) instead of searching it."""

    theta: float | None = None
    horizon: float | None = None
    sweep: int | None = None
    name: str = "ff"
    online: bool = False

    def plan(self, problem: Problem, objective: Objective = "makespan") -> Plan:
        order = load_limited.smallest_first(problem)
        rules = Rules(placement.FIRST, placement.FIRST)
        fixed = None
        if self.theta is not None:
            fixed = load_limited.attempt(problem, order, rules, self.theta, 0, objective)
        best = fixed or load_limited.search_rule(
            problem, placement.FIRST, objective, self.horizon, self.sweep
        )
        limit = best.theta * problem.unit_s
        reason = f"first fit: the first GPUs, server by server, with load up to {limit:.4g} s"
        reasons = [reason] * len(problem.jobs)
        return Plan(order, best.gpus, np.zeros(len(problem.jobs)), reasons, {"theta": limit})
