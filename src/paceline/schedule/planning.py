"""Run a policy on a problem: choose offline or online, judge, add the bound and the time it took.

Where jobs arrive over time, a policy that plans ahead plans anew at every arrival and every end, and what runs is not
moved. At each of these events the jobs present become a problem of their own: those that run are pinned to their GPUs
with the iterations they have left, the waiting ones are free. What the plan starts at once is started. The policy
never sees a job that has not arrived.
"""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from paceline.schedule import bounds, timeline
from paceline.schedule.inputs.cluster import Cluster, Server
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Problem
from paceline.schedule.plan import Objective, Plan, Schedule
from paceline.schedule.policies import Policy
from paceline.schedule.policies.bco_plus import BcoPlus
from paceline.schedule.policies.first_fit import FirstFit
from paceline.schedule.policies.tiresias import Tiresias
from paceline.schedule.timeline import Timeline


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
        decision = replan(problem, policy, objective)
    schedule = timeline.judge(problem, decision, policy.name) if isinstance(decision, Plan) else decision
    took = clock() - began
    bound = bounds.lower_bound(problem, preemptive=schedule.preempts)
    if schedule.settings.get("proved") and objective == "makespan" and schedule.makespan_s > bound.value_s:
        bound = bounds.LowerBound(schedule.makespan_s, "proved by exact")
    return replace(schedule, plan_s=took, lower_bound_s=bound.value_s, bound_by=bound.argument)


def replan(problem: Problem, policy: Policy, objective: Objective) -> Schedule:
    """The schedule that repeated planning gives."""
    cluster = Timeline(problem)
    plans = 0
    while cluster.advance():
        if not cluster.waiting or not cluster.idle.any():
            continue
        # Who arrived together is in the order of the list, as where nobody plans anew.
        present = [*cluster.running, *sorted(cluster.waiting, key=lambda j: (problem.jobs_t.arrival[j], j))]
        jobs = tuple(
            replace(problem.jobs[j], iterations=cluster.remaining_iterations(j), arrival_s=0.0)
            for j in present
        )
        pinned = {i: cluster.gpus_of(j) for i, j in enumerate(cluster.running)}
        arrived = [j for j in range(len(problem.jobs)) if problem.jobs_t.arrival[j] <= cluster.now]
        ends = latest_ends(problem, arrived, policy, objective)
        latest = {i: ends[j] - cluster.now for i, j in enumerate(present) if j in ends}
        now = replace(problem, jobs=jobs, pinned=pinned, ongoing=True, latest=latest)
        plan = policy.plan(now, objective)
        assert isinstance(plan, Plan), "only policies that plan ahead are planned anew"
        plans += 1
        start, _ = timeline.run(now, plan.order, plan.gpus, plan.not_before)
        for i in np.argsort(start, kind="stable"):
            if i not in pinned and start[i] <= 0.0:
                cluster.start(present[i], plan.of(now, int(i)), plan.reasons[i])
    return cluster.schedule(policy.name, {"plans": plans})


FORESEEN_MAX = 100
"""Jobs; with more of them a policy compares with first fit from now on only: their whole past is too much to repeat."""


def latest_ends(
    problem: Problem, arrived: Sequence[int], policy: Policy, objective: Objective
) -> dict[int, float]:
    """When the jobs that have arrived must have ended, in units, where the policy bounds that; else nothing.

    By what first fit would have made of them had it planned from the beginning, at every arrival and end.
    """
    if not isinstance(policy, BcoPlus) or policy.no_later is None or len(arrived) > FORESEEN_MAX:
        return {}
    known = replace(problem, jobs=tuple(problem.jobs[j] for j in arrived), pinned={}, latest={})
    ends_s = {place.job: place.end_s for place in replan(known, FirstFit(), objective).placements}
    arrival = problem.jobs_t.arrival
    return {
        j: float(arrival[j] + policy.no_later * (ends_s[problem.jobs[j].name] / problem.unit_s - arrival[j]))
        for j in arrived
    }
