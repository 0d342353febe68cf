"""The simulated counterpart of a measurement."""

import pytest

from paceline.bench.bandwidth import ideal_s
from paceline.bench.plan import OURS, Plan
from paceline.bench.simulated import scenario, simulated_s
from paceline.errors import UserError

PLAN = Plan(workers=3, sizes=(1_000_000,), backends=(OURS,), rate_bps=200e6)


def test_an_undisturbed_sum_takes_the_ideal_time_and_a_little() -> None:
    assert simulated_s(PLAN, 1_000_000) == pytest.approx(ideal_s(1_000_000, 200e6, 1500), rel=0.02)


def test_without_a_rate_there_is_nothing_to_simulate() -> None:
    with pytest.raises(UserError, match="--rate"):
        scenario(Plan(workers=3, sizes=(4,), backends=(OURS,)), 4)
