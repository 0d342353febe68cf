"""The promise: every contribution is counted exactly once, whatever the network does.

Under every policy, with packets lost, duplicated and reordered, with hardly any memory, several jobs and any
priorities: each worker gets each result once, bitwise the sum over all workers; the run ends, nothing leaks.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core.switch import program as sw
from paceline.core.switch.memory import ALL_RULES, POLICIES
from tests.core.star import Faults, Job, Star

careful = settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def stars(draw: Any, policy: str, check_steps: bool = False) -> Star:
    racks = draw(st.integers(1, 3), label="racks")
    job = st.builds(
        Job,
        racks=st.lists(st.integers(0, racks - 1), min_size=1, max_size=5).map(tuple),
        chunks=st.integers(1, 16),
        priority=st.integers(0, 255),
        dedicated=st.integers(0, 2),
    )
    jobs = draw(st.lists(job, min_size=1, max_size=3), label="jobs")
    faults = st.builds(
        Faults, loss=st.floats(0, 0.2), duplicate=st.floats(0, 0.2), reorder=st.sampled_from([0.0, 0.1, 0.5])
    )
    least = 2 * len(jobs) if policy == "switchml" else 1
    return Star(
        policy,
        jobs,
        slots=draw(st.integers(least, least + 6), label="slots"),
        racks=racks,
        span=draw(st.integers(1, 7), label="span"),
        window=draw(st.sampled_from([1.0, 3.0, 8.0]), label="window"),
        faults=draw(faults, label="faults"),
        seed=draw(st.integers(0, 2**32), label="seed"),
        relay=draw(st.booleans(), label="relay"),
        inquires=draw(st.sampled_from([True, True, False]), label="inquires"),
        check_steps=check_steps,
        rules=draw(st.integers(0, ALL_RULES), label="rules"),
    )


def is_kept(star: Star) -> None:
    """Run it to the end and hold it to the promise."""
    assert star.run() == []
    for i, (j, _) in enumerate(star.workers):
        assert sorted(star.results[i]) == list(range(star.jobs[j].chunks))
    assert (star.switch.memory.slots.job == -1).all()
    assert not star.switch.jobs.used.any()


@pytest.mark.parametrize("policy", POLICIES)
@careful
@given(st.data())
def test_every_worker_gets_every_sum_once(policy: str, data: Any) -> None:
    is_kept(data.draw(stars(policy)))


@pytest.mark.parametrize("policy", ["esa", "atp", "switchml"])
@settings(careful, max_examples=3)
@given(st.data())
def test_every_container_holds_its_mask_after_every_step(policy: str, data: Any) -> None:
    is_kept(data.draw(stars(policy, check_steps=True)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", POLICIES)
def test_seeds(policy: str, seed: int) -> None:
    """A star and a leaf-spine under 2 % loss, 2 % duplication and reordering, by seed."""
    jobs = [Job((0,) * 4, 20, 150), Job((0,) * 3, 20, 90), Job((0, 0), 20, 90)]
    if seed % 2:
        jobs = [Job((0, 0, 1, 2), 20, 150), Job((1, 1, 2), 20, 90), Job((0, 2), 20, 90, dedicated=1)]
    faults = Faults(0.02, 0.02, 0.1)
    is_kept(Star(policy, jobs, slots=6, racks=3 if seed % 2 else 1, faults=faults, seed=seed))


@pytest.mark.parametrize("racks", [1, 3])
@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "switchml"])
def test_a_dead_switch_does_not_end_a_job(policy: str, racks: int) -> None:
    """Its memory is gone in the middle of the run; custodians and workers finish every sum."""
    star = Star(policy, [Job(tuple(range(racks)) * 3, 30), Job((0, 0), 30)], slots=6, racks=racks, seed=3)
    while star.now_ns < 20_000:
        assert star.step()
    for s in range(star.switch.config.shape[0]):
        star.kill_switch(s)
    assert star.open == {0, 1}
    is_kept(star)


def test_a_switchml_job_without_its_switch_gives_up() -> None:
    star = Star("switchml", [Job((0, 0), 30)], slots=6)
    for _ in range(20):
        star.step()
    star.kill_switch(0)
    star.senders.state.resends_max = 5
    assert any("gave up" in line for line in star.run())


@pytest.mark.parametrize("policy", POLICIES)
def test_without_faults_and_with_memory_enough_nothing_is_resent(policy: str) -> None:
    """The window is the span's and each lane has an aggregator of its own."""
    star = Star(policy, [Job((0,) * 4, 40)], slots=64, span=4, seed=2)
    star.senders.state.rto_ns = star.senders.state.rto_min_ns = 10**9
    is_kept(star)
    assert star.senders.state.resent.sum() == 0
    assert star.switch.counters[:, :, sw.FALLBACKS].sum() == 0


def test_regression_a_partial_that_lost_its_place_is_answered_at_its_own_worker() -> None:
    """Seed 0 once sent a replayed result to a worker that the job does not have."""
    jobs = [Job((0,) * 4, 30, 100), Job((0, 0), 30, 50)]
    is_kept(Star("esa", jobs, slots=8, seed=0, faults=Faults(0.05, 0.05, 0.1)))
