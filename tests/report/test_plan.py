"""What `plan` shows."""

from paceline.report import plan as output
from paceline.schedule.plan import Placement, Schedule, Segment
from tests.schedule.by_hand import two_spread


def test_busy_gpus_are_counted_over_time() -> None:
    assert output.busy_over_time(two_spread()) == ([0.0, 17.5, 27.5], [4, 2, 0])


def test_best_prefers_short_completion_on_ties() -> None:
    slow = two_spread()
    early = Placement("two", (Segment(0.0, 5.0, (1, 3)),), "by hand")
    quick = Schedule(slow.problem, "quick", (slow.placements[0], early), lower_bound_s=10.0)
    assert output.best_of([slow, quick], "makespan") is quick
