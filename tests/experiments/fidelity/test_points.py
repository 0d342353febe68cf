"""Workloads of the fidelity experiment: drawn by seed, placed on GPUs that exist, the same for model and packets."""

import numpy as np
import pytest

from paceline.experiments.fidelity.points import (
    EXCHANGES,
    PLACEMENTS,
    FidelityPoint,
    all_points,
    draw,
    place,
    run_point,
    scenario_of,
)


def test_a_seed_draws_one_workload_and_others_draw_others() -> None:
    first, again, other = (draw(FidelityPoint(seed, "esa")) for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.parametrize("style", PLACEMENTS)
@pytest.mark.parametrize("seed", range(6))
def test_each_job_has_its_gpus_once(style: str, seed: int) -> None:
    load = draw(FidelityPoint(seed, "ring"))
    order, gpus = place(load, style, seed)
    assert sorted(order) == list(range(len(load.works)))
    base = np.concatenate(([0], np.cumsum([work.gpus for work in load.works])))
    for j in range(len(load.works)):
        mine = gpus[base[j] : base[j + 1]]
        assert len(set(mine.tolist())) == load.works[j].gpus
        assert (np.diff(mine) > 0).all()
        assert 0 <= mine.min() <= mine.max() < load.servers * load.gpus


def test_packets_see_the_same_servers_and_order() -> None:
    load = draw(FidelityPoint(2, "esa"))
    order, gpus = place(load, "wide", 2)
    scenario = scenario_of(load, order, gpus)
    assert [job.name for job in scenario.job] == [load.works[j].name for j in order]
    seen: set[str] = set()
    for job in scenario.job:
        assert set(job.after) <= seen
        seen.add(job.name)


def test_all_exchanges_have_enough_placements() -> None:
    points = all_points(quick=False)
    assert len(points) * len(PLACEMENTS) >= 300
    assert {point.exchange for point in points} == set(EXCHANGES)


def test_a_point_has_a_row_for_each_spread_job() -> None:
    point = next(
        point
        for point in all_points(quick=True)
        if point.exchange == "switchml" and len(draw(point).works) < 10
    )
    rows = run_point(point)
    assert rows
    for row in rows:
        assert row["servers"] > 1
        assert row["error"] == pytest.approx(row["expected_ms"] / row["simulated_ms"] - 1)
        assert abs(row["error"]) < 0.5
