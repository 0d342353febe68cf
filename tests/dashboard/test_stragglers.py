"""Scores of 0 to 1, thresholds, a callback, and the GPU time that is lost."""

from pathlib import Path

import pytest

from paceline.dashboard.stragglers import StragglerRules, StragglerScores, callback_of, load_rules
from paceline.dashboard.views import StragglerView
from paceline.errors import UserError

NAMES, GPUS = ["s0", "s1", "s2", "s3"], [2, 2, 2, 2]
SEEN: list[StragglerView] = []


def remember(view: StragglerView) -> None:
    """A callback by its name."""
    SEEN.append(view)


def looks(scores: StragglerScores, lags_ms: list[float], seconds: int, rate: float, start: int = 0) -> None:
    """So many seconds of a job in which each worker's contributions lag by so much."""
    for second in range(start + 1, start + seconds + 1):
        counted = {
            worker: (100.0 * second, scores_total(worker, second, lags_ms, start))
            for worker in range(len(lags_ms))
        }
        scores.look(float(second), "job", counted, rate, NAMES, GPUS)


TOTALS: dict[tuple[int, int], float] = {}


def scores_total(worker: int, second: int, lags_ms: list[float], start: int) -> float:
    before = TOTALS.get((worker, second - 1), 0.0) if second > 1 else 0.0
    TOTALS[worker, second] = before + 100.0 * lags_ms[worker] / 1e3
    return TOTALS[worker, second]


def test_who_is_as_quick_as_the_others_has_one() -> None:
    scores = StragglerScores()
    looks(scores, [0.0, 1.0, 2.0, 1.0], 5, rate=5.0)
    assert all((view.score_median or 0) > 0.98 and not view.slow for view in scores.views().values())
    assert scores.lost_gpu_s() == 0.0


def test_a_slow_worker_is_named_and_what_it_costs_is_counted() -> None:
    scores = StragglerScores()
    # Iterations of 200 ms: the others are busy for 100 ms of it, and wait for s2 the rest.
    looks(scores, [0.0, 0.0, 100.0, 0.0], 11, rate=5.0)
    slow = [view for view in scores.views().values() if view.slow]
    assert [view.name for view in slow] == ["s2"]
    assert slow[0].score_median == pytest.approx(0.5)
    assert slow[0].lag_s == pytest.approx(0.1)
    # Ten seconds passed, five iterations each, 100 ms of waiting in each, on six GPUs.
    assert scores.lost_gpu_s() == pytest.approx(10 * 5 * 0.1 * 6)


def test_who_became_slow_is_seen_against_its_own_best() -> None:
    scores = StragglerScores()
    looks(scores, [0.0, 0.0, 0.0, 0.0], 6, rate=10.0)
    # All but one became slow together: the median is slow too.
    looks(scores, [0.0, 100.0, 100.0, 100.0], 3, rate=5.0, start=6)
    by_name = {view.name: view for view in scores.views().values()}
    assert by_name["s1"].score_median == 1.0
    assert by_name["s1"].score_best == pytest.approx(0.5)
    assert by_name["s1"].slow
    assert by_name["s0"].score_best == 1.0


def test_one_odd_look_is_no_best_and_who_comes_with_the_first_is_not_slow() -> None:
    scores = StragglerScores()
    # Iterations of 150 ms. Of the first the rate says less, and in one look the lag of the last is nearly as long:
    # then s0 seems busy for no time at all, or for 10 ms.
    looks(scores, [1.0, 117.0], 7, rate=1 / 0.117)
    looks(scores, [1.0, 117.0], 1, rate=1 / 0.15, start=7)
    looks(scores, [1.0, 141.0], 1, rate=1 / 0.15, start=8)
    looks(scores, [1.1, 117.0], 3, rate=1 / 0.15, start=9)
    by_name = {view.name: view for view in scores.views().values()}
    assert not by_name["s0"].slow
    assert by_name["s0"].score_best == pytest.approx(1.0, abs=0.05)
    assert by_name["s1"].slow
    # Its own best is better than now, but it keeps nobody waiting.
    looks(scores, [2.0, 0.0], 6, rate=1 / 0.015, start=12)
    looks(scores, [2.0, 117.0], 6, rate=1 / 0.15, start=18)
    by_name = {view.name: view for view in scores.views().values()}
    assert (by_name["s0"].score_best or 0) < 0.5
    assert not by_name["s0"].slow


