"""A simulation as rows and as a page: who finished when, who held switch memory, and under which settings."""

from collections.abc import Sequence
from pathlib import Path

from paceline.report.chart import Chart
from paceline.report.page import Page
from paceline.sim.results import RunResult
from paceline.sim.scenario import Scenario
from paceline.toml import Section
from paceline.units import (
    format_rate,
    format_seconds,
    format_size,
    parse_rate_bps,
    parse_size_bytes,
    parse_time_ns,
)

COLUMNS = (
    "policy", "avg JCT", "makespan", "vs best", "memory used", "completions", "preemptions", "fallbacks",
    "reminders", "resent", "traffic", "exact",
)  # fmt: skip
JOBS_AS_BARS_MAX = 24
"""With more jobs their completion times are drawn as a distribution."""
_OUTCOME = (
    "policy",
    "avg JCT, ms",
    "makespan, ms",
    "vs best",
    "memory used, %",
    "traffic, MB",
    "resent",
    "exact",
)
_COUNTED = ("completions", "preemptions", "fallbacks", "reminders", "downgrades", "flushes", "duplicates")
_DECISIONS_MAX = 40


def best_jct_s(results: Sequence[RunResult]) -> float | None:
    """The shortest average completion time among the runs that finished."""
    return min((result.avg_jct_s for result in results if result.avg_jct_s is not None), default=None)


def event_row(result: RunResult) -> list[str]:
    """How many events there were, and the share of each kind."""
    kinds = ("host_up", "between_switches", "host_down", "detours_and_programs", "timers")
    shares = [100 * result.events_by_kind[kind] / max(1, result.events) for kind in kinds]
    return [result.policy, f"{result.events:,}", *(f"{share:.1f} %" for share in shares)]


def part_row(result: RunResult, parts: Sequence[str]) -> list[str]:
    """Real time by part, and events in each second of theirs."""
    times = [seconds(result.parts_s.get(part, 0.0)) for part in parts]
    rate = result.events / max(result.parts_s.get("events", 0.0), 1e-9)
    return [result.policy, *times, f"{rate / 1e6:.2f} M"]


def seed_rows(by_seed: Sequence[Sequence[RunResult]]) -> list[list[str]]:
    """One policy a row: average completion times over the seeds for which all jobs ended."""
    found: dict[str, list[float]] = {result.policy: [] for result in by_seed[0]}
    for result in (result for group in by_seed for result in group):
        if result.avg_jct_s is not None:
            found[result.policy].append(result.avg_jct_s)
    means = {policy: sum(times) / len(times) for policy, times in found.items() if times}
    best_s = min(means.values(), default=None)
    rows = []
    for policy, times in found.items():
        ended = f"{len(times)} of {len(by_seed)}"
        if best_s is None or not times:
            rows.append([policy, ended, "-", "-", "-", "-"])
            continue
        shown = [seconds(time_s) for time_s in (means[policy], min(times), max(times))]
        rows.append([policy, ended, *shown, f"{means[policy] / best_s:.2f}x"])
    return rows


def row(result: RunResult, best_s: float | None) -> list[str]:
    """One policy, as texts under `COLUMNS`."""
    switch = result.switch
    in_network = bool(result.occupancy.time_s)
    counted = [f"{int(switch[key]):,}" for key in ("completions", "preemptions", "fallbacks", "reminders")]
    return [
        result.policy,
        seconds(result.avg_jct_s),
        seconds(result.makespan_s),
        f"{result.avg_jct_s / best_s:.2f}x" if result.avg_jct_s is not None and best_s else "-",
        f"{100 * switch['utilisation_mean']:.1f} %" if in_network else "-",
        *(counted if in_network else ["-"] * len(counted)),
        f"{result.transport['resent']:,}",
        format_size(result.traffic_bytes),
        exactness(result),
    ]


def exactness(result: RunResult) -> str:
    """Were the sums those over everyone? Contributions left out on purpose make them inexact, checked or not."""
    if any(job.left_out for job in result.jobs):
        return "INEXACT"
    return "not checked" if result.exact is None else "yes" if result.exact else "NO"


def straggler_rows(result: RunResult, most: int) -> list[list[str]]:
    """What coordinators decided, when and why; claims, which are many, are counted below."""
    told = [decision for decision in result.decisions if decision.kind != "claim"]
    rows = [
        [seconds(d.time_s), d.job, "-" if d.worker is None else str(d.worker), d.kind, d.reason]
        for d in told[:most]
    ]
    if len(told) > most:
        rows.append(["...", "", "", "", f"{len(told) - most} more, in --json"])
    return rows


