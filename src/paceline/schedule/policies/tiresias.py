"""Tiresias (NSDI 2019), discretised two-dimensional least attained service: preemptive, for average JCT.

A job's attained service is GPUs x time. Jobs with less than the first limit are in the first queue, and so
on; queues are served in order, each first come first served (ours: higher priority first), and a job that no
longer fits is preempted. The policy does not know how long jobs take. Ours: one limit at the median GPU time
of the jobs unless given (its authors tune the limits to the workload), jobs always consolidated, and
preemption free of charge, which flatters it.
"""

from dataclasses import dataclass

import numpy as np

from paceline.schedule import placement
from paceline.schedule.model import Ints, Problem
from paceline.schedule.plan import Objective, Schedule
from paceline.schedule.timeline import Timeline


@dataclass(frozen=True)
class Tiresias:
    """The policy; `limits` are attained GPU time in units, ascending."""

    limits: tuple[float, ...] | None = None
    name: str = "tiresias"
    online: bool = True

    def plan(self, problem: Problem, objective: Objective = "jct") -> Schedule:
        work = problem.shortest * problem.jobs_t.gpus
        limits = self.limits or (float(np.median(work)),)
        time = Timeline(problem)
        first_seen: dict[int, int] = {}
        until = np.inf
        while time.advance(until):
            for j in time.waiting:
                first_seen.setdefault(j, len(first_seen))
            self._reassign(problem, time, limits, first_seen)
            until = self._next_crossing(problem, time, limits)
        return time.schedule(self.name, {"limits_gpu_s": [limit * problem.unit_s for limit in limits]})

    def _reassign(
        self, problem: Problem, time: Timeline, limits: tuple[float, ...], first_seen: dict[int, int]
    ) -> None:
        def rank(j: int) -> tuple[int, float, int]:
            queue = sum(time.service[j] >= limit * (1 - 1e-9) for limit in limits)
            return queue, -problem.jobs[j].priority, first_seen[j]

        room = problem.cluster.gpus_total
        chosen = []
        for j in sorted([*time.running, *time.waiting], key=rank):
            if problem.jobs[j].gpus <= room:
                room -= problem.jobs[j].gpus
                chosen.append(j)
        for j in time.running:
            if j not in chosen:
                time.preempt(j)
        running = set(time.running)
        for j in chosen:
            if j not in running:
                queue = rank(j)[0] + 1
                reason = (
                    f"2D-LAS: queue {queue} of {len(limits) + 1} by attained service, first come first served"
                )
                time.start(j, self._place(problem, time, j), reason)

    def _place(self, problem: Problem, time: Timeline, j: int) -> Ints:
        g, free = problem.jobs[j].gpus, time.free_by_server()
        idle = np.flatnonzero(time.idle)
        one = int(placement.best_fit(problem.cluster_t, free, g))
        servers = [one] if one >= 0 else [int(s) for s in np.argsort(-free, kind="stable")]
        ordered = np.concatenate([idle[problem.cluster.server_of[idle] == s] for s in servers])
        return np.asarray(ordered[:g])

    def _next_crossing(self, problem: Problem, time: Timeline, limits: tuple[float, ...]) -> float:
        if not time.waiting:
            return float(np.inf)
        soonest = np.inf
        for j in time.running:
            ahead = [limit for limit in limits if time.service[j] < limit * (1 - 1e-9)]
            if ahead:
                soonest = min(soonest, time.now + (ahead[0] - time.service[j]) / problem.jobs[j].gpus)
        return float(np.ceil(soonest)) if problem.price_t.slotted and np.isfinite(soonest) else float(soonest)
