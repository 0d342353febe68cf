"""The ESA experiment on two small workloads: files, keys, tuning, and the direction of the claim."""

import csv
import json
from pathlib import Path

import pytest

from paceline.experiments.esa import experiment as esa
from paceline.experiments.esa import points as esa_points
from paceline.experiments.esa.points import EsaPoint, all_points, bdp_slots, grid, run_point
from paceline.experiments.sweep import Sweep
from paceline.sim.scenario import POLICIES


def point(policy: str, slots: int, sweep: str = "memory") -> EsaPoint:
    return EsaPoint(sweep, "communication-heavy", 2, slots, 4, 0.0, policy, True, (1,), slots / bdp_slots())


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whole reproduction over two memory sizes, in this process."""
    out = tmp_path_factory.mktemp("esa")
    points = [point(policy, slots) for slots in (bdp_slots() // 2, 8 * bdp_slots()) for policy in POLICIES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(esa, "all_points", lambda quick: points)
        esa.reproduce(out, quick=True, sweep=Sweep(processes=1))
    return out


def test_the_summary_has_what_scripts_read(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert {"esa_over_atp_best", "esa_over_atp_worst", "esa_over_switchml_best"} <= set(summary)
    for entry in summary.values():
        assert set(entry) == {"paper", "ours", "setting"}
    assert summary["esa_over_atp_best"]["paper"] == 1.35
    assert summary["esa_over_atp_best"]["ours"] >= summary["esa_over_atp_worst"]["ours"]


def test_scarce_memory_is_where_preemption_pays(folder: Path) -> None:
    rows = read(folder / "speedups.csv")
    scarce, plenty = (float(row["atp"]) for row in rows)
    assert scarce > 1.35
    assert plenty >= 0.98
    assert scarce > plenty


def test_every_row_names_the_settings_that_were_chosen(folder: Path) -> None:
    rows = read(folder / "rows.csv")
    assert [row["policy"] for row in rows] == list(POLICIES) * 2
    assert all("window" in row["settings"] for row in rows)
    assert all(float(row["avg_jct_ms"]) > 0 for row in rows)


def test_the_page_stands_alone_and_says_what_is_ours(folder: Path) -> None:
    page = (folder / "index.html").read_text()
    assert "our" in page
    assert "1.35" in page
    assert "<script src=" not in page


def test_nobody_is_measured_on_the_seed_it_was_tuned_on() -> None:
    for quick in (True, False):
        assert all(esa_points.TUNING_SEED not in candidate.seeds for candidate in all_points(quick))


def test_tuning_takes_the_best_of_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    candidate = point("atp", bdp_slots())
    tuned = run_point(candidate)
    times = []
    for settings in grid(candidate):
        monkeypatch.setattr(esa_points, "grid", lambda _, chosen=settings: [chosen])
        times.append(run_point(candidate)["avg_jct_ms"])
    assert tuned["avg_jct_ms"] in times
    assert tuned["avg_jct_ms"] < max(times)


def test_every_workload_runs_under_every_policy() -> None:
    for quick in (True, False):
        points = all_points(quick)
        workloads = {(p.sweep, p.mix, p.jobs, p.slots, p.workers, p.loss) for p in points}
        assert len(points) == len(workloads) * len(POLICIES)
        assert {p.sweep for p in points} == {"jobs", "memory", "workers", "loss"}
