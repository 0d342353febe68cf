"""Backup workers and the timeout: quick, inexact, and marked so."""

import pytest

from paceline.report.simulation import exactness, help_lines
from tests.sim.help.scenes import helped, iterations_of, kinds, run, slow


@pytest.mark.parametrize("mode", ["backup", "timeout"])
@pytest.mark.parametrize("policy", ["esa", "atp", "switchml"])
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_the_slow_one_is_left_out_and_the_sums_are_marked_inexact(
    policy: str, mode: str, micro_batches: int
) -> None:
    result = run(helped(mode, micro_batches=micro_batches, faults=slow(2, factor=4.0)), policy)
    assert result.failed is None
    assert iterations_of(result) < 1.5
    assert result.jobs[0].left_out == 3
    assert result.exact is False
    assert result.wrong == 0
    assert exactness(result) == "INEXACT"
    assert "INEXACT: 3 contributions left out" in help_lines(result)[0]
    assert "left out" in kinds(result)


def test_as_many_are_left_out_as_asked_for() -> None:
    result = run(helped("backup", workers=6, help={"backup": 2}, faults=slow(1, 4, factor=3.0)))
    assert result.jobs[0].left_out == 2 * 3
    assert {d.worker for d in result.decisions if d.kind == "left out"} == {1, 4}


def test_a_timeout_that_nobody_meets_leaves_nobody_out() -> None:
    result = run(helped("timeout", help={"timeout": "1 ms"}, faults=slow(2)))
    assert result.jobs[0].left_out == 0
    assert result.exact
    assert iterations_of(result) > 2.4
