"""What a run reports adds up."""

import json
from typing import Any

import pytest

from paceline.sim.results import RunResult
from paceline.sim.run import simulate
from paceline.sim.scenario import POLICIES
from tests.sim.scenes import OVERHEAD_BYTES, job, scene

ARRIVAL_S = 30e-6
SLOTS = 6
"""Fewer than one job's window: they must get in each other's way."""
SCENARIO = scene(
    job(copies=2, size=80_000, jitter=0.5),
    job(name="late", workers=3, arrival="30 us", iterations=3, jitter=0.5),
    switch={"slots": SLOTS},
    transport={"window": 32},
    network={"elements": 128},
)


@pytest.fixture(scope="module", params=POLICIES)
def result(request: pytest.FixtureRequest) -> RunResult:
    return simulate(SCENARIO, request.param, check=True)


def test_averages_and_makespan_follow_from_the_jobs(result: RunResult) -> None:
    times = [each.jct_s for each in result.jobs if each.jct_s is not None]
    assert len(times) == 3
    assert result.avg_jct_s == pytest.approx(sum(times) / 3)
    assert result.makespan_s == pytest.approx(max(times[0], times[1], ARRIVAL_S + times[2]))
    for each, seconds in zip(result.jobs, times, strict=True):
        assert each.mean_iteration_s == pytest.approx(seconds / each.iterations)
        assert each.blocked_share is not None
        assert 0 < each.blocked_share < 1


def test_json_is_plain_and_has_what_scripts_read(result: RunResult) -> None:
    data: dict[str, Any] = json.loads(json.dumps(result.to_dict()))
    keys = {
        "avg_jct_s",
        "makespan_s",
        "jobs",
        "switch",
        "traffic_bytes",
        "events",
        "packets",
        "wall_s",
        "exact",
    }
    assert keys <= data.keys()
    assert {"name", "jct_s", "iterations", "mean_iteration_s"} <= data["jobs"][0].keys()
    counted = {"utilisation_mean", "completions", "preemptions", "fallbacks", "reminders", "downgrades"}
    assert counted <= data["switch"].keys()
    assert data["exact"] is True
    assert "occupancy" not in data
    assert "occupancy" in result.to_dict(with_occupancy=True)


def test_every_result_was_checked(result: RunResult) -> None:
    """Each worker checks each chunk of each iteration; a ring checks its padded segments."""
    chunks = {"a": 4 * -(-20_000 // 512), "late": 4 * -(-10_000 // 512)}
    least = 2 * 4 * 2 * chunks["a"] + 3 * 3 * chunks["late"]
    if result.policy == "ring":
        assert least <= result.checked < 1.1 * least
    else:
        assert result.checked == least


def test_traffic_by_link_adds_up(result: RunResult) -> None:
    parts = result.traffic_by_link_bytes
    assert parts["host_up"] + parts["host_down"] + parts["between_switches"] == result.traffic_bytes
    assert parts["between_switches"] == 0
    assert 0 < parts["busiest_link"] <= max(parts["host_up"], parts["host_down"])
    assert result.traffic_bytes >= result.transport["sent"] * OVERHEAD_BYTES


def test_occupancy_stays_within_memory_and_gives_the_mean(result: RunResult) -> None:
    occupancy = result.occupancy
    if result.policy in ("ring", "ps"):
        assert occupancy.time_s == []
        assert result.switch["utilisation_mean"] == 0
        return
    assert occupancy.slots_total == SLOTS
    assert len(occupancy.slots_by_job) == 3
    used = [sum(row) for row in zip(*occupancy.slots_by_job, strict=True)]
    assert len(used) == len(occupancy.time_s)
    assert occupancy.time_s == sorted(set(occupancy.time_s))
    assert 0 < max(used) <= SLOTS
    assert result.switch["utilisation_mean"] == pytest.approx(sum(used) / len(used) / SLOTS)


def test_a_job_holds_nothing_before_it_arrives() -> None:
    occupancy = simulate(SCENARIO, "switchml").occupancy
    early = [
        held
        for time, held in zip(occupancy.time_s, occupancy.slots_by_job[2], strict=True)
        if time < ARRIVAL_S
    ]
    assert early
    assert set(early) == {0}
    assert max(occupancy.slots_by_job[2]) > 0


def test_only_policies_that_preempt_report_preemptions(result: RunResult) -> None:
    if result.policy in ("switchml", "ring", "ps"):
        assert result.switch["preemptions"] == result.switch["fallbacks"] == 0
    elif result.policy != "always-preempt":
        assert result.switch["fallbacks"] > 0
    if result.policy in ("esa", "always-preempt", "coin-flip"):
        assert result.switch["preemptions"] > 0


def test_settings_are_those_of_the_policy(result: RunResult) -> None:
    assert result.settings["transport"]["congestion"] == (
        {"switchml": "fixed"}.get(result.policy, "together")
    )
    assert result.settings["transport"]["window"] == 32


def test_without_check_nothing_is_claimed() -> None:
    result = simulate(SCENARIO, "esa")
    assert result.exact is None
    assert result.checked == 0
