"""When a sender is at a standstill, and what that is put down to."""

from typing import Any

import numpy as np
import pytest

from paceline.core import progress as watch
from paceline.core.progress import CUSTODIANS, GOOD, LOOK_EVERY_NS, LOSS, MEMORY, PROGRESS, WINDOWS
from paceline.core.sender.program import new_senders


class Watched:
    """A sender's record, and looks at it every quarter of a second."""

    def __init__(self) -> None:
        self.sender = new_senders(1, 8).state[0]
        self.sender.window, self.sender.window_min = 100.0, 4.0
        self.progress = np.zeros(1, dtype=PROGRESS).view(np.recarray)[0]
        self.now_ns, self.results = 1, 0
        self.look()
        self.look(results=1000)

    def look(self, results: int = 0, times: int = 1, **more: int) -> list[int]:
        said = []
        for _ in range(times):
            self.now_ns += LOOK_EVERY_NS
            self.results += results
            for name, value in more.items():
                setattr(self.sender, name, int(getattr(self.sender, name)) + value)
            said.append(int(watch.look(self.progress, self.sender, self.results, self.now_ns)))
        return said


def test_progress_is_good() -> None:
    assert Watched().look(results=500, times=20, resent=400) == [GOOD] * 20


def test_a_standstill_is_told_once_after_a_second_and_again_after_the_next() -> None:
    watched = Watched()
    assert watched.look(results=2, resent=50, times=12) == [GOOD] * 3 + [CUSTODIANS] + [GOOD] * 8
    assert watch.slow_ns(watched.progress, watched.now_ns) == 12 * LOOK_EVERY_NS
    assert watched.look(results=900) == [GOOD]
    assert watch.slow_ns(watched.progress, watched.now_ns) == 0
    assert watched.look(results=2, resent=50, times=4) == [GOOD] * 3 + [CUSTODIANS]


def test_waiting_for_a_worker_is_none() -> None:
    """Questions are asked and answered, nothing is sent again."""
    assert Watched().look(times=40, queries=10, confirms=10) == [GOOD] * 40


def test_waiting_for_a_worker_on_a_path_that_loses_a_little_is_none() -> None:
    assert Watched().look(times=400, queries=10, confirms=9) == [GOOD] * 400


def test_questions_without_answers_are_losses_however_seldom_they_are_asked() -> None:
    watched = Watched()
    watched.look(times=40, queries=10, confirms=10)
    assert LOSS in watched.look(times=40, queries=1)


@pytest.mark.parametrize(
    ("signs", "cause"),
    [
        ({"results": 5, "losses": 60, "resent": 60}, LOSS),
        ({"results": 20, "resent": 60, "fallbacks": 18}, MEMORY),
        ({"results": 5, "resent": 60}, CUSTODIANS),
    ],
)
def test_the_cause_is_what_shows(signs: Any, cause: int) -> None:
    assert Watched().look(times=4, **signs)[-1] == cause


def test_a_window_at_its_least_is_a_cause() -> None:
    watched = Watched()
    watched.sender.window = 4.0
    assert watched.look(results=5, resent=60, times=4)[-1] == WINDOWS


def test_on_another_way_the_watch_begins_anew() -> None:
    watched = Watched()
    watched.look(results=2, resent=50, times=3)
    watch.restart(watched.progress)
    assert watched.look(results=2, resent=50, times=4) == [GOOD] * 4


def _step(watched: Watched, looks: int, rest_ns: int, **signs: int) -> list[int]:
    """Work that takes so many looks and half of one, with these signs each time; then nothing is under way."""
    said = [int(watch.look(watched.progress, watched.sender, watched.results, watched.now_ns))]
    said += watched.look(times=looks, **signs)
    watched.now_ns += LOOK_EVERY_NS // 2
    watched.results += signs.get("results", 0)
    watch.rest(watched.progress, watched.sender, watched.results, watched.now_ns)
    watched.now_ns += rest_ns
    return said


def test_a_starved_job_that_ends_a_step_now_and_then_is_at_a_standstill() -> None:
    watched = Watched()
    watch.rest(watched.progress, watched.sender, watched.results, watched.now_ns)
    said: list[int] = []
    for _ in range(6):
        said += _step(watched, 1, 10**10, results=3, queries=20)
    assert [cause for cause in said if cause != GOOD] == [LOSS]
    lasted_ns = watch.slow_ns(watched.progress, int(watched.progress.rested_ns))
    assert lasted_ns < 6 * 2 * LOOK_EVERY_NS, "rests do not count"
    assert lasted_ns >= 6 * LOOK_EVERY_NS


def test_one_good_step_ends_a_standstill() -> None:
    watched = Watched()
    for _ in range(6):
        _step(watched, 1, 0, results=3, queries=20)
    _step(watched, 0, 0, results=900)
    assert watched.progress.slow_since_ns == 0
    assert watch.slow_ns(watched.progress, watched.now_ns) == 0


def test_steps_that_all_wait_for_a_late_worker_are_none() -> None:
    watched = Watched()
    said: list[int] = []
    for _ in range(40):
        said += _step(watched, 3, 10**9, queries=2, confirms=2)
    assert set(said) == {GOOD}


def test_short_spells_of_work_show_what_the_path_can_do() -> None:
    watched = Watched()
    watched.progress.best = 0.0
    watched.look()
    for _ in range(3):
        watched.results += 400
        watched.now_ns += LOOK_EVERY_NS // 10
        watch.rest(watched.progress, watched.sender, watched.results, watched.now_ns)
        watch.look(watched.progress, watched.sender, watched.results, watched.now_ns)
    assert watched.progress.best == pytest.approx(400 * 40)


def test_a_rate_that_is_long_gone_is_no_measure() -> None:
    watched = Watched()
    watched.look(results=60, times=100)
    assert watched.look(results=8, resent=20, times=10) == [GOOD] * 10
