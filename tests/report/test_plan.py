import json
from pathlib import Path

import pytest

from paceline.report import gantt
from paceline.report import plan as output
from paceline.schedule import planning
from paceline.schedule.contention import Model, Problem
from paceline.schedule.explain import contention_over_time, explain
from paceline.schedule.inputs.cluster import Cluster, Server
from paceline.schedule.inputs.generate import paper_problem
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.plans import Placement, Schedule, Segment
from paceline.schedule.policies import by_name

CLUSTER = Cluster((Server("a", 2), Server("b", 2)), intra_bps=1e15, inter_bps=8e9)


def two_spread() -> Schedule:
    jobs = (Job("one", 2, 10, 10**9, backward_s=1.0), Job("two", 2, 5, 10**9, backward_s=1.0))
    problem = Problem(CLUSTER, jobs, Model(alpha=0.5, xi2_s=0.0, reduce_bps=1e18))
    placements = (
        Placement("one", (Segment(0.0, 27.5, (0, 2)),), "by hand"),
        Placement("two", (Segment(0.0, 17.5, (1, 3)),), "by hand"),
    )
    return Schedule(problem, "hand", placements, lower_bound_s=10.0, plan_s=0.1)


def test_figures_of_comparison() -> None:
    schedule = two_spread()
    assert schedule.makespan_s == 27.5
    assert schedule.avg_jct_s == pytest.approx(22.5)
    assert schedule.gap == pytest.approx(1.75)
    assert schedule.utilisation == pytest.approx((27.5 + 17.5) * 2 / (27.5 * 4))
    assert output.busy_over_time(schedule) == ([0.0, 17.5, 27.5], [4, 2, 0])


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


def test_gantt_of_few_jobs_has_a_line_a_job() -> None:
    lines = gantt.text_gantt(two_spread(), 80).splitlines()
    assert lines[0].rstrip().endswith("27.5 s")
    assert lines[1].startswith("one ▒")
    assert lines[1].endswith("a:1+b:1")
    assert lines[2].count("▒") == pytest.approx(lines[1].count("▒") * 17.5 / 27.5, abs=1)
    assert all(len(line) <= 80 for line in lines)


def test_gantt_of_many_jobs_has_a_line_a_server() -> None:
    schedule = planning.plan(paper_problem(0), by_name("ls"))
    lines = gantt.text_gantt(schedule, 100).splitlines()
    assert len(lines) == 22
    assert all(len(line) <= 100 for line in lines)
    assert lines[1].startswith("s00 x")


def test_figure_draws_every_job() -> None:
    schedule = planning.plan(paper_problem(0), by_name("ls"))
    figure = gantt.schedule_figure(schedule)
    drawn = {name for trace in figure.data for name in trace.text}
    assert drawn == {job.name for job in schedule.problem.jobs}
    area = sum(x * w for trace in figure.data for x, w in zip(trace.x, trace.width, strict=True)) / 0.94
    held = schedule.utilisation * schedule.makespan_s * schedule.problem.cluster.gpus_total
    assert area * gantt.axis_unit(schedule.makespan_s)[1] == pytest.approx(held)


def test_slot_runs_stop_at_server_borders() -> None:
    assert gantt.slot_runs((2, 2), (0, 1, 2)) == [(0, 2), (2, 1)]
    assert gantt.slot_runs((2, 2), (0, 3)) == [(0, 1), (3, 1)]


def test_json_is_complete(tmp_path: Path) -> None:
    entry = json.loads(json.dumps(two_spread().to_dict()))
    assert entry["makespan"] == 27.5
    assert entry["placements"][0] == {
        "job": "one", "start": 0.0, "end": 27.5, "servers": {"a": 1, "b": 1}, "gpus": [0, 2],
        "reason": "by hand",
    }  # fmt: skip


def test_best_prefers_short_completion_on_ties() -> None:
    slow = two_spread()
    early = Placement("two", (Segment(0.0, 5.0, (1, 3)),), "by hand")
    quick = Schedule(slow.problem, "quick", (slow.placements[0], early), lower_bound_s=10.0)
    assert output.best_of([slow, quick], "makespan") is quick
