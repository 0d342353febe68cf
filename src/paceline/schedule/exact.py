"""The exact optimum of small cases by CP-SAT (ortools, extra `exact`): the judge of all policies.

Time-indexed, in the paper's slotted form, over every non-preemptive schedule: any start slot, any GPUs a
server, delays included. Contention enters as upper limits on the iterations of a slot: `floor(1/tau)` for
the number of servers used, lowered wherever a server of the job carries q spread jobs in that slot. Running
slower than the limit never helps, so the optimum of the model is the optimum of the judge. Ring jobs only.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.errors import UserError, optional_module
from paceline.schedule import kernels, timeline
from paceline.schedule.model import Ints, Problem
from paceline.schedule.plan import Objective, Plan
from paceline.schedule.policies.bco_plus import BcoPlus

SIZE_LIMIT = 60_000
"""Largest jobs x servers x slots that is worth a try."""


@dataclass(frozen=True)
class Exact:
    """The policy; unproved within `budget_s`, it says so in its settings (`proved`)."""

    budget_s: float = 60.0
    workers: int = 2
    evaluations: int = 1500
    """For the bco-plus plan that gives the first upper bound."""
    name: str = "exact"
    online: bool = False

    def plan(self, problem: Problem, objective: Objective = "makespan") -> Plan:
        _check(problem)
        start_plan = BcoPlus(evaluations=self.evaluations).plan(problem, objective)
        start, end = timeline.run(problem, start_plan.order, start_plan.gpus, start_plan.not_before)
        horizon = int(end.max()) if objective == "makespan" else int(end.max() + problem.longest.max())
        if len(problem.jobs) * len(problem.cluster.servers) * horizon > SIZE_LIMIT:
            raise UserError(
                f"{len(problem.jobs)} jobs on {len(problem.cluster.servers)} servers over {horizon} slots is"
                " too large for the exact optimum; take a smaller case or a longer model.slot",
                place="--policy exact",
            )
        model = _Model(problem, horizon, objective)
        model.hint(start, end, start_plan)
        return model.solve(self.budget_s, self.workers, start_plan)


def _check(problem: Problem) -> None:
    if problem.model.slot_s is None:
        raise UserError('needs the slotted form: set model.time = "slotted"', place="--policy exact")
    if problem.model.links:
        raise UserError(
            'knows the paper\'s model only: set model.contention = "paper"', place="--policy exact"
        )
    if any(job.exchange == "in-network" for job in problem.jobs):
        raise UserError("knows ring jobs only", place="--policy exact")


class _Model:
    """The integer program. `started[j][t]`: j starts at or before slot t; `ended[j][t]`: it is over by t."""

    def __init__(self, problem: Problem, horizon: int, objective: Objective) -> None:
        self.cp = optional_module(
            "ortools.sat.python.cp_model",
            "needs ortools: install it with `pip install 'paceline[exact]'`",
            place="--policy exact",
        )
        self.problem, self.horizon = problem, horizon
        self.model = self.cp.CpModel()
        self.slots = range(horizon)
        self.servers = range(len(problem.cluster.servers))
        self.jobs = range(len(problem.jobs))
        self.sizes = [server.gpus for server in problem.cluster.servers]
        self._placement_variables()
        self._time_variables()
        self._capacity()
        self._progress()
        ends = [sum(1 - self.ended[j][t] for t in self.slots) for j in self.jobs]
        if objective == "makespan":
            makespan = self.model.new_int_var(0, horizon, "makespan")
            for end in ends:
                self.model.add(makespan >= end)
            self.model.minimize(makespan)
        else:
            weights = [max(1, round(1000 * job.priority)) for job in problem.jobs]
            self.model.minimize(sum(w * end for w, end in zip(weights, ends, strict=True)))

    def _placement_variables(self) -> None:
        model, problem = self.model, self.problem
        self.share = [
            [model.new_int_var(0, min(job.gpus, self.sizes[s]), f"y{j},{s}") for s in self.servers]
            for j, job in enumerate(problem.jobs)
        ]
        self.on = [[model.new_bool_var(f"on{j},{s}") for s in self.servers] for j in self.jobs]
        self.uses = [[model.new_bool_var(f"n{j},{n}") for n in self.servers] for j in self.jobs]
        self.spread = [model.new_bool_var(f"spread{j}") for j in self.jobs]
        for j, job in enumerate(problem.jobs):
            model.add(sum(self.share[j]) == job.gpus)
            for s in self.servers:
                model.add(self.share[j][s] >= 1).only_enforce_if(self.on[j][s])
                model.add(self.share[j][s] == 0).only_enforce_if(~self.on[j][s])
            model.add_exactly_one(self.uses[j])
            model.add(sum(self.on[j]) == sum((n + 1) * self.uses[j][n] for n in self.servers))
            model.add(self.spread[j] == 1 - self.uses[j][0])

    def _time_variables(self) -> None:
        model = self.model
        self.started = [[model.new_bool_var(f"s{j},{t}") for t in self.slots] for j in self.jobs]
        self.ended = [[model.new_bool_var(f"e{j},{t}") for t in self.slots] for j in self.jobs]
        self.active = [[model.new_bool_var(f"a{j},{t}") for t in self.slots] for j in self.jobs]
        for j in self.jobs:
            for t in self.slots:
                model.add(self.active[j][t] == self.started[j][t] - self.ended[j][t])
                if t + 1 < self.horizon:
                    model.add_implication(self.started[j][t], self.started[j][t + 1])
                    model.add_implication(self.ended[j][t], self.ended[j][t + 1])
                if t < self.problem.jobs_t.arrival[j]:
                    model.add(self.started[j][t] == 0)
            model.add(sum(self.active[j]) >= int(self.problem.shortest[j]))

    def _capacity(self) -> None:
        model = self.model
        self.crowd: list[list[Any]] = []
        for s in self.servers:
            row = []
            for t in self.slots:
                held, contending = [], []
                for j, job in enumerate(self.problem.jobs):
                    most = min(job.gpus, self.sizes[s])
                    part = model.new_int_var(0, most, "")
                    model.add(part >= self.share[j][s] - most * (1 - self.active[j][t]))
                    held.append(part)
                    if job.gpus > 1:
                        here = model.new_bool_var("")
                        model.add_bool_or(here, ~self.on[j][s], ~self.spread[j], ~self.active[j][t])
                        contending.append(here)
                model.add(sum(held) <= self.sizes[s])
                row.append(sum(contending) if contending else 0)
            self.crowd.append(row)

    def _progress(self) -> None:
        model, problem = self.model, self.problem
        most = min(max(self.sizes), sum(job.gpus > 1 for job in problem.jobs))
        crowded: dict[tuple[int, int, int], Any] = {}
        for s in self.servers:
            for t in self.slots:
                for q in range(2, min(most, self.sizes[s]) + 1):
                    literal = crowded[s, t, q] = model.new_bool_var("")
                    model.add(self.crowd[s][t] <= q - 1).only_enforce_if(~literal)
        for j, job in enumerate(problem.jobs):
            table = [[self._iterations(j, n + 1, q) for q in range(most + 1)] for n in self.servers]
            done = []
            for t in self.slots:
                phi = model.new_int_var(0, max(max(row) for row in table), "")
                model.add(phi == 0).only_enforce_if(~self.active[j][t])
                for n in self.servers:
                    first = table[n][min(1, most)] if n else table[n][0]
                    model.add(phi <= first).only_enforce_if(self.uses[j][n])
                    if n == 0:
                        continue
                    for s in self.servers:
                        for q in range(2, min(most, self.sizes[s]) + 1):
                            if table[n][q] < table[n][q - 1]:
                                model.add(phi <= table[n][q]).only_enforce_if(
                                    self.uses[j][n], self.on[j][s], crowded[s, t, q]
                                )
                done.append(phi)
            model.add(sum(done) >= int(job.iterations))

    def _iterations(self, j: int, servers: int, p: int) -> int:
        tau = kernels.iteration(self.problem.jobs_t, self.problem.price_t, j, servers, p, 1)
        return int(np.floor(1.0 / tau + 1e-9))

    def hint(self, start: Any, end: Any, plan: Plan) -> None:
        """Where the solver begins: a known schedule."""
        for j in self.jobs:
            where = np.bincount(
                self.problem.cluster.server_of[plan.of(self.problem, j)], minlength=len(self.sizes)
            )
            for s in self.servers:
                self.model.add_hint(self.share[j][s], int(where[s]))
                self.model.add_hint(self.on[j][s], bool(where[s]))
            for t in self.slots:
                self.model.add_hint(self.started[j][t], bool(start[j] <= t))
                self.model.add_hint(self.ended[j][t], bool(end[j] <= t))

    def solve(self, budget_s: float, workers: int, fallback: Plan) -> Plan:
        """The best plan found, with `proved` in its settings."""
        solver = self.cp.CpSolver()
        solver.parameters.max_time_in_seconds = budget_s
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = 0
        status = solver.solve(self.model)
        proved = status == self.cp.OPTIMAL
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return Plan(
                fallback.order, fallback.gpus, fallback.not_before, fallback.reasons, {"proved": False}
            )
        start = np.array(
            [sum(1 - solver.value(self.started[j][t]) for t in self.slots) for j in self.jobs], dtype=float
        )
        end = np.array([sum(1 - solver.value(self.ended[j][t]) for t in self.slots) for j in self.jobs])
        share = [[int(solver.value(self.share[j][s])) for s in self.servers] for j in self.jobs]
        order = np.lexsort((np.arange(len(start)), start)).astype(np.int64)
        word = "optimal" if proved else "best found"
        reasons = [f"CP-SAT: part of the {word} schedule; starts in slot {int(start[j])}" for j in self.jobs]
        settings = {"proved": proved, "bound": solver.best_objective_bound}
        return Plan(order, name_gpus(self.problem, order, start, end, share), start, reasons, settings)


def name_gpus(problem: Problem, order: Ints, start: Any, end: Any, share: list[list[int]]) -> Ints:
    """Give each job definite GPUs: intervals on equal GPUs can always be coloured in order of start."""
    base, first = problem.jobs_t.base, problem.cluster.first_gpu
    free_at = np.zeros(problem.cluster.gpus_total)
    gpus = np.zeros(int(base[-1]), dtype=np.int64)
    for j in order:
        at = int(base[j])
        for s, wanted in enumerate(share[j]):
            free = [g for g in range(int(first[s]), int(first[s + 1])) if free_at[g] <= start[j]][:wanted]
            gpus[at : at + wanted] = free
            free_at[free] = end[j]
            at += wanted
    return gpus
