"""Runs against what can be worked out by hand, and against themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.compile.cache import folder_of
from paceline.core.priority import priority
from paceline.errors import UserError
from paceline.sim import run as simulating
from paceline.sim.build.arrays import build
from paceline.sim.engine import world as w
from paceline.sim.engine.links import new_pool
from paceline.sim.engine.loop import ENDED, PAUSED, run
from paceline.sim.help.coordinator import Coordinators
from paceline.sim.results import collect
from paceline.sim.run import _run_to_end, simulate
from paceline.sim.scenario import POLICIES, Scenario
from tests.sim.scenes import OVERHEAD_BYTES, facts, job, scene, wire_s

STRUCK = {"loss": 0.02, "duplicate": 0.02, "reorder": 0.02}
STEADY = {"congestion": "fixed", "window": 96}
"""A window above the bandwidth-delay product, below what fills a queue, and nothing that changes it."""


def lone(workers: int, size: int, iterations: int = 2, **sections: Any) -> Scenario:
    """One job of one layer: it computes, then sends, and nothing overlaps."""
    only = job(workers=workers, size=size, layers=1, iterations=iterations, ratio=2.0)
    return scene(only, **{"transport": STEADY, "switch": {"slots": 4096}} | sections)


def compute_s(scenario: Scenario) -> float:
    return scenario.job[0].model_profile(scenario.network.rate).compute_ns() * 1e-9


def round_trip_s(scenario: Scenario) -> float:
    """Two links there and back, and the last packet's way down."""
    packet_s = (OVERHEAD_BYTES + 4 * scenario.network.elements) * 8 / scenario.network.rate
    return 2 * scenario.network.delay * 1e-9 + packet_s


def contended(**sections: Any) -> Scenario:
    jobs = job(copies=2, jitter=0.2, size=60_000), job(name="late", workers=3, arrival="5 us")
    return scene(*jobs, **{"switch": {"slots": 24}, "transport": {"window": 32}} | sections)


@pytest.mark.parametrize("workers", [2, 8, 64])
def test_one_job_on_esa_takes_its_computation_its_bytes_and_a_round_trip(workers: int) -> None:
    scenario = lone(workers, 2_000_000)
    expected_s = 2 * (compute_s(scenario) + wire_s(scenario, 2_000_000) + round_trip_s(scenario))
    result = simulate(scenario, "esa", check=True)
    assert result.exact
    assert result.avg_jct_s == pytest.approx(expected_s, rel=0.02)
    assert result.transport["resent"] == 0


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_ring_takes_its_share_of_twice_the_bytes(workers: int) -> None:
    size = 16_000_000
    scenario = lone(workers, size)
    sent_s = 2 * (workers - 1) / workers * wire_s(scenario, size)
    expected_s = 2 * (compute_s(scenario) + sent_s)
    result = simulate(scenario, "ring", check=True)
    assert result.exact
    assert result.avg_jct_s == pytest.approx(expected_s, rel=0.05)


def test_a_ring_sends_a_receipt_for_every_few_packets() -> None:
    scenario = lone(8, 4_000_000)
    result = simulate(scenario, "ring")
    data = result.transport["sent"]
    assert result.transport["resent"] == 0
    assert (
        data / scenario.transport.ack_every < result.packets - data < 2 * data / scenario.transport.ack_every
    )


@pytest.mark.parametrize("workers", [2, 8])
def test_a_parameter_server_on_a_host_of_its_own_takes_every_workers_bytes(workers: int) -> None:
    size = 1_000_000
    scenario = lone(workers, size, custodians={"placement": "dedicated"})
    expected_s = 2 * (compute_s(scenario) + workers * wire_s(scenario, size) + 2 * round_trip_s(scenario))
    result = simulate(scenario, "ps", check=True)
    assert result.exact
    assert result.avg_jct_s == pytest.approx(expected_s, rel=0.05)


def test_two_servers_on_hosts_of_their_own_share_the_load() -> None:
    one, two = (
        simulate(lone(8, 1_000_000, custodians={"placement": "dedicated", "per_job": n}), "ps")
        for n in (1, 2)
    )
    assert one.avg_jct_s is not None
    assert two.avg_jct_s is not None
    assert two.avg_jct_s < 0.6 * one.avg_jct_s


def test_a_job_without_others_to_talk_to_only_computes() -> None:
    scenario = scene(job(workers=1, iterations=5))
    for policy in POLICIES:
        result = simulate(scenario, policy)
        assert result.avg_jct_s == pytest.approx(5 * compute_s(scenario), rel=1e-9)
        assert result.traffic_bytes == 0


