"""The planner's figures for Prometheus, from the stores of the runs that are watched.

`METRICS` names each one; docs/metrics.md and the shipped dashboards (`grafana.py`, `alerts.py`) are held to it.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.dashboard.run_source import RunSource, predicted_and_measured
from paceline.errors import UserError
from paceline.exposition import ExposedSample, exposed
from paceline.launch.planner_loop import FINAL
from paceline.launch.salvage import shown_as_damage

JOB_STATES = ("pending", "waiting", "starting", "running", "done", "failed", "stopped", "cancelled")

METRICS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "paceline_run_jobs": ("gauge", ("run", "state"), "jobs of the run in this state"),
    "paceline_run_queue_gpus": ("gauge", ("run",), "slots that waiting jobs ask for"),
    "paceline_run_waiting_seconds": ("gauge", ("run", "job"), "how long a waiting job has waited"),
    "paceline_run_slots": (
        "gauge",
        ("run", "state"),
        "slots that are held, free, or on servers that are down",
    ),
    "paceline_run_utilisation": ("gauge", ("run",), "held slots over those of servers that are up"),
    "paceline_run_fragmentation": (
        "gauge",
        ("run",),
        "share of the free slots that are not on the server with most of them free; 0 with none free",
    ),
    "paceline_run_prediction_error": (
        "gauge",
        ("run", "job"),
        "time that an attempt took, or is now expected to take, over the plan's, minus 1",
    ),
    "paceline_run_planning_seconds": ("gauge", ("run",), "how long the last plan took to make"),
    "paceline_run_planner_up": ("gauge", ("run",), "1 while the run's planner is alive"),
    "paceline_run_paused": ("gauge", ("run",), "1 while the queue is paused"),
    "paceline_run_job_rate": ("gauge", ("run", "job"), "iterations a second, of running jobs"),
    "paceline_run_job_progress": ("gauge", ("run", "job"), "iterations done over those asked for"),
    "paceline_run_straggler_score": (
        "gauge",
        ("run", "job", "worker", "against"),
        "1 is as quick as the median worker, or as its own best; 0 is standing still",
    ),
    "paceline_run_straggler_lost_gpu_seconds_total": (
        "counter",
        ("run",),
        "GPU time that workers have waited for stragglers",
    ),
}
"""Name: (type, labels, meaning)."""


def samples(name: str, run: RunSource, now: float | None = None) -> Iterator[ExposedSample]:
    """Every figure of one run: metric, labels, value."""
    now = time.time() if now is None else now
    view = run.view()
    data = run.data()
    states = Counter(job.state for job in view.jobs.values())
    for state in JOB_STATES:
        yield "paceline_run_jobs", (name, state), states[state]
    waiting = [job for job in view.jobs.values() if job.state == "waiting"]
    yield "paceline_run_queue_gpus", (name,), sum(job.gpus for job in waiting)
    for job in waiting:
        yield "paceline_run_waiting_seconds", (name, job.name), max(0.0, view.time_s - job.arrival_s)
    yield from _slots(name, view)
    for row in data.jobs:
        predicted_s, measured_s = predicted_and_measured(data, row, now)
        if predicted_s and measured_s is not None and row["state"] not in ("failed", "stopped", "cancelled"):
            yield "paceline_run_prediction_error", (name, row["name"]), measured_s / predicted_s - 1.0
        if row["state"] == "running" and row["rate"] is not None:
            yield "paceline_run_job_rate", (name, row["name"]), row["rate"]
        if row["state"] not in FINAL and row["iteration"] is not None and row["iterations"]:
            yield "paceline_run_job_progress", (name, row["name"]), row["iteration"] / row["iterations"]
    for plan in data.plans[-1:]:
        yield "paceline_run_planning_seconds", (name,), plan["took_s"]
    yield "paceline_run_planner_up", (name,), int(view.planner)
    yield "paceline_run_paused", (name,), int(view.paused)
    for straggler in run.scores.views().values():
        labels = (name, straggler.job, straggler.name)
        if straggler.score_median is not None and straggler.score_best is not None:
            yield "paceline_run_straggler_score", (*labels, "median"), straggler.score_median
            yield "paceline_run_straggler_score", (*labels, "best"), straggler.score_best
    yield "paceline_run_straggler_lost_gpu_seconds_total", (name,), view.lost_gpu_s


def _slots(name: str, view: Any) -> Iterator[ExposedSample]:
    up = [server for server in view.servers.values() if server.state == "up"]
    down = sum(server.slots for server in view.servers.values() if server.state != "up")
    free = [server.slots - len(server.held) for server in up]
    total, left = sum(server.slots for server in up), sum(free)
    yield "paceline_run_slots", (name, "held"), total - left
    yield "paceline_run_slots", (name, "free"), left
    yield "paceline_run_slots", (name, "down"), down
    yield "paceline_run_utilisation", (name,), (total - left) / total if total else 0.0
    yield "paceline_run_fragmentation", (name,), 1.0 - max(free) / left if left else 0.0


def metrics_text(runs: Mapping[str, RunSource], openmetrics: bool = False) -> bytes:
    """The answer to `GET /metrics`."""
    found = [sample for name, run in runs.items() for sample in _readable(name, run)]
    return exposed(METRICS, found, openmetrics)


def _readable(name: str, run: RunSource) -> list[ExposedSample]:
    """A run's figures; none where its file is damaged, which must not hide the other runs."""
    with contextlib.suppress(UserError), shown_as_damage(run.folder):
        return [
            (metric, tuple(str(label) for label in labels), float(value))  # type: ignore[arg-type]
            for metric, labels, value in samples(name, run)
        ]
    return []
