"""The simulated counterpart of a measurement."""

import pytest

from benchmarks.allreduce_simulated import scenario, simulated_s
from paceline.bench.measurement import OURS, Measurement, ideal_s
from paceline.errors import UserError

MEASUREMENT = Measurement(workers=3, sizes=(1_000_000,), backends=(OURS,), rate_bps=200e6)


def test_an_undisturbed_sum_takes_the_ideal_time_and_a_little() -> None:
    assert simulated_s(MEASUREMENT, 1_000_000) == pytest.approx(ideal_s(1_000_000, 200e6, 1500), rel=0.02)


def test_without_a_rate_there_is_nothing_to_simulate() -> None:
    with pytest.raises(UserError, match="--rate"):
        scenario(Measurement(workers=3, sizes=(4,), backends=(OURS,)), 4)