def help_lines(result: RunResult) -> list[str]:
    """One line a job with help: how much was taken over, and whether its sums are exact."""
    lines = []
    for job in result.jobs:
        if job.straggler == "off":
            continue
        parts = [f"{job.name}: straggler = {job.straggler}"]
        if job.claims:
            parts.append(
                "{first} micro-batches taken over, {second} raced, {fenced} thrown away".format(**job.claims)
            )
        if job.deaths:
            parts.append(f"{job.deaths} died")
        parts.append(
            f"INEXACT: {job.left_out} contributions left out" if job.left_out else "nothing left out"
        )
        lines.append("; ".join(parts))
    return lines


def _outcome(result: RunResult, best_s: float | None) -> list[object]:
    """One policy, as numbers under `_OUTCOME`."""
    jct_s, makespan_s = result.avg_jct_s, result.makespan_s
    return [
        result.policy,
        None if jct_s is None else jct_s * 1e3,
        None if makespan_s is None else makespan_s * 1e3,
        None if jct_s is None or not best_s else round(jct_s / best_s, 2),
        round(100 * result.switch["utilisation_mean"], 1) if result.occupancy.time_s else None,
        round(result.traffic_bytes / 1e6),
        result.transport["resent"],
        exactness(result),
    ]


def job_rows(results: Sequence[RunResult]) -> list[list[str]]:
    """Every job's completion time, a column for each policy."""
    return [
        [job.name, *(seconds(result.jobs[j].jct_s) for result in results)]
        for j, job in enumerate(results[0].jobs)
    ]


def seconds(value: float | None) -> str:
    """A time in its natural unit, or a dash."""
    return "-" if value is None else format_seconds(value)


def write_page(path: Path, scenario: Scenario, results: Sequence[RunResult], command: str) -> None:
    """The whole report as one HTML file."""
    page = Page(f"Simulation: {scenario.name}", _lead(scenario, results))
    page.text(_verdict(results))
    page.table(_OUTCOME, [_outcome(result, best_jct_s(results)) for result in results])
    for result in results:
        if result.failed:
            page.text(f"{result.policy} failed: {result.failed}.")
    for result in results:
        if lines := help_lines(result):
            page.heading(f"Stragglers under {result.policy}")
            page.items(lines)
            page.table(("time", "job", "worker", "what", "why"), straggler_rows(result, _DECISIONS_MAX))
    page.heading("Completion time by job")
    page.figure(_completion_figure(results), "From a job's arrival to its last result; shorter is better.")
    in_network = [result for result in results if result.occupancy.time_s]
    if in_network:
        page.heading("Switch memory over time")
        page.figure(
            _occupancy_figures(in_network),
            "Aggregators held, by job, all switches together; the axis ends at what there is.",
        )
        page.heading("Preemptions and fallbacks")
        page.figure(
            _events_figure(in_network),
            "Preemption: a packet of higher priority takes an aggregator, and the partial sum in it goes to its "
            "custodian. Fallback: a packet finds no aggregator and goes to its own custodian. Reminder: a "
            "custodian asks the switch for the other part of a sum.",
        )
        page.table(
            ("policy", *_COUNTED), [(r.policy, *(int(r.switch[key]) for key in _COUNTED)) for r in in_network]
        )
    _add_inputs(page, scenario, results, command)
    page.write(path)


def _lead(scenario: Scenario, results: Sequence[RunResult]) -> str:
    network, jobs = scenario.network, results[0].jobs
    shape = (
        f"a star with {network.switches} servers as switches"
        if network.switches
        else "a star"
        if network.topology == "star"
        else f"{network.leaves} leaves, {network.uppers} upper switches"
    )
    return (
        f"{len(jobs)} jobs with {sum(job.workers for job in jobs)} workers on {shape} at "
        f"{format_rate(network.rate)}, {scenario.switch.slots:,} aggregators a switch, seed {scenario.seed}."
    )


