"""What survives which fault, and what a failure says."""

from typing import Any

import pytest

from paceline.errors import UserError
from paceline.sim.run import simulate
from paceline.sim.scenario import POLICIES
from tests.sim.scenes import job, scene, wire_s

JOBS = job(size=80_000), job(name="b", workers=3, size=80_000)
LEAF_SPINE = {"topology": "leaf-spine", "leaves": 3, "uppers": 2, "placement": "spread"}
CUSTODIAL = ("esa-plus", "never", "esa", "atp", "always-preempt", "coin-flip")


@pytest.mark.parametrize("network", [{}, LEAF_SPINE], ids=["star", "leaf-spine"])
@pytest.mark.parametrize("policy", CUSTODIAL)
def test_jobs_with_custodians_go_on_exactly_when_every_switch_dies(
    policy: str, network: dict[str, object]
) -> None:
    switches = 1 if not network else 5
    deaths = [{"time": "8 us", "switch": s} for s in range(switches)]
    alive = simulate(scene(*JOBS, network=network), policy, check=True)
    dead = simulate(scene(*JOBS, network=network, faults={"switch_dies": deaths}), policy, check=True)
    assert alive.exact
    assert dead.exact
    assert dead.switch["completions"] < alive.switch["completions"]
    assert alive.avg_jct_s is not None
    assert dead.avg_jct_s is not None
    assert dead.avg_jct_s > alive.avg_jct_s


def test_switchml_fails_with_its_switch_and_says_why() -> None:
    faults = {"switch_dies": [{"time": "8 us"}]}
    result = simulate(scene(*JOBS, transport={"resends_max": 5}, faults=faults), "switchml", check=True)
    assert result.exact is False
    assert result.avg_jct_s is None
    assert result.jobs[0].failed == "switch 0 died, and switchml has no fallback host"


@pytest.mark.parametrize("policy", ["ring", "ps"])
def test_policies_of_hosts_do_not_notice_a_switchs_memory(policy: str) -> None:
    faults = {"switch_dies": [{"time": "8 us"}]}
    plain, struck = (simulate(scene(*JOBS, faults=given), policy) for given in ({}, faults))
    assert struck.avg_jct_s == plain.avg_jct_s


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_fails_with_its_host_names_the_worker_and_leaves_the_others_alone(policy: str) -> None:
    faults = {"host_dies": [{"time": "8 us", "host": 1}]}
    result = simulate(scene(*JOBS, transport={"resends_max": 5}, faults=faults), policy, check=True)
    broken, whole = result.jobs
    assert broken.failed == "worker 1 died"
    assert broken.jct_s is None
    assert whole.failed is None
    assert whole.jct_s is not None
    assert result.wrong == 0
    assert result.failed == "a: worker 1 died"


@pytest.mark.parametrize("policy", ["esa", "switchml", "ring"])
@pytest.mark.parametrize("factor", [1.5, 4.0])
def test_one_slow_worker_slows_a_computing_job_by_its_factor(policy: str, factor: float) -> None:
    only = job(model="computation-heavy", size=400_000, ratio=0.02)
    slow = {"slow": [{"job": "a", "worker": 2, "factor": factor}]}
    plain, slowed = (simulate(scene(only, faults=given), policy) for given in ({}, slow))
    assert plain.avg_jct_s is not None
    assert slowed.avg_jct_s is not None
    assert slowed.avg_jct_s / plain.avg_jct_s == pytest.approx(factor, rel=0.1)


