"""The promise, packet by packet: whatever is lost, duplicated or reordered, every sum is exact.

A part of what `python -m tests.properties.exactness` runs, and scenarios drawn at random.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core.switch.memory import RULES
from paceline.sim.run import simulate
from paceline.sim.scenario import POLICIES, Scenario
from tests.properties.exactness import TOPOLOGIES, run_one, scenario_of, what_is_wrong

SEEDS = range(15)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_sum_is_exact_under_loss_duplication_and_reordering(policy: str, topology: str) -> None:
    wrong = {seed: reason for seed in SEEDS if (reason := what_is_wrong(run_one(policy, topology, seed)))}
    assert wrong == {}


def test_seeds_vary_what_makes_runs_hard() -> None:
    scenarios = [scenario_of(seed, "leaf-spine") for seed in range(200)]
    assert {each.switch.slots for each in scenarios} == set(range(4, 45))
    assert {each.custodians.placement for each in scenarios} == {"dedicated", "workers"}
    assert {each.job[0].workers for each in scenarios} == {3, 4, 5, 6}
    assert len({each.model_dump_json(exclude={"seed", "name"}) for each in scenarios}) > 100


@st.composite
def scenarios(draw: Any) -> Scenario:
    job = st.fixed_dictionaries(
        {
            "workers": st.integers(1, 6),
            "iterations": st.integers(1, 3),
            "size": st.integers(400, 12_000),
            "layers": st.integers(1, 5),
            "jitter": st.sampled_from([0.0, 1.0]),
            "arrival": st.sampled_from([0, 5e-6, 1e-3]),
        }
    )
    odds = st.sampled_from([0.0, 0.01, 0.1])
    topology = draw(st.sampled_from(TOPOLOGIES), label="topology")
    places = ["dedicated", "workers", "shared"] if topology == "star" else ["dedicated", "workers"]
    return Scenario.model_validate(
        {
            "seed": draw(st.integers(0, 2**31), label="seed"),
            "horizon": "1000 s",
            "network": {
                "topology": topology,
                "leaves": draw(st.integers(1, 4), label="leaves"),
                "uppers": draw(st.integers(1, 3), label="uppers"),
                "elements": draw(st.sampled_from([1, 64, 300]), label="elements"),
                "queue": draw(st.sampled_from([20_000, 1_000_000]), label="queue"),
                "ecn": draw(st.sampled_from([0, 200_000]), label="ecn"),
                "placement": draw(st.sampled_from(["packed", "spread"]), label="placement"),
            },
            "switch": {
                "slots": draw(st.integers(6, 64), label="slots"),
                "relay": draw(st.booleans(), label="relay"),
                "copies": draw(st.booleans(), label="copies"),
                "classes": draw(st.sampled_from([1, 2, 8]), label="classes"),
                "rules": draw(st.lists(st.sampled_from(sorted(RULES)), unique=True), label="rules"),
            },
            "transport": {"window": draw(st.integers(1, 64), label="window"), "bucket": 5_000},
            "custodians": {
                "placement": draw(st.sampled_from(places), label="custodians"),
                "per_job": draw(st.integers(1, 3), label="per_job"),
            },
            "job": draw(st.lists(job, min_size=1, max_size=3), label="jobs"),
            "faults": {name: draw(odds, label=name) for name in ("loss", "duplicate", "reorder")},
        }
    )


@pytest.mark.parametrize("policy", POLICIES)
@settings(
    deadline=None,
    max_examples=15,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(scenario=scenarios())
def test_any_scenario_ends_with_every_sum_exact(policy: str, scenario: Scenario) -> None:
    result = simulate(scenario, policy, check=True)
    assert result.failed is None
    assert result.wrong == 0
    if any(job.workers > 1 for job in scenario.job):
        assert result.exact
