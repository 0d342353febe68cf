"""Jobs that arrive over time: plan anew at every arrival and every end, without moving what runs.

At each event the jobs present become a problem of their own: those that run are pinned to their GPUs with
the iterations they have left, the waiting ones are free. The policy plans that, and what its plan starts at
once is started. The policy never sees a job that has not arrived.
"""

from dataclasses import replace

import numpy as np

from paceline.schedule import timeline
from paceline.schedule.contention import Problem
from paceline.schedule.plans import Objective, Plan, Schedule
from paceline.schedule.policies import Policy
from paceline.schedule.timeline import Timeline


def replan(problem: Problem, policy: Policy, objective: Objective) -> Schedule:
    """The schedule that repeated planning gives."""
    time = Timeline(problem)
    plans = 0
    while time.advance():
        if not time.waiting or not time.idle.any():
            continue
        present = [*time.running, *time.waiting]
        jobs = tuple(
            replace(problem.jobs[j], iterations=time.remaining_iterations(j), arrival_s=0.0) for j in present
        )
        pinned = {i: time.gpus_of(j) for i, j in enumerate(time.running)}
        now = replace(problem, jobs=jobs, pinned=pinned, ongoing=True)
        plan = policy.plan(now, objective)
        assert isinstance(plan, Plan), "only policies that plan ahead are planned anew"
        plans += 1
        start, _ = timeline.run(now, plan.order, plan.gpus, plan.not_before)
        for i in np.argsort(start, kind="stable"):
            if i not in pinned and start[i] <= 0.0:
                time.start(present[i], plan.of(now, int(i)), plan.reasons[i])
    return time.schedule(policy.name, {"plans": plans})
