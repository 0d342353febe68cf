"""A run as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: a track a GPU, one for the switch.

The format is Chrome's JSON. A server is a process and each of its GPUs (slots) a thread, with a slice for every
attempt; the switch is a process with its memory by job as counters and what happened on its track; the planner
has a track with every plan. Times are microseconds since the run began.
"""

import json
from pathlib import Path
from typing import Any

from paceline.report.run.read import Row, RunData

PLANNER = 1
SWITCH = 2
FIRST_SERVER = 10
Event = dict[str, Any]


def write_trace(path: Path, run: RunData) -> None:
    """The trace as one JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    trace = {
        "displayTimeUnit": "ms",
        "otherData": {"run": run.name, "policy": str(run.meta.get("policy", ""))},
        "traceEvents": trace_events(run),
    }
    path.write_text(json.dumps(trace), encoding="utf-8")


def trace_events(run: RunData) -> list[Event]:
    """Names of the tracks, then slices, counters and instants in the order of time."""
    timed = [*_attempts(run), *_planner(run), *_switch(run), *_jobs(run)]
    return [*_names(run), *sorted(timed, key=lambda event: float(event["ts"]))]


def _event(phase: str, name: str, process: int, time_s: float, thread: int = 1, **more: Any) -> Event:
    return {"ph": phase, "name": name, "pid": process, "tid": thread, "ts": _us(time_s), **more}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _span(
    name: str, kind: str, process: int, start_s: float, end_s: float, key: str, **args: Any
) -> list[Event]:
    """A slice that may overlap others on its track."""
    return [
        _event("b", name, process, start_s, cat=kind, id=key, args=args),
        _event("e", name, process, end_s, cat=kind, id=key),
    ]


def _names(run: RunData) -> list[Event]:
    """Names of processes and threads."""

    def named(kind: str, process: int, thread: int, name: str) -> Event:
        return {"ph": "M", "name": f"{kind}_name", "pid": process, "tid": thread, "args": {"name": name}}

    found = [
        named("process", PLANNER, 0, f"planner ({run.meta.get('policy', '')})"),
        named("thread", PLANNER, 1, "plans and events"),
        named("process", SWITCH, 0, "switch"),
        named("thread", SWITCH, 1, "switch"),
    ]
    gpu = 0
    for number, server in enumerate(run.servers):
        found.append(named("process", FIRST_SERVER + number, 0, f"server {server['name']}"))
        for slot in range(server["slots"]):
            found.append(named("thread", FIRST_SERVER + number, gpu + 1, f"GPU {slot}"))
            gpu += 1
    return found


def _attempts(run: RunData) -> list[Event]:
    server_of = [number for number, server in enumerate(run.servers) for _ in range(server["slots"])]
    return [
        _event(
            "X",
            each.job,
            FIRST_SERVER + server_of[gpu],
            each.start_s,
            gpu + 1,
            cat="job",
            dur=_us(max(0.0, each.end_s - each.start_s)),
            args={"attempt": each.number, "outcome": each.outcome or "running", "reason": each.reason},
        )
        for each in run.tries
        for gpu in each.gpus
    ]


def _planner(run: RunData) -> list[Event]:
    plans = [
        _event(
            "X",
            f"plan: {plan['trigger']}",
            PLANNER,
            run.at(plan["time"]),
            cat="plan",
            dur=_us(float(plan["took_s"])),
            args={key: plan[key] for key in ("decisions", "running", "settings")},
        )
        for plan in run.plans
    ]
    return plans + [
        _instant(PLANNER, run, row) for row in run.events if row["kind"] not in ("plan", "switch")
    ]


def _instant(process: int, run: RunData, row: Row) -> Event:
    args = {"reason": row["reason"], **(row["figures"] or {})}
    return _event("i", row["text"], process, run.at(row["time"]), s="t", cat=row["kind"], args=args)


def _switch(run: RunData) -> list[Event]:
    """Memory by job as one stacked counter; a slice where preemptions happened."""
    found = [_instant(SWITCH, run, row) for row in run.events if row["kind"] in ("switch", "path")]
    held: dict[float, dict[str, float]] = {}
    for job, uses in run.switch_use.items():
        since_s, count = None, 0.0
        for use in uses:
            if use.held is not None:
                held.setdefault(use.time_s, {})[job] = use.held
            if use.preemptions is None:
                continue
            if since_s is not None and use.preemptions > count:
                # From the sample before to this one: nothing finer is known.
                name, key = f"{use.preemptions - count:.0f} preemptions", f"{job} {use.time_s}"
                found += _span(name, "preemption", SWITCH, since_s, use.time_s, key, job=job)
            since_s, count = use.time_s, use.preemptions
    jobs = sorted({job for sample in held.values() for job in sample})
    for time_s, sample in held.items():
        values = {job: sample.get(job, 0.0) for job in jobs}
        found.append(_event("C", "aggregators held", SWITCH, time_s, args=values))
    return found


def _jobs(run: RunData) -> list[Event]:
    """Each job's rate as a counter of the planner, and its slow workers as slices."""
    found = [
        _event(
            "C",
            f"rate of {row['job']}, iterations/s",
            PLANNER,
            run.at(row["time"]),
            args={"rate": row["rate"]},
        )
        for row in run.samples
        if row["rate"] is not None
    ]
    for number, span in enumerate(run.stragglers):
        name = f"{span.job}: {span.what} is slow"
        found += _span(name, "straggler", PLANNER, span.start_s, span.end_s, f"s{number}", reason=span.reason)
    return found
