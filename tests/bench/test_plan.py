"""Plans survive their way to a rank; ratios are computed from medians."""

import pytest

from paceline.bench.plan import OURS, PEER, SPINNING, Outcome, Plan, Row

PLAN = Plan(workers=8, sizes=(25_000_000,), backends=(OURS, PEER), rate_bps=200e6, spin=True)


def row(backend: str, *times_us: float, wrong: int = 0) -> Row:
    return Row(backend, 25_000_000, 6_250_000, "float32", 8, times_us, wrong)


def test_a_plan_comes_back_as_it_was() -> None:
    assert Plan.from_json(PLAN.to_json()) == PLAN


def test_with_spin_every_backend_is_measured_twice() -> None:
    assert PLAN.variants() == (OURS, PEER, OURS + SPINNING, PEER + SPINNING)


def test_ratios() -> None:
    ideal_us = 25e6 * 8 / 200e6 * 1514 / 1408 * 1e6
    outcome = Outcome(PLAN, [row(OURS, 9e6, ideal_us / 0.9, 1.0), row(PEER, 2 * ideal_us / 0.9)])
    outcome.rows.append(row(OURS + SPINNING, 2 * ideal_us / 0.9))
    assert outcome.ratio_to_peer() == {25_000_000: pytest.approx(2.0)}
    assert outcome.ratio_to_line() == {25_000_000: pytest.approx(0.9)}
    assert outcome.ratio_spinning() == {25_000_000: pytest.approx(0.5)}


def test_without_a_peer_or_a_rate_there_is_no_ratio() -> None:
    outcome = Outcome(Plan(workers=2, sizes=(25_000_000,), backends=(OURS,)), [row(OURS, 1.0)])
    assert (outcome.ratio_to_peer(), outcome.ratio_to_line(), outcome.ratio_spinning()) == ({}, {}, {})


def test_json_has_what_scripts_are_promised() -> None:
    document = Outcome(PLAN, [row(OURS, 1e6, wrong=3), row(PEER, 2e6)]).to_json()
    first = document["rows"][0]
    assert first["backend"] == OURS
    assert (first["size_bytes"], first["count"], first["type"], first["redop"]) == (
        25_000_000,
        6_250_000,
        "float32",
        "sum",
    )
    assert (first["time_us"], first["wrong"]) == (1e6, 3)
    assert first["algbw_GBps"] == pytest.approx(0.025)
    assert first["busbw_GBps"] == pytest.approx(0.025 * 14 / 8)
    assert document["ratio_to_peer"] == {"25000000": 2.0}
    assert set(document["ratio_to_line"]) == {"25000000"}
    assert document["settings"]["workers"] == 8
