"""The live experiment's figures are what they say; one cell is run for real."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from paceline.experiments.live import cells, experiment
from paceline.experiments.live.experiment import Unfinished, conclude, docs_tables, reproduce
from paceline.experiments.live.predict import PredictionTask
from paceline.experiments.live.workloads import BASELINE, TOGETHER, LivePoint, all_points
from paceline.experiments.sweep import Sweep
from tests.emulation.test_namespaces import needs_root

PACES = {
    "sends": {"healthy_s": 0.06, "slow_s": 0.15, "rest_s": 0.0, "inside_gloo_s": 0.0, "inside_switch_s": 0.0}
}


def measured(point: LivePoint) -> dict[str, Any]:
    """A cell in which every idea halves the times, and one job of help gains nothing."""
    times = 8.0
    for idea, (chosen, usual) in enumerate(
        zip((point.planner, point.exchange, point.stragglers), BASELINE, strict=True)
    ):
        times /= 1.0 if chosen == usual else (2.0, 2.0, 2.0)[idea]
    jobs = [
        {
            "name": name, "gpus": 8, "steps": 4, "servers": {"s-0": 4, "s-1": 4}, "path": "ring", "jct_s": jct,
            "queue_s": 0.0, "start_s": 0.5, "train_s": jct, "iteration_s": times / 4, "taken_over": 0, "loss": 0.5,
        }
        for name, jct in (("a", times), ("b", 8.0))
    ]  # fmt: skip
    keys = ("workload", "planner", "exchange", "stragglers", "seed")
    told = {key: getattr(point, key) for key in keys}
    return {**told, "avg_jct_s": times, "makespan_s": 2 * times, "cores": 1.0, "wall_s": 9.0, "jobs": jobs}


def foresee(task: PredictionTask) -> list[dict[str, Any]]:
    return [{"iteration_s": 1.0, "jct_s": 5.0} for _ in json.loads(task.cell)["jobs"]]


def test_the_summary_compares_with_first_fit_and_gloo(tmp_path: Path) -> None:
    found = [measured(point) for point in all_points(quick=False) if point.workload == "sends"]
    foreseen = [
        [{"iteration_s": 1.1 * job["iteration_s"], "jct_s": 5.0} for job in cell["jobs"]] for cell in found
    ]
    summary = conclude(tmp_path, found, foreseen, PACES)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert summary["live_avg_jct_over_ff_gloo"]["ours"] == 8.0
    assert summary["live_makespan_over_ff_gloo"]["ours"] == 8.0
    assert summary["live_worst_job_over_ff_gloo"]["ours"] == 1.0
    assert summary["sim_error_mean"]["ours"] == summary["sim_error_max"]["ours"] == 0.1
    assert summary["live_loss_difference_max"]["ours"] == 0.0
    ideas = (tmp_path / "ideas.csv").read_text().splitlines()
    assert ideas[3] == "stragglers: takeover instead of waiting,2.0,2.0,2.0,2.0,3"
    page = docs_tables(tmp_path)
    assert (
        "| bco-plus, esa-plus, takeover | 3 | 1.0 | 1.0 to 1.0 | 8.00 | 2.0 | 8.00 | 1.00 | 0.25 | 0.28 | +10% |"
        in page
    )
    assert "first fit" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_what_was_done_so_far_has_its_tables(tmp_path: Path) -> None:
    """Two cells of each workload and seed carry the claim, and run first."""
    order = all_points(quick=False)
    assert {point.combination for point in order[:12]} == {BASELINE, TOGETHER}
    assert {point.seed for point in order[12:24]} == {1}
    assert not any(point.exchange == "atp" for point in order[12:24])
    for count in (11, 12, 14, 30):
        done = experiment.comparable([measured(point) for point in order[:count]])
        # The eleventh has a baseline and nothing to compare with it.
        assert len(done) == (10 if count == 11 else count)
        foreseen = [[{"iteration_s": 1.0, "jct_s": 5.0} for _ in cell["jobs"]] for cell in done]
        summary = conclude(tmp_path, done, foreseen, PACES | {"computes": PACES["sends"]})
        assert summary["live_avg_jct_over_ff_gloo"]["ours"] == 8.0
        assert "| first fit, Gloo | 3 |" in docs_tables(tmp_path)
        assert ("what one idea gives" in docs_tables(tmp_path)) == (count == 30)


def test_a_limited_run_stops_between_cells_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def run(task: cells.CellTask) -> dict[str, Any]:
        ran.append(task.point)
        return measured(task.point)

    monkeypatch.setattr(experiment, "check_possible", lambda: None)
    monkeypatch.setattr(experiment, "compile_ahead", lambda: None)
    monkeypatch.setattr(experiment, "calibrate", lambda _: PACES["sends"])
    monkeypatch.setattr(experiment, "run_cell", run)
    first = reproduce(tmp_path, True, Sweep(folder=tmp_path), limit_s=0.0)
    assert first == Unfinished(0, 8)
    assert ran == []
    monkeypatch.setattr(experiment, "predict", foresee)
    assert reproduce(tmp_path, True, Sweep(folder=tmp_path, processes=1))
    assert len(ran) == 8
    for limit_s in (None, 0.0):
        again = reproduce(tmp_path, True, Sweep(folder=tmp_path, processes=1, resume=True), limit_s=limit_s)
        assert isinstance(again, dict)
    assert len(ran) == 8
    two_seeds = reproduce(tmp_path, True, Sweep(folder=tmp_path, processes=1, resume=True), 2, limit_s=0.0)
    assert two_seeds == Unfinished(8, 16)
    assert json.loads((tmp_path / "summary.json").read_text()) == again


@needs_root
def test_one_cell_runs(tmp_path: Path) -> None:
    """Two ranks on two servers over a switch, and what they tell; plan and network are the real ones."""
    load = experiment.all_points(True)[0].load
    servers = ("s-0", "slow")
    text = cells.cluster_text(load, servers).replace("gpus = 4", "gpus = 1").replace("50 Mbit", "500 Mbit")
    jobs = cells.jobs_text(load, [cells.LiveJob("a", 2, 2)], "help", 1).replace('"60"', '"5"')
    run, _, _ = cells._run(tmp_path / "cell", text, jobs, "ff", "gloo")
    told = cells._job(run, run.jobs[0])
    assert told["servers"] == {"s-0": 1, "slow": 1}
    assert len(told["paces_s"]) == 2
    assert told["paces_s"][1] > told["paces_s"][0]
    assert told["iteration_s"] > 0
