"""The model of shared links: times by hand, and what neighbours, racks and memory add."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.schedule import contention, kernels, timeline
from paceline.schedule.breakdown import breakdown
from paceline.schedule.contention import NetworkT
from paceline.schedule.inputs.cluster import Cluster, Server, SwitchMemory
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model, Problem
from paceline.schedule.plan import Plan

RATE_BPS = 8e9
NETWORK = NetworkT(True, 1e9, 1e9, 0.0, 1000.0, np.inf, 1.0)


def cluster(servers: int = 4, gpus: int = 2, racks: int = 1, **more: object) -> Cluster:
    made = tuple(Server(f"s{i}", gpus, f"rack{i * racks // servers}") for i in range(servers))
    defaults = {"intra_bps": 8e15, "inter_bps": RATE_BPS, "delay_s": 0.0}
    return Cluster(made, **(defaults | more))  # type: ignore[arg-type]


def job(name: str, size_s: float, *, gpus: int = 2, exchange: str = "in-network", **more: object) -> Job:
    """A second of forward, two of backward; gradients that take `size_s` on a server's link."""
    defaults = {"forward_s": 1.0, "backward_s": 2.0, "layers": 4}
    return Job(name, gpus, 10, round(size_s * 1e9), exchange=exchange, **(defaults | more))  # type: ignore[arg-type]


def run(problem: Problem, gpus: list[list[int]]) -> np.ndarray:
    start, end = timeline.run(
        problem, np.arange(len(gpus)), np.array([gpu for mine in gpus for gpu in mine], dtype=np.int64)
    )
    return np.asarray(end - start)


def iteration_s(problem: Problem, gpus: list[list[int]]) -> list[float]:
    return [float(ran) / 10 for ran in run(problem, gpus)]


@pytest.mark.parametrize(
    ("size_s", "expected_s"),
    [
        (0.0, 3.0),  # nothing to send
        (1.0, 3.25),  # hidden but for the last of four parts
        (8.0, 9.5),  # the first part is released after half a second, then the link is busy
    ],
)
def test_backward_hides_what_it_can(size_s: float, expected_s: float) -> None:
    problem = Problem(cluster(), (job("a", size_s),), Model(links=True))
    assert iteration_s(problem, [[0, 2]])[0] == pytest.approx(expected_s, rel=1e-3)


def test_a_ring_below_a_bucket_hides_nothing() -> None:
    problem = Problem(cluster(), (job("a", 0.02, exchange="ring"),), Model(links=True))
    assert iteration_s(problem, [[0, 2]])[0] == pytest.approx(3.02, rel=1e-4)


def test_two_jobs_that_always_send_get_half_each() -> None:
    jobs = (job("a", 100.0), job("b", 100.0))
    alone = iteration_s(Problem(cluster(), jobs[:1], Model(links=True)), [[0, 2]])[0]
    both = iteration_s(Problem(cluster(), jobs, Model(links=True)), [[0, 2], [1, 3]])
    assert both[0] == pytest.approx(2 * alone, rel=0.03)
    assert both[0] == pytest.approx(both[1], rel=1e-3)


def test_a_neighbour_that_seldom_sends_costs_little() -> None:
    jobs = (job("a", 4.0), job("b", 0.1, backward_s=40.0))
    alone = iteration_s(Problem(cluster(), jobs[:1], Model(links=True)), [[0, 2]])[0]
    both = iteration_s(Problem(cluster(), jobs, Model(links=True)), [[0, 2], [1, 3]])
    assert alone < both[0] < 1.02 * alone


def test_neighbours_elsewhere_cost_nothing() -> None:
    jobs = (job("a", 4.0), job("b", 4.0))
    apart = iteration_s(Problem(cluster(), jobs, Model(links=True)), [[0, 2], [4, 6]])
    alone = iteration_s(Problem(cluster(), jobs[:1], Model(links=True)), [[0, 2]])[0]
    assert apart == pytest.approx([alone, alone])


def test_a_narrow_uplink_holds_up_those_who_span_racks_alone() -> None:
    wide = Problem(cluster(racks=2), (job("a", 8.0),), Model(links=True))
    narrow = Problem(cluster(racks=2, uplink_bps=RATE_BPS), (job("a", 8.0),), Model(links=True))
    assert iteration_s(narrow, [[0, 2]]) == pytest.approx(iteration_s(wide, [[0, 2]]))
    # Its result goes to the custodian as well: twice the bytes on the uplink.
    assert iteration_s(narrow, [[0, 4]])[0] == pytest.approx(1.5 + 16.0, rel=1e-3)
    assert iteration_s(wide, [[0, 4]]) == pytest.approx(iteration_s(wide, [[0, 2]]))


