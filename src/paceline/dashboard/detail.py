"""One job on a click: why it is where it is, its attempts, the end of its logs, and how its figures went."""

import math
import re
from dataclasses import dataclass
from typing import Any

from paceline.dashboard.run_source import RunSource
from paceline.dashboard.views import StragglerView, as_json
from paceline.errors import UserError
from paceline.launch.salvage import shown_as_damage
from paceline.launch.store import Row
from paceline.report.run.logs import attempt_folder, end_of, logs_of
from paceline.report.run.read import RunData

EVENTS = 30
_LOSS = re.compile(r"\bloss\b[\"'\s:=]{1,4}(\d+(?:\.\d*)?(?:e[+-]?\d+)?)(?![\w.])", re.IGNORECASE)


@dataclass(frozen=True)
class AttemptView:
    """One try of a job."""

    number: int
    state: str
    outcome: str
    reason: str
    start_s: float
    end_s: float | None
    servers: tuple[str, ...]
    why: str
    """Why it was put there: the policy's words."""


@dataclass(frozen=True)
class Curve:
    """A figure over time."""

    times_s: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class JobDetail:
    """What the page shows when a job is clicked."""

    name: str
    state: str
    why: str
    """Why it is in this state, or on these servers."""
    plan: str
    """What the last plan said of it."""
    command: str
    priority: float
    attempts: tuple[AttemptView, ...]
    lost: int
    """Attempts that a server's loss ended."""
    rank: int
    """Whose log this is."""
    ranks: tuple[int, ...]
    attempt: int
    log: str
    log_path: str
    curves: dict[str, Curve]
    """Loss, rate and iteration, as far as they were told."""
    loss_from: str
    """`told` by the job; `log`: read from the end of its log, line by line; empty: there is none."""
    stragglers: tuple[StragglerView, ...]
    events: tuple[str, ...]


def job_detail(run: RunSource, name: str, rank: int = 0, attempt: int = 0) -> dict[str, Any]:
    """The detail as JSON; an unknown name is the user's mistake."""
    with shown_as_damage(run.folder):
        return _job_detail(run, name, rank, attempt)


def _job_detail(run: RunSource, name: str, rank: int, attempt: int) -> dict[str, Any]:
    data = run.data()
    row = next((row for row in data.jobs if row["name"] == name), None)
    if row is None:
        raise UserError(f"there is no job {name!r}", place=str(run.folder))
    attempt = attempt or int(row["attempt"])
    logs = logs_of(attempt_folder(run.folder, name, attempt))
    ranks = list(logs)
    rank = rank if rank in logs else (ranks or [0])[0]
    log, curves = end_of(logs[rank]) if logs else "", _curves(data, run, name)
    loss_from = "told" if "loss" in curves else ""
    if not loss_from and 0 in logs and (read := losses_in(end_of(logs[0]))):
        curves["loss"] = Curve(tuple(float(i) for i in range(len(read))), tuple(read))
        loss_from = "log"
    attempts = tuple(_attempt(data, each) for each in data.attempts if each["job"] == name)
    detail = JobDetail(
        name=name,
        state=row["state"],
        why=row["reason"],
        plan=_planned(data, name),
        command=_command(row),
        priority=float(row["priority"]),
        attempts=attempts,
        lost=sum(each.outcome == "lost" for each in attempts),
        rank=rank,
        ranks=tuple(ranks),
        attempt=attempt,
        log=log,
        log_path=str(run.folder / "attempts" / f"{name}.{attempt}" / f"rank-{rank}.log"),
        curves=curves,
        loss_from=loss_from,
        stragglers=tuple(view for view in run.scores.views().values() if view.job == name),
        events=tuple(_said(data, each) for each in data.events if each["job"] == name)[-EVENTS:],
    )
    found: dict[str, Any] = as_json(detail)
    return found


def _attempt(data: RunData, row: Row) -> AttemptView:
    servers = tuple(share["server"] for share in row["task"]["shares"])
    placed = [p for p in data.placements if (p["job"], p["attempt"]) == (row["job"], row["attempt"])]
    return AttemptView(
        row["attempt"], row["state"], row["outcome"] or "", row["reason"], data.at(row["intended"]),
        None if row["ended"] is None else data.at(row["ended"]), servers, placed[0]["reason"] if placed else "",
    )  # fmt: skip


def _planned(data: RunData, name: str) -> str:
    for plan in data.plans[-1:]:
        for decision in plan["decisions"]:
            if decision["job"] == name:
                where = " ".join(f"{server}:{slots}" for server, slots in decision["servers"].items())
                when = (
                    "now"
                    if decision["now"] or decision["start_s"] <= 0.0
                    else f"in {decision['start_s']:.1f} s"
                )
                until = f"until {decision['end_s']:.1f} s after that plan"
                return f"{plan['policy']}: {when} on {where}, {until}; {decision['reason']}"
    return ""


def _command(row: Row) -> str:
    command = row["spec"]["command"]
    return str(command[2]) if command[:2] == ["/bin/sh", "-c"] else " ".join(command)


def _curves(data: RunData, run: RunSource, name: str) -> dict[str, Curve]:
    rows = list(run.samples.get(name, ()))
    found: dict[str, Curve] = {}
    for key in ("loss", "rate", "iteration"):
        points = [
            (data.at(row["time"]), float(value))
            for row in rows
            if _is_number(value := row["figures"].get(key) if key == "loss" else row[key])
        ]
        if points:
            found[key] = Curve(tuple(time for time, _ in points), tuple(value for _, value in points))
    return found


def losses_in(log: str) -> list[float]:
    """What a log calls a loss: `loss 0.25`, `loss=0.25`, `"loss": 0.25`, `Loss: 2.5e-1`."""
    return [loss for found in _LOSS.findall(log) if math.isfinite(loss := float(found))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _said(data: RunData, row: Row) -> str:
    reason = f" ({row['reason']})" if row["reason"] else ""
    return f"{data.at(row['time']):.1f} s: {row['text']}{reason}"
