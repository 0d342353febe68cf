"""Packets of helped jobs: epochs of custody, bits and shares, one rack and several; every sum is right.

Custody alone and with takeover; work that has changed hands in every direction; racks whose workers die.
"""

from typing import Any

import pytest

from paceline.core.bits import ALL_SHARES
from paceline.sim.help.packets import Racks
from paceline.sim.results import RunResult
from tests.sim.help.scenes import dying, helped, iterations_of, kinds, run, slow

LOSSY = {"loss": 0.05, "duplicate": 0.05, "reorder": 0.05}
FINE = {"window": 0.0625}
TWO_SLOW = [{"job": "a", "worker": 2, "factor": 2.0}, {"job": "a", "worker": 3, "factor": 4.0}]
MANY_SPELLS = {"slow_spells": [{"job": "a", "probability": 0.4, "factor": 3.0}]}
RACKS = {"topology": "leaf-spine", "leaves": 2}
STRUCK = {"loss": 0.03, "duplicate": 0.03, "reorder": 0.03}


@pytest.mark.parametrize("policy", ["esa-plus", "esa", "atp", "always-preempt", "coin-flip"])
@pytest.mark.parametrize("placement", ["dedicated", "workers"])
def test_leaders_complete_sums_and_all_are_exact(policy: str, placement: str) -> None:
    scenario = helped("custody", custodians={"placement": placement}, faults=slow(2))
    result = run(scenario, policy)
    assert result.exact, result.failed
    assert {"compute straggler", "epoch"} <= kinds(result)
    assert result.transport["credits"] > 0


def test_custody_does_not_shorten_the_straggling_jobs_own_iteration_and_both_does() -> None:
    off, custody, both = (
        run(helped(mode, workers=8, micro_batches=16, faults=slow(2))) for mode in ("off", "custody", "both")
    )
    assert iterations_of(custody) == pytest.approx(iterations_of(off), rel=0.1)
    assert iterations_of(both) < 0.6 * iterations_of(off)


@pytest.mark.parametrize("policy", ["esa", "atp"])
@pytest.mark.parametrize("mode", ["custody", "takeover", "both"])
def test_sums_stay_exact_whatever_is_lost_and_whoever_forgets(policy: str, mode: str) -> None:
    for seed in range(2):
        losses = [{"time": time, "job": "a"} for time in ("20 us", "45 us", "80 us")]
        faults = {**slow(1), **LOSSY, "custodian_forgets": losses}
        result = run(helped(mode, help={"window": 1.0}, faults=faults), policy, seed=seed)
        assert result.exact, f"seed {seed}: {result.failed}, {result.wrong} wrong"


@pytest.mark.parametrize("policy", ["esa", "atp"])
@pytest.mark.parametrize("mode", ["custody", "takeover", "both"])
def test_a_dead_switch_costs_time_and_no_contribution(policy: str, mode: str) -> None:
    result = run(helped(mode, faults={**slow(1), "switch_dies": [{"time": "40 us"}]}), policy)
    assert result.exact, result.failed


def test_a_contended_uplink_makes_a_bandwidth_straggler() -> None:
    flow = {"host": 1, "rate": "95 Gbit/s", "direction": "from"}
    job = {"size": 400_000, "ratio": 1.0}
    result = run(
        helped("custody", workers=4, job=job, faults={"other_traffic": [flow]}, switch={"slots": 512})
    )
    assert result.exact, result.failed
    roles = {
        (decision.kind, decision.worker) for decision in result.decisions if "straggler" in decision.kind
    }
    assert roles == {("bandwidth straggler", 1)}


def test_help_costs_nothing_when_nobody_straggles() -> None:
    off, both = (run(helped(mode, workers=8, micro_batches=4)) for mode in ("off", "both"))
    assert iterations_of(both) == pytest.approx(iterations_of(off), rel=0.01)
    assert both.decisions == []


def two_slow(faults: dict[str, Any] | None = None, **sections: Any) -> Any:
    """Two leaders and two stragglers, one of them far behind the other."""
    return helped(
        "takeover", micro_batches=16, help=FINE, faults={"slow": TWO_SLOW, **(faults or {})}, **sections
    )


