"""Gantt charts: text and figures."""

import pytest

from paceline.report import gantt
from paceline.schedule import planning
from paceline.schedule.inputs.generate import paper_problem
from paceline.schedule.policies import by_name
from tests.schedule.by_hand import two_spread


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
    spans = [span for series in figure.series for span in series.spans]
    assert {span.label for span in spans} == {job.name for job in schedule.problem.jobs}
    area = sum(span.length * span.rows for span in spans)
    held = schedule.utilisation * schedule.makespan_s * schedule.problem.cluster.gpus_total
    assert area * gantt.axis_unit(schedule.makespan_s)[1] == pytest.approx(held)


def test_slot_runs_stop_at_server_borders() -> None:
    assert gantt.slot_runs((2, 2), (0, 1, 2)) == [(0, 2), (2, 1)]
    assert gantt.slot_runs((2, 2), (0, 3)) == [(0, 1), (3, 1)]
