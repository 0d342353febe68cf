"""Plan for this moment: some jobs run and stay, some wait, some servers are down. Pure, but for the planner's clock.

The same step as `schedule/planning.py`, with the real cluster in the place of the model's: running jobs are
pinned to their GPUs with the iterations they have left, and what the policy's plan starts at once is started.
Servers that are down are taken out of the cluster before the policy sees it.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from paceline import plugins
from paceline.errors import UserError
from paceline.schedule import timeline
from paceline.schedule.inputs.cluster import Cluster
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model, Problem
from paceline.schedule.plan import Objective, Plan
from paceline.schedule.planning import latest_ends
from paceline.schedule.policies import Policy, by_name


@dataclass(frozen=True)
class Running:
    """A job that runs: its GPUs, and what it has left to do."""

    job: Job
    gpus: tuple[int, ...]
    iterations_left: float


@dataclass(frozen=True)
class JobDecision:
    """What the plan says of a job; times are seconds from now."""

    job: str
    gpus: tuple[int, ...]
    start_s: float
    end_s: float
    reason: str
    now: bool
    """Whether it is to be started at once."""


@dataclass(frozen=True)
class Outlook:
    """One plan: a decision for every job that it covers, in the order of their starts."""

    decisions: tuple[JobDecision, ...] = ()
    too_large: tuple[str, ...] = ()
    """Waiting jobs that the servers that are up cannot hold."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    took_s: float = 0.0


POLICIES = ("bco-plus", "sjf-bco", "sjf-bco-one-server", "sjf-bco-printed", "ls", "ff", "rand")
"""Those that plan ahead and leave running jobs where they are; the others preempt, or know no running jobs."""


def check_policy(name: str) -> None:
    if plugins.is_plugin(name, plugins.SCHEDULING):
        if by_name(name).online:
            raise UserError(
                f"{name} decides as time passes; a run needs one that plans ahead", place="--policy"
            )
        return
    if name not in POLICIES:
        raise UserError(f"a run cannot use policy {name!r}; it can: {', '.join(POLICIES)}", place="--policy")


def plan_now(
    cluster: Cluster,
    model: Model,
    running: Sequence[Running],
    waiting: Sequence[Job],
    down: Collection[str],
    policy: Policy,
    objective: Objective,
    clock: Callable[[], float] = time.perf_counter,
    latest_s: Mapping[str, float] = MappingProxyType({}),
    slowness: Mapping[str, float] = MappingProxyType({}),
) -> Outlook:
    """The plan for this moment; `latest_s`: when jobs should have ended, in seconds from now.

    `slowness`: of servers, by name, as far as it is known.
    """
    began = clock()
    up = [server for server in cluster.servers if server.name not in down]
    old_of = np.array(
        [g for g in range(cluster.gpus_total) if cluster.servers[int(cluster.server_of[g])].name not in down],
        dtype=np.int64,
    )
    new_of = {int(old): new for new, old in enumerate(old_of)}
    # A job on a server that is down is about to be lost; it holds nothing that could be given away.
    held = [each for each in running if all(gpu in new_of for gpu in each.gpus)]
    fitting = [job for job in waiting if job.gpus <= len(old_of)]
    too_large = tuple(job.name for job in waiting if job.gpus > len(old_of))
    if not held and not fitting:
        return Outlook(too_large=too_large)
    jobs = tuple(
        [replace(each.job, iterations=max(each.iterations_left, 1e-6), arrival_s=0.0) for each in held]
        + [replace(job, arrival_s=0.0) for job in fitting]
    )
    pinned = {
        i: np.array(sorted(new_of[g] for g in each.gpus), dtype=np.int64) for i, each in enumerate(held)
    }
    unit = model.slot_s or 1.0
    latest = {i: latest_s[job.name] / unit for i, job in enumerate(jobs) if job.name in latest_s}
    left = replace(cluster, servers=tuple(up))
    problem = Problem(left, jobs, model, pinned=pinned, ongoing=True, latest=latest, slowness=slowness)
    plan = policy.plan(problem, objective)
    if not isinstance(plan, Plan):
        raise UserError(f"{policy.name} gives no plan; a run needs one that plans ahead", place="--policy")
    for i, theirs in pinned.items():
        if not np.array_equal(np.sort(plan.of(problem, i)), theirs):
            raise UserError(f"{policy.name} moves {jobs[i].name}, which runs", place="--policy")
    start, end = timeline.run(problem, plan.order, plan.gpus, plan.not_before)
    first = _forced(start, held=len(held))
    decisions = []
    for i in (int(i) for i in np.argsort(start, kind="stable")):
        gpus = tuple(int(old_of[g]) for g in plan.of(problem, i))
        at_once = i not in pinned and bool(start[i] <= 0.0 or i == first)
        reason = "runs already" if i in pinned else plan.reasons[i]
        decisions.append(
            JobDecision(jobs[i].name, gpus, float(start[i]) * unit, float(end[i]) * unit, reason, at_once)
        )
    return Outlook(tuple(decisions), too_large, dict(plan.settings), clock() - began)


def latest_ends_s(
    cluster: Cluster, model: Model, arrived: Sequence[Job], policy: Policy, objective: Objective,
    slowness: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, float]:  # fmt: skip
    """When each job that has arrived, ended ones too, must have ended, from the run's beginning; see `latest_ends`."""
    fitting = tuple(job for job in arrived if job.gpus <= cluster.gpus_total)
    if not fitting:
        return {}
    problem = Problem(cluster, fitting, model, slowness=slowness)
    ends = latest_ends(problem, range(len(fitting)), policy, objective)
    return {fitting[j].name: end * problem.unit_s for j, end in ends.items()}


def _forced(start: Any, held: int) -> int:
    # Where nothing runs, a delay only waits for jobs that wait too: the first of them goes.
    if held or not len(start) or float(start.min()) <= 0.0:
        return -1
    return int(np.argmin(start))
