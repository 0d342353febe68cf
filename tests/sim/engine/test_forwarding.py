"""Hosts that run programs: packets wait until their program wakes up, and are handled in one go."""

import numpy as np
import pytest

from paceline.core.priority import priority
from paceline.sim.build.arrays import build
from paceline.sim.build.topology import WAKES, wake_delays_ns
from paceline.sim.engine.links import NO_STACK
from paceline.sim.run import simulate
from paceline.sim.scenario import Scenario
from tests.sim.scenes import facts, job, scene

SLOW = {"wake": "20 us", "packet": "1 us"}


def test_delays_have_the_median_and_the_spread_that_were_asked_for() -> None:
    delays = wake_delays_ns(scene(job(), hosts={"wake": "20 us", "wake_spread": 2.07}))
    assert len(delays) == WAKES
    assert abs(np.median(delays) - 20_000) < 500
    assert 2.2e6 < np.percentile(delays, 99) < 2.8e6
    assert 0.25e6 < np.percentile(delays, 90) < 0.31e6


def test_by_default_nothing_waits() -> None:
    world = build(scene(job()), "esa", 1, False, priority).world
    assert (world.links.state.stack == NO_STACK).all()


def test_a_worker_and_its_custodian_are_one_program() -> None:
    scenario = scene(job(), job(name="b"), hosts=SLOW, custodians={"placement": "workers"})
    world = build(scenario, "esa", 1, False, priority).world
    assert world.stack_of[:8].tolist() == world.stack_of[8:].tolist()
    apart = build(scene(job(), hosts=SLOW), "esa", 1, False, priority).world
    assert len(set(apart.stack_of.tolist())) == 5


def _run(**hosts: object) -> tuple[float, int]:
    result = simulate(scene(job(), hosts=hosts), "esa", check=True)
    assert result.exact, result.failed
    assert result.avg_jct_s is not None
    return result.avg_jct_s, result.transport["receive_drops"]


def test_late_programs_make_a_job_slower_and_its_sums_no_worse() -> None:
    prompt, _ = _run()
    costly, _ = _run(packet="1 us")
    late, _ = _run(wake="20 us")
    assert prompt < costly < late


def test_one_packet_waits_for_its_program_and_then_for_its_turn() -> None:
    """A round trip has two programs on its way: the switch and the worker; who sends needs no waking."""
    one = {"workers": 2, "size": 512, "layers": 1, "iterations": 1}
    without = simulate(scene(job(**one)), "esa").avg_jct_s
    calm = {"wake": "10 us", "wake_spread": 0.0, "packet": "1 us"}
    slow = simulate(scene(job(**one), hosts=calm), "esa").avg_jct_s
    at_once = simulate(scene(job(**one), hosts={**calm, "software_switch": False}), "esa").avg_jct_s
    assert without is not None
    assert slow is not None
    assert at_once is not None
    # Two contributions arrive while the switch sleeps; the second is handled a microsecond after the first.
    assert slow - without == pytest.approx(10e-6 + 2e-6 + 10e-6 + 1e-6)
    assert at_once - without == pytest.approx(10e-6 + 1e-6)


def test_what_does_not_fit_the_receive_buffer_is_lost_and_sent_again() -> None:
    _, drops = _run(wake="50 us", receive_buffer="20 kB")
    assert drops > 0


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> object:
        scenario: Scenario = scene(job(), hosts=SLOW)
        return facts(simulate(scenario, "esa", seed=seed))

    assert run(5) == run(5)
    assert run(5) != run(6)
