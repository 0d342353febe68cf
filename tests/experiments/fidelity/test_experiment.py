"""The figures of the fidelity experiment, from rows made by hand."""

from pathlib import Path
from typing import Any

import pytest

from paceline.experiments.fidelity import experiment
from paceline.experiments.fidelity.points import FidelityPoint, draw, place, scenario_of
from paceline.sim.run import simulate


def row(seed: int, placement: str, exchange: str, simulated: float, expected: float) -> dict[str, Any]:
    return {
        "seed": seed,
        "exchange": exchange,
        "placement": placement,
        "cause": "sends much",
        "job": "a",
        "jobs": 8,
        "servers": 4,
        "racks": 2,
        "oversubscription": 4.0,
        "slots": 128,
        "ratio": 1.5,
        "neighbours": 0.4,
        "memory": 0.1,
        "simulated_ms": simulated,
        "expected_ms": expected,
        "error": expected / simulated - 1,
        "paper_error": 1.0,
        "avg_jct_ms": simulated,
        "expected_avg_jct_ms": expected,
    }


ROWS = [
    row(seed, placement, exchange, simulated, simulated * 1.1)
    for seed, exchange in enumerate(("ring", "atp", "switchml", "esa"))
    for placement, simulated in (("packed", 1.0), ("rack", 2.0), ("random", 4.0), ("wide", 8.0))
]


def test_errors_are_relative_and_by_exchange() -> None:
    summary = experiment.summarise(ROWS, True, 0)
    assert set(summary) == {
        "model_error_mean", "model_error_p95", "model_error_esa", "model_error_ring", "model_error_atp",
        "model_error_switchml", "rank_correlation",
    }  # fmt: skip
    for key, entry in summary.items():
        assert set(entry) == {"paper", "ours", "setting"}
        assert entry["ours"] == pytest.approx(1.0 if key == "rank_correlation" else 0.1, abs=1e-3)


def test_a_model_that_orders_placements_the_other_way_round_is_seen() -> None:
    turned = [{**each, "expected_avg_jct_ms": 1 / each["expected_avg_jct_ms"]} for each in ROWS]
    assert experiment.rank_correlation(turned) == pytest.approx(-1.0)


def test_the_page_the_tables_and_the_picture_are_made(tmp_path: Path) -> None:
    from paceline.experiments.sweep import write_csv, write_summary

    errors = [*experiment.by(ROWS, "exchange"), *experiment.by(ROWS, "cause")]
    summary = experiment.summarise(ROWS, True, 0)
    write_csv(tmp_path / "rows.csv", ROWS)
    write_csv(tmp_path / "errors.csv", errors)
    write_csv(tmp_path / "worst.csv", experiment.worst(ROWS))
    write_summary(tmp_path, summary)
    experiment.write_page(tmp_path / "index.html", ROWS, errors, summary)
    experiment.draw_picture(tmp_path, tmp_path / "fidelity.svg")
    assert "Predictions against packets" in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert (tmp_path / "fidelity.svg").read_text(encoding="utf-8").count(' r="2">') == len(ROWS)
    tables = experiment.docs_tables(tmp_path)
    assert "| switchml | 4 | 0.100" in tables
    assert "expected to lose 40% of its time to neighbours on links; it was less" in tables


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"exchange": "atp"}, "40% of its time to neighbours on links and memory; it was less"),
        ({"exchange": "atp", "memory": 0.5}, "50% of its time for want of memory; it was less"),
        ({"error": -0.3}, "40% of its time to neighbours on links; it was more"),
        (
            {"neighbours": 0.0, "memory": 0.01, "error": -0.3},
            "expected to lose nothing to others; it was more",
        ),
    ],
)
def test_a_worst_case_says_which_expectation_failed(changes: dict[str, Any], text: str) -> None:
    assert text in experiment.reason({**ROWS[0], **changes})


def test_what_two_jobs_split_in_atps_memory_waits_for_no_timer() -> None:
    """Its workers send again what later results overtook; questions alone had one job wait for 11 ms instead of 1."""
    point = FidelityPoint(45, "atp", quick=True)
    load = draw(point)
    result = simulate(scenario_of(load, *place(load, "wide", point.seed)), "atp", seed=point.seed)
    assert result.failed is None
    ran_s = {job.name: (job.jct_s or 1.0) - job.waited_s for job in result.jobs}
    for work in load.works:
        assert ran_s[work.name] < 3 * work.iterations * work.compute_s * (1 + work.ratio), work.name
