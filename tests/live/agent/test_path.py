"""How long a switch that was left is kept away from."""

from paceline.live.agent.path import kept_away_ns, leaves_after

SECOND = 1_000_000_000
HOLD_OFF = 10 * SECOND


def _away_s(*leaves: tuple[bool, float]) -> list[float]:
    """After each leave, for lack of progress or not, so many seconds after the return."""
    count, away = 0, []
    for was_slow, stayed_s in leaves:
        count = leaves_after(count, was_slow, int(stayed_s * SECOND))
        away.append(kept_away_ns(count, HOLD_OFF) / SECOND)
    return away


def test_a_dead_switch_that_comes_back_is_used_at_once() -> None:
    assert _away_s((False, 5)) == [0]


def test_one_that_is_left_again_soon_is_kept_away_from_twice_as_long_each_time() -> None:
    assert _away_s(*[(False, 5)] * 9) == [0, 10, 20, 40, 80, 160, 320, 320, 320]


def test_lack_of_progress_counts_at_once() -> None:
    assert _away_s(*[(True, 5)] * 3) == [10, 20, 40]


def test_a_minute_without_a_leave_is_forgiven() -> None:
    assert _away_s((True, 5), (True, 5), (False, 61), (True, 61)) == [10, 20, 0, 10]
