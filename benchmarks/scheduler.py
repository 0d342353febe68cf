"""How long planning takes, against jobs and GPUs: `python -m benchmarks.scheduler`.

Rows: a size and a policy, with the time to plan, and how it grew from the size before: `growth` is the exponent, 1 if
twice the jobs take twice the time. The peer measured in
the same run is list scheduling, the cheapest policy that places every job: `times_ls` is the ratio to it.
The evaluator's speed is given as job events (a start or an end each) a second on the plan of the size.
Rows come for both models, the paper's and that of shared links; `times_paper` is the second's time over the first's.
"""

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.schedule import planning, timeline
from paceline.schedule.inputs.cluster import Cluster, Server
from paceline.schedule.inputs.generate import (
    PAPER_MIX,
    PAPER_SERVER_GPUS,
    PaperSetting,
    paper_jobs,
    paper_model,
    paper_problem,
)
from paceline.schedule.model import Model, Problem
from paceline.schedule.plan import Plan
from paceline.schedule.policies import by_name

Clock = Callable[[], float]

SIZES = ((160, 0), (500, 500), (1000, 1000), (2000, 2000), (5000, 4000), (10_000, 8_000))
"""Jobs and GPUs; 0 GPUs is the paper's own setting."""
POLICIES = ("ls", "ff", "rand", "sjf-bco", "bco-plus")
GOALS = {(160, 0): 0.5, (2000, 2000): 10.0, (10_000, 8_000): 60.0}


def build(jobs: int, gpus: int, seed: int = 0) -> Problem:
    """The paper's mix of jobs and servers, scaled to these numbers."""
    setting = PaperSetting()
    if gpus == 0:
        return paper_problem(seed, setting)
    rng = np.random.default_rng((seed, 9))
    servers: list[Server] = []
    while (left := gpus - sum(server.gpus for server in servers)) > 0:
        size = min(int(rng.choice(PAPER_SERVER_GPUS)), left)
        servers.append(Server(f"s{len(servers):04d}", size))
    copies = -(-jobs // sum(PAPER_MIX.values()))
    drawn = [job for copy in range(copies) for job in paper_jobs(seed + copy, setting)][:jobs]
    cluster = Cluster(tuple(servers), intra_bps=8e15, inter_bps=8e9)
    return Problem(cluster, tuple(drawn), paper_model(setting))


def evaluator_events_per_s(problem: Problem, clock: Clock = time.perf_counter) -> float:
    """Starts and ends a second on the list-scheduling plan (nearly every job spread), best of five."""
    plan = by_name("ls").plan(problem, "makespan")
    assert isinstance(plan, Plan)
    timeline.run(problem, plan.order, plan.gpus)
    best_s = float("inf")
    for _ in range(5):
        began = clock()
        timeline.run(problem, plan.order, plan.gpus)
        best_s = min(best_s, clock() - began)
    return 2 * len(problem.jobs) / best_s


def by_model(problem: Problem, model: str) -> Problem:
    """The same jobs under another model: `paper` as it is, or `links`."""
    return problem if model == "paper" else replace(problem, model=Model(links=True))


def measure(
    sizes: Sequence[tuple[int, int]],
    policies: Sequence[str],
    models: Sequence[str] = ("paper",),
    clock: Clock = time.perf_counter,
) -> list[dict[str, Any]]:
    """A row a size, model and policy."""
    planning.warm_up()
    rows: list[dict[str, Any]] = []
    paper_s: dict[tuple[int, int, str], float] = {}
    before: dict[tuple[str, str], tuple[int, float]] = {}
    for (jobs, gpus), model in itertools.product(sizes, models):
        problem = by_model(build(jobs, gpus), model)
        events = evaluator_events_per_s(problem, clock)
        base_s = 0.0
        for name in policies:
            schedule = planning.plan(problem, by_name(name), clock=clock)
            base_s = schedule.plan_s if name == "ls" else base_s
            first_s = paper_s.setdefault((jobs, gpus, name), schedule.plan_s)
            growth = growth_of(before.get((model, name)), (jobs, schedule.plan_s))
            before[model, name] = jobs, schedule.plan_s
            rows.append(
                {
                    "jobs": jobs,
                    "gpus": problem.cluster.gpus_total,
                    "model": model,
                    "policy": name,
                    "plan_s": schedule.plan_s,
                    "growth": growth,
                    "times_ls": schedule.plan_s / base_s if base_s else None,
                    "times_paper": None if model == "paper" else schedule.plan_s / first_s,
                    "makespan": schedule.makespan_s,
                    "gap": schedule.gap,
                    "goal_s": GOALS.get((jobs, gpus)) if name == "sjf-bco" else None,
                    "evaluator_events_per_s": events,
                }
            )
            print(f"{jobs} jobs, {model}, {name}: {schedule.plan_s:.3f} s", file=sys.stderr)
    return rows


def growth_of(before: tuple[int, float] | None, now: tuple[int, float]) -> float | None:
    """The exponent of time over jobs, between two sizes."""
    if before is None or now[0] <= before[0]:
        return None
    return math.log(now[1] / before[1]) / math.log(now[0] / before[0])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows for a person."""
    lines = [
        "  jobs   gpus  model  policy       plan s  growth   x LS  x paper   goal s   gap to bound"
        "   evaluator events/s"
    ]
    for row in rows:
        ratio = f"{row['times_ls']:.3g}" if row["times_ls"] else "-"
        times = f"{row['times_paper']:.2f}" if row["times_paper"] else ""
        goal = f"{row['goal_s']:g}" if row["goal_s"] else ""
        growth = "" if row["growth"] is None else f"{row['growth']:.2f}"
        lines.append(
            f"{row['jobs']:>6} {row['gpus']:>6}  {row['model']:<5}  {row['policy']:<10}"
            f" {row['plan_s']:>8.3f} {growth:>7} {ratio:>6} {times:>8}"
            f" {goal:>8} {row['gap']:>14.1%} {row['evaluator_events_per_s']:>20,.0f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", metavar="FILE|-", default="", help="write the rows as JSON")
    parser.add_argument("--quick", action="store_true", help="up to 2,000 jobs")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="only these; ls is the peer")
    parser.add_argument("--model", choices=("paper", "links"), help="only this one")
    parser.add_argument(
        "--processor", action="store_true", help="seconds of the processor, where other work runs beside it"
    )
    options = parser.parse_args()
    clock = time.process_time if options.processor else time.perf_counter
    sizes = [size for size in SIZES if not options.quick or size[0] <= 2000]
    policies = ["ls", *(name for name in options.policy or POLICIES if name != "ls")]
    rows = measure(sizes, policies, (options.model,) if options.model else ("paper", "links"), clock)
    if options.json == "-":
        print(json.dumps(rows, indent=1))
        return
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(rows, file, indent=1)
    print(table(rows))


if __name__ == "__main__":
    main()
