"""LWF-kappa placement with Ada-SRSF's admission rule (arXiv 2002.10105), at the level of whole jobs.

Jobs by smallest remaining service (ours: divided by priority) first. Placement: up to kappa GPUs, the idle
GPUs of least workload so far; above, one server if it has room (the one of least workload), else the
servers with most idle GPUs. Admission, for a spread job that would meet one other on some link: only if its
own communication is short beside what is left of the other's, `new / old < 1 / (2 (1 + alpha))`; never as a
third.

Ours: the original admits single messages of jobs that hold their GPUs, this admits jobs; `kappa = 1` is the
original's best setting, and its contention `k b + (k - 1) eta` is our linear f with `alpha = eta / b`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.schedule.model import Floats, Ints, Problem, exchange_s
from paceline.schedule.plan import Objective, Schedule
from paceline.schedule.timeline import Timeline


@dataclass(frozen=True)
class LwfKappa:
    """The policy."""

    kappa: int = 1
    name: str = "lwf-kappa"
    online: bool = True

    def plan(self, problem: Problem, objective: Objective = "makespan") -> Schedule:
        time = Timeline(problem)
        workload: Floats = np.zeros(problem.cluster.gpus_total)
        while time.advance():
            service = {
                j: time.remaining_iterations(j) * problem.tau_min[j] * job.gpus / job.priority
                for j, job in ((j, problem.jobs[j]) for j in time.waiting)
            }
            for j in sorted(time.waiting, key=lambda j: (service[j], j)):
                gpus = self._place(problem, time, workload, j)
                if gpus is None:
                    continue
                servers = sorted({int(problem.cluster.server_of[g]) for g in gpus})
                verdict = self._admit(problem, time, servers, j)
                if verdict is None:
                    continue
                workload[gpus] += problem.shortest[j]
                time.start(j, gpus, f"LWF-{self.kappa}: {verdict}")
        return time.schedule(self.name, {"kappa": self.kappa})

    def _place(self, problem: Problem, time: Timeline, workload: Floats, j: int) -> Ints | None:
        g = problem.jobs[j].gpus
        idle = np.flatnonzero(time.idle)
        if len(idle) < g:
            return None
        if g <= self.kappa:
            return idle[np.argsort(workload[idle], kind="stable")][:g]
        free, first = time.free_by_server(), problem.cluster.first_gpu
        busy = np.add.reduceat(workload, first[:-1]) / np.diff(first)
        roomy = np.flatnonzero(free >= g)
        if len(roomy):
            chosen = [int(roomy[np.argmin(busy[roomy])])]
        else:
            chosen = [int(s) for s in np.lexsort((busy, -free))]
        ordered = np.concatenate([idle[problem.cluster.server_of[idle] == s] for s in chosen])
        return np.asarray(ordered[:g])

    def _admit(self, problem: Problem, time: Timeline, servers: Sequence[int], j: int) -> str | None:
        if len(servers) == 1:
            return "smallest remaining service; fits on one server, so it contends with nobody"
        others = time.contenders(servers)
        if others == 0:
            return f"smallest remaining service; spread over {len(servers)} servers whose links are free"
        if others > 1:
            return None
        limit = 1.0 / (2.0 * (1.0 + problem.model.alpha))
        mine = self._communication(problem, time, j, len(servers))
        for other in time.spread_jobs(servers):
            theirs = self._communication(problem, time, other, len(time.gpus_of(other)))
            if theirs <= 0 or mine / theirs >= limit:
                return None
        return f"admitted beside one other spread job: its communication is under {limit:.2f} of the other's"

    def _communication(self, problem: Problem, time: Timeline, j: int, servers: int) -> float:
        exchange = exchange_s(problem.jobs[j], problem.cluster, problem.model, max(2, servers), 1)
        return time.remaining_iterations(j) * exchange
