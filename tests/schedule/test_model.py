import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.schedule import kernels
from paceline.schedule.inputs.cluster import Cluster, Server
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model, Problem, exchange_s, fair, iteration_s, linear, quadratic
from tests.schedule import slow_evaluator
from tests.schedule.strategies import plans, problems

CLUSTER = Cluster((Server("a", 4), Server("b", 4)), intra_bps=8e12, inter_bps=8e9)


def test_contention_functions() -> None:
    assert linear(0.2, 1.0) == 1.0
    assert linear(0.2, 3.0) == pytest.approx(3.4)
    assert fair(0.2, 3.0) == 3.0
    assert quadratic(0.2, 3.0) == pytest.approx(3.6)


def test_equation_8_term_by_term() -> None:
    job = Job("j", 4, 100, 1_000_000_000, batch=32, forward_s=0.001, backward_s=0.1)
    model = Model(alpha=0.2, xi1=0.5, xi2_s=0.01, reduce_bps=80e9)
    # m/w * 2(w-1) / (b_e / f(k=2)) + m/w (w-1)/C + xi2*2 + Df M + Db, with p = 4 and xi1 = 0.5.
    expected = 1.5 * (2.0 + 0.2) + 0.75 / 10.0 + 0.02 + 0.032 + 0.1
    assert iteration_s(job, CLUSTER, model, servers=2, p=4) == pytest.approx(expected)


def test_k_is_never_below_one() -> None:
    job = Job("j", 4, 100, 1_000_000_000, backward_s=0.1)
    alone = exchange_s(job, CLUSTER, Model(xi1=0.1), servers=2, p=1)
    assert alone == pytest.approx(1.5)
    assert exchange_s(job, CLUSTER, Model(xi1=0.1), servers=2, p=10) == pytest.approx(alone)


def test_in_network_sends_once_and_reduces_nothing() -> None:
    model = Model(xi2_s=0.0, reduce_bps=8e9)
    ring, switch = (Job("j", 4, 1, 1_000_000_000, exchange=kind) for kind in ("ring", "in-network"))
    assert iteration_s(switch, CLUSTER, model, 2, 1) == pytest.approx(1.0)
    assert iteration_s(ring, CLUSTER, model, 2, 1) == pytest.approx(1.5 + 0.75)
    assert iteration_s(switch, CLUSTER, model, 1, 0) == iteration_s(ring, CLUSTER, model, 1, 0)


def test_one_worker_exchanges_nothing() -> None:
    assert exchange_s(Job("j", 1, 1, 10**9), CLUSTER, Model(), 1, 0) == 0.0


def test_a_user_function_is_used() -> None:
    jobs = (Job("j", 8, 10, 1_000_000_000, backward_s=0.1),)
    doubled = Problem(CLUSTER, jobs, Model(f=lambda alpha, k: 2.0 * k))
    plain = Problem(CLUSTER, jobs, Model(f=fair))
    assert doubled.price_t.spread[1] == pytest.approx(plain.price_t.spread[1] / 2)


def test_kernel_and_reference_formula_agree() -> None:
    job = Job("j", 6, 10, 123_456_789, batch=3, forward_s=0.002, backward_s=0.05)
    problem = Problem(CLUSTER, (job,), Model(slot_s=10.0))
    for servers, p in ((1, 0), (2, 1), (2, 4)):
        expected = iteration_s(job, CLUSTER, problem.model, servers, p) / 10.0
        assert kernels.iteration(problem.jobs_t, problem.price_t, 0, servers, p, 1) == pytest.approx(expected)


def test_a_slot_shorter_than_an_iteration_is_refused() -> None:
    with pytest.raises(UserError, match=r"model\.slot.*'slow'"):
        Problem(CLUSTER, (Job("slow", 1, 10, backward_s=3.0),), Model(slot_s=1.0))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_execution_times_stay_within_l_and_u(data: st.DataObject) -> None:
    problem = data.draw(problems())
    order, gpus, not_before = data.draw(plans(problem))
    in_seconds = [moment * problem.unit_s for moment in not_before]
    start, end = slow_evaluator.evaluate(problem, order, gpus, in_seconds)
    ran = (np.array(end) - np.array(start)) / problem.unit_s
    assert (ran >= problem.shortest * (1 - 1e-9) - 1e-9).all()
    assert (ran <= problem.longest * (1 + 1e-9) + 1e-9).all()


@pytest.mark.parametrize(("gpus", "servers"), [(1, 1), (4, 1), (5, 2), (8, 2)])
def test_fewest_servers(gpus: int, servers: int) -> None:
    problem = Problem(CLUSTER, (Job("j", 1, 1, backward_s=1.0),))
    assert problem.fewest_servers(gpus) == servers
