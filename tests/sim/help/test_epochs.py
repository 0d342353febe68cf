"""Custody, alone and with takeover: leaders complete sums without the straggler; exact under loss and state loss."""

import pytest

from tests.sim.help.scenes import helped, iterations_of, kinds, run, slow

STRUCK = {"loss": 0.05, "duplicate": 0.05, "reorder": 0.05}


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


@pytest.mark.parametrize("policy", ["esa-plus", "esa", "atp"])
@pytest.mark.parametrize("mode", ["custody", "takeover", "both"])
def test_sums_stay_exact_whatever_is_lost_and_whoever_forgets(policy: str, mode: str) -> None:
    for seed in range(2):
        losses = [{"time": time, "job": "a"} for time in ("20 us", "45 us", "80 us")]
        faults = {**slow(1), **STRUCK, "custodian_forgets": losses}
        result = run(helped(mode, help={"window": 1.0}, faults=faults), policy, seed=seed)
        assert result.exact, f"seed {seed}: {result.failed}, {result.wrong} wrong"


@pytest.mark.parametrize("policy", ["esa-plus", "esa", "atp"])
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