def _verdict(results: Sequence[RunResult]) -> str:
    finished = sorted(
        (result for result in results if result.avg_jct_s is not None), key=lambda r: r.avg_jct_s or 0.0
    )
    if not finished:
        return "No policy finished all jobs."
    best_s = finished[0].avg_jct_s or 1.0
    parts = [f"Jobs finish soonest under {finished[0].policy}: {seconds(best_s)} on average"]
    for result in finished[1:]:
        ratio = (result.avg_jct_s or 0.0) / best_s
        parts.append(f"{result.policy} takes {f'{ratio:.2f} times' if ratio >= 1.005 else 'about'} as long")
    return f"{'; '.join(parts)}."


def _completion_figure(results: Sequence[RunResult]) -> Chart:
    names = [job.name for job in results[0].jobs]
    if len(names) <= JOBS_AS_BARS_MAX:
        chart = Chart("Completion time", y="milliseconds")
        for result in results:
            times = [result.avg_jct_s, *(job.jct_s for job in result.jobs)]
            values = [None if time is None else time * 1e3 for time in times]
            chart.bars(result.policy, ["<b>average</b>", *names], values)
        return chart
    title = f"Share of the {len(names)} jobs that took at most so long"
    chart = Chart(title, "milliseconds", "share of jobs", y_range=(0.0, 1.0))
    for result in results:
        ends = sorted(job.jct_s * 1e3 for job in result.jobs if job.jct_s is not None)
        chart.line(result.policy, ends, [(k + 1) / len(names) for k in range(len(ends))], steps=True)
    return chart


def _occupancy_figures(results: Sequence[RunResult]) -> list[Chart]:
    """A chart a policy, all on one time axis."""
    longest_ms = 1e3 * max(result.occupancy.time_s[-1] for result in results)
    found = []
    for i, result in enumerate(results):
        last = i == len(results) - 1
        chart = Chart(
            f"{result.policy}: {100 * result.switch['utilisation_mean']:.1f} % used on average",
            "milliseconds" if last else "",
            "aggregators",
            height=240 if i == 0 or last else 210,
            x_range=(0.0, longest_ms),
            y_range=(0.0, float(result.occupancy.slots_total)),
            legend=i == 0,
        )
        for j, job in enumerate(result.jobs):
            times_ms = [time * 1e3 for time in result.occupancy.time_s]
            chart.area(job.name, times_ms, result.occupancy.slots_by_job[j])
        found.append(chart)
    return found


def _events_figure(results: Sequence[RunResult]) -> Chart:
    chart = Chart("What the switches did", y="times")
    for key in ("preemptions", "fallbacks", "reminders"):
        counts = [int(result.switch[key]) for result in results]
        chart.bars(key, [r.policy for r in results], counts, texts=[f"{count:,}" for count in counts])
    return chart


def _add_inputs(page: Page, scenario: Scenario, results: Sequence[RunResult], command: str) -> None:
    page.heading("Jobs")
    page.table(
        ("job", "model", "workers", "iterations", "arrives"),
        [
            (
                j.name,
                j.model,
                j.workers,
                j.iterations,
                format_seconds(j.arrival_s) if j.arrival_s else "at once",
            )
            for j in results[0].jobs
        ],
    )
    struck = scenario.faults.model_dump(exclude_defaults=True)
    if struck:
        page.heading("Faults")
        page.table(("key", "value"), [(key, _shown(scenario.faults, key, struck[key])) for key in struck])
    page.heading("Settings of each policy")
    settings = [scenario.for_policy(result.policy) for result in results]
    rows: list[list[object]] = []
    for section in ("switch", "transport", "custodians"):
        for key in type(getattr(scenario, section)).model_fields:
            parts = [getattr(chosen, section) for chosen in settings]
            values = [_shown(part, key, getattr(part, key)) for part in parts]
            rows.append([f"{section}.{key}", *values, "yes" if len(set(values)) > 1 else ""])
    page.table(("key", *(result.policy for result in results), "differs"), rows)
    page.heading("Repeat this run")
    page.text(f"Seed {scenario.seed}; the same seed gives the same run, bit for bit:", command)


def _shown(section: Section, key: str, value: object) -> str:
    """A setting in the unit of its field."""
    parsers = {getattr(part, "func", None) for part in type(section).model_fields[key].metadata}
    if value is None:
        return "by itself"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value) or "none"
    if isinstance(value, int | float):
        if parse_time_ns in parsers:
            return format_seconds(value * 1e-9)
        if parse_size_bytes in parsers:
            return format_size(value)
        if parse_rate_bps in parsers:
            return format_rate(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
