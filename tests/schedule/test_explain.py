"""Why a job is where it is, in words."""

from paceline.schedule import planning
from paceline.schedule.explain import contention_over_time, explain
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model, Problem
from paceline.schedule.policies import by_name
from tests.schedule.by_hand import CLUSTER, two_spread


def test_contention_over_time_and_words() -> None:
    schedule = two_spread()
    stretches = contention_over_time(schedule, 0)
    assert [(s.start_s, s.end_s, s.p) for s in stretches] == [(0.0, 17.5, 2), (17.5, 27.5, 1)]
    text = " ".join(explain(schedule, "one", "makespan"))
    assert "1 on a, 1 on b" in text
    assert "Why there: by hand." in text
    assert "up to 2 spread jobs" in text
    assert "two (17.5 s)" in text
    # Alone on one server it would take 10 s instead of 27.5.
    assert "Next best choice" in text
    assert "less" in text.split("Next best")[1]


def test_explaining_what_waited() -> None:
    jobs = (Job("first", 2, 10, backward_s=1.0), Job("next", 4, 5, backward_s=1.0))
    schedule = planning.plan(Problem(CLUSTER, jobs, Model(xi2_s=0.0)), by_name("ls"))
    text = " ".join(explain(schedule, "next", "makespan"))
    assert "It waited 10 s for first to leave its GPUs." in text
    assert "There is no other place for it." in text
