"""A run as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: a track a GPU, one for the switch.

The format is Chrome's JSON. A server is a process and each of its GPUs (slots) a thread, with a slice for every
attempt; the switch is a process with its memory by job as counters and what happened on its track; the planner
has a track with every plan. Times are microseconds since the run began.
"""

import json
from pathlib import Path
from typing import Any

from paceline.report.run.read import RunData

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


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _named(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": f"{kind}_name", "pid": process, "tid": thread, "args": {"name": name}}


def _names(run: RunData) -> list[Event]:
    found = [
        _named("process", PLANNER, 0, f"planner ({run.meta.get('policy', '')})"),
        _named("thread", PLANNER, 1, "plans and events"),
        _named("process", SWITCH, 0, "switch"),
        _named("thread", SWITCH, 1, "switch"),
    ]
    gpu = 0
    for number, server in enumerate(run.servers):
        found.append(_named("process", FIRST_SERVER + number, 0, f"server {server['name']}"))
        for slot in range(server["slots"]):
            found.append(_named("thread", FIRST_SERVER + number, gpu + 1, f"GPU {slot}"))
            gpu += 1
    return found


def _server_of(run: RunData) -> list[int]:
    return [number for number, server in enumerate(run.servers) for _ in range(server["slots"])]


def _attempts(run: RunData) -> list[Event]:
    server_of = _server_of(run)
    return [
        {
            "ph": "X",
            "name": each.job,
            "cat": "job",
            "pid": FIRST_SERVER + server_of[gpu],
            "tid": gpu + 1,
            "ts": _us(each.start_s),
            "dur": _us(max(0.0, each.end_s - each.start_s)),
            "args": {"attempt": each.number, "outcome": each.outcome or "running", "reason": each.reason},
        }
        for each in run.tries
        for gpu in each.gpus
    ]


def _planner(run: RunData) -> list[Event]:
    plans: list[Event] = [
        {
            "ph": "X",
            "name": f"plan: {plan['trigger']}",
            "cat": "plan",
            "pid": PLANNER,
            "tid": 1,
            "ts": _us(run.at(plan["time"])),
            "dur": _us(float(plan["took_s"])),
            "args": {
                "decisions": plan["decisions"],
                "running": plan["running"],
                "settings": plan["settings"],
            },
        }
        for plan in run.plans
    ]
    return plans + [
        _instant(PLANNER, run, event) for event in run.events if event["kind"] not in ("plan", "switch")
    ]


def _instant(process: int, run: RunData, event: Event) -> Event:
    return {
        "ph": "i",
        "s": "t",
        "name": event["text"],
        "cat": event["kind"],
        "pid": process,
        "tid": 1,
        "ts": _us(run.at(event["time"])),
        "args": {"reason": event["reason"], **(event["figures"] or {})},
    }


def _switch(run: RunData) -> list[Event]:
    """Memory by job as one stacked counter, preemptions as another; a slice where preemptions happened."""
    found = [_instant(SWITCH, run, event) for event in run.events if event["kind"] in ("switch", "path")]
    held: dict[float, dict[str, float]] = {}
    before: dict[str, tuple[float, float]] = {}
    for job, use in ((job, use) for job, uses in run.switch_use.items() for use in uses):
        time_s = use.time_s
        if use.held is not None:
            held.setdefault(time_s, {})[job] = use.held
        if use.preemptions is None:
            continue
        since_s, count = before.get(job, (time_s, use.preemptions))
        if use.preemptions > count:
            name = f"{use.preemptions - count:.0f} preemptions"
            # From the sample before to this one: nothing finer is known. Async, as those of several jobs overlap.
            common = {
                "name": name,
                "cat": "preemption",
                "pid": SWITCH,
                "tid": 1,
                "id": f"{job} {time_s}",
            }
            found.append({**common, "ph": "b", "ts": _us(since_s), "args": {"job": job}})
            found.append({**common, "ph": "e", "ts": _us(time_s)})
        before[job] = (time_s, use.preemptions)
    jobs = sorted({job for sample in held.values() for job in sample})
    for time_s, sample in held.items():
        values = {job: sample.get(job, 0.0) for job in jobs}
        found.append(
            {
                "ph": "C",
                "name": "aggregators held",
                "pid": SWITCH,
                "tid": 1,
                "ts": _us(time_s),
                "args": values,
            }
        )
    return found


def _jobs(run: RunData) -> list[Event]:
    """Each job's rate as a counter of the planner, and its slow workers as slices that may overlap."""
    found: list[Event] = []
    for row in run.samples:
        if row["rate"] is not None:
            found.append(
                {
                    "ph": "C",
                    "name": f"rate of {row['job']}, iterations/s",
                    "pid": PLANNER,
                    "tid": 1,
                    "ts": _us(run.at(row["time"])),
                    "args": {"rate": row["rate"]},
                }
            )
    for number, span in enumerate(run.stragglers):
        common = {
            "name": f"{span.job}: {span.what} is slow",
            "cat": "straggler",
            "pid": PLANNER,
            "tid": 1,
            "id": f"s{number}",
        }
        found.append({**common, "ph": "b", "ts": _us(span.start_s), "args": {"reason": span.reason}})
        found.append({**common, "ph": "e", "ts": _us(span.end_s)})
    return found
