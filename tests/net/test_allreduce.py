"""The real thing over limited links: three workers and a switch in namespaces, right and in the time it should take."""

import os
from collections.abc import Callable

import pytest

from benchmarks.allreduce_simulated import simulated_s
from paceline.bench.measurement import OURS, Measurement, Outcome, ideal_s
from paceline.bench.run import run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
SIZE_BYTES = 4_000_000
MEASUREMENT = Measurement(workers=3, sizes=(4, SIZE_BYTES), backends=(OURS,), rate_bps=200e6, repeat=3)
BURST_S = 131_072 * 8 / 200e6


@pytest.fixture(scope="module")
def clean() -> Outcome:
    return run(MEASUREMENT)


def test_every_sum_is_right_and_went_through_the_switch(clean: Outcome) -> None:
    assert [row.wrong for row in clean.rows] == [0, 0]
    assert clean.status["path"] == "switch"


def test_nothing_is_faster_than_the_line(clean: Outcome) -> None:
    time_us = clean.time_us(OURS, SIZE_BYTES)
    assert time_us is not None
    assert time_us / 1e6 > ideal_s(SIZE_BYTES, 200e6, 1500) - BURST_S


def test_simulated_and_live_times_are_of_one_kind(
    clean: Outcome, record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    live_us = clean.time_us(OURS, SIZE_BYTES)
    assert live_us is not None
    simulated_us = simulated_s(MEASUREMENT, SIZE_BYTES) * 1e6
    difference = live_us / simulated_us - 1
    record_property("live_over_simulated", difference)
    with capsys.disabled():
        print(f"\nsimulated {simulated_us / 1e3:.1f} ms, live {live_us / 1e3:.1f} ms: {difference:+.1%}")
    # The limiter's burst comes first; a loaded machine comes last. Neither is of another kind.
    assert -BURST_S / (simulated_us / 1e6) - 0.02 < difference < 3.0


def test_sums_are_right_with_loss() -> None:
    outcome = run(
        Measurement(workers=3, sizes=(SIZE_BYTES,), backends=(OURS,), rate_bps=200e6, loss=0.02, repeat=1)
    )
    assert [row.wrong for row in outcome.rows] == [0]