def owners_of(result: RunResult, rank: int) -> set[int]:
    """Whose micro-batches a worker took."""
    claims = [
        decision.reason
        for decision in result.decisions
        if (decision.kind, decision.worker) == ("claim", rank)
    ]
    return {int(reason.split(" of worker ")[1].split(":")[0]) for reason in claims}


@pytest.mark.parametrize("policy", ["esa", "atp", "switchml"])
def test_a_helper_takes_from_whoever_is_behind(policy: str) -> None:
    result = run(two_slow(iterations=4), policy)
    assert result.exact, result.failed
    assert owners_of(result, 0) == owners_of(result, 1) == {2, 3}
    # Everyone together would take 4 / 2.75 = 1.45 iterations, and what is sent shows by a tenth or two.
    assert iterations_of(result) < 1.7


def test_in_several_racks_too() -> None:
    racks = {"topology": "leaf-spine", "leaves": 2, "placement": "spread"}
    result = run(two_slow(iterations=4, network=racks))
    assert result.exact, result.failed
    assert owners_of(result, 0) == {2, 3}


@pytest.mark.parametrize("policy", ["esa", "atp"])
def test_a_straggler_that_is_done_helps_the_others(policy: str) -> None:
    result = run(
        helped("takeover", workers=6, iterations=20, micro_batches=8, help=FINE, faults=MANY_SPELLS), policy
    )
    assert result.exact, result.failed
    straggles: set[int | None] = set()
    helpers = set()
    for decision in result.decisions:
        if decision.kind == "compute straggler":
            straggles.add(decision.worker)
        elif decision.kind == "leads again":
            straggles.discard(decision.worker)
        elif decision.kind == "claim" and decision.worker in straggles:
            helpers.add(decision.worker)
    assert helpers


@pytest.mark.parametrize("policy", ["esa", "atp"])
@pytest.mark.parametrize("host", [0, 2, 3])
def test_somebody_dies_while_helpers_have_work_of_several(policy: str, host: int) -> None:
    """Before anything was sent, what somebody has of a second owner is computed again; later, a bit waits for it."""
    for time_us in (20, 28, 36, 42, 48, 54):
        result = run(two_slow(dying((host, time_us))), policy)
        assert result.exact, f"at {time_us} us: {result.failed}, {result.wrong} wrong"


def test_nobody_counts_on_a_worker_that_has_sent() -> None:
    """A helper dies, and the straggler that it helped has sent: another helper computes that again."""
    faults = {
        "slow": [
            {"job": "a", "worker": worker, "factor": factor}
            for worker, factor in ((0, 2.0), (4, 2.0), (1, 1.3), (5, 1.3), (2, 1.3))
        ]
    }
    for time_us in (24, 26, 28, 28.73, 30, 32):
        scenario = helped("takeover", workers=6, micro_batches=4, faults=faults | dying((4, time_us)))
        result = run(scenario)
        assert result.exact, f"at {time_us} us: {result.failed}, {result.wrong} wrong"


def test_a_worker_has_its_bit_in_its_racks_mask() -> None:
    racks = Racks([0, 2, 0, 2, 2])
    assert [racks.part(rank)[0] for rank in range(5)] == [1, 1, 2, 2, 4]
    assert racks.owner(3) == 2 * 64 + 1
    assert (racks.fan_in(0), racks.fan_in(2)) == (2, 3)


def test_only_leaders_bits_complete_a_racks_sum_in_help_mode() -> None:
    racks = Racks([0, 0, 1, 1])
    assert racks.fan_in(0, {0, 2, 3}) == 1
    assert racks.fan_in(1, {0, 2, 3}) == 2
    assert racks.fan_in(0, {2, 3}) == 1, "nobody there sends as a leader, and a fan-in is at least 1"


def test_carriers_are_of_the_rack_and_leaders_first() -> None:
    racks = Racks([0, 0, 0, 1])
    assert racks.choose_carriers({0}, [1, 2, 3], {2, 3}) == []
    assert racks.carriers == {0: 2}
    assert racks.part(2) == (0b101, 0, 0)
    assert racks.fan_in(0, {2, 3}) == 2
    # Who carries goes on carrying; whoever carried and dies is followed.
    assert racks.choose_carriers({0, 2}, [1, 3], {1, 3}) == []
    assert racks.carriers == {0: 1, 2: 1}
    assert racks.part(1)[0] == 0b111


