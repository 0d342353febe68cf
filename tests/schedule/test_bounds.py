import numpy as np
import pytest
from hypothesis import given, settings

from paceline.schedule import bounds, planning
from paceline.schedule.inputs.cluster import Cluster, Server
from paceline.schedule.inputs.generate import PaperSetting, paper_problem
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model, Problem
from paceline.schedule.policies.bco_plus import BcoPlus
from paceline.schedule.policies.sjf_bco import SjfBco
from tests.schedule.strategies import problems

TEN = Cluster((Server("a", 5), Server("b", 5)))
FREE = Model(xi2_s=0.0)


def problem_of(*sizes: tuple[int, int], arrival: float = 0.0) -> Problem:
    jobs = [Job(f"j{i}", g, n, backward_s=1.0, arrival_s=arrival * i) for i, (g, n) in enumerate(sizes)]
    return Problem(TEN, tuple(jobs), FREE)


@pytest.mark.parametrize(
    ("sizes", "value", "argument"),
    [
        (((1, 30), (1, 5)), 30.0, "longest job"),
        (((1, 1),) * 15 + ((1, 10),) * 25, 26.5, "area"),
        # Two jobs wider than half of the cluster run one after the other.
        (((6, 10), (6, 12)), 22.0, "width"),
        # Three jobs of 4 GPUs, two places: some place serves two of them.
        (((4, 10), (4, 11), (4, 12)), 21.0, "side by side"),
    ],
)
def test_each_argument(sizes: tuple[tuple[int, int], ...], value: float, argument: str) -> None:
    found = bounds.lower_bound(problem_of(*sizes))
    assert found.value_s == pytest.approx(value)
    assert found.argument == argument


def test_arrivals_count() -> None:
    # All ten GPUs for 10 s each, the second arriving after 100 s.
    found = bounds.lower_bound(problem_of((10, 10), (10, 10), arrival=100.0))
    assert found.value_s == pytest.approx(110.0)


def test_jobs_in_pieces_may_beat_the_side_by_side_bound() -> None:
    problem = problem_of((4, 10), (4, 11), (4, 12))
    assert bounds.lower_bound(problem, preemptive=True).value_s == pytest.approx(33 * 4 / 10)


def test_counted_widths() -> None:
    gpus = np.array([1, 3, 5, 8, 10])
    assert bounds.counted(gpus, 10, 3).tolist() == [0, 3, 5, 10, 10]
    assert bounds.counted(gpus, 10, 6).tolist() == [0, 0, 0, 10, 10]


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_no_good_schedule_is_below_the_bound(problem: Problem) -> None:
    schedule = planning.plan(problem, BcoPlus(evaluations=80))
    assert schedule.gap >= 0.0


@settings(max_examples=40, deadline=None)
@given(problem=problems(arrivals=False, in_network=False))
def test_the_approximation_guarantee_holds_against_the_bound(problem: Problem) -> None:
    ratio = bounds.approximation_ratio(problem)
    assert ratio.value >= 1.0
    schedule = planning.plan(problem, SjfBco(sweep=0))
    assert schedule.makespan_s <= ratio.value * bounds.lower_bound(problem).value_s * (1 + 1e-9)


@pytest.mark.parametrize("servers", [10, 20])
def test_the_approximation_guarantee_holds_in_the_papers_setting(servers: int) -> None:
    problem = paper_problem(1, PaperSetting(servers=servers))
    ratio = bounds.approximation_ratio(problem)
    assert ratio.n_g == 32
    schedule = planning.plan(problem, SjfBco(horizon=1200.0))
    assert schedule.makespan_s <= ratio.value * bounds.lower_bound(problem).value_s
