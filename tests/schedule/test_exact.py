import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings

from paceline.errors import UserError
from paceline.schedule import bounds, planning
from paceline.schedule.exact import Exact
from paceline.schedule.inputs.cluster import Cluster, Server
from paceline.schedule.inputs.generate import paper_problem, small_problem
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model, Problem
from paceline.schedule.policies import Policy, by_name
from paceline.schedule.policies.bco_plus import BcoPlus
from paceline.schedule.policies.list_scheduling import ListScheduling
from paceline.schedule.policies.sjf_bco import SjfBco
from tests.schedule import validity
from tests.schedule.strategies import problems

EXACT = Exact(budget_s=20.0, workers=1, evaluations=100)
OTHERS: tuple[Policy, ...] = (
    SjfBco(),
    SjfBco(fa_ffp="one-server"),
    BcoPlus(evaluations=300),
    *(by_name(name) for name in ("ls", "ff", "rand", "lwf-kappa")),
)


@pytest.mark.parametrize("seed", range(12))
def test_no_policy_beats_exact_and_the_guarantee_holds(seed: int) -> None:
    problem = small_problem(seed)
    best = planning.plan(problem, EXACT)
    validity.check(best)
    assert best.settings["proved"]
    assert best.gap == 0.0
    for policy in OTHERS:
        assert planning.plan(problem, policy).makespan_s >= best.makespan_s, policy.name
    ratio = bounds.approximation_ratio(problem).value
    assert planning.plan(problem, SjfBco()).makespan_s <= ratio * best.makespan_s


@settings(max_examples=12, deadline=None)
@given(problem=problems(jobs_max=4, arrivals=False, in_network=False, slotted=True))
def test_no_policy_beats_exact_on_drawn_problems(problem: Problem) -> None:
    # Short jobs: a handful of slots each.
    short = tuple(replace(job, iterations=min(job.iterations, 4)) for job in problem.jobs)
    problem = replace(problem, jobs=short)
    best = planning.plan(problem, EXACT)
    validity.check(best)
    if best.settings["proved"]:
        for policy in OTHERS:
            assert planning.plan(problem, policy).makespan_s >= best.makespan_s * (1 - 1e-9), policy.name


def test_exact_waits_where_waiting_pays() -> None:
    cluster = Cluster((Server("a", 3), Server("b", 3), Server("c", 3)), intra_bps=1e15, inter_bps=8e9)
    jobs = tuple(Job(f"j{i}", 4, 4, 10**9, backward_s=0.1) for i in range(2))
    problem = Problem(cluster, jobs, Model(alpha=20.0, xi2_s=0.0, reduce_bps=1e18, slot_s=40.0))
    # Alone 25 iterations a slot, so a slot each; together (k = 2, f = 22) one a slot, so four slots.
    assert planning.plan(problem, ListScheduling()).makespan_s == pytest.approx(160.0)
    best = planning.plan(problem, EXACT)
    assert best.makespan_s == pytest.approx(80.0)
    assert best.placements[0].end_s != best.placements[1].end_s


def test_average_completion_time_is_an_objective_too() -> None:
    cluster = Cluster((Server("a", 2),))
    jobs = (Job("long", 2, 9, backward_s=1.0), Job("short", 2, 1, backward_s=1.0))
    problem = Problem(cluster, jobs, Model(xi2_s=0.0, slot_s=1.0))
    best = planning.plan(problem, EXACT, "jct")
    assert best.avg_jct_s == pytest.approx((1 + 10) / 2)
    assert best.placements[1].start_s == 0.0


def test_what_it_cannot_do_is_said() -> None:
    job = Job("j", 2, 5, 10**6, backward_s=0.1)
    cluster = Cluster((Server("a", 2),))
    with pytest.raises(UserError, match="slotted"):
        EXACT.plan(Problem(cluster, (job,)))
    inside = replace(job, exchange="in-network")
    with pytest.raises(UserError, match="ring jobs only"):
        EXACT.plan(Problem(cluster, (inside,), Model(slot_s=1.0)))
    with pytest.raises(UserError, match="too large"):
        Exact(evaluations=1).plan(paper_problem(0))


def test_without_ortools_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    with pytest.raises(UserError, match=r"paceline\[exact\]"):
        EXACT.plan(small_problem(0))
