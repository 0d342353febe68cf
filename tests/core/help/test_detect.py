"""Detection: figures by hand."""

import numpy as np
import pytest

from paceline.core.help import detect
from paceline.core.help.detect import (
    BANDWIDTH_STRAGGLER,
    COMPUTE_STRAGGLER,
    LEADING,
    Leaders,
    choose_leaders,
    choose_owners,
)


def judged(detection: detect.Detection, delivered: list[int], computed: list[int] | None = None) -> list[int]:
    """One window; the roles after it."""
    detection.workers.delivered[:] = delivered
    detection.workers.computed[:] = computed or delivered
    detect.end_window(detection, np.zeros(len(delivered), dtype=np.int64))
    return [int(role) for role in detection.workers.role]


def test_two_windows_in_a_row_make_a_straggler() -> None:
    detection = detect.new_detection(4, theta_chunks=10)
    assert judged(detection, [100, 100, 100, 89]) == [LEADING] * 4
    assert judged(detection, [200, 200, 200, 150])[3] == COMPUTE_STRAGGLER


def test_one_good_window_between_starts_the_count_anew() -> None:
    detection = detect.new_detection(4, theta_chunks=10)
    judged(detection, [100, 100, 100, 50])
    judged(detection, [100, 100, 100, 95])
    assert judged(detection, [200, 200, 200, 100]) == [LEADING] * 4


def test_exactly_theta_behind_is_not_behind() -> None:
    detection = detect.new_detection(3, theta_chunks=10, windows=1)
    assert judged(detection, [100, 100, 90]) == [LEADING] * 3
    assert judged(detection, [100, 100, 89])[2] != LEADING


def test_a_worker_that_computed_in_time_is_short_of_bandwidth() -> None:
    detection = detect.new_detection(4, theta_chunks=10, windows=1)
    assert judged(detection, [100, 100, 100, 20], [110, 110, 110, 109])[3] == BANDWIDTH_STRAGGLER
    assert "bandwidth straggler" in detect.explain(detection, 3)
    assert "80 behind the leaders' median of 100" in detect.explain(detection, 3)


def test_stragglers_do_not_move_the_median() -> None:
    detection = detect.new_detection(5, theta_chunks=10, windows=1)
    judged(detection, [100, 100, 100, 0, 0])
    judged(detection, [200, 200, 200, 0, 0])
    assert int(detection.median[0]) == 200


def test_two_clean_iterations_make_a_leader_again() -> None:
    detection = detect.new_detection(3, theta_chunks=10, windows=1)
    judged(detection, [100, 100, 0])
    detect.end_iteration(detection)
    judged(detection, [200, 200, 200])
    assert detect.end_iteration(detection) == 0
    assert detection.workers[2].role == COMPUTE_STRAGGLER
    assert detect.end_iteration(detection) == 1
    assert detection.workers[2].role == LEADING
    assert "leads" in detect.explain(detection, 2)


def test_an_iteration_with_a_slow_window_is_not_clean() -> None:
    detection = detect.new_detection(3, theta_chunks=10, windows=1)
    judged(detection, [100, 100, 0])
    detect.end_iteration(detection)
    detect.end_iteration(detection)
    judged(detection, [200, 200, 100])
    assert detect.end_iteration(detection) == 0
    assert detect.end_iteration(detection) == 0
    assert detect.end_iteration(detection) == 1


EVERYONE = Leaders(frozenset({0, 1, 2}), False)
TWO_LEAD = Leaders(frozenset({0, 1}), True)


@pytest.mark.parametrize(
    ("role", "has_custody", "takes_over", "leaders"),
    [
        (COMPUTE_STRAGGLER, True, False, TWO_LEAD),
        (COMPUTE_STRAGGLER, True, True, EVERYONE),
        (BANDWIDTH_STRAGGLER, True, True, TWO_LEAD),
        (BANDWIDTH_STRAGGLER, False, True, EVERYONE),
        (LEADING, True, False, EVERYONE),
    ],
)
def test_custody_is_for_what_takeover_does_not_reach(
    role: int, has_custody: bool, takes_over: bool, leaders: Leaders
) -> None:
    assert choose_leaders({0: LEADING, 1: LEADING, 2: role}, has_custody, takes_over) == leaders


def test_where_nobody_leads_everyone_is_equal() -> None:
    roles = dict.fromkeys(range(3), COMPUTE_STRAGGLER)
    assert choose_leaders(roles, True, False) == EVERYONE
    assert choose_owners(roles, set(), pays=True) == []


def test_the_dead_are_always_helped_and_stragglers_where_it_pays() -> None:
    roles = {0: LEADING, 2: COMPUTE_STRAGGLER, 3: BANDWIDTH_STRAGGLER}
    assert choose_owners(roles, {4, 1}, pays=True) == [1, 4, 2]
    assert choose_owners(roles, {1}, pays=False) == [1]