def test_a_forward_pass_waits_for_the_results_of_its_own_layer() -> None:
    scenario = scene(job(size=20_000, layers=3, iterations=3), network={"elements": 64})
    setup = build(scenario, "esa", 1, False, priority)
    workers, pending = setup.world.workers, setup.world.pending
    seen = set()
    while run(setup.world, 1, setup.room, scenario.horizon) == PAUSED:
        for i in range(4):
            phase, layer = int(workers[i].phase), int(workers[i].layer)
            seen.add(phase)
            if workers[i].iteration > 0 and phase == w.FORWARD:
                assert pending[i, layer] == 0
            if phase == w.BLOCKED:
                assert pending[i, layer] > 0
    assert {w.FORWARD, w.BLOCKED, w.BACKWARD, w.DRAINING, w.FINISHED} <= seen
    assert run(setup.world, 1, setup.room, scenario.horizon) == ENDED


@pytest.mark.parametrize("policy", ["esa-plus", "switchml"])
def test_urgent_layers_first_bring_the_next_forward_pass_sooner(policy: str) -> None:
    """By how much at most, with eight layers and an exchange as long as the passes: 1.417 over 1.126, less latency."""
    took_s = {}
    for order in ("released", "urgent"):
        scenario = scene(job(size=2_000_000, layers=8, ratio=1.0, iterations=6), transport={"order": order})
        result = simulate(scenario, policy, check=True)
        assert result.exact
        took_s[order] = result.makespan_s or 0.0
    assert 1.1 < took_s["released"] / took_s["urgent"] < 1.26


def test_overlap_hides_communication_behind_computation() -> None:
    """Computing four times as long as sending: only the last layer's exchange is left to be seen."""
    scenario = scene(job(model="computation-heavy", size=800_000, layers=8, ratio=0.25), transport=STEADY)
    whole_s = 2 * (compute_s(scenario) + wire_s(scenario, 800_000))
    hidden_s = 2 * (compute_s(scenario) + wire_s(scenario, 100_000) + round_trip_s(scenario))
    result = simulate(scenario, "esa")
    assert result.avg_jct_s == pytest.approx(hidden_s, rel=0.02)
    assert result.avg_jct_s is not None
    assert result.avg_jct_s < 0.9 * whole_s


@pytest.mark.parametrize("policy", ["ring", "ps"])
def test_buckets_of_a_last_iteration_go_out_after_its_backward_pass(policy: str) -> None:
    """Regression: a ring with several buckets and slow links came to a standstill in its last iteration."""
    only = job(size=200_000, layers=5, iterations=1, ratio=50.0)
    result = simulate(scene(only, transport={"bucket": 30_000}), policy, check=True)
    assert result.exact


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_run_bit_for_bit(policy: str) -> None:
    scenario = contended(faults=STRUCK)
    one, again, other = (simulate(scenario, policy, seed=seed) for seed in (5, 5, 6))
    assert facts(one) == facts(again)
    assert one.transport != other.transport
    assert (one.seed, other.seed) == (5, 6)


def test_checking_values_does_not_change_the_run() -> None:
    scenario = contended(faults=STRUCK)
    plain, checked = (facts(simulate(scenario, "esa", check=check)) for check in (False, True))
    for key in ("exact", "checked"):
        assert plain.pop(key) != checked.pop(key)
    assert plain == checked


@pytest.mark.parametrize("policy", ["esa", "ps"])
def test_a_pool_that_has_to_grow_does_not_change_the_run(policy: str) -> None:
    scenario = contended(faults=STRUCK)
    setup = build(scenario, policy, scenario.seed, True, priority)
    width = setup.world.pool.values.shape[1]
    setup.world = setup.world._replace(pool=new_pool(setup.room, width))
    assert _run_to_end(setup, Coordinators(setup), None) == ""
    assert setup.world.pool.packets.shape[0] > setup.room
    assert facts(collect(setup, Coordinators(setup), "", True, 0.0)) == facts(
        simulate(scenario, policy, check=True)
    )