def test_where_a_rack_is_lost_others_carry_one_of_its_workers_each() -> None:
    racks = Racks([0, 0, 1, 1, 1])
    alive = [0, 1]
    assert racks.is_rack_lost(alive)
    assert racks.choose_carriers({2, 3, 4}, alive, set(alive)) == [4]
    assert {racks.part(rank)[1] for rank in alive} == {64, 65}
    assert all(racks.part(rank)[2] == int(ALL_SHARES) for rank in alive)


def in_racks(mode: str, **sections: Any) -> Any:
    return helped(mode, network=RACKS | sections.pop("network", {}), **sections)


@pytest.mark.parametrize("policy", ["esa", "atp", "switchml"])
def test_takeover_in_racks_comes_near_its_bound(policy: str) -> None:
    result = run(in_racks("takeover", workers=8, micro_batches=16, faults=slow(2)), policy)
    assert result.exact, result.failed
    assert 8 / 7.4 < iterations_of(result) < 8 / 7.4 + 0.35
    assert {"compute straggler", "claim"} <= kinds(result)


@pytest.mark.parametrize("policy", ["esa-plus", "esa", "atp", "coin-flip"])
@pytest.mark.parametrize("placement", ["dedicated", "workers"])
def test_leaders_of_each_rack_complete_sums(policy: str, placement: str) -> None:
    result = run(in_racks("custody", workers=6, custodians={"placement": placement}, faults=slow(2)), policy)
    assert result.exact, result.failed
    assert {"compute straggler", "epoch"} <= kinds(result)
    assert result.transport["credits"] > 0


@pytest.mark.parametrize("mode", ["custody", "takeover", "both"])
def test_help_for_two_stragglers_in_two_racks(mode: str) -> None:
    result = run(in_racks(mode, workers=8, micro_batches=8, faults=slow(1, 6)))
    assert result.exact, result.failed


@pytest.mark.parametrize("policy", ["esa", "atp"])
@pytest.mark.parametrize("mode", ["takeover", "both"])
@pytest.mark.parametrize("time_us", [3, 34, 66])
def test_a_survivor_of_the_rack_carries_a_dead_workers_bit(policy: str, mode: str, time_us: float) -> None:
    result = run(in_racks(mode, workers=6, faults={**slow(2), **dying((0, time_us))}), policy)
    assert result.exact, result.failed
    assert result.jobs[0].deaths == 1


@pytest.mark.parametrize("mode", ["takeover", "both"])
def test_a_whole_rack_dies_and_the_other_carries_it(mode: str) -> None:
    result = run(in_racks(mode, workers=4, faults=dying((2, 20), (3, 30))))
    assert result.exact, result.failed
    assert result.jobs[0].deaths == 2


def test_more_dead_than_survivors_can_carry_are_named() -> None:
    network = {"leaves": 3}
    result = run(in_racks("takeover", workers=3, network=network, faults=dying((1, 20), (2, 20))))
    assert result.failed == "a: worker 2 died, and nobody is left who could carry its part"
    assert result.wrong == 0


@pytest.mark.parametrize("policy", ["esa-plus", "esa", "atp", "coin-flip"])
@pytest.mark.parametrize("mode", ["custody", "takeover", "both"])
def test_sums_stay_exact_whatever_is_lost_and_whoever_dies(policy: str, mode: str) -> None:
    for seed in range(3):
        deaths = {} if mode == "custody" else dying((seed, 10 + 31 * seed))
        losses = [{"time": "55 us", "job": "a"}]
        faults = {**slow(4), **STRUCK, **deaths, "custodian_forgets": losses}
        placement = {"placement": "spread" if seed % 2 else "packed"}
        result = run(in_racks(mode, workers=6, network=placement, faults=faults), policy, seed=seed)
        assert result.exact, f"seed {seed}: {result.failed}, {result.wrong} wrong"


def test_a_dead_switch_of_several_costs_time_and_no_contribution() -> None:
    for switch in range(3):
        faults = {**slow(1), "switch_dies": [{"time": "40 us", "switch": switch}]}
        result = run(in_racks("both", workers=6, faults=faults))
        assert result.exact, result.failed