def test_faults_strike_as_often_as_asked() -> None:
    """Of all packets on all links; 3 % +- five standard deviations."""
    faults = {"loss": 0.03, "duplicate": 0.03, "reorder": 0.03}
    result = simulate(scene(job(size=400_000), faults=faults), "esa", check=True)
    assert result.exact
    crossings = result.packets * 2
    for name in ("lost", "duplicated", "reordered"):
        share = result.transport[name] / crossings
        assert share == pytest.approx(0.03, abs=0.012)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"switch_dies": [{"time": 0, "switch": 1}]}, "faults.switch_dies: there is no switch 1"),
        ({"host_dies": [{"time": 0, "host": 99}]}, "faults.host_dies: there is no host 99"),
        ({"slow": [{"job": "c", "worker": 0, "factor": 2}]}, "faults.slow: there is no job 'c'"),
        ({"slow": [{"job": "b", "worker": 3, "factor": 2}]}, "faults.slow: job 'b' has no worker 3"),
    ],
)
def test_a_fault_of_nothing_is_refused(faults: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        simulate(scene(*JOBS, faults=faults), "switchml")


@pytest.mark.parametrize("policy", ["esa-plus", "never", "esa", "always-preempt", "coin-flip"])
@pytest.mark.parametrize("placement", ["dedicated", "workers"])
def test_custodians_that_forget_cost_time_and_no_contribution(policy: str, placement: str) -> None:
    losses = [{"time": time, "job": "a"} for time in ("5 us", "12 us", "40 us")]
    faults = {"loss": 0.02, "duplicate": 0.02, "reorder": 0.02, "custodian_forgets": losses}
    sections = {"custodians": {"placement": placement}, "switch": {"slots": 12}, "faults": faults}
    for seed in range(10):
        result = simulate(scene(*JOBS, **sections), policy, seed=seed, check=True)
        assert result.exact, f"seed {seed}: {result.failed}, {result.wrong} wrong"


def test_the_custodians_of_no_job_cannot_forget() -> None:
    faults = {"custodian_forgets": [{"time": "5 us", "job": "nobody"}]}
    with pytest.raises(UserError, match="no job 'nobody'"):
        simulate(scene(*JOBS, faults=faults), "esa")


BIG = job(size=400_000, ratio=50.0, workers=2, iterations=2)


def jct(policy: str = "esa", **faults: Any) -> float:
    result = simulate(scene(BIG, faults=faults), policy, check=True)
    assert result.exact
    assert result.avg_jct_s is not None
    return result.avg_jct_s


@pytest.mark.parametrize("direction", ["to", "from"])
@pytest.mark.parametrize("policy", ["esa", "switchml", "ring"])
def test_other_traffic_leaves_a_job_the_rest_of_the_link(policy: str, direction: str) -> None:
    flow = {"host": 1, "rate": "75 Gbit/s", "direction": direction}
    free, shared = jct(policy), jct(policy, other_traffic=[flow])
    ideal_s = 2 * wire_s(scene(BIG), 400_000)
    assert free == pytest.approx(ideal_s, rel=0.7)
    assert 2.5 * ideal_s < shared < 8 * ideal_s


def test_other_traffic_begins_and_ends() -> None:
    flow = {"host": 1, "rate": "90 Gbit/s", "start": "20 us", "end": "40 us"}
    free, briefly, always = (
        jct(),
        jct(other_traffic=[flow]),
        jct(other_traffic=[flow | {"start": 0, "end": 1}]),
    )
    assert free < briefly < always


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"other_traffic": [{"host": 9, "rate": "1 Gbit/s"}]}, "there is no host 9"),
        ({"other_traffic": [{"host": 1, "rate": "100 Gbit/s"}]}, "leave some of the link's rate"),
        ({"other_traffic": [{"host": 1, "rate": "1 Gbit/s"}] * 2}, "one flow a link and direction"),
        ({"slow_spells": [{"job": "b", "probability": 0.1, "factor": 2}]}, "there is no job 'b'"),
        (
            {"slow_spells": [{"job": "a", "probability": 0.1, "factor": 2, "shortest": 3}]},
            "the shortest spell is longer",
        ),
    ],
)
def test_traffic_and_spells_that_cannot_be_are_refused(faults: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        simulate(scene(job(), faults=faults), "esa")
