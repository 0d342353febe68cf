"""Two runs side by side: what the second gained, job by job."""

from pathlib import Path
from typing import Any

from paceline.report.chart import COLOURS, Chart
from paceline.report.gantt import run_figure
from paceline.report.page import Page
from paceline.report.run.page import (
    add_decisions,
    add_path_changes,
    add_stragglers,
    add_switch,
    paths_figure,
    verdict,
)
from paceline.report.run.read import RunData


def summary(runs: list[RunData]) -> dict[str, Any]:
    """The figures of one or two runs, for scripts; `change` is the second over the first, minus one."""
    found: dict[str, Any] = {"runs": [_figures(run) for run in runs]}
    if len(runs) == 2:
        found["change"] = {
            key: _change(found["runs"][0][key], found["runs"][1][key]) for key in ("avg_jct_s", "makespan_s")
        }
    return found


def _figures(run: RunData) -> dict[str, Any]:
    return {
        "run": run.name,
        "state": run.meta.get("state"),
        "policy": run.meta.get("policy"),
        "avg_jct_s": run.avg_jct_s,
        "makespan_s": run.makespan_s,
        "jobs": {
            job["name"]: {"state": job["state"], "jct_s": run.jct_s(job), "attempts": job["attempt"]}
            for job in run.jobs
        },
    }


def _change(before: float | None, after: float | None) -> float | None:
    return None if not before or after is None else after / before - 1.0


def _percent(before: float | None, after: float | None) -> str:
    change = _change(before, after)
    return "-" if change is None else f"{100 * change:+.1f} %"


def write_page(path: Path, first: RunData, second: RunData) -> None:
    """Both runs on one page, on one time axis."""
    names = _labels(first, second)
    page = Page(f"{names[0]} against {names[1]}", _lead(first, second, names))
    page.text(conclusion(first, second, names))
    page.table(
        ("", *names, "change"),
        [
            (
                "average JCT, s",
                first.avg_jct_s,
                second.avg_jct_s,
                _percent(first.avg_jct_s, second.avg_jct_s),
            ),
            (
                "makespan, s",
                first.makespan_s,
                second.makespan_s,
                _percent(first.makespan_s, second.makespan_s),
            ),
        ],
    )
    page.heading("Completion time by job")
    page.figure(_completion(first, second, names), "From arrival to end; shorter is better.")
    page.table(*_job_table(first, second, names))
    page.heading("Where the time went")
    page.text(
        "In seconds. Queue: until it was started. Start-up: until it said that it trains; it loads its program."
    )
    page.table(*_parts_table(first, second, names))
    until_s = max(first.end_s, second.end_s)
    for name, run in zip(names, (first, second), strict=True):
        page.heading(f"Who ran where: {name}")
        page.text(verdict(run))
        if run.tries:
            page.figure(run_figure(run, until_s), "A row a slot; both charts have the same time axis.")
    for name, run in zip(names, (first, second), strict=True):
        if run.paths:
            page.heading(f"Path of the gradients: {name}")
            page.figure(paths_figure(run, until_s))
            add_path_changes(page, run)
    for name, run in zip(names, (first, second), strict=True):
        if run.switch_use:
            page.heading(f"Switch memory and preemptions: {name}")
            add_switch(page, run, until_s)
    for name, run in zip(names, (first, second), strict=True):
        page.heading(f"Stragglers: {name}")
        add_stragglers(page, run)
    for name, run in zip(names, (first, second), strict=True):
        page.heading(f"What each decision was based on: {name}")
        add_decisions(page, run)
    page.write(path)


def _labels(first: RunData, second: RunData) -> tuple[str, str]:
    if first.name != second.name:
        return first.name, second.name
    return f"{first.name} (first)", f"{second.name} (second)"


def _lead(first: RunData, second: RunData, names: tuple[str, str]) -> str:
    parts = []
    for name, run in zip(names, (first, second), strict=True):
        switch = "with a switch" if run.meta.get("switch") not in (None, "", "none") else "no switch"
        parts.append(f"{name}: policy {run.meta.get('policy', 'unknown')}, {switch}")
    return f"{'; '.join(parts)}."


def conclusion(first: RunData, second: RunData, names: tuple[str, str] | None = None) -> str:
    """The difference in a sentence."""
    names = names or _labels(first, second)
    jct, makespan = (
        _change(first.avg_jct_s, second.avg_jct_s),
        _change(first.makespan_s, second.makespan_s),
    )
    if jct is None and makespan is None:
        return "The runs cannot be compared yet: not all jobs are done."
    parts = [
        f"{what} is {abs(100 * change):.1f} % {'shorter' if change < 0 else 'longer'}"
        for what, change in (("the average completion time", jct), ("the makespan", makespan))
        if change is not None
    ]
    return f"In {names[1]}, beside {names[0]}, {' and '.join(parts)}."


def _job_table(
    first: RunData, second: RunData, names: tuple[str, str]
) -> tuple[list[str], list[list[object]]]:
    others = {job["name"]: job for job in second.jobs}
    both = [(job, others[job["name"]]) for job in first.jobs if job["name"] in others]
    with_loss = any(first.figure_of(a, "loss") is not None for a, _ in both)
    columns = ["job", "slots", f"JCT, s: {names[0]}", names[1], "change"]
    columns += [f"last loss: {names[0]}", names[1]] if with_loss else []
    rows: list[list[object]] = []
    for a, b in both:
        before, after = first.jct_s(a), second.jct_s(b)
        row: list[object] = [a["name"], a["gpus"], before, after, _percent(before, after)]
        if with_loss:
            row += [_loss(first.figure_of(a, "loss")), _loss(second.figure_of(b, "loss"))]
        rows.append(row)
    return columns, rows


def _parts_table(
    first: RunData, second: RunData, names: tuple[str, str]
) -> tuple[list[str], list[list[object]]]:
    others = {job["name"]: job for job in second.jobs}
    columns = ["job"]
    columns += [f"{name}: {part}" for name in names for part in ("queue", "start-up", "train")]
    rows: list[list[object]] = [
        [job["name"], *first.parts_s(job), *second.parts_s(others[job["name"]])]
        for job in first.jobs
        if job["name"] in others
    ]
    return columns, rows


def _loss(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else "-"


def _completion(first: RunData, second: RunData, names: tuple[str, str]) -> Chart:
    chart = Chart("", "", "seconds", height=360)
    jobs = [job["name"] for job in first.jobs]
    for i, (name, run) in enumerate(zip(names, (first, second), strict=True)):
        times = {job["name"]: run.jct_s(job) for job in run.jobs}
        values = [run.avg_jct_s, *(times.get(job) for job in jobs)]
        texts = ["" if value is None else f"{value:.3g}" for value in values]
        chart.bars(name, ["<b>average</b>", *jobs], values, (COLOURS[7], COLOURS[0])[i], texts)
    return chart