def test_an_iteration_that_is_shorter_than_the_wait_in_it_judges_nobody() -> None:
    scores = StragglerScores()
    # The first seconds: what was loaded counts as lag. Then a straggler of 2.5.
    looks(scores, [1.0, 1.0, 278.0], 2, rate=5.4)
    by_name = {view.name: view for view in scores.views().values()}
    assert by_name["s2"].lag_s == pytest.approx(0.278)
    assert [view.score_median for view in by_name.values()] == [None] * 3
    assert not any(view.slow for view in by_name.values())
    looks(scores, [1.0, 1.0, 150.0], 3, rate=1 / 0.25, start=2)
    by_name = {view.name: view for view in scores.views().values()}
    assert by_name["s2"].slow
    assert by_name["s2"].score_median == pytest.approx(0.4, abs=0.01)
    assert by_name["s0"].score_median == 1.0


def test_thresholds_are_the_users(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text("[stragglers]\nmedian = 0.4\nbest = 0.4\n")
    scores = StragglerScores(load_rules(path))
    looks(scores, [0.0, 0.0, 100.0, 0.0], 5, rate=5.0)
    assert not any(view.slow for view in scores.views().values())
    path.write_text("[stragglers]\nmedian = 4\n")
    with pytest.raises(UserError, match=r"rules\.toml:2"):
        load_rules(path)
    path.write_text("[stragglers]\nmean = 0.4\n")
    with pytest.raises(UserError, match="mean"):
        load_rules(path)


def test_a_function_is_called_when_somebody_becomes_slow_and_when_that_is_over() -> None:
    SEEN.clear()
    rules = StragglerRules(callback="tests.dashboard.test_stragglers:remember")
    found = callback_of(rules)
    assert found is not None
    scores = StragglerScores(rules, SEEN.append)
    looks(scores, [0.0, 0.0, 100.0, 0.0], 4, rate=5.0)
    looks(scores, [0.0, 0.0, 0.0, 0.0], 2, rate=10.0, start=4)
    assert [(view.name, view.slow) for view in SEEN] == [("s2", True), ("s2", False)]


@pytest.mark.parametrize("name", ["nowhere:function", "json", "json:nothing", "json:__name__"])
def test_a_callback_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="callback"):
        callback_of(StragglerRules(callback=name))


def test_a_job_admitted_anew_counts_from_nothing() -> None:
    scores = StragglerScores()
    scores.look(1.0, "job", {0: (100.0, 0.0), 1: (100.0, 5.0)}, 5.0, NAMES, GPUS)
    scores.look(2.0, "job", {0: (10.0, 0.0), 1: (10.0, 0.1)}, 5.0, NAMES, GPUS)
    assert next(view for view in scores.views().values() if view.worker == 1).lag_s == pytest.approx(0.01)


def test_without_a_rate_there_are_lags_and_no_scores() -> None:
    scores = StragglerScores()
    for second in (1.0, 2.0):
        scores.look(second, "job", {0: (second, 0.0), 1: (second, second)}, None, NAMES, GPUS)
    view = next(view for view in scores.views().values() if view.worker == 1)
    assert (view.lag_s, view.score_median, view.score_best, view.slow) == (1.0, None, None, False)


def test_a_callback_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_view: StragglerView) -> None:
        raise RuntimeError("the pager is gone")

    scores = StragglerScores(callback=fail)
    looks(scores, [0.0, 0.0, 100.0, 0.0], 4, rate=5.0)
    assert any(view.slow for view in scores.views().values())
    assert "the pager is gone" in caplog.text
