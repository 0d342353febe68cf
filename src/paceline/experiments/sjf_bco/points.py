"""The points of the SJF-BCO experiment: each a seed and a setting, each a function of nothing else.

Main points run every scheduler on the same drawn cluster and jobs, so that gaps are paired. SJF-BCO, FF and
RAND get the paper's own bisection of theta over [1, 1200]; the finer search (`grid`) is run beside it.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from paceline.schedule import bounds, planning
from paceline.schedule.exact import Exact
from paceline.schedule.inputs.generate import PAPER_HORIZON, PaperSetting, paper_problem, small_problem
from paceline.schedule.model import Problem
from paceline.schedule.plan import Schedule
from paceline.schedule.policies import Policy
from paceline.schedule.policies.bco_plus import BcoPlus
from paceline.schedule.policies.first_fit import FirstFit
from paceline.schedule.policies.list_scheduling import ListScheduling
from paceline.schedule.policies.load_limited import floor_of
from paceline.schedule.policies.lwf import LwfKappa
from paceline.schedule.policies.random import Random
from paceline.schedule.policies.sjf_bco import SjfBco
from paceline.schedule.policies.tiresias import Tiresias

T = PAPER_HORIZON
SERVERS = (10, 15, 20)
SHARES = (0.05, 0.10, 0.15, 0.20, 0.30)
KAPPAS = (1, 2, 4, 8, 10, 16, 32)
LAMBDAS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
LIMITS = (1.05, 1.25, 1.5, 2.0, 3.0, 4.0)
"""FF's load limit as a multiple of the least one possible."""


@dataclass(frozen=True)
class Size:
    """How much is run."""

    seeds: int
    kappa_seeds: int
    """As many in the short run too: the left arm of the U is shallow."""
    sweep_seeds: int
    exact_cases: int
    evaluations: int


FULL = Size(seeds=50, kappa_seeds=50, sweep_seeds=20, exact_cases=100, evaluations=2500)
QUICK = Size(seeds=8, kappa_seeds=50, sweep_seeds=4, exact_cases=12, evaluations=1200)


@dataclass(frozen=True)
class SjfBcoPoint:
    """One run; `kind` names the function below."""

    kind: str
    seed: int
    setting: PaperSetting = field(default_factory=PaperSetting)
    evaluations: int = 0


def all_points(size: Size) -> list[SjfBcoPoint]:
    """Everything that is run, the longest first."""
    base = PaperSetting()
    listed = [SjfBcoPoint("exact", seed, base, 1000) for seed in range(size.exact_cases)]
    for servers in SERVERS:
        setting = replace(base, servers=servers)
        listed += [SjfBcoPoint("main", seed, setting, size.evaluations) for seed in range(size.seeds)]
        listed += [SjfBcoPoint("kappa", seed, setting) for seed in range(size.kappa_seeds)]
        few = range(size.sweep_seeds)
        listed += [SjfBcoPoint("limit", seed, setting) for seed in few]
        listed += [
            SjfBcoPoint("share", seed, replace(setting, share=share)) for share in SHARES for seed in few
        ]
        listed += [SjfBcoPoint("time", seed, replace(setting, slotted=False)) for seed in few]
    listed += [SjfBcoPoint("lambda", seed, base) for seed in range(size.seeds)]
    return listed


def schedulers(point: SjfBcoPoint) -> dict[str, Policy]:
    """The four of the paper, the same with the finer search, and what we add."""
    return {
        "sjf-bco": SjfBco(horizon=T, sweep=0),
        "ls": ListScheduling(),
        "ff": FirstFit(horizon=T, sweep=0),
        "rand": Random(seed=point.seed, horizon=T, sweep=0),
        "sjf-bco grid": SjfBco(horizon=T),
        "ff grid": FirstFit(horizon=T),
        "sjf-bco-printed": SjfBco(fa_ffp="printed", horizon=T, sweep=0),
        "sjf-bco-one-server": SjfBco(fa_ffp="one-server", horizon=T, sweep=0),
        "lwf-kappa": LwfKappa(),
        "tiresias": Tiresias(),
        "bco-plus": BcoPlus(seed=point.seed, evaluations=point.evaluations, horizon=T),
    }


def run_point(point: SjfBcoPoint) -> list[dict[str, Any]]:
    """The rows of one point."""
    return {
        "main": _main, "kappa": _kappa, "lambda": _lambda, "share": _pairs, "time": _pairs, "limit": _limit,
        "exact": _exact,
    }[point.kind](point)  # fmt: skip


