"""LS, the paper's list-scheduling baseline: each job takes the least loaded GPUs, wherever they are."""

from dataclasses import dataclass

import numpy as np

from paceline.schedule import placement
from paceline.schedule.model import Problem
from paceline.schedule.plan import Objective, Plan
from paceline.schedule.policies import load_limited
from paceline.schedule.policies.load_limited import Rules


@dataclass(frozen=True)
class ListScheduling:
    """The policy. It needs no limit: the least loaded GPUs are the last to reach one."""

    name: str = "ls"
    online: bool = False

    def plan(self, problem: Problem, objective: Objective = "makespan") -> Plan:
        order = load_limited.smallest_first(problem)
        rules = Rules(placement.LEAST, placement.LEAST)
        trial = load_limited.attempt(problem, order, rules, np.inf, 0, objective)
        assert trial is not None, "without a limit every job fits"
        reasons = ["list scheduling: the least loaded GPUs of the cluster"] * len(problem.jobs)
        return Plan(order, trial.gpus, np.zeros(len(problem.jobs)), reasons)
