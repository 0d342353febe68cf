"""Tuning: it finds what is best wherever that is, and says so where a limit is in the way."""

import math
from typing import Any

import pytest

from paceline.experiments.esa.tuning import (
    TIMER,
    WINDOW,
    at_edge,
    changed,
    get,
    in_seconds,
    knobs,
    search,
    starts,
)
from paceline.experiments.esa.workloads import EsaWorkload
from paceline.sim.scenario import POLICIES

WORKLOAD = EsaWorkload("like", 1, 1, lengths=(1,))


def bowl(window: float, timer: float) -> Any:
    """A cost whose best window and timer are these."""

    def cost(settings: Any) -> float:
        return 1 + abs(math.log(get(settings, WINDOW) / window)) + abs(math.log(get(settings, TIMER) / timer))

    return cost


@pytest.mark.parametrize(("window", "timer"), [(5, 3_000), (47, 20_000), (3_000, 2_000_000)])
def test_the_best_is_found_far_outside_the_coarse_grid(window: int, timer: int) -> None:
    best, cost = search("atp", bowl(window, timer), quick=False, lossy=True)
    assert 0.7 < get(best, WINDOW) / window < 1.45
    assert 0.7 < get(best, TIMER) / timer < 1.45
    assert at_edge("atp", best) == ""
    assert cost < 1.8


def test_timers_stay_where_nothing_is_lost() -> None:
    best, _ = search("atp", bowl(3_000, 3_000), quick=False)
    assert 0.7 < get(best, WINDOW) / 3_000 < 1.45
    assert get(best, TIMER) == get(starts("atp")[0], TIMER)


def test_a_setting_at_a_physical_limit_is_named() -> None:
    best, _ = search("switchml", lambda settings: get(settings, TIMER), quick=False)
    assert at_edge("switchml", best) == "rto_min"


def test_noise_moves_nothing() -> None:
    first = starts("esa")[0]
    best, _ = search("esa", lambda settings: 1.0 if settings == first else 0.998, quick=False)
    assert best in starts("esa")


def test_one_that_never_ends_is_not_chosen() -> None:
    best, _ = search(
        "esa", lambda s: 1.0 if s["transport"]["congestion"] == "fixed" else math.inf, quick=False
    )
    assert best["transport"]["congestion"] == "fixed"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("quick", [True, False])
def test_all_that_can_be_chosen_is_valid(policy: str, quick: bool) -> None:
    for settings in starts(policy):
        WORKLOAD.scenario(in_seconds(settings)).for_policy(policy)
        for knob in knobs(policy, quick):
            values = knob.values if hasattr(knob, "values") else (knob.low, knob.high)
            for value in values:
                WORKLOAD.scenario(in_seconds(changed(settings, knob, value))).for_policy(policy)


def test_times_are_handed_over_in_seconds() -> None:
    assert in_seconds({"transport": {"rto_min": 5_000, "window": 8}}) == {
        "transport": {"rto_min": pytest.approx(5e-6), "window": 8}
    }
