import json
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.experiments.sjf_bco import experiment as sjf_bco
from paceline.experiments.sjf_bco import points as sjf_bco_points
from paceline.experiments.sjf_bco.experiment import is_u_shape, mean_of, paired_gap, paper_gap
from paceline.experiments.sjf_bco.points import Size, SjfBcoPoint, run_point
from paceline.experiments.sweep import Sweep
from paceline.schedule.inputs.generate import PaperSetting


def test_published_gaps_are_those_of_the_table() -> None:
    assert round(paper_gap(10, "ls"), 3) == 0.191
    assert round(paper_gap(20, "ls"), 3) == 0.101
    assert round(paper_gap(10, "ff"), 3) == 0.331


def test_means_and_paired_gaps() -> None:
    mean = mean_of([1.0, 2.0, 3.0, 4.0])
    assert mean.mean == 2.5
    assert 1.0 < mean.low < 2.5 < mean.high < 4.0
    assert paired_gap([50.0, 90.0], [100.0, 100.0]).mean == pytest.approx(0.3)


def kappa_rows(values: dict[int, float], seeds: int = 8) -> list[dict[str, float]]:
    return [
        {"kappa": kappa, "seed": seed, "servers": 20, "makespan": value + seed}
        for seed in range(seeds)
        for kappa, value in values.items()
    ]


def test_u_shape() -> None:
    assert is_u_shape(kappa_rows({1: 600, 4: 500, 32: 700}), 20)
    assert not is_u_shape(kappa_rows({1: 500, 4: 600, 32: 700}), 20)
    assert not is_u_shape(kappa_rows({1: 700, 4: 600, 32: 500}), 20)


def test_points_depend_on_their_seed_alone() -> None:
    point = SjfBcoPoint("share", 3, PaperSetting(servers=10))
    assert run_point(point) == run_point(point)
    other = run_point(replace(point, seed=4))
    assert other[0]["sjf-bco"] != run_point(point)[0]["sjf-bco"]


def test_a_tiny_run_writes_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sjf_bco, "QUICK", Size(seeds=2, kappa_seeds=2, sweep_seeds=1, exact_cases=2, evaluations=120)
    )
    monkeypatch.setattr(sjf_bco_points, "SHARES", (0.15,))
    entries = sjf_bco.reproduce(tmp_path, quick=True, sweep=Sweep(processes=1))
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written.keys() == entries.keys()
    wanted = [f"makespan_gap_{other}_{servers}" for other in ("ls", "ff") for servers in (10, 15, 20)]
    for key in [*wanted, "kappa_u_shape", "bco_plus_gap_mean", "exact_excess_mean"]:
        assert set(written[key]) == {"paper", "ours", "setting"}, key
    assert written["bco_plus_worse_than_sjf_bco"]["ours"] == 0
    assert 0.0 <= written["bco_plus_gap_mean"]["ours"] < 0.2
    assert written["exact_excess_mean"]["ours"] >= 0.0
    assert "SJF-BCO, repeated" in (tmp_path / "index.html").read_text()
    for name in ("main", "kappa", "lambda", "share", "limit", "time", "exact"):
        lines = (tmp_path / f"{name}.csv").read_text().splitlines()
        assert len(lines) > 1, name
