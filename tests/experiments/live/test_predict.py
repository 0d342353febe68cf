"""A cell as a scenario: placements, starts, volumes and slowness are those of the run."""

import json
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from paceline.experiments.live.predict import Calibration, PredictionTask, predict, scenario_of
from paceline.experiments.live.workloads import COMPUTES, SENDS

TIMES = Calibration(0.07, 0.16, 0.01, 0.05, 0.03)


def cell(exchange: str, stragglers: str = "wait", workload: str = "sends") -> dict[str, Any]:
    jobs = [
        {"name": "wide", "gpus": 8, "steps": 2, "servers": {"s-2": 4, "slow": 4}, "trains_at_s": 1.5},
        {"name": "inside", "gpus": 4, "steps": 3, "servers": {"s-0": 4}, "trains_at_s": 2.0},
    ]
    head = {"workload": workload, "planner": "ff", "exchange": exchange, "stragglers": stragglers, "seed": 1}
    return {**head, "jobs": jobs}


def test_a_server_is_a_worker_at_its_place() -> None:
    scenario = scenario_of(cell("esa-plus"), TIMES)
    wide, inside = scenario.expanded_jobs()
    assert (wide.hosts, inside.hosts) == ([2, 3], [0])
    assert (wide.arrival, inside.arrival) == (1_500_000_000, 2_000_000_000)
    assert wide.size == SENDS.gradient_bytes
    (slow,) = scenario.faults.slow
    assert (slow.job, slow.worker) == ("wide", 1)
    assert slow.factor == pytest.approx((4 * 0.16 + 0.04) / (4 * 0.07 + 0.04))


def test_a_ring_of_ranks_crosses_a_link_with_as_much_as_a_ring_of_servers() -> None:
    wide, inside = scenario_of(cell("gloo"), TIMES).expanded_jobs()
    assert wide.size == pytest.approx(SENDS.gradient_bytes * (7 / 8) / (1 / 2), rel=1e-6)
    assert inside.size == SENDS.gradient_bytes


def test_with_help_nobody_is_slow_and_computing_is_between() -> None:
    helped = scenario_of(cell("atp", "help"), TIMES)
    assert helped.faults.slow == []
    seconds = [
        (job.size or 0) * 8 / helped.network.rate / (job.ratio or 1.0) for job in helped.expanded_jobs()
    ]
    assert 4 * 0.07 + 0.04 < seconds[0] < 4 * 0.16
    assert seconds[1] == pytest.approx(4 * 0.07 + 0.04, abs=0.01)


def test_other_traffic_is_on_the_first_servers_link() -> None:
    scenario = scenario_of(cell("esa-plus", workload="computes"), TIMES)
    assert [(flow.host, flow.direction) for flow in scenario.faults.other_traffic] == [(0, "to"), (0, "from")]
    share = scenario.faults.other_traffic[0].rate / scenario.network.rate
    assert share == pytest.approx(COMPUTES.background_bps / 50e6)


def test_a_prediction_has_every_job() -> None:
    wide, inside = predict(PredictionTask(json.dumps(cell("esa-plus")), TIMES))
    line_s = SENDS.gradient_bytes * 8 / 50e6
    assert 4 * 0.16 + line_s < wide["iteration_s"] < 4 * 0.16 + 2 * line_s
    assert inside["iteration_s"] == pytest.approx(4 * 0.07 + 0.04, rel=0.03)
    assert inside["jct_s"] == pytest.approx(2.0 + 3 * inside["iteration_s"])
