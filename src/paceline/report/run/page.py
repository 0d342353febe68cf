"""The report of one run: a page that stands alone. What happened, and what each decision was based on."""

import datetime
import itertools
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.report.chart import COLOURS, Chart, GanttBar
from paceline.report.gantt import job_colours, run_figure
from paceline.report.page import Page
from paceline.report.run.logs import why_it_failed
from paceline.report.run.predictions import add_predictions
from paceline.report.run.read import Row, RunData, Use

EVENTS_MAX = 2000
PATHS_SHOWN = 4
NEAR_S = 3.0
"""A path event this near to a change that a job told is about that change."""
PATH_COLOURS = {"switch": COLOURS[2], "custodian": COLOURS[4], "ring": COLOURS[1], "host": COLOURS[5]}
WAIT_COLOUR = "#c9d1da"
JOBS_AS_BARS_MAX = 40
_LEGEND_JOBS_MAX = 24
_FAILED = ("failed", "stopped", "cancelled")


def write_page(path: Path, run: RunData) -> None:
    """The whole report as one HTML file."""
    page = Page(f"Run {run.name}", _lead(run))
    page.text(verdict(run))
    page.table(
        (
            "job",
            "slots",
            "arrived, s",
            "started, s",
            "ended, s",
            "JCT, s",
            "state",
            "attempts",
            "servers",
            "path",
        ),
        [job_row(run, job) for job in run.jobs],
    )
    for job in run.jobs:
        if job["state"] in _FAILED:
            line = why_it_failed(run.folder, job)
            page.text(f"{job['name']} {job['state']}: {job['reason']}" + (f"; {line}" if line else "."))
    if run.tries:
        page.heading("Who ran where")
        page.figure(
            run_figure(run),
            "A row a slot; hatched: lost, stopped, cancelled or failed. Hover over a bar, or tap it: why.",
        )
    if any(run.jct_s(job) is not None for job in run.jobs):
        page.heading("Completion time by job")
        page.figure(completion_figure(run), "From arrival to end, split into waiting and holding slots.")
    if run.switch_use:
        page.heading("Switch memory and preemptions")
        add_switch(page, run)
    _add_paths(page, run)
    page.heading("Stragglers")
    add_stragglers(page, run)
    add_predictions(page, run)
    if run.plans:
        page.heading("What each decision was based on")
        add_decisions(page, run)
    _add_events(page, run)
    page.write(path)


def _lead(run: RunData) -> str:
    meta = run.meta
    began = datetime.datetime.fromtimestamp(meta["began"]).astimezone()
    switch = meta.get("switch")
    address = switch.get("address", "") if isinstance(switch, dict) else str(switch or "")
    parts = [
        f"{len(run.jobs)} jobs on {len(run.servers)} servers with {run.slots} slots",
        f"policy {meta.get('policy', 'unknown')}",
        f"launcher {meta.get('launcher', 'unknown')}",
        f"switch {address}" if address and address != "none" else "no switch",
        f"began {began:%Y-%m-%d %H:%M:%S %Z}",
    ]
    return ", ".join(parts) + "."


def verdict(run: RunData) -> str:
    """The run in one sentence."""
    counts: dict[str, int] = {}
    for job in run.jobs:
        counts[job["state"]] = counts.get(job["state"], 0) + 1
    told = ", ".join(f"{count} {state}" for state, count in counts.items()) or "no jobs"
    state = str(run.meta.get("state", "unknown"))
    said = {"failed": "The run failed", "stopped": "The run was stopped", "running": "The run goes on"}
    text = f"{said.get(state, f'The run is {state}')} after {run.end_s:.1f} s: {told}."
    if run.avg_jct_s is not None:
        text += f" Average completion time {run.avg_jct_s:.4g} s"
        text += f", makespan {run.makespan_s:.4g} s." if run.makespan_s is not None else "."
    return text


def job_row(run: RunData, job: Row) -> list[object]:
    tries = [each for each in run.tries if each.job == job["name"]]
    paths = [span.what for span in run.paths if span.job == job["name"]]
    if len(paths) > PATHS_SHOWN:
        paths = [*paths[: PATHS_SHOWN - 1], "..."]
    return [
        job["name"],
        job["gpus"],
        round(float(job["arrival_s"]), 2),
        None if job["started"] is None else round(run.at(job["started"]), 2),
        None if job["ended"] is None else round(run.at(job["ended"]), 2),
        None if (jct_s := run.jct_s(job)) is None else round(jct_s, 2),
        job["state"],
        job["attempt"],
        ", ".join(tries[-1].servers) if tries else "",
        " > ".join(paths),
    ]