@pytest.mark.parametrize(("policy", "slower"), [("esa", False), ("atp", True), ("switchml", True)])
def test_scarce_memory_costs_those_who_hold_it_long(policy: str, slower: bool) -> None:
    scarce, ample = (
        Problem(
            cluster(delay_s=1e-3, switch=SwitchMemory(slots=slots, payload=1000, policy=policy)),  # type: ignore[arg-type]
            (job("a", 8.0),),
            Model(links=True),
        )
        for slots in (64, 1_000_000)
    )
    times = [iteration_s(problem, [[0, 2]])[0] for problem in (scarce, ample)]
    assert (times[0] > 1.1 * times[1]) == slower


def test_a_job_that_ends_gives_its_neighbour_the_link_back() -> None:
    jobs = (job("a", 20.0), job("b", 20.0))
    short = Problem(cluster(), (jobs[0], replace(jobs[1], iterations=2)), Model(links=True))
    alone_s = run(Problem(cluster(), jobs[:1], Model(links=True)), [[0, 2]])[0]
    ran = run(short, [[0, 2], [1, 3]])
    assert alone_s < ran[0] < 1.3 * alone_s


def test_jitter_costs_what_the_slowest_of_the_workers_needs() -> None:
    problem = Problem(cluster(), (job("a", 0.0, jitter=0.3),), Model(links=True))
    assert iteration_s(problem, [[0, 2]])[0] == pytest.approx(3.0 * (1 + 0.3 * 2 / 3), rel=1e-3)


def test_expected_rate_is_that_of_a_binomial_number_of_neighbours() -> None:
    assert contention.expected_rate(0, 0.0, 1.0, 1.0) == 1.0
    assert contention.expected_rate(1, 0.5, 1.0, 1.0) == pytest.approx(0.75)
    assert contention.expected_rate(2, 1.0, 1.0, 1.0) == pytest.approx(0.25 + 0.5 / 2 + 0.25 / 3)
    assert contention.expected_rate(1, 1.0, 2.0, 1.0) == pytest.approx(1.0)


def test_parts_that_never_matter_are_left_out() -> None:
    released, left = contention.parts_of([(i + 1.0, 0.1) for i in range(10)])
    assert len(released) == len(left) == contention.PARTS
    sent = 3.0
    every = max(i + 1.0 + sent * (1 - 0.1 * i) for i in range(10))
    assert max(r + sent * share for r, share in zip(released, left, strict=True)) == pytest.approx(every)


def test_the_parts_of_an_iteration_add_up() -> None:
    jobs = (job("a", 8.0), job("b", 8.0))
    problem = Problem(cluster(delay_s=1e-3, switch=SwitchMemory(slots=10_000)), jobs, Model(links=True))
    order, gpus = np.array([0, 1]), np.array([0, 2, 1, 3])
    schedule = timeline.judge(problem, Plan(order, gpus, np.zeros(2), ["", ""], {}), "by hand")
    parts = breakdown(schedule, 0)
    total = parts.computing_s + parts.exposed_s + parts.latency_s + parts.memory_s + parts.neighbours_s
    assert parts.total_s == pytest.approx(total)
    assert parts.neighbours_s > 0
    assert parts.by_neighbour == pytest.approx({"b": parts.neighbours_s})
    assert parts.computing_s == pytest.approx(3.0)


def test_shares_of_time_are_gone_when_everybody_is() -> None:
    jobs = tuple(job(f"j{i}", 5.0) for i in range(3))
    problem = Problem(cluster(racks=2, uplink_bps=RATE_BPS), jobs, Model(links=True))
    state = kernels.new_state(problem.jobs_t, problem.cluster_t)
    state.gpus[:] = [0, 2, 1, 4, 3, 6]
    for j in range(3):
        kernels.start(state, problem.jobs_t, problem.cluster_t, problem.price_t, j, 0.0)
    assert state.link_busy.min() >= 0
    assert state.rack_jobs.tolist() == [2, 2]
    assert state.holding[-1] == pytest.approx(state.busy[1] + state.busy[2])
    for j in (1, 0, 2):
        kernels.leave(state, problem.jobs_t, problem.cluster_t, problem.price_t, j, 1.0, True)
    for sums in (state.link_busy, state.rack_busy, state.holding):
        assert sums == pytest.approx(np.zeros(len(sums)), abs=1e-12)
    assert state.rack_jobs.tolist() == [0, 0]
