from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.schedule import bounds, placement, planning
from paceline.schedule.inputs.cluster import Cluster, Server
from paceline.schedule.inputs.generate import PaperSetting, paper_problem
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model, Problem
from paceline.schedule.plan import Plan
from paceline.schedule.policies import NAMES, Policy, by_name, load_limited
from paceline.schedule.policies.bco_plus import BcoPlus
from paceline.schedule.policies.first_fit import FirstFit
from paceline.schedule.policies.list_scheduling import ListScheduling
from paceline.schedule.policies.load_limited import Rules, Trial
from paceline.schedule.policies.lwf import LwfKappa
from paceline.schedule.policies.random import Random
from paceline.schedule.policies.sjf_bco import SjfBco
from paceline.schedule.policies.tiresias import Tiresias
from tests.schedule import slow_evaluator, validity
from tests.schedule.strategies import problems

POLICIES: list[Policy] = [
    SjfBco(sweep=4),
    SjfBco(fa_ffp="printed", sweep=4),
    SjfBco(fa_ffp="one-server", sweep=4),
    BcoPlus(evaluations=60),
    ListScheduling(),
    FirstFit(sweep=4),
    Random(seed=3),
    LwfKappa(),
    Tiresias(),
]
FOUR = Cluster(tuple(Server(f"s{i}", 4) for i in range(4)), intra_bps=1e15, inter_bps=8e9)


def jobs_of(*gpus: int, iterations: int = 10) -> tuple[Job, ...]:
    return tuple(Job(f"j{i}", g, iterations, backward_s=1.0) for i, g in enumerate(gpus))


def servers_used(problem: Problem, plan: Plan, j: int) -> list[int]:
    return sorted(set(problem.cluster.server_of[plan.of(problem, j)].tolist()))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_schedule_is_valid_and_above_the_bound(policy: Policy, data: st.DataObject) -> None:
    problem = data.draw(problems())
    schedule = planning.plan(problem, policy, data.draw(st.sampled_from(["makespan", "jct"])))
    validity.check(schedule)
    assert schedule.makespan_s >= bounds.lower_bound(problem, schedule.preempts).value_s * (1 - 1e-9)


def test_a_job_that_is_preempted_with_nothing_left_is_not_run_for_no_time() -> None:
    sizes = [(3, 4, 0.25), (3, 3, 0.2845922245651901), (1, 1, 0.25), (3, 4, 0.25), (3, 4, 0.25),
             (1, 1, 0.24418022646196094), (1, 1, 0.125)]  # fmt: skip
    jobs = [Job(f"j{k}", gpus, steps, backward_s=time_s) for k, (gpus, steps, time_s) in enumerate(sizes)]
    jobs[3] = replace(jobs[3], arrival_s=0.5)
    cluster = Cluster((Server("s0", 3, "a"),), intra_bps=1e11, inter_bps=1e10)
    problem = Problem(cluster, tuple(jobs), Model(alpha=0.0, xi1=0.3, xi2_s=0.0, reduce_bps=8e11))
    validity.check(planning.plan(problem, by_name("tiresias"), "makespan"))


