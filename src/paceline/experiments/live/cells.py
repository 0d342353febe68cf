"""One cell, live: `paceline run` of a drawn workload on an emulated cluster, and what was seen of every job."""

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.experiments.live.workloads import (
    MICRO_BATCHES,
    SLOTS_PER_SERVER,
    SWITCH_MEMORY,
    WORKLOADS,
    LiveJob,
    LivePoint,
    cluster_text,
    jobs_text,
)
from paceline.launch import run as launch
from paceline.launch.store import read_run
from paceline.report.run.read import RunData

LOADED = ("torch.distributed", "paceline.torch.takeover")
COMPILED = ("paceline.live.agent.setup", "paceline.torch.warm")
LIMIT_S = 280.0
"""Of a cell; it is given up then, and its processes end."""
_CALL = "from paceline.cli import main; main()"


@dataclass(frozen=True)
class CellTask:
    """A cell and where its run is kept."""

    point: LivePoint
    folder: str = field(repr=False)
    """Not a part of what the point is: a sweep's folder may be moved."""


@dataclass(frozen=True)
class CalibrationTask:
    """Times of a workload's jobs that share nothing with another: one on two servers, one inside a server."""

    workload: str
    folder: str = field(repr=False)
    steps: int = 10


def run_cell(task: CellTask) -> dict[str, Any]:
    """Run it, and tell: the jobs in the workload's order, and the whole."""
    point = task.point
    folder = Path(task.folder)
    jobs = jobs_text(point.load, point.jobs(), point.stragglers, point.seed)
    run, took_s, cores = _run(folder, cluster_text(point.load), jobs, point.planner, point.exchange)
    told = [_job(run, row) for row in run.jobs]
    missing = [job["name"] for job in told if job["iteration_s"] is None]
    if missing:
        raise UserError(f"{missing[0]} did not end; see its logs", place=str(folder))
    return {
        **{key: getattr(point, key) for key in ("workload", "planner", "exchange", "stragglers", "seed")},
        "avg_jct_s": run.avg_jct_s,
        "makespan_s": run.makespan_s,
        "cores": cores,
        "wall_s": took_s,
        "jobs": told,
    }


def calibrate(task: CalibrationTask) -> dict[str, float]:
    """Seconds of a micro-batch on a healthy and on the slow server, of sums inside a server, and of all the rest."""
    load, folder = WORKLOADS[task.workload], Path(task.folder)
    wide, inside = (
        LiveJob("wide", 2 * SLOTS_PER_SERVER, task.steps),
        LiveJob("inside", SLOTS_PER_SERVER, task.steps),
    )
    # The wide one takes all slots, so the two run one after the other.
    both = jobs_text(load, [wide, inside], "wait", 0)
    run, _, _ = _run(folder / "gloo", cluster_text(load, ("s-0", "slow")), both, "ff", "gloo")
    alone = jobs_text(load, [inside], "wait", 0)
    switched, _, _ = _run(folder / "switch", cluster_text(load, ("s-0",)), alone, "ff", "esa-plus")
    paces_s = run.figure_of(run.jobs[0], "paces_s")
    return {
        "healthy_s": statistics.mean(paces_s[:SLOTS_PER_SERVER]),
        "slow_s": statistics.mean(paces_s[SLOTS_PER_SERVER:]),
        "rest_s": run.figure_of(run.jobs[0], "rest_s"),
        "inside_gloo_s": run.figure_of(run.jobs[1], "exchange_s"),
        "inside_switch_s": switched.figure_of(switched.jobs[0], "exchange_s"),
    }


def _run(folder: Path, cluster: str, jobs: str, planner: str, exchange: str) -> tuple[RunData, float, float]:
    """`paceline run`, as a process of its own; its store, its seconds, and how many cores were busy meanwhile."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "cluster.toml").write_text(cluster, encoding="utf-8")
    (folder / "jobs.toml").write_text(jobs, encoding="utf-8")
    loaded: tuple[str, ...] = LOADED
    options: list[str] = []
    if exchange != "gloo":
        loaded += COMPILED
        options = ["--switch", "auto", "--switch-memory", SWITCH_MEMORY, "--switch-policy", exchange]
    command = [
        *(sys.executable, "-c", _CALL, "run", str(folder / "jobs.toml")),
        *("--cluster", str(folder / "cluster.toml"), "--out", str(folder / "run")),
        *("--policy", planner, "--objective", "jct", "--warm", ",".join(loaded), *options),
    ]
    began, busy_s = time.monotonic(), _busy_s()
    with (folder / "log").open("wb") as log:
        _await(command, folder, log)
    took_s = time.monotonic() - began
    return read_run(folder / "run"), took_s, (_busy_s() - busy_s) / took_s


def _await(command: Sequence[str], folder: Path, log: Any) -> None:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        raise UserError(f"a cell did not end within {LIMIT_S:.0f} s", place=str(folder)) from None
    finally:
        process.kill()  # an emulated cluster ends with its keeper
        process.wait()
    if code != 0:
        lines = (folder / "log").read_text(errors="replace").strip().splitlines()
        raise UserError(lines[-1] if lines else f"exit code {code}", place=str(folder))


def _job(run: RunData, row: dict[str, Any]) -> dict[str, Any]:
    queue_s, start_s, train_s = run.parts_s(row)
    ended_s = run.figure_of(row, "ended_s") or []
    placed = [place for place in run.placements if place["job"] == row["name"]]
    return {
        "name": row["name"],
        "gpus": row["gpus"],
        "steps": round(row["iterations"]),
        "servers": {place["server"]: place["slots"] for place in placed},
        "jct_s": run.jct_s(row),
        "queue_s": queue_s,
        "start_s": start_s,
        "train_s": train_s,
        "trains_at_s": queue_s + start_s + float(row["arrival_s"]),
        "iteration_s": ended_s[-1] / len(ended_s) if ended_s else None,
        "first_iteration_s": ended_s[0] if ended_s else None,
        "paces_s": run.figure_of(row, "paces_s") or [],
        "taken_over": run.figure_of(row, "taken_over_total") or 0,
        "path": run.figure_of(row, "path"),
        "loss": run.figure_of(row, "loss"),
        "micro_batches": MICRO_BATCHES,
    }


def _busy_s() -> float:
    """Seconds that this machine's cores have worked since it started."""
    fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    user, nice, system, _, _, interrupt, soft = (int(field) for field in fields[:7])
    return (user + nice + system + interrupt + soft) / 100.0


def check_possible() -> None:
    """Raise the user's error where no network can be emulated."""
    done = subprocess.run(
        [sys.executable, "-m", "paceline.emulation.enclosure", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise UserError(done.stderr.strip().removeprefix("paceline: "), place="reproduce live")


def compile_ahead() -> None:
    """What cells need, once a machine."""
    subprocess.run([sys.executable, "-m", "paceline.launch.warm"], check=True)


__all__ = [
    "CalibrationTask",
    "CellTask",
    "calibrate",
    "check_possible",
    "compile_ahead",
    "launch",
    "run_cell",
]
