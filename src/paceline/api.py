"""What a user types: scenarios are simulated, jobs are planned, runs are read. `import paceline` gives these names.

Whatever comes from a file can also be given as an object or as plain data. A mistake in it is a `UserError`, in one
line that names the place.
"""

import copy
import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paceline import toml
from paceline.core.priority import PriorityRule, priority
from paceline.errors import UserError
from paceline.launch import store
from paceline.models.catalogue import DEFAULT_FLOP_PER_S
from paceline.report.run.read import RunData
from paceline.schedule import planning
from paceline.schedule.inputs.cluster import Cluster
from paceline.schedule.inputs.jobs import Job, JobEntry, iteration_of
from paceline.schedule.inputs.sources import ClusterSource, read_jobs
from paceline.schedule.model import Model, Problem
from paceline.schedule.plan import Objective, Schedule
from paceline.schedule.policies import NAMES as PLAN_POLICIES
from paceline.schedule.policies import Policy, by_name
from paceline.sim import run as simulator
from paceline.sim.results import RunResult
from paceline.sim.scenario import POLICIES as SIMULATE_POLICIES
from paceline.sim.scenario import Scenario, load_scenario

__all__ = ["POLICIES", "Cluster", "Job", "Scenario", "UserError", "plan", "read_run", "simulate"]

POLICIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"simulate": SIMULATE_POLICIES, "plan": (*PLAN_POLICIES, "exact")}
)
"""The policies by name: those of switch memory and transport for `simulate`, those of placement for `plan`."""


def simulate(
    scenario: Scenario | str | Path | Mapping[str, Any],
    policy: str | None = None,
    *,
    seed: int | None = None,
    check: bool = False,
    changes: Sequence[str] = (),
    rule: PriorityRule = priority,
) -> RunResult:
    """Run a scenario packet by packet, under one policy, and give its result.

    The scenario is a `Scenario`, the path of a TOML file, or a dict with the keys of such a file. Without a policy it
    is the first that the scenario names. `changes` are texts such as `"switch.slots=64"`, for files and dicts. With
    `check`, every sum is compared with the true one. `rule` gives ESA's packets their priority
    ([your own](simulating.md#your-own-priority-rule)).
    """
    made = _scenario(scenario, changes)
    name = policy or made.policies[0]
    if name not in SIMULATE_POLICIES:
        close = difflib.get_close_matches(name, SIMULATE_POLICIES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(SIMULATE_POLICIES)}"
        raise UserError(f"there is no policy {name!r}; {hint}", place="policy")
    return simulator.simulate(made, name, seed=seed, check=check, rule=rule)


def _scenario(given: Scenario | str | Path | Mapping[str, Any], changes: Sequence[str]) -> Scenario:
    if isinstance(given, Scenario):
        if changes:
            raise UserError("changes are for a file or a dict; give a changed Scenario", place="changes")
        return given
    if isinstance(given, str | Path):
        return load_scenario(Path(given), tuple(changes))
    data = copy.deepcopy(dict(given))
    for change in changes:
        toml.apply_override(data, change)
    return toml.validate(data, Scenario, "scenario", {})


def plan(
    jobs: str | Path | Iterable[Job | Mapping[str, Any]],
    cluster: Cluster | str | Path | Mapping[str, Any],
    policy: str | Policy = "bco-plus",
    *,
    objective: Objective = "makespan",
    seed: int = 0,
    budget_s: float | None = 60.0,
    work: int | None = None,
) -> Schedule:
    """Decide which job runs where and when, and give the judged schedule.

    Jobs are `Job` objects or dicts with the keys of a job file, or the path of a TOML or CSV file. The cluster is a
    `Cluster`, a dict or the path of a TOML file. `paper:SEED` stands for the scheduler paper's own jobs and servers,
    `philly-like:SEED` for jobs that arrive over a day. Policies that search do so much `work`
    (evaluations), and at most for `budget_s` by the clock. A policy may also be an
    object of yours ([guide](guide.md#add-a-policy)).
    """
    if isinstance(cluster, Cluster):
        problem = Problem(cluster, _jobs(jobs, cluster.gpus_total), Model(links=True))
    else:
        source = (
            ClusterSource.read(str(cluster))
            if isinstance(cluster, str | Path)
            else ClusterSource("cluster", dict(cluster), {})
        )
        total, flop_rate = source.file.cluster().gpus_total, source.file.device.flop_rate
        problem = source.problem(_jobs(jobs, total, flop_rate))
    chosen = by_name(policy, seed=seed, budget_s=budget_s, work=work) if isinstance(policy, str) else policy
    return planning.plan(problem, chosen, objective)


def _jobs(
    given: str | Path | Iterable[Job | Mapping[str, Any]],
    gpus_total: int,
    flop_per_s: float = DEFAULT_FLOP_PER_S,
) -> tuple[Job, ...]:
    if isinstance(given, str | Path):
        return read_jobs(str(given), gpus_total, flop_per_s)
    jobs: list[Job] = []
    for index, job in enumerate(given):
        if isinstance(job, Job):
            jobs.append(job)
        else:
            place = f"jobs[{index}]"
            entry = toml.validate(dict(job), JobEntry, place, {})
            jobs += entry.jobs(index, iteration_of(entry, Path(), place, flop_per_s))
    return tuple(jobs)


def read_run(folder: str | Path) -> RunData:
    """Read what `paceline run` has left in a folder: a run that has finished, was stopped, or still goes on."""
    return store.read_run(Path(folder))
