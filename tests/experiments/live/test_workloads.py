"""Workloads of the live experiment: drawn by the seed, the same for every cell, and readable by `paceline run`."""

from pathlib import Path

import pytest

from paceline.experiments.live.workloads import (
    BASELINE,
    COMPUTES,
    GPUS,
    SENDS,
    TOGETHER,
    LivePoint,
    all_points,
    cluster_text,
    jobs_text,
)
from paceline.launch.jobs import load_run_jobs
from paceline.schedule.inputs.sources import ClusterSource

POINT = LivePoint("sends", "ff", "gloo", "wait", 1)


def test_every_cell_of_a_seed_has_the_same_jobs() -> None:
    points = [point for point in all_points(quick=False) if (point.workload, point.seed) == ("sends", 2)]
    assert len({(point.planner, point.exchange, point.stragglers) for point in points}) == 12
    assert all(point.jobs() == points[0].jobs() for point in points)
    assert points[0].jobs() != POINT.jobs()
    assert sorted(job.gpus for job in points[0].jobs()) == sorted(GPUS)


def test_a_quick_run_has_what_the_comparison_needs() -> None:
    cells = {(point.planner, point.exchange, point.stragglers) for point in all_points(quick=True)}
    assert len(cells) == 8
    assert {BASELINE, TOGETHER} < cells


def test_files_are_those_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "jobs.toml").write_text(jobs_text(SENDS, POINT.jobs(), "help", 1))
    (tmp_path / "cluster.toml").write_text(cluster_text(COMPUTES))
    source = ClusterSource.read(str(tmp_path / "cluster.toml"))
    cluster = source.file.cluster()
    assert source.file.network.emulated
    assert [server.slow for server in cluster.servers] == [1.0, 1.0, 1.0, 2.5]
    assert [server.background_bps for server in cluster.servers] == [15e6, 0.0, 0.0, 0.0]
    jobs = load_run_jobs(tmp_path / "jobs.toml", cluster.gpus_total)
    assert [each.job.compute_s for each in jobs] == pytest.approx([0.24] * len(GPUS))
    assert all(Path(each.command[1]).is_file() and "help" in each.command for each in jobs)
    assert {each.job.gradient_bytes for each in jobs} == {SENDS.gradient_bytes}


def test_the_gradient_is_as_large_as_the_planner_is_told() -> None:
    training = pytest.importorskip("paceline.experiments.live.training", reason="PyTorch is not installed")
    model = training.build(1, COMPUTES.width, 0.0)
    assert COMPUTES.gradient_bytes == sum(4 * parameter.numel() for parameter in model.parameters())
