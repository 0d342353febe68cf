"""Help in several racks: every worker keeps its bit, rack switches complete as ever, and all sums are exact."""

from typing import Any

import pytest

from tests.sim.help.scenes import dying, helped, iterations_of, kinds, run, slow

RACKS = {"topology": "leaf-spine", "leaves": 2}
STRUCK = {"loss": 0.03, "duplicate": 0.03, "reorder": 0.03}


def in_racks(mode: str, **sections: Any) -> Any:
    return helped(mode, network=RACKS | sections.pop("network", {}), **sections)


@pytest.mark.parametrize("policy", ["esa", "atp", "switchml"])
def test_takeover_comes_near_its_bound(policy: str) -> None:
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


def test_a_dead_switch_costs_time_and_no_contribution() -> None:
    for switch in range(3):
        faults = {**slow(1), "switch_dies": [{"time": "40 us", "switch": switch}]}
        result = run(in_racks("both", workers=6, faults=faults))
        assert result.exact, result.failed
