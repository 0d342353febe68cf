"""The ring's connections: no tuned window, losses found by receipts, bottlenecks shared, nobody gives up."""

from typing import Any

import pytest

from paceline.sim.run import simulate
from tests.sim.scenes import job, scene, wire_s

SLOW_LINKS = {"rate": "200 Mbit/s", "delay": "20 us", "elements": 362}


def ring_time_s(scenario: Any, size_bytes: int, workers: int) -> float:
    """What the bytes of a ring take on a link, with nobody else on it."""
    return wire_s(scenario, size_bytes) * 2 * (workers - 1) / workers


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_jobs_on_the_same_slow_links_share_them_without_a_resend(jobs: int) -> None:
    """Regression: timers shorter than the queue sent each packet several times, and a step took twice as long."""
    scenario = scene(
        *(job(name=f"j{k}", size=4_000_000, ratio=100.0, hosts=[0, 1, 2, 3]) for k in range(jobs)),
        network=SLOW_LINKS,
    )
    result = simulate(scenario, "ring")
    assert result.failed is None
    # A probe or two before the first round trip is known.
    assert result.transport["resent"] < 1e-3 * result.transport["sent"]
    alone_s = 2 * ring_time_s(scenario, 4_000_000, 4)
    assert result.makespan_s == pytest.approx(jobs * alone_s, rel=0.1)


def test_a_window_is_not_asked_for() -> None:
    """Nothing that a scenario says of windows changes a ring."""
    small, large = (
        simulate(scene(job(size=400_000), network=SLOW_LINKS, transport={"window": window}), "ring")
        for window in (8, 5_000)
    )
    assert small.makespan_s == large.makespan_s


@pytest.mark.parametrize("loss", [0.001, 0.02])
def test_losses_are_found_by_receipts_and_sums_stay_exact(loss: float) -> None:
    result = simulate(scene(job(size=400_000), faults={"loss": loss}), "ring", check=True)
    assert result.exact
    assert result.transport["resent"] > result.transport["timeouts"]


def test_two_rings_that_meet_on_one_downlink_share_it() -> None:
    """Host 2 hears from host 1 and from host 3, each at the full rate: the queue overflows, and both go on."""
    scenario = scene(
        job(name="a", workers=2, size=4_000_000, ratio=100.0, hosts=[1, 2]),
        job(name="b", workers=2, size=4_000_000, ratio=100.0, hosts=[3, 2]),
        network=SLOW_LINKS | {"hosts": 4, "queue": 100_000, "ecn": "10 MB"},
    )
    result = simulate(scenario, "ring", check=True)
    assert result.exact
    assert result.transport["queue_drops"] > 0
    floor_s = 2 * 2 * ring_time_s(scenario, 4_000_000, 2)
    assert floor_s < (result.makespan_s or 0) < 1.25 * floor_s


def test_marks_keep_the_queue_from_overflowing() -> None:
    jobs = [
        job(name="a", workers=2, size=4_000_000, ratio=100.0, hosts=[1, 2]),
        job(name="b", workers=2, size=4_000_000, ratio=100.0, hosts=[3, 2]),
    ]
    result = simulate(scene(*jobs, network=SLOW_LINKS | {"hosts": 4, "ecn": 50_000}), "ring")
    assert result.transport["ecn_marks"] > 0
    assert result.transport["queue_drops"] == 0


def test_under_ddp_the_forward_pass_waits_for_all_results() -> None:
    """A lost result of a layer near the output holds up the whole next forward pass, not that layer's alone."""
    waited = {"layers": 0.0, "ddp": 0.0}
    for overlap in waited:
        for seed in range(200):
            scenario = scene(
                job(size=200_000, ratio=1.0, iterations=8, overlap=overlap), faults={"loss": 0.002}
            )
            result = simulate(scenario, "esa", seed=seed, check=seed < 5)
            assert seed >= 5 or result.exact
            waited[overlap] += result.makespan_s or 0.0
    assert waited["ddp"] > waited["layers"]


def test_marks_on_the_way_of_receipts_slow_nobody_down() -> None:
    """Regression: three workers in one rack, one in another, narrow uplinks: receipts that queue behind data of the
    other way came back marked, and the ring took twice as long as with all four in racks of their own."""
    packed, spread = (
        simulate(
            scene(
                job(size=2_000_000, hosts=hosts, iterations=6, ratio=1.0),
                network={"topology": "leaf-spine", "hosts": 12, "leaves": 4, "upper_rate": "66.7 Gbit/s"},
            ),
            "ring",
        )
        for hosts in ([0, 1, 2, 3], [0, 3, 6, 9])
    )
    assert (packed.makespan_s or 0) < 1.1 * (spread.makespan_s or 0)