def test_pausing_does_not_change_the_run() -> None:
    scenario = contended(faults=STRUCK)
    setup = build(scenario, "esa", scenario.seed, False, priority)
    while run(setup.world, 97, setup.room, scenario.horizon) == PAUSED:
        pass
    assert facts(collect(setup, Coordinators(setup), "", False, 0.0)) == facts(simulate(scenario, "esa"))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_packet_and_aggregator_is_given_back(policy: str) -> None:
    """At the end nothing holds a packet but the links, and no aggregator is taken."""
    scenario = contended(faults=STRUCK)
    setup = build(scenario, policy, 3, True, priority)
    assert _run_to_end(setup, Coordinators(setup), None) == ""
    pool, links = setup.world.pool, setup.world.links
    on_links = set()
    for at in range(links.state.shape[0]):
        head, mask = int(links.state[at].head), int(links.state[at].mask)
        for k in range(int(links.state[at].length)):
            on_links.add(int(links.flying[at, (head + k) & mask].packet) & ((1 << 30) - 1))
    free = int(pool.meta[0])
    assert free + len(on_links) == pool.packets.shape[0]
    assert len(set(pool.stack[:free].tolist())) == free
    assert (setup.world.switch.memory.slots.job == -1).all()


def test_a_run_that_cannot_end_in_time_says_so() -> None:
    result = simulate(contended(horizon="4 us"), "esa")
    assert result.avg_jct_s is None
    assert result.failed is not None
    assert "did not end within the horizon" in result.failed


def test_progress_grows_to_the_whole() -> None:
    seen: list[tuple[int, int]] = []
    simulate(
        lone(64, 2_000_000, iterations=12), "esa", progress=lambda done, total: seen.append((done, total))
    )
    assert seen
    assert {total for _, total in seen} == {12 * 64}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_cold_start_is_announced_once_even_if_small_pieces_are_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setattr(simulating, "interpreted", lambda: False)
    pieces = folder_of(run) / "sim"
    pieces.mkdir(parents=True)
    (pieces / "loop.advance-1.py311.nbi").touch()
    monkeypatch.setattr(simulating, "_announced", False)
    for _ in range(2):
        simulating.announce_compilation()
    assert capsys.readouterr().err.count("compiling the simulator") == 1
    (pieces / "loop.run-1.py311.nbi").touch()
    monkeypatch.setattr(simulating, "_announced", False)
    simulating.announce_compilation()
    assert capsys.readouterr().err == ""


def test_jitter_is_drawn_anew_for_each_worker_and_iteration() -> None:
    scenario = scene(job(workers=1, iterations=50, jitter=1.0))
    result = simulate(scenario, "esa")
    assert result.avg_jct_s is not None
    share = result.avg_jct_s / (50 * compute_s(scenario)) - 1
    assert 0.35 < share < 0.65
    assert not np.isclose(share, simulate(scenario, "esa", seed=9).avg_jct_s / (50 * compute_s(scenario)) - 1)


def test_a_job_starts_when_those_before_it_have_ended() -> None:
    first, second = (
        job(name="first", iterations=2),
        job(name="second", iterations=1, after=["first"], arrival="1us"),
    )
    result = simulate(scene(first, second), "esa", check=True)
    alone = simulate(scene(job(name="second", iterations=1)), "esa")
    jobs = {j.name: j for j in result.jobs}
    assert result.exact
    assert jobs["second"].waited_s == pytest.approx((jobs["first"].jct_s or 0) - 1e-6, abs=1e-9)
    assert jobs["second"].mean_iteration_s == pytest.approx(alone.jobs[0].mean_iteration_s, rel=0.05)


@pytest.mark.parametrize(
    ("after", "message"), [(["nobody"], "does not exist"), (["second"], "wait for each other")]
)
def test_an_order_of_jobs_that_cannot_be_is_refused(after: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        simulate(scene(job(name="first", after=after), job(name="second", after=["first"])), "esa")


def test_time_never_goes_back() -> None:
    """A timer that was set to a time in the past runs now, and not then."""
    network = {"topology": "leaf-spine", "leaves": 2, "ecn": 0, "queue": "20 kB", "elements": 1}
    faults = {"loss": 0.1, "duplicate": 0.01, "reorder": 0.1, "reorder_delay": "5 us"}
    small, large = job(size=400, layers=1), job(name="b", workers=6, size=816, layers=1, arrival="5 us")
    sections = {"transport": {"window": 13}, "switch": {"slots": 35}, "network": network, "faults": faults}
    scenario = scene(small | {"iterations": 1}, large | {"iterations": 1}, **sections)
    setup = build(scenario, "atp", 24, False, priority)
    seen_ns = [0]
    while run(setup.world, 1, setup.room, scenario.horizon) == PAUSED and len(seen_ns) < 5_000:
        seen_ns.append(int(setup.world.control[w.NOW_NS]))
    assert seen_ns == sorted(seen_ns)
    assert len(seen_ns) == 5_000
