"""Computing with help in virtual time: never longer than without, never shorter than the work allows."""

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from paceline.experiments.live.helped import ASK_S, helped_compute_s


def test_equal_ranks_compute_their_own() -> None:
    assert helped_compute_s((0.06,) * 4, 4, 5) == pytest.approx(0.24, abs=2 * ASK_S)


def test_two_ranks_share_the_work_of_a_slow_one() -> None:
    """At 60 and 180 ms a micro-batch, 6 and 2 of 8 take both 360 ms."""
    found = helped_compute_s((0.06, 0.18), 4, 5)
    assert 0.36 <= found < 0.46
    assert helped_compute_s((0.06,) * 4 + (0.18,) * 4, 4, 5) == pytest.approx(found, abs=0.06)


def test_many_healthy_ranks_leave_little_to_a_slow_one() -> None:
    paces = (0.06,) * 6 + (0.15,) * 2
    bound = 32 / sum(1 / pace for pace in paces)
    assert bound <= helped_compute_s(paces, 4, 5) <= 4 * 0.15 * 0.75
