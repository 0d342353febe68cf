from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.schedule import planning
from paceline.schedule.inputs.cluster import Cluster, Server
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model, Problem
from paceline.schedule.policies import Policy, by_name
from paceline.schedule.policies.bco_plus import BcoPlus
from paceline.schedule.policies.sjf_bco import SjfBco
from paceline.schedule.policies.tiresias import Tiresias
from tests.schedule import validity
from tests.schedule.strategies import problems

POLICIES: list[Policy] = [
    SjfBco(sweep=2),
    BcoPlus(evaluations=30),
    *(by_name(name) for name in ("ls", "ff", "rand", "lwf-kappa")),
    Tiresias(limits=(2.0,)),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_nobody_sees_the_future(policy: Policy, data: st.DataObject) -> None:
    problem = data.draw(problems(jobs_max=6, slotted=False))
    latest = max(job.arrival_s for job in problem.jobs) + 1.0
    newcomer = replace(problem.jobs[0], name="late", arrival_s=latest)
    alone = planning.plan(problem, policy)
    with_newcomer = planning.plan(replace(problem, jobs=(*problem.jobs, newcomer)), policy)
    validity.check(with_newcomer)
    for before, after in zip(alone.placements, with_newcomer.placements, strict=False):
        # Whatever had started by then was started alike, on the same GPUs.
        if before.start_s < latest and problem.jobs_t.arrival.any():
            assert after.start_s == pytest.approx(before.start_s)
            assert after.segments[0].gpus == before.segments[0].gpus


def test_what_runs_is_not_moved() -> None:
    cluster = Cluster((Server("a", 2), Server("b", 2)))
    jobs = (
        Job("first", 2, 100, backward_s=1.0),
        Job("second", 4, 10, backward_s=1.0, arrival_s=10.0),
        Job("third", 1, 10, backward_s=1.0, arrival_s=20.0),
    )
    for policy in POLICIES[:6]:
        schedule = planning.plan(Problem(cluster, jobs, Model(xi2_s=0.0)), policy)
        assert all(len(placement.segments) == 1 for placement in schedule.placements)
        assert schedule.placements[0].end_s == pytest.approx(100.0)


def test_planning_anew_uses_gpus_as_they_fall_free() -> None:
    cluster = Cluster((Server("a", 1),))
    jobs = tuple(Job(f"j{i}", 1, 10, backward_s=1.0, arrival_s=float(i)) for i in range(4))
    schedule = planning.plan(Problem(cluster, jobs, Model(xi2_s=0.0)), SjfBco(sweep=0))
    assert schedule.makespan_s == pytest.approx(40.0)
    assert schedule.settings["plans"] >= 4
