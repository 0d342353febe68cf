"""What `plan` shows: rows of figures, what holds for all policies, and the HTML page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.report import gantt
from paceline.report.chart import Chart
from paceline.report.page import Page
from paceline.schedule import bounds
from paceline.schedule.plan import Objective, Schedule
from paceline.units import format_seconds

COLUMNS = ("policy", "makespan", "average JCT", "p95 JCT", "GPUs busy", "gap to bound", "time to plan")
WHAT_IF_COLUMNS = ("change", "policy", "makespan", "change of makespan", "average JCT", "change of JCT")


def row(schedule: Schedule) -> list[str]:
    """One line of the table."""
    return [
        schedule.policy,
        format_seconds(schedule.makespan_s),
        format_seconds(schedule.avg_jct_s),
        format_seconds(schedule.p95_jct_s),
        f"{schedule.utilisation:.0%}",
        f"{schedule.gap:.1%}",
        format_seconds(schedule.plan_s),
    ]


def best_of(schedules: Sequence[Schedule], objective: Objective) -> Schedule:
    """The schedule that the objective prefers."""

    def key(schedule: Schedule) -> tuple[float, float]:
        figures = float(f"{schedule.makespan_s:.9g}"), float(f"{schedule.avg_jct_s:.9g}")
        return figures if objective == "makespan" else figures[::-1]

    return min(schedules, key=key)


def instance_json(schedules: Sequence[Schedule]) -> dict[str, Any]:
    """What holds for all policies: the size of the case, its bound, the paper's ratio."""
    problem = schedules[0].problem
    ratio, bound_s = bounds.approximation_ratio(problem), schedules[0].lower_bound_s
    own = next((s for s in schedules if s.policy == "sjf-bco"), None)
    return {
        "jobs": len(problem.jobs),
        "gpus": problem.cluster.gpus_total,
        "servers": len(problem.cluster.servers),
        "lower_bound": bound_s,
        "lower_bound_by": schedules[0].bound_by,
        "approximation_ratio": ratio.value,
        "approximation_ratio_holds": None if own is None else own.makespan_s <= ratio.value * bound_s,
    }


def busy_over_time(schedule: Schedule) -> tuple[list[float], list[int]]:
    """GPUs held, as steps: times in seconds and the number from then on."""
    changes: dict[float, int] = {}
    for placement in schedule.placements:
        for segment in placement.segments:
            changes[segment.start_s] = changes.get(segment.start_s, 0) + len(segment.gpus)
            changes[segment.end_s] = changes.get(segment.end_s, 0) - len(segment.gpus)
    times = sorted(changes)
    return times, [int(n) for n in np.cumsum([changes[t] for t in times])]


def write_page(
    path: Path,
    schedules: Sequence[Schedule],
    objective: Objective,
    what_if: Sequence[Sequence[object]],
    remarks: Sequence[str],
    explained: Sequence[str],
) -> None:
    """The HTML page: table, use of the GPUs over time, Gantt charts, what-if, explanation."""
    problem = schedules[0].problem
    best = best_of(schedules, objective)
    page = Page(
        "Paceline plan",
        f"{len(problem.jobs)} jobs on {len(problem.cluster.servers)} servers with"
        f" {problem.cluster.gpus_total} GPUs; objective: {objective}",
    )
    page.table(COLUMNS, [row(schedule) for schedule in schedules])
    page.text(
        f"No schedule can end before {format_seconds(best.lower_bound_s)} (by the bound '{best.bound_by}');"
        f" the best here, {best.policy}, ends after {format_seconds(best.makespan_s)}."
    )
    if len(schedules) > 1:
        page.text(ranked_by(schedules, objective).capitalize() + ".")
    if remarks:
        page.items(remarks)
    unit, scale = gantt.axis_unit(best.makespan_s)
    # One very long schedule should not squeeze all the others.
    longest = max(s.makespan_s for s in schedules)
    shown = min(longest, 2.5 * best.makespan_s)
    chart = Chart("GPUs in use over time", f"time ({unit})", "GPUs", x_range=(0.0, 1.02 * shown / scale))
    for schedule in schedules:
        times, busy = busy_over_time(schedule)
        chart.line(schedule.policy, [t / scale for t in times], busy, steps=True)
    cut = "" if shown == longest else " Longer schedules are cut off at the right."
    page.figure(chart, "A good makespan ends as a cliff: all GPUs busy to the end." + cut)
    if explained:
        page.heading("Explanation")
        page.text(*explained)
    if what_if:
        page.heading("What if")
        page.table(WHAT_IF_COLUMNS, what_if)
    page.heading(f"Who runs where: {best.policy}")
    page.figure(
        gantt.schedule_figure(best),
        "Hover over a bar, or tap it, for the job, its servers and the reason of its place.",
    )
    paper = next((s for s in schedules if s.policy == "sjf-bco" and s is not best), None)
    if paper is not None:
        page.heading("Who runs where: sjf-bco")
        page.figure(gantt.schedule_figure(paper))
    page.write(path)


def what_if_row(change: str, before: Schedule, after: Schedule) -> list[str]:
    """A changed cluster or list beside the given one; completion times are compared over the jobs that both have."""
    left = {placement.job for placement in after.placements}
    kept = [
        jct for placement, jct in zip(before.placements, before.jct_s, strict=True) if placement.job in left
    ]
    return [
        change,
        after.policy,
        format_seconds(after.makespan_s),
        f"{after.makespan_s / before.makespan_s - 1:+.1%}",
        format_seconds(after.avg_jct_s),
        f"{after.avg_jct_s / float(np.mean(kept)) - 1:+.1%}",
    ]


def ranked_by(schedules: Sequence[Schedule], objective: Objective) -> str:
    """By which column the best was chosen, and who would be best by the other."""
    best, other = best_of(schedules, objective), "jct" if objective == "makespan" else "makespan"
    words = {"makespan": "makespan", "jct": "average JCT"}
    text = f"best by {words[objective]} (--objective {objective}): {best.policy}"
    rival = best_of(schedules, "jct" if objective == "makespan" else "makespan")
    if rival.policy != best.policy:
        text += f"; by {words[other]} it would be {rival.policy} (--objective {other})"
    return text


def caps(schedules: Sequence[Schedule]) -> list[str]:
    """Searches that the clock ended: their plans may differ from run to run."""
    return [
        f"{each.policy}: the cap of --budget struck after {each.settings['evaluations']} of {each.settings['work']}"
        " evaluations; another run may find another plan"
        for each in schedules
        if each.settings.get("capped")
    ]
