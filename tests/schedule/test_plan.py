"""Schedules: the figures by which they are compared, and their JSON."""

import json
from pathlib import Path

import pytest

from tests.schedule.by_hand import two_spread


def test_figures_of_comparison() -> None:
    schedule = two_spread()
    assert schedule.makespan_s == 27.5
    assert schedule.avg_jct_s == pytest.approx(22.5)
    assert schedule.gap == pytest.approx(1.75)
    assert schedule.utilisation == pytest.approx((27.5 + 17.5) * 2 / (27.5 * 4))


def test_json_is_complete(tmp_path: Path) -> None:
    entry = json.loads(json.dumps(two_spread().to_dict()))
    assert entry["makespan"] == 27.5
    assert entry["placements"][0] == {
        "job": "one", "start": 0.0, "end": 27.5, "servers": {"a": 1, "b": 1}, "gpus": [0, 2],
        "reason": "by hand",
    }  # fmt: skip
