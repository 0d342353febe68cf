"""Run a policy on a problem: choose offline or online, judge, add the bound and the time it took."""

import functools
import time
from collections.abc import Callable
from dataclasses import replace

from paceline.schedule import bounds, online, timeline
from paceline.schedule.contention import Problem
from paceline.schedule.inputs.cluster import Cluster, Server
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.plans import Objective, Plan, Schedule
from paceline.schedule.policies import Policy
from paceline.schedule.policies.bco_plus import BcoPlus
from paceline.schedule.policies.tiresias import Tiresias


@functools.cache
def warm_up() -> None:
    """Load or compile every kernel, so that the time to plan is the time to plan."""
    jobs = (Job("a", 2, 1, 8, backward_s=0.1), Job("b", 1, 1, backward_s=0.1))
    tiny = Problem(Cluster((Server("s", 1), Server("t", 1))), jobs)
    BcoPlus(evaluations=2).plan(tiny)
    Tiresias().plan(tiny)


def plan(
    problem: Problem,
    policy: Policy,
    objective: Objective = "makespan",
    clock: Callable[[], float] = time.perf_counter,
) -> Schedule:
    """The policy's schedule. Jobs that arrive over time are planned for online: nobody sees the future."""
    warm_up()
    began = clock()
    if policy.online or not problem.jobs_t.arrival.any():
        decision: Plan | Schedule = policy.plan(problem, objective)
    else:
        decision = online.replan(problem, policy, objective)
    schedule = timeline.judge(problem, decision, policy.name) if isinstance(decision, Plan) else decision
    took = clock() - began
    bound = bounds.lower_bound(problem, preemptive=schedule.preempts)
    if schedule.settings.get("proved") and objective == "makespan" and schedule.makespan_s > bound.value_s:
        bound = bounds.LowerBound(schedule.makespan_s, "proved by exact")
    return replace(schedule, plan_s=took, lower_bound_s=bound.value_s, bound_by=bound.argument)