def add_switch(page: Page, run: RunData, until_s: float | None = None) -> None:
    """Memory and preemptions, if a switch told of any job."""
    if not run.switch_use:
        return
    page.figure(
        memory_figures(run, until_s),
        "By job, averages of a second: the switch counts how long each aggregator is held, and every chunk it sums. "
        "Preemption: a packet of higher priority takes an aggregator.",
    )
    rows = []
    for job, uses in run.switch_use.items():
        held = [use.held for use in uses if use.held is not None]
        last = [
            max((value for value in values if value is not None), default=None)
            for values in (
                [use.sums for use in uses],
                [use.fallbacks for use in uses],
                [use.preemptions for use in uses],
            )
        ]
        most = max(held, default=None)
        rows.append((job, None if most is None else float(f"{most:.2g}"), *(_whole(value) for value in last)))
    page.table(
        (
            "job",
            "aggregators held at most, in a second's average",
            "chunks summed",
            "packets without a place",
            "preemptions by it",
        ),
        rows,
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _add_paths(page: Page, run: RunData) -> None:
    if not run.paths:
        return
    page.heading("Path of the gradients")
    page.figure(
        paths_figure(run),
        "As each job told: through a switch or several, by custodians, around the ring, or in the memory of one host.",
    )
    add_path_changes(page, run)


def add_path_changes(page: Page, run: RunData) -> None:
    """When and why jobs changed their path."""
    changes = _path_changes(run)
    if changes:
        page.table(("at, s", "job", "change", "reason"), changes)
    else:
        paths = sorted({span.what for span in run.paths})
        page.text("No job changed its path" + (f": all by the {paths[0]}." if len(paths) == 1 else "."))


def _path_changes(run: RunData) -> list[tuple[float, str, str, str]]:
    """What the jobs told, with the reasons of the run's events; and events that no job told of."""
    events = [event for event in run.events if event["kind"] == "path"]
    changes = []
    before: dict[str, str] = {}
    for span in run.paths:
        if span.job in before:
            near = [
                event
                for event in events
                if event["job"] == span.job and abs(run.at(event["time"]) - span.start_s) <= NEAR_S
            ]
            for event in near[:1]:
                events.remove(event)
            reason = near[0]["reason"] if near else ""
            changes.append((round(span.start_s, 2), span.job, f"{before[span.job]} to {span.what}", reason))
        before[span.job] = span.what
    left = [(round(run.at(e["time"]), 2), e["job"] or "", e["text"], e["reason"]) for e in events]
    return sorted(changes + left)


def add_stragglers(page: Page, run: RunData) -> None:
    """Who was slow, why it is taken for slow, and who was helped."""
    taken = {job["name"]: run.figure_of(job, "taken_over_total") for job in run.jobs}
    if not run.stragglers:
        page.text("No job reported a slow worker.")
    else:
        page.table(
            ("from, s", "to, s", "job", "who", "reason"),
            [
                (round(s.start_s, 1), round(s.end_s, 1), s.job, s.what.replace(" ", "\u00a0"), s.reason)
                for s in run.stragglers
            ],
        )
    rows = []
    for job, lags in run.lags_s.items():
        last = max(lags, key=lambda worker: lags[worker])
        others = [lag for worker, lag in lags.items() if worker != last]
        median = statistics.median(others) if others else None
        rows.append(
            (job, run.worker_name(job, last), lags[last] * 1e3, None if median is None else median * 1e3)
        )
    if rows:
        page.text(
            "As the switch saw it: how long after the first contribution to a chunk a worker's came, at worst in an "
            "iteration, on average."
        )
        page.table(("job", "latest worker", "its lag, ms", "median of the others, ms"), rows)
    helped = {name: count for name, count in taken.items() if count}
    if helped:
        told = ", ".join(f"{name} {count}" for name, count in helped.items())
        page.text(f"Micro-batches that other ranks took over: {told}.")


def add_decisions(page: Page, run: RunData) -> None:
    """Every plan: what made it necessary, what it knew, what it decided and why."""
    page.text(
        "Each time something changed, the policy planned anew, with the running jobs pinned to their slots. A row is a "
        "job that a plan covered; times are seconds after that plan."
    )
    for plan in run.plans:
        running = ", ".join(
            f"{job} ({_figure(left)} iterations left)" for job, left in plan["running"].items()
        )
        title = f"{run.at(plan['time']):.1f} s: {plan['trigger']}; planned in {plan['took_s'] * 1e3:.0f} ms"
        starts = [each["job"] for each in plan["decisions"] if each["now"]]
        title += f"; starts {', '.join(starts)}" if starts else "; starts nothing"
        settings = ", ".join(f"{key} {_figure(value)}" for key, value in plan["settings"].items())
        rows = [
            (
                each["job"],
                "now" if each["now"] else "runs" if each["job"] in plan["running"] else "later",
                _servers(each["servers"]),
                float(each["start_s"]),
                float(each["end_s"]),
                each["reason"],
            )
            for each in plan["decisions"]
        ]
        page.fold(
            title,
            [
                f"Running: {running or 'nothing'}.",
                f"Policy {plan['policy']}{': ' + settings if settings else ''}.",
            ],
            ("job", "starts", "slots by server", "start, s", "expected end, s", "reason"),
            rows,
        )


def _servers(servers: Any) -> str:
    if isinstance(servers, dict):
        return ", ".join(f"{name}: {count}" for name, count in servers.items())
    return ", ".join(str(name) for name in servers)


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _add_events(page: Page, run: RunData) -> None:
    if not run.events:
        return
    page.heading("Everything that happened")
    rows = [
        (round(run.at(event["time"]), 2), event["kind"], event["job"] or "", event["text"], event["reason"])
        for event in run.events[:EVENTS_MAX]
    ]
    left = len(run.events) - len(rows)
    page.fold(
        f"{len(run.events)} events",
        [f"The first {EVENTS_MAX} are shown."] if left else [],
        ("at, s", "kind", "job", "what", "reason"),
        rows,
    )


def completion_figure(run: RunData) -> Chart:
    """Waiting and running by job; many jobs as a distribution."""
    done = [(job, jct_s) for job in run.jobs if (jct_s := run.jct_s(job)) is not None]
    if len(done) > JOBS_AS_BARS_MAX:
        ends = sorted(jct_s for _, jct_s in done)
        chart = Chart("", "seconds", "share of jobs", y_range=(0.0, 1.0))
        chart.line("jobs", ends, [(i + 1) / len(ends) for i in range(len(ends))], steps=True)
        return chart
    names = [job["name"] for job, _ in done]
    ran_s = [_ran_s(run, job["name"]) for job, _ in done]
    waited_s = [max(0.0, jct_s - ran) for (_, jct_s), ran in zip(done, ran_s, strict=True)]
    chart = Chart("", "", "seconds", height=340, stacked=True)
    chart.bars("waiting", names, waited_s, WAIT_COLOUR)
    chart.bars("running", names, ran_s, COLOURS[0], texts=[f"{jct_s:.3g} s" for _, jct_s in done])
    return chart


def _ran_s(run: RunData, name: str) -> float:
    return sum(each.end_s - each.start_s for each in run.tries if each.job == name)


def memory_figures(run: RunData, until_s: float | None = None) -> list[Chart]:
    """By job over time: aggregators held, chunks summed in the switch a second, preemptions so far."""
    colours = job_colours(run)
    of_all = f", of {run.switch_slots}" if run.switch_slots else ""
    span_s = (0.0, (until_s or run.end_s) * 1.01)
    held = Chart(
        f"aggregators held{of_all}",
        height=240,
        x_range=span_s,
        legend=len(run.switch_use) <= _LEGEND_JOBS_MAX,
    )
    summed = Chart("chunks summed in the switch, a second", height=190, x_range=span_s, legend=False)
    preempted = Chart(
        "preemptions so far", "seconds since the run began", height=210, x_range=span_s, legend=False
    )
    # A sample without a job has its times too: a job that has left holds nothing.
    times = sorted({run.at(row["time"]) for row in run.switch_samples})
    for i, (job, uses) in enumerate(run.switch_use.items()):
        colour = colours.get(job, COLOURS[(len(colours) + i) % len(COLOURS)])
        by_time = {use.time_s: use.held or 0.0 for use in uses}
        rates = _rates(uses)
        held.area(job, times, [by_time.get(time_s, 0.0) for time_s in times], colour)
        summed.area(job, times, [rates.get(time_s, 0.0) for time_s in times], colour)
        preempted.line(
            job, [use.time_s for use in uses], [use.preemptions for use in uses], colour, steps=True
        )
    return [held, summed, preempted]


def _rates(uses: Sequence[Use]) -> dict[float, float]:
    """Chunks summed a second, from each sample to the next; at the first, the counter began at nothing."""
    found: dict[float, float] = {}
    for before, after in itertools.pairwise(uses):
        gained = (after.sums or 0.0) - (before.sums or 0.0)
        # A job that was admitted anew counts from nothing.
        found[before.time_s] = max(gained, 0.0) / max(after.time_s - before.time_s, 1e-3)
    return found


def paths_figure(run: RunData, until_s: float | None = None) -> Chart:
    """A row a job, coloured by the path of its gradients."""
    shown = [job["name"] for job in run.jobs if any(span.job == job["name"] for span in run.paths)]
    chart = Chart(
        "",
        "seconds since the run began",
        height=90 + 26 * len(shown),
        rows=[(i + 0.5, name) for i, name in enumerate(shown)],
        x_range=(0.0, (until_s or run.end_s) * 1.01),
        y_range=(float(len(shown)), 0.0),
    )
    for path in dict.fromkeys(span.what for span in run.paths):
        spans = [
            GanttBar(
                span.start_s,
                max(span.end_s - span.start_s, run.end_s / 500),
                shown.index(span.job) + 0.2,
                0.6,
                hover=f"{span.job}, {path}: from {span.start_s:.1f} to {span.end_s:.1f} s",
            )
            for span in run.paths
            if span.what == path
        ]
        # "switch x2", "switch, custodian": what most of a tensor's way is.
        chart.spans(path, spans, PATH_COLOURS.get(re.split(r" |,", path)[0], COLOURS[7]))
    return chart
