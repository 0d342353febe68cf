import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.schedule import timeline
from paceline.schedule.inputs.cluster import Cluster, Server, SwitchMemory
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model, Problem
from paceline.schedule.timeline import Timeline
from tests.schedule import slow_evaluator
from tests.schedule.strategies import plans, problems

PAIR = Cluster((Server("a", 2), Server("b", 2)), intra_bps=1e15, inter_bps=8e9)
MODEL = Model(alpha=0.5, xi2_s=0.0, reduce_bps=1e18)


def run(problem: Problem, order: list[int], gpus: list[list[int]], not_before: list[float]) -> tuple:
    flat = np.array([gpu for held in gpus for gpu in held], dtype=np.int64)
    start, end = timeline.run(problem, np.array(order, dtype=np.int64), flat, np.array(not_before))
    return start * problem.unit_s, end * problem.unit_s


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_agrees_with_the_slow_evaluator(data: st.DataObject) -> None:
    problem = data.draw(problems())
    order, gpus, not_before = data.draw(plans(problem))
    start, end = run(problem, order, gpus, not_before)
    in_seconds = [moment * problem.unit_s for moment in not_before]
    slow_start, slow_end = slow_evaluator.evaluate(problem, order, gpus, in_seconds)
    np.testing.assert_allclose(start, slow_start, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(end, slow_end, rtol=1e-6, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_timeline_replays_what_the_queues_gave(data: st.DataObject) -> None:
    problem = data.draw(problems())
    order, gpus, not_before = data.draw(plans(problem))
    flat = np.array([gpu for held in gpus for gpu in held], dtype=np.int64)
    start, end = timeline.run(problem, np.array(order, dtype=np.int64), flat, np.array(not_before))
    time = Timeline(problem)
    pending = sorted(range(len(start)), key=lambda j: start[j])
    while pending or time.running:
        time.advance(float(start[pending[0]]) if pending else np.inf)
        while pending and start[pending[0]] <= time.now:
            time.start(pending[0], gpus[pending[0]], "replay")
            pending.pop(0)
    np.testing.assert_allclose(time.schedule("replay", {}).end_s, end * problem.unit_s, rtol=1e-9)


def two_spread_jobs(**model: object) -> Problem:
    # Exchange alone: 2 * 1 GB * 1/2 at 1 GB/s = 1 s; compute 1 s.
    jobs = tuple(Job(name, 2, 10, 1_000_000_000, backward_s=1.0) for name in "xy")
    return Problem(PAIR, jobs, replace(MODEL, **model))


def test_two_spread_jobs_slow_each_other_down_as_the_formula_says() -> None:
    _, end = run(two_spread_jobs(), [0, 1], [[0, 2], [1, 3]], [0.0, 0.0])
    # k = 2: f = 2 + 0.5, so an iteration takes 1 + 2.5 s, for both.
    np.testing.assert_allclose(end, [35.0, 35.0])


def test_contention_is_priced_anew_when_a_job_ends() -> None:
    problem = two_spread_jobs()
    problem = replace(problem, jobs=(replace(problem.jobs[0], iterations=4), problem.jobs[1]))
    _, end = run(problem, [0, 1], [[0, 2], [1, 3]], [0.0, 0.0])
    # Four iterations at 3.5 s together, then six at 2 s alone.
    np.testing.assert_allclose(end, [14.0, 26.0])


def test_jobs_on_one_server_contend_with_nobody() -> None:
    _, end = run(two_spread_jobs(), [0, 1], [[0, 1], [2, 3]], [0.0, 0.0])
    np.testing.assert_allclose(end, [10.0, 10.0], rtol=1e-3)


def test_slots_count_whole_iterations() -> None:
    # 3.5 s an iteration in slots of 10 s: two a slot, five slots for ten.
    _, end = run(two_spread_jobs(slot_s=10.0), [0, 1], [[0, 2], [1, 3]], [0.0, 0.0])
    np.testing.assert_allclose(end, [50.0, 50.0])


def test_in_network_jobs_share_the_switch_memory() -> None:
    memory = SwitchMemory(slots=1000, payload=1000, round_trip=1e-3)  # 1 GB/s in all
    cluster = replace(PAIR, inter_bps=80e9, switch=memory)
    jobs = tuple(Job(name, 2, 10, 1_000_000_000, backward_s=1.0, exchange="in-network") for name in "xy")
    problem = Problem(cluster, jobs, replace(MODEL, alpha=0.0))
    _, end = run(problem, [0, 1], [[0, 2], [1, 3]], [0.0, 0.0])
    # 10 GB/s links shared by two would give 0.2 s; half of the memory's 1 GB/s gives 2 s.
    np.testing.assert_allclose(end, [30.0, 30.0])


def test_jobs_over_several_racks_share_the_upper_switch() -> None:
    # Three jobs over three racks, each rack with two of them: all three meet only in the upper switch.
    memory = SwitchMemory(slots=1000, payload=1000, round_trip=1e-3)
    servers = tuple(Server(rack, 2, rack) for rack in "abc")
    cluster = Cluster(servers, intra_bps=1e15, inter_bps=80e9, switch=memory)
    jobs = tuple(Job(name, 2, 10, 1_000_000_000, backward_s=1.0, exchange="in-network") for name in "xyz")
    problem = Problem(cluster, jobs, replace(MODEL, alpha=0.0))
    _, end = run(problem, [0, 1, 2], [[0, 2], [3, 4], [1, 5]], [0.0, 0.0, 0.0])
    # A third of 1 GB/s each: 3 s an exchange.
    np.testing.assert_allclose(end, [40.0, 40.0, 40.0])


def test_a_gang_waits_for_its_last_gpu() -> None:
    jobs = (Job("a", 1, 5, backward_s=1.0), Job("b", 1, 9, backward_s=1.0), Job("c", 2, 1, backward_s=1.0))
    start, end = run(Problem(PAIR, jobs, MODEL), [0, 1, 2], [[0], [1], [0, 1]], [0.0, 0.0, 0.0])
    assert start[2] == 9.0
    assert end[2] == 10.0


def test_preemption_keeps_what_was_computed() -> None:
    time = Timeline(Problem(PAIR, (Job("a", 1, 10, backward_s=1.0),), MODEL))
    time.advance()
    time.start(0, [0], "first")
    time.advance(4.0)
    time.preempt(0)
    time.advance(4.0)
    assert time.remaining_iterations(0) == pytest.approx(6.0)
    time.start(0, [3], "again")
    assert time.advance()
    placement = time.schedule("test", {}).placements[0]
    assert [segment.gpus for segment in placement.segments] == [(0,), (3,)]
    assert placement.end_s == pytest.approx(10.0)


def test_a_gpu_in_use_is_refused() -> None:
    jobs = (Job("a", 1, 10, backward_s=1.0), Job("b", 1, 10, backward_s=1.0))
    time = Timeline(Problem(PAIR, jobs, MODEL))
    time.advance()
    time.start(0, [0], "first")
    with pytest.raises(AssertionError, match="one job at a time"):
        time.start(1, [0], "second")


INTERPRETED = """
from paceline.schedule import planning
from paceline.schedule.inputs.generate import small_problem
from paceline.schedule.policies import by_name
from paceline.schedule.policies.bco_plus import BcoPlus
from paceline.schedule.policies.sjf_bco import SjfBco
for seed in range(3):
    problem = small_problem(seed)
    named = [by_name(name) for name in ("ff", "rand", "tiresias")]
    for policy in (SjfBco(sweep=4), BcoPlus(evaluations=20), *named):
        print(policy.name, repr(planning.plan(problem, policy).makespan_s))
"""


def test_interpreted_and_compiled_kernels_agree() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", INTERPRETED],
            env={**os.environ, "NUMBA_DISABLE_JIT": flag},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for flag in ("0", "1")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("\n") == 15
