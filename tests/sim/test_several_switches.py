"""Servers around a hub as a job's switches: faster where their links are the limit, exact whatever dies."""

from typing import Any

import numpy as np
import pytest

from paceline.core.priority import priority
from paceline.errors import UserError
from paceline.sim import run as runs
from paceline.sim.build.arrays import Setup, build
from paceline.sim.build.topology import server_of_places
from paceline.sim.help.coordinator import Coordinators
from paceline.sim.results import RunResult
from paceline.sim.run import simulate
from paceline.sim.scenario import Scenario, Transport
from tests.sim.scenes import OVERHEAD_BYTES, facts, job, scene

LARGE = {"size": "200 kB", "layers": 2, "iterations": 2, "ratio": 1e6}


def _scene(there: int, faults: dict[str, Any] | None = None, **keys: Any) -> Scenario:
    network = {"switches": there, "switch_rate": "25 Gbit/s", "rate": "100 Gbit/s"}
    return scene(
        job(**{**LARGE, **keys}), network=network, custodians={"placement": "workers"}, faults=faults or {}
    )


def _run(scenario: Scenario, policy: str = "esa-plus") -> RunResult:
    result = simulate(scenario, policy, check=True)
    assert result.exact, result.failed
    return result


@pytest.mark.parametrize("policy", ["esa-plus", "esa", "atp", "switchml"])
def test_two_are_faster_than_one_where_their_links_are_the_limit(policy: str) -> None:
    one, two = (_run(_scene(there), policy).avg_jct_s for there in (1, 2))
    assert one is not None
    assert two is not None
    assert one / two > 1.75


def _setup_after(scenario: Scenario) -> Setup:
    setup = build(scenario, "esa-plus", 1, False, priority)
    assert runs._run_to_end(setup, Coordinators(setup), None) == ""
    return setup


def test_a_switch_of_its_own_carries_what_all_send_and_a_result_for_each() -> None:
    setup = _setup_after(_scene(1))
    chunks = int(setup.world.jobs[0].chunks) * 2
    packet = OVERHEAD_BYTES + 4 * setup.scenario.network.elements
    to_switch, from_switch = setup.world.links.state.size_bytes[2 * setup.topology.hosts :][:2]
    for size_bytes in (to_switch, from_switch):
        assert 4 * chunks * packet <= size_bytes < 1.02 * 4 * chunks * packet


@pytest.mark.parametrize("policy", ["ring", "ps"])
def test_who_sums_in_no_switch_does_not_see_them(policy: str) -> None:
    beside, plain = _run(_scene(2), policy), _run(_scene(0), policy)
    assert beside.avg_jct_s == plain.avg_jct_s


@pytest.mark.parametrize("policy", ["esa-plus", "esa", "atp", "switchml", "coin-flip"])
def test_sums_are_exact_on_a_bad_network(policy: str) -> None:
    faults = {"loss": 0.02, "duplicate": 0.02, "reorder": 0.02}
    _run(_scene(3, faults, size="40 kB"), policy)


@pytest.mark.parametrize("dead", [[1], [2], [1, 2]])
def test_the_chunks_of_a_dead_one_go_by_custodians_and_the_others_stay(dead: list[int]) -> None:
    faults = {"switch_dies": [{"time": "60 us", "switch": number} for number in dead]}
    scenario = _scene(2, faults)
    result = _run(scenario)
    alive = _run(_scene(2))
    assert alive.switch["fallbacks"] == 0
    completed = result.switch["completions"] / alive.switch["completions"]
    if len(dead) == 1:
        assert 0.5 < completed < 0.8
        assert result.switch["fallbacks"] > 0
    else:
        assert completed < 0.5


