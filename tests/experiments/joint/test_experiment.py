"""The joint experiment: placements and queues reach the simulator as planned, and the figures are what they say."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from paceline.experiments.joint import experiment as joint
from paceline.experiments.joint.points import (
    SLOW_SERVER,
    JointPoint,
    all_points,
    model_error,
    plan,
    policy_of,
    problem,
    scenario,
    workload,
)
from paceline.generated import renew
from paceline.schedule import planning
from paceline.sim.run import simulate

POINT = JointPoint("sjf-bco", "esa", "off", seed=3, jobs=8, quick=True)


def test_workloads_are_drawn_by_the_seed_alone() -> None:
    assert workload(1, 12, True) == workload(1, 12, True)
    assert workload(1, 12, True) != workload(2, 12, True)


def test_a_plan_runs_as_planned() -> None:
    schedule = plan(POINT)
    jobs = {job.name: job for job in scenario(POINT, schedule).expanded_jobs()}
    server_of = schedule.problem.cluster.server_of
    for placement in schedule.placements:
        job = jobs[placement.job]
        assert job.hosts == sorted({int(server_of[gpu]) for gpu in placement.gpus})
        for other in schedule.placements:
            if set(other.gpus) & set(placement.gpus) and other.start_s < placement.start_s:
                before, todo = set(), list(job.after)
                while todo:
                    name = todo.pop()
                    before.add(name)
                    todo += jobs[name].after
                assert other.job in before, "whoever has a GPU first goes first"


def test_plans_do_not_depend_on_the_clock() -> None:
    point = dataclasses.replace(POINT, planner="bco-plus", seed=1, jobs=12)
    hours = itertools.count(step=3600.0)
    policy: Any = dataclasses.replace(policy_of(point), clock=lambda: next(hours))  # type: ignore[type-var]
    slow = planning.plan(problem(point), policy, "jct")
    quick = planning.plan(problem(point), policy_of(point), "jct")
    assert slow.placements == quick.placements


def test_only_workers_on_the_slow_server_are_slow() -> None:
    schedule = plan(POINT)
    planned = scenario(POINT, schedule)
    jobs = {job.name: job for job in planned.expanded_jobs()}
    for slow in planned.faults.slow:
        assert (jobs[slow.job].hosts or [])[slow.worker] == SLOW_SERVER
    assert {slow.job for slow in planned.faults.slow} == {
        name for name, job in jobs.items() if SLOW_SERVER in (job.hosts or [])
    }


def test_the_model_is_judged_by_what_ran() -> None:
    point = JointPoint("ff", "esa", "off", seed=3, jobs=6, slow=False, quick=True)
    schedule = plan(point)
    result = simulate(scenario(point, schedule), "esa", seed=3)
    assert result.failed is None
    assert 0 <= model_error(schedule, result) < 5


def test_every_cell_is_there_and_a_ring_is_not_helped() -> None:
    points = all_points(quick=True)
    cells = {(p.planner, p.exchange, p.straggler) for p in points if p.slow and p.topology == "leaf-spine"}
    ways = [("ring", "off"), *itertools.product(("atp", "esa"), ("off", "both"))]
    assert cells == {(planner, *way) for planner in ("ff", "sjf-bco", "bco-plus") for way in ways}


def test_whoever_sums_in_the_network_runs_the_same_plan() -> None:
    helped = dataclasses.replace(POINT, exchange="atp", straggler="both", topology="star")
    assert plan(helped) is plan(POINT)


def _row(point: JointPoint) -> list[dict[str, Any]]:
    helped = 0.5 if point.straggler == "both" else 1.0
    better = {"ff": 1.0, "sjf-bco": 0.8, "bco-plus": 0.5}[point.planner]
    better *= 1.25 if point.model == "paper" else 1.0
    return [
        {
            "topology": point.topology, "planner": point.planner, "model": point.model, "exchange": point.exchange,
            "straggler": point.straggler, "slow_server": point.slow, "seed": seed, "jobs": point.jobs, "window": 8,
            "avg_jct_ms": 8.0 * helped * better, "makespan_ms": 16.0 * helped, "expected_avg_jct_ms": 4.0,
            "expected_makespan_ms": 8.0, "model_error": 0.25, "spread_jobs": 3, "packets": 1, "failed": None,
        }
        for seed in point.seeds
    ]  # fmt: skip


def test_the_summary_compares_with_first_fit_and_atp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "run_points", lambda *_, **__: [_row(point) for point in all_points(True)])
    summary = joint.reproduce(tmp_path, quick=True)
    assert summary["joint_avg_jct_over_ff_atp"]["ours"] == 4.0
    assert summary["joint_makespan_over_ff_atp"]["ours"] == 2.0
    assert summary["model_error_mean"]["ours"] == 0.25
    assert all(entry["paper"] is None for entry in summary.values())
    ideas = (tmp_path / "ideas.csv").read_text(encoding="utf-8").splitlines()
    assert ideas[3].startswith("stragglers: both instead of off,2.0,2.0")
    assert "first-fit" in (tmp_path / "index.html").read_text(encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- generated: figures -->\nold\n<!-- end of generated -->\nafter\n", encoding="utf-8"
    )
    renew([str(page)], {"figures": joint.docs_tables(tmp_path)})
    text = page.read_text(encoding="utf-8")
    assert "| bco-plus, ESA, both | 2.0 | 4.00 | 4.00 | 8.0 | 2.00 |" in text
    assert "| stragglers: both instead of off | 2.00 | 2.00 | 2.00 | 2.00 |" in text
    assert "| bco-plus | ESA | 5.00 | 4.00 | 1.250 | 16.0 | 16.0 | 1.000 | 0.25 | 0.25 |" in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
