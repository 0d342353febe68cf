"""Run a policy on a problem: choose offline or online, judge, add the bound and the time it took."""

import time
from collections.abc import Callable
from dataclasses import replace

from paceline.schedule import bounds, online, timeline
from paceline.schedule.contention import Problem
from paceline.schedule.plans import Objective, Plan, Schedule
from paceline.schedule.policies import Policy


def plan(
    problem: Problem,
    policy: Policy,
    objective: Objective = "makespan",
    clock: Callable[[], float] = time.perf_counter,
) -> Schedule:
    """The policy's schedule. Jobs that arrive over time are planned for online: nobody sees the future."""
    began = clock()
    if policy.online or not problem.jobs_t.arrival.any():
        decision: Plan | Schedule = policy.plan(problem, objective)
    else:
        decision = online.replan(problem, policy, objective)
    schedule = timeline.judge(problem, decision, policy.name) if isinstance(decision, Plan) else decision
    took = clock() - began
    return replace(schedule, plan_s=took, lower_bound_s=bounds.lower_bound(problem).value_s)