def test_a_switch_that_is_named_twice_gets_twice_as_much() -> None:
    def sent_to_each(there: int, **keys: Any) -> list[int]:
        calm = {"window": 8, "reorder_chunks": 1000}  # no queue, so nothing is asked for or sent again
        setup = _setup_after(_scene(there, **keys).model_copy(update={"transport": Transport(**calm)}))
        hosts = setup.topology.hosts
        assert setup.world.switch.counters[0].sum() == 0, "the hub has no program"
        return [int(size) for size in setup.world.links.state.size_bytes[2 * hosts : 2 * hosts + there]]

    first, second = sent_to_each(2, switches=[1, 1, 2])
    assert first == pytest.approx(2 * second, rel=0.05)
    assert sent_to_each(2, switches=[2])[0] == 0


@pytest.mark.parametrize("slots", [1, 8, 9, 64])
@pytest.mark.parametrize("switches", [2, 3])
def test_every_switch_uses_all_of_its_aggregators(slots: int, switches: int) -> None:
    scenario = _scene(switches)
    table = server_of_places(scenario, "esa", scenario.expanded_jobs(), slots, 0)[0]
    seen = {(place % slots, int(switch)) for place, switch in enumerate(table)}
    assert seen == {(slot, switch) for slot in range(slots) for switch in range(1, switches + 1)}
    counts = np.bincount(table)[1:]
    assert len(set(counts.tolist())) == 1


def test_a_place_of_a_pool_stays_at_one_switch() -> None:
    scenario = _scene(2)
    table = server_of_places(scenario, "switchml", scenario.expanded_jobs(), 64, 7)[0]
    assert table.tolist() == [1, 2, 1, 2, 1, 2, 1]


@pytest.mark.parametrize("mode", ["custody", "takeover", "both"])
def test_stragglers_are_helped_behind_several_switches(mode: str) -> None:
    faults = {"slow": [{"job": "a", "worker": 1, "factor": 4.0}]}
    network = {"switches": 2, "switch_rate": "50 Gbit/s"}
    scenario = scene(job(straggler=mode, iterations=4), network=network, faults=faults)
    _run(scenario)


def test_two_jobs_share_them() -> None:
    network = {"switches": 2, "switch_rate": "25 Gbit/s"}
    jobs = [job(size="80 kB"), job(name="b", size="80 kB", switches=[2])]
    result = _run(scene(*jobs, network=network, switch={"slots": 16}))
    assert len(result.jobs) == 2


def test_results_of_different_switches_may_overtake_each_other() -> None:
    def chunks(there: int, **transport: Any) -> int:
        ours = scene(job(), network={"switches": there}, transport=transport)
        return ours.for_policy("esa-plus").transport.reorder_chunks

    assert (chunks(0), chunks(1), chunks(2)) == (3, 3, 64)
    assert chunks(2, reorder_chunks=5) == 5
    given = scene(job(), network={"switches": 2}, policy={"esa": {"transport": {"reorder_chunks": 7}}})
    assert given.for_policy("esa").transport.reorder_chunks == 7


def test_a_run_is_the_same_every_time() -> None:
    assert facts(_run(_scene(2))) == facts(_run(_scene(2)))


@pytest.mark.parametrize(
    ("sections", "keys", "reason"),
    [
        (
            {"network": {"switches": 2, "topology": "leaf-spine"}},
            {},
            "in a leaf-spine every rack has a switch",
        ),
        ({"network": {"switches": 2}}, {"switches": [3]}, "switches names 3, and network.switches is 2"),
        ({}, {"switches": [1]}, "switches names 1, and network.switches is 0"),
        ({"network": {"switches": 2}}, {"switches": [0]}, "greater than or equal to 1"),
        ({"network": {"switches": 9}}, {}, "less than or equal to 8"),
    ],
)
def test_mistakes_in_a_scenario(sections: dict[str, Any], keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        scene(job(**keys), **sections)


def test_a_hub_has_no_program_that_could_die() -> None:
    faults = {"switch_dies": [{"time": "1 us", "switch": 0}]}
    with pytest.raises(UserError, match="switch 0 is the hub"):
        build(_scene(2, faults), "esa", 1, False, priority)
    with pytest.raises(UserError, match="no switch 3"):
        build(_scene(2, {"switch_dies": [{"time": "1 us", "switch": 3}]}), "esa", 1, False, priority)