def _main(point: SjfBcoPoint) -> list[dict[str, Any]]:
    problem = paper_problem(point.seed, point.setting)
    bound = bounds.lower_bound(problem)
    ratio = bounds.approximation_ratio(problem).value
    rows = []
    for name, policy in schedulers(point).items():
        schedule = planning.plan(problem, policy)
        rows.append(
            {
                "servers": point.setting.servers,
                "seed": point.seed,
                "policy": name,
                "makespan": schedule.makespan_s,
                "avg_jct": schedule.avg_jct_s,
                "p95_jct": schedule.p95_jct_s,
                "lower_bound": bound.value_s,
                "bound_by": bound.argument,
                "gap": schedule.gap,
                "communication_share": communication_share(problem, schedule),
                "ratio": ratio,
                "ratio_holds": schedule.makespan_s <= ratio * bound.value_s,
                "plan_s": schedule.plan_s,
            }
        )
    return rows


def communication_share(problem: Problem, schedule: Schedule) -> float:
    """Contention and overhead as a share of the execution time, mean over the jobs of several GPUs."""
    shares = []
    for job, placement in zip(problem.jobs, schedule.placements, strict=True):
        if job.gpus > 1:
            ran = sum(segment.end_s - segment.start_s for segment in placement.segments)
            bare = job.iterations * job.compute_s
            if problem.model.slot_s is not None:
                bare = float(np.ceil(job.iterations / np.floor(1.0 / job.compute_s + 1e-9)))
            shares.append(1.0 - bare / ran)
    return float(np.mean(shares))


def _kappa(point: SjfBcoPoint) -> list[dict[str, Any]]:
    problem = paper_problem(point.seed, point.setting)
    rows = []
    for kappa in KAPPAS:
        trial = SjfBco(kappas=(kappa,), horizon=T).search(problem, "makespan")
        rows.append(
            {
                "servers": point.setting.servers,
                "seed": point.seed,
                "kappa": kappa,
                "makespan": trial.score,
                "theta": trial.theta,
            }
        )
    return rows


def _lambda(point: SjfBcoPoint) -> list[dict[str, Any]]:
    problem = paper_problem(point.seed, point.setting)
    rows = []
    for spread in LAMBDAS:
        trial = SjfBco(spread=spread, horizon=T, sweep=0).search(problem, "makespan")
        rows.append({"seed": point.seed, "lambda": spread, "makespan": trial.score, "kappa": trial.kappa})
    return rows


def _pairs(point: SjfBcoPoint) -> list[dict[str, Any]]:
    # SJF-BCO beside LS and FF, for sweeps over what the paper does not publish.
    problem = paper_problem(point.seed, point.setting)
    policies = schedulers(point)
    row: dict[str, Any] = {
        "servers": point.setting.servers,
        "seed": point.seed,
        "share": point.setting.share,
        "slotted": point.setting.slotted,
    }
    for name in ("sjf-bco", "ls", "ff"):
        row[name] = planning.plan(problem, policies[name]).makespan_s
    return [row]


def _limit(point: SjfBcoPoint) -> list[dict[str, Any]]:
    problem = paper_problem(point.seed, point.setting)
    ours = planning.plan(problem, SjfBco(horizon=T, sweep=0)).makespan_s
    floor = floor_of(problem)
    rows = []
    for multiple in LIMITS:
        schedule = planning.plan(problem, FirstFit(theta=multiple * floor, horizon=T, sweep=0))
        fits = abs(schedule.settings["theta"] - multiple * floor) < 1e-6
        rows.append(
            {
                "servers": point.setting.servers,
                "seed": point.seed,
                "limit": multiple,
                "fits": fits,
                "ff": schedule.makespan_s,
                "sjf-bco": ours,
            }
        )
    return rows


def _exact(point: SjfBcoPoint) -> list[dict[str, Any]]:
    problem = small_problem(point.seed)
    best = planning.plan(problem, Exact(budget_s=60.0, workers=1, evaluations=300))
    row: dict[str, Any] = {
        "seed": point.seed,
        "jobs": len(problem.jobs),
        "gpus": problem.cluster.gpus_total,
        "proved": best.settings["proved"],
        "exact": best.makespan_s,
        "lower_bound": best.lower_bound_s,
    }
    policies: dict[str, Policy] = {
        "bco-plus": BcoPlus(seed=point.seed, evaluations=point.evaluations),
        "sjf-bco": SjfBco(),
        "ls": ListScheduling(),
        "ff": FirstFit(),
        "rand": Random(seed=point.seed),
        "lwf-kappa": LwfKappa(),
    }
    for name, policy in policies.items():
        row[name] = planning.plan(problem, policy).makespan_s
    ratio = bounds.approximation_ratio(problem).value
    row["ratio"] = ratio
    row["ratio_holds"] = row["sjf-bco"] <= ratio * row["exact"]
    return [row]
