"""When a slow link is suspected, and what is learnt from suspicions that proved wrong."""

from typing import Any

import pytest

from paceline.core.help.detect import BANDWIDTH_STRAGGLER, LEADING, learn, new_detection, suspect
from paceline.live.agent.roles_state import new_roles

THETA = 60
WINDOW = 32


def _report(sent: int, finished: int = 100) -> Any:
    report = new_roles(2, 8, THETA, 2, 2).reports[1]
    report.sent, report.finished, report.window = finished + sent, finished, WINDOW
    return report


@pytest.mark.parametrize(("sent", "lags"), [(0, True), (7, True), (8, False), (32, False), (40, False)])
def test_who_has_not_got_out_a_quarter_of_what_others_have_is_suspected(sent: int, lags: bool) -> None:
    lag = suspect(_report(sent), THETA, WINDOW)
    assert (lag > THETA) == lags
    assert 0 <= lag <= 4 * THETA // 3


def _until_it_counts(report: Any) -> int:
    return next(window for window in range(1, 1000) if suspect(report, THETA, WINDOW) > THETA)


def _helped(report: Any, behind: int) -> None:
    """A stay in help mode, and its end."""
    worker = new_detection(1, THETA).workers[0]
    for role, windows in [(BANDWIDTH_STRAGGLER, 0), (BANDWIDTH_STRAGGLER, behind), (LEADING, 0)]:
        worker.role, worker.behind_windows = role, windows
        learn(report, worker)


def test_a_suspicion_that_proved_wrong_has_to_last_twice_as_long_the_next_time() -> None:
    """Who merely began last looks like a slow link, and would be helped again and again."""
    report = _report(0)
    lasted = []
    for _ in range(12):
        lasted.append(_until_it_counts(report))
        _helped(report, behind=0)
    assert lasted == [1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256, 256]
    _helped(report, behind=1)
    assert _until_it_counts(report) == 1


def test_a_suspicion_begins_anew_when_the_window_is_out() -> None:
    report = _report(0)
    report.doubts = 2
    assert [suspect(report, THETA, WINDOW) > THETA for _ in range(3)] == [False] * 3
    report.sent += WINDOW
    assert suspect(report, THETA, WINDOW) == 0
    report.sent -= WINDOW
    assert _until_it_counts(report) == 4