@pytest.mark.parametrize("policy", POLICIES[:7], ids=lambda policy: policy.name)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_plans_end_when_the_slow_evaluator_says(policy: Policy, data: st.DataObject) -> None:
    problem = data.draw(problems(arrivals=False))
    plan = policy.plan(problem, "makespan")
    assert isinstance(plan, Plan)
    schedule = planning.plan(problem, policy)
    gpus = [[int(g) for g in plan.of(problem, j)] for j in range(len(problem.jobs))]
    not_before = [float(moment) * problem.unit_s for moment in plan.not_before]
    _, end = slow_evaluator.evaluate(problem, [int(j) for j in plan.order], gpus, not_before)
    np.testing.assert_allclose(schedule.end_s, end, rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(problem=problems(arrivals=False), objective=st.sampled_from(["makespan", "jct"]))
def test_bco_plus_is_never_worse_than_sjf_bco(problem: Problem, objective: str) -> None:
    figures = [
        (schedule.makespan_s if objective == "makespan" else schedule.avg_jct_s)
        for schedule in (
            planning.plan(problem, policy, objective) for policy in (BcoPlus(evaluations=20), SjfBco())
        )
    ]
    assert figures[0] <= figures[1] * (1 + 1e-12)


@settings(max_examples=25, deadline=None)
@given(problem=problems(arrivals=False), objective=st.sampled_from(["makespan", "jct"]))
def test_no_job_pays_for_a_better_average_where_a_bound_is_asked_for(
    problem: Problem, objective: str
) -> None:
    reference = planning.plan(problem, FirstFit(), objective)
    bounded = planning.plan(problem, BcoPlus(evaluations=40, no_later=1.05), objective)
    assert all(
        ours <= 1.05 * theirs * (1 + 1e-6)
        for ours, theirs in zip(bounded.end_s, reference.end_s, strict=True)
    )
    figures = [
        (plan.makespan_s if objective == "makespan" else plan.avg_jct_s) for plan in (bounded, reference)
    ]
    assert figures[0] <= figures[1] * (1 + 1e-6)


def test_a_bound_holds_over_a_whole_online_run() -> None:
    """Plan after plan, each judged from its own moment, a job would be put off further and further."""
    sizes = ((8, 14), (4, 11), (8, 9), (2, 9), (4, 15), (8, 13))
    jobs = tuple(
        Job(f"j{k}", gpus, steps, 1_091_724, backward_s=0.4, exchange="in-network")
        for k, (gpus, steps) in enumerate(sizes)
    )
    cluster = Cluster(tuple(Server(f"s{k}", 4) for k in range(4)), intra_bps=2e10, inter_bps=5e7)
    problem = Problem(cluster, jobs, Model(links=True))
    reference, free, bounded = (
        planning.replan(problem, policy, "jct") for policy in (FirstFit(), BcoPlus(), BcoPlus(no_later=1.05))
    )
    worst = [
        max(ours / theirs for ours, theirs in zip(plan.end_s, reference.end_s, strict=True))
        for plan in (free, bounded)
    ]
    assert worst[0] > 1.3, "the case shows nothing"
    assert worst[1] <= 1.05 * (1 + 1e-6)
    assert bounded.avg_jct_s <= 1.05 * free.avg_jct_s


def test_jobs_that_arrive_together_are_planned_in_the_order_of_the_list() -> None:
    jobs = tuple(Job(f"j{k}", 8, 4 + k, 1_000_000, backward_s=0.1) for k in range(4))
    problem = Problem(Cluster(tuple(Server(f"s{k}", 4) for k in range(4))), jobs)
    plans = planning.replan(problem, FirstFit(), "jct"), planning.plan(problem, FirstFit(), "jct")
    for plan in plans:
        assert [place.job for place in plan.placements if place.start_s == 0.0] == ["j0", "j2"]


def test_plans_are_reproducible() -> None:
    problem = paper_problem(5, PaperSetting(servers=10))
    for make in (lambda: BcoPlus(seed=1, evaluations=150), lambda: Random(seed=1), SjfBco):
        one, two = (planning.plan(problem, make()) for _ in range(2))
        assert one.placements == two.placements
    other = planning.plan(problem, Random(seed=2))
    assert other.placements != planning.plan(problem, Random(seed=1)).placements


def test_list_scheduling_takes_the_least_loaded_gpus() -> None:
    problem = Problem(FOUR, jobs_of(1, 1, 2, 8))
    plan = ListScheduling().plan(problem)
    assert plan.of(problem, 0).tolist() == [0]
    # Ties go to the first server, whose GPUs are loaded one after another only among equals.
    loads: Counter[int] = Counter()
    for j in plan.order:
        taken = plan.of(problem, int(j)).tolist()
        lightest = sorted(loads[g] for g in range(16))[: len(taken)]
        assert sorted(loads[g] for g in taken) == lightest
        for gpu in taken:
            loads[gpu] += 10


def test_first_fit_fills_the_first_server_within_the_limit() -> None:
    ones = Problem(FOUR, jobs_of(1, 1, 1, 1, 1), Model(xi2_s=0.0))
    plan = FirstFit(theta=20.0).plan(ones)
    assert [int(plan.of(ones, j)[0]) for j in range(5)] == [0, 0, 1, 1, 2]
    threes = Problem(FOUR, jobs_of(3, 3), Model(xi2_s=0.0))
    assert servers_used(threes, FirstFit(theta=10.0).plan(threes), 1) == [1]


def test_prose_packs_where_print_spreads() -> None:
    # The first job occupies s0; then a job of one GPU: the prose joins it, the print takes any idle GPU.
    problem = Problem(FOUR, jobs_of(1, 1, 1, 1, 2, 2))
    order = load_limited.smallest_first(problem)
    packed = load_limited.attempt(problem, order, Rules(placement.PACK, placement.PACK), 1e9, 32, "makespan")
    least = load_limited.attempt(problem, order, Rules(placement.LEAST, placement.LEAST), 1e9, 32, "makespan")
    assert packed is not None
    assert least is not None
    assert set(FOUR.server_of[packed.gpus].tolist()) == {0}
    assert set(FOUR.server_of[least.gpus].tolist()) == {0, 1}


def test_prose_runs_on_into_the_next_server_and_one_server_does_not() -> None:
    problem = Problem(FOUR, jobs_of(3, 3), Model(xi2_s=0.0))
    order = load_limited.smallest_first(problem)
    for rule, servers in ((placement.PACK, [0, 1]), (placement.PACK_ONE, [1])):
        trial = load_limited.attempt(problem, order, Rules(rule, rule), 10.0, 32, "makespan")
        assert trial is not None
        assert sorted(set(FOUR.server_of[trial.gpus[3:]].tolist())) == servers


def test_lbsgf_looks_only_at_the_least_busy_servers() -> None:
    problem = Problem(FOUR, jobs_of(2, 4, 6))
    order = load_limited.smallest_first(problem)
    rules = Rules(placement.BALANCED, placement.BALANCED, 1.0)
    trial = load_limited.attempt(problem, order, rules, 1e9, 0, "makespan")
    assert trial is not None
    base = problem.jobs_t.base
    used = [sorted(set(FOUR.server_of[trial.gpus[base[j] : base[j + 1]]].tolist())) for j in range(3)]
    assert used == [[0], [1], [2, 3]]


def test_a_limit_that_stops_early_does_not_count() -> None:
    problem = Problem(FOUR, jobs_of(*[16] * 3), Model(xi2_s=0.0))
    order = load_limited.smallest_first(problem)
    assert (
        load_limited.attempt(problem, order, Rules(placement.PACK, placement.PACK), 20.0, 32, "makespan")
        is None
    )
    assert load_limited.attempt(problem, order, Rules(placement.PACK, placement.PACK), 30.0, 32, "makespan")
    assert planning.plan(problem, SjfBco(horizon=1.0)).makespan_s == pytest.approx(30.0)


def test_bisection_follows_the_paper() -> None:
    tried: list[float] = []

    def feasible_from_300(theta: float) -> Trial | None:
        tried.append(theta)
        empty = np.zeros(0)
        return Trial(theta, theta, 1, empty.astype(np.int64), empty) if theta >= 300 else None

    best = load_limited.bisect(feasible_from_300, 1.0)
    assert best is not None
    assert best.theta == 300.0
    assert tried[0] == 600.0
    assert len(tried) <= 11


def test_kappa_between_sizes_changes_nothing() -> None:
    problem = paper_problem(0)
    eight, ten = (
        SjfBco(kappas=(kappa,), horizon=1200.0, sweep=2).search(problem, "makespan") for kappa in (8, 10)
    )
    assert eight.score == ten.score
    assert np.array_equal(eight.gpus, ten.gpus)


def test_reasons_name_the_rule() -> None:
    problem = paper_problem(0)
    plan = SjfBco(horizon=1200.0, sweep=0).plan(problem)
    for job, reason in zip(problem.jobs, plan.reasons, strict=True):
        assert reason.startswith("FA-FFP" if job.gpus <= plan.settings["kappa"] else "LBSGF")


def test_ada_srsf_keeps_an_equal_job_off_a_link() -> None:
    # Two equal jobs that must spread over the same two servers: neither is short beside the other.
    cluster = Cluster((Server("a", 6), Server("b", 6)), intra_bps=1e15, inter_bps=8e9)
    blocker = tuple(Job(f"b{i}", 1, 1000, backward_s=1.0) for i in range(6))
    jobs = (*blocker, *(Job(f"w{i}", 8, 10, 10**9, backward_s=0.1) for i in range(2)))
    schedule = planning.plan(Problem(cluster, jobs, Model(alpha=0.2)), LwfKappa())
    spread = [p for p in schedule.placements if p.job.startswith("w")]
    assert spread[0].end_s <= spread[1].start_s


def test_tiresias_prefers_jobs_that_have_had_little() -> None:
    cluster = Cluster((Server("a", 1),))
    long, short = Job("long", 1, 100, backward_s=1.0), Job("short", 1, 5, backward_s=1.0, arrival_s=20.0)
    schedule = planning.plan(
        Problem(cluster, (long, short), Model(xi2_s=0.0)), Tiresias(limits=(10.0,)), "jct"
    )
    assert schedule.placements[1].end_s == pytest.approx(25.0)
    assert [round(s.end_s) for s in schedule.placements[0].segments] == [20, 105]


def test_delay_can_pay_and_bco_plus_finds_it() -> None:
    # Jobs of 4 GPUs on servers of 3: both must spread, and two of them on three servers always meet.
    cluster = Cluster((Server("a", 3), Server("b", 3), Server("c", 3)), intra_bps=1e15, inter_bps=8e9)
    jobs = tuple(Job(f"j{i}", 4, 10, 10**9, backward_s=0.1) for i in range(2))
    problem = Problem(cluster, jobs, Model(alpha=20.0, xi2_s=0.0, reduce_bps=1e18))
    schedule = planning.plan(problem, BcoPlus(evaluations=600))
    # Alone: 10 * (0.1 + 1.5) = 16 s each.
    assert schedule.makespan_s == pytest.approx(32.0, rel=1e-6)
    greedy = planning.plan(problem, ListScheduling())
    assert greedy.makespan_s > 100.0


def test_priority_goes_first_and_weighs() -> None:
    cluster = Cluster((Server("a", 1),))
    jobs = (Job("plain", 1, 10, backward_s=1.0), Job("urgent", 1, 12, backward_s=1.0, priority=5.0))
    problem = Problem(cluster, jobs, Model(xi2_s=0.0))
    for policy in (SjfBco(), ListScheduling(), LwfKappa(), Tiresias(), BcoPlus(evaluations=50)):
        assert planning.plan(problem, policy, "jct").placements[1].start_s == 0.0, policy.name


def test_what_can_never_fit_is_refused() -> None:
    with pytest.raises(UserError, match="asks for 17 GPUs, the cluster has 16"):
        Problem(FOUR, jobs_of(17))
    with pytest.raises(UserError, match="lambda is at least 1"):
        SjfBco(spread=0.5)


def test_names() -> None:
    assert {by_name(name).name for name in NAMES} == set(NAMES)
    with pytest.raises(UserError, match="no policy 'sjf'"):
        by_name("sjf")
