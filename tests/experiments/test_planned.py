"""A plan as a scenario: same hosts, same times, fewer packets; and what cannot be run is said."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.experiments.planned import PACKETS_AN_ITERATION, compare, scenario_of
from paceline.schedule import timeline
from paceline.schedule.inputs.cluster import Cluster, SwitchMemory
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model, Problem
from paceline.schedule.plan import Plan, Schedule


def schedule(exchange: str = "in-network", other: str = "in-network", slots: int = 100_000) -> Schedule:
    jobs = (
        Job("a", 4, 50, 100_000_000, forward_s=0.01, backward_s=0.02, exchange=exchange),  # type: ignore[arg-type]
        Job("b", 4, 30, 40_000_000, forward_s=0.01, backward_s=0.02, exchange=other),  # type: ignore[arg-type]
        Job("c", 2, 40, 10_000_000, forward_s=0.01, backward_s=0.02, exchange=exchange),  # type: ignore[arg-type]
    )
    cluster = replace(Cluster.uniform(4, 2), switch=SwitchMemory(slots=slots, payload=1024))
    problem = Problem(cluster, jobs, Model(links=True))
    gpus = np.array([0, 2, 4, 6, 1, 3, 5, 7, 0, 1])
    return timeline.judge(problem, Plan(np.arange(3), gpus, np.zeros(3), [""] * 3, {}), "by hand")


def test_times_stay_and_packets_shrink(tmp_path: Path) -> None:
    scenario = scenario_of(schedule(), tmp_path)
    first = scenario.job[0]
    assert first.size is not None
    assert first.size <= PACKETS_AN_ITERATION * 1024
    assert first.ratio is not None
    assert first.size * 8 / scenario.network.rate / first.ratio == pytest.approx(0.03, rel=1e-3)
    assert first.hosts == [0, 1, 2, 3]
    assert scenario.job[2].after == ["a", "b"]
    assert scenario.policies == ["esa"]


def test_jobs_from_a_profile_keep_their_layers_and_times(tmp_path: Path) -> None:
    plan = schedule()
    releases = ((0.001, 90_000_000), (0.02, 10_000_000))
    jobs = (replace(plan.problem.jobs[0], releases=releases), *plan.problem.jobs[1:])
    scenario = scenario_of(replace(plan, problem=replace(plan.problem, jobs=jobs)), tmp_path)
    model = scenario.job[0].model_profile(scenario.network.rate)
    assert model.backward_ns() == pytest.approx((19e6, 1e6), rel=1e-3)
    assert sum(model.forward_ns()) == pytest.approx(10e6, rel=1e-3)
    last, first = model.layer_gradient_bytes()
    assert first == pytest.approx(9 * last, rel=1e-3)
    assert first + last <= PACKETS_AN_ITERATION * 1024 + 8
    assert scenario.job[1].profile == ""


def test_small_layers_share_packets(tmp_path: Path) -> None:
    """A hundred layers of a third of a packet each would be a hundred packets, three times as many."""
    plan = schedule()
    releases = tuple((0.0002 * (i + 1), 400_000_000 // 2048 // 3) for i in range(100))
    size = sum(size_bytes for _, size_bytes in releases)
    jobs = (
        replace(plan.problem.jobs[0], gradient_bytes=400_000_000),
        replace(plan.problem.jobs[1], releases=releases, gradient_bytes=size),
        plan.problem.jobs[2],
    )
    scenario = scenario_of(replace(plan, problem=replace(plan.problem, jobs=jobs)), tmp_path)
    sizes = scenario.job[1].model_profile(scenario.network.rate).layer_gradient_bytes()
    smaller = 400_000_000 / PACKETS_AN_ITERATION / 1024
    assert sum(sizes) == pytest.approx(size / smaller, rel=0.01)
    assert sum(-(-each // 1024) for each in sizes) <= sum(sizes) / 1024 + 1
    assert sum(scenario.job[1].model_profile(scenario.network.rate).backward_ns()) == pytest.approx(
        20e6, rel=1e-3
    )


def test_predictions_hold_on_a_small_plan() -> None:
    compared = compare(schedule())
    assert [each.servers for each in compared] == [4, 4, 1]
    for each in compared:
        assert abs(each.error) < 0.15


def test_memory_is_as_ample_beside_smaller_jobs() -> None:
    """256 aggregators are sixteen times what a job has under way on these links."""
    for each in compare(schedule(slots=256)):
        assert abs(each.error) < 0.15


def test_both_exchanges_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be run together"):
        scenario_of(schedule(other="ring"), tmp_path)
