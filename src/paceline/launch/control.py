"""Commands to a run that goes on: cancel a job, change its priority, pause the queue and let it go on, add jobs.

Any process that may write to the run's folder asks (`ask`, `ask_to_add`): a row of the table `commands`. The
planner's loop takes each row once, in their order: what it changes, the row's outcome and the event are one
transaction, so that a planner that is killed has taken a command wholly or not at all. What a command asks of the
launcher follows from the store alone (`Controller.to_stop`), so the next planner asks again.

Without a planner a command waits for the next one: `paceline run --resume`. Launchers have no part in this but their
`stop`; what has slots already, or stands in an engine's own queue, keeps its place whatever its priority becomes.
"""

import contextlib
import dataclasses
import fcntl
import time
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.launch.jobs import RunJob, load_run_jobs
from paceline.launch.store import FILE, Row, Store, Tell
from paceline.schedule.inputs.jobs import Exchange
from paceline.schedule.inputs.sources import ClusterSource
from paceline.toml import shortened

KINDS = ("cancel", "priority", "pause", "unpause", "add")
CANCELLED = "cancelled"
"""The state of a job that ended because somebody asked for it. Unlike `stopped` it does not go on with the run."""
ENDED = ("done", "failed", CANCELLED)
"""States of a job that nothing leads out of."""
PRIORITY_MAX = 1e300
"""A larger whole number has no float."""
LOOK_S = 0.1
HOW_ENDED = {"slurm": " by scancel; Slurm's own KillWait is its time of grace, not --grace"}
"""By launcher: what is different about ending a job there,"""
HOW_PAUSED = {
    "slurm": "; jobs that stand in Slurm's queue already may still start there",
    "ray": "; placement groups that Ray was asked for already may still be given",
}
"""about pausing the queue,"""
HOW_LOGGED = {
    "slurm": "Slurm's nodes write into the run's folder, which they have to share with this machine",
    "ray": "logs come from Ray's nodes while a planner is alive",
}
"""and about logs."""


# Asking ------------------------------------------------------------------------------------------------------


def ask(
    folder: Path, kind: str, *, job: str | None = None, argument: Mapping[str, object] | None = None, by: str = ""
) -> int:  # fmt: skip
    """Write a command for the run's planner; the command's number. What can be refused here is."""
    if kind not in KINDS:
        raise UserError(f"there is no command {kind!r}; known: {', '.join(KINDS)}", place="command")
    with contextlib.closing(Store.open(folder)) as store:
        if kind in ("cancel", "priority"):
            known_job(store, job)
        if kind == "priority":
            _checked_priority((argument or {}).get("priority"))
        return store.insert(
            "commands", time=time.time(), kind=kind, job=job, argument=dict(argument or {}), by=by, state="asked",
            outcome="",
        )  # fmt: skip


def ask_to_add(folder: Path, jobs_file: Path, by: str = "") -> int:
    """Ask for the jobs of a file to be added; they are read, checked and written down here and now.

    Their arrival counts from when the planner takes them.
    """
    with contextlib.closing(Store.open(folder)) as store:
        meta, known = store.meta(), {row["name"] for row in store.jobs()}
    source = ClusterSource(meta["cluster"]["name"], meta["cluster"]["data"], {})
    ring = meta["request"]["switch"] == "none"
    exchange: Exchange = "ring" if ring else "in-network"
    jobs = load_run_jobs(jobs_file, source.file.cluster().gpus_total, exchange, source.file.device.flop_rate)
    for run_job in jobs:
        if run_job.job.name in known:
            raise UserError(f"the run has a job {run_job.job.name!r} already", place=str(jobs_file))
    source.problem([run_job.job for run_job in jobs])
    return ask(folder, "add", argument={"jobs": [run_job.as_json() for run_job in jobs]}, by=by)


def outcome(folder: Path, number: int) -> Row:
    """The command as it stands: `state` is asked, done or refused, `outcome` is a line for people."""
    with contextlib.closing(Store.open_to_read(folder)) as store:
        for row in store.commands():
            if row["id"] == number:
                return row
    raise UserError(f"there is no command {number}", place=str(folder))


def wait(folder: Path, number: int, limit_s: float = 10.0) -> Row:
    """The command once it is taken, or as it stands after the limit; at once where no planner is alive."""
    until = time.monotonic() + limit_s
    while True:
        row = outcome(folder, number)
        if row["state"] != "asked" or time.monotonic() > until or not planner_alive(folder):
            return row
        time.sleep(LOOK_S)


def planner_alive(folder: Path) -> bool:
    """Whether a planner holds the run's lock."""
    try:
        with (folder / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def known_job(store: Store, name: object) -> Row:
    """The row of a job; a name that the run does not have is the user's mistake."""
    rows = {row["name"]: row for row in store.jobs()}
    if not isinstance(name, str) or name not in rows:
        raise UserError(f"the run has no job {name!r}; it has: {', '.join(rows)}", place=str(store.folder))
    return rows[name]


def _checked_priority(value: object) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= PRIORITY_MAX:  # type: ignore[operator]
        raise UserError(
            f"{shortened(value)} is no priority: a number above 0, 1 is ordinary", place="priority"
        )
    return float(value)  # type: ignore[arg-type]


# Taking ------------------------------------------------------------------------------------------------------


class Controller:
    """The planner's side: takes commands, and knows what they changed."""

    def __init__(
        self, store: Store, jobs: MutableMapping[str, RunJob], gpus_total: int, launcher: str, tell: Tell
    ) -> None:
        self.store, self.jobs, self.gpus_total, self.launcher, self.tell = (
            store,
            jobs,
            gpus_total,
            launcher,
            tell,
        )
        taken = [row for row in store.commands() if row["state"] == "done"]
        self.cancelled: dict[str, str] = {
            row["job"]: _cancel_reason(row) for row in taken if row["kind"] == "cancel"
        }
        """Jobs that are to end, and why; those that have ended too."""
        self.paused: bool = bool(store.meta().get("paused"))
        """Whether nothing new is started."""
        self._last = 0
        """The number of the last command that was looked at."""
        self._handlers: dict[str, Callable[[Row, float], str]] = {
            "cancel": self._cancel, "priority": self._priority, "pause": self._pause, "unpause": self._unpause,
            "add": self._add,
        }  # fmt: skip

    def take(self, now: float) -> str:
        """Take what was asked since the last call; why a new plan is due, or nothing."""
        why = ""
        for row in self.store.commands(self._last):
            self._last = row["id"]
            if row["state"] != "asked":
                continue
            with self.store.transaction():
                state, text = "done", ""
                try:
                    text = self._handlers[row["kind"]](row, now)
                    why = text
                except UserError as error:
                    state, text = "refused", str(error.message)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    state, text = "refused", f"not understood: {type(error).__name__} {error}"
                self.store.update_command(row["id"], state=state, outcome=text, taken=now)
                told = text if state == "done" else f"{row['kind']} {row['job'] or ''} refused: {text}"
                self.tell(now, "command", told, job=row["job"], reason=f"asked by {row['by'] or 'somebody'}")
        return why

    def to_stop(self, name: str) -> str:
        """Why this job's attempt is to be stopped; empty if it is not."""
        return self.cancelled.get(name, "")

    def _cancel(self, row: Row, now: float) -> str:
        job, why = known_job(self.store, row["job"]), _cancel_reason(row)
        name = job["name"]
        if job["state"] in ENDED:
            raise UserError(f"{name} has ended already: {job['state']}")
        if name in self.cancelled:
            raise UserError(f"{name} is being cancelled already")
        self.cancelled[name] = why
        if job["state"] in ("starting", "running"):
            return f"{name} is asked to end{HOW_ENDED.get(self.launcher, '')}"
        self.store.update_job(name, state=CANCELLED, ended=now, reason=why)
        return f"{name} is cancelled, and never starts" if not job["attempt"] else f"{name} is cancelled"

    def _priority(self, row: Row, now: float) -> str:
        job, value = known_job(self.store, row["job"]), _checked_priority(row["argument"].get("priority"))
        name = job["name"]
        if job["state"] in ENDED:
            raise UserError(f"{name} has ended already: {job['state']}")
        changed = self.jobs[name]
        changed = dataclasses.replace(changed, job=dataclasses.replace(changed.job, priority=value))
        self.jobs[name] = changed
        self.store.update_job(name, priority=value, spec=changed.as_json())
        text = f"the priority of {name} goes from {job['priority']:g} to {value:g}"
        if job["state"] in ("starting", "running"):
            where = (
                "slots"
                if self.launcher == "local"
                else f"slots, or its place in the queue of {self.launcher},"
            )
            text += f"; it has its {where} already, so this counts when it is placed anew"
        return text

    def _pause(self, row: Row, now: float) -> str:
        if self.paused:
            raise UserError("the queue is paused already")
        self.store.set_meta(paused={"since": now, "by": row["by"]})
        self.paused = True
        return (
            f"the queue is paused: what runs goes on, nothing new starts{HOW_PAUSED.get(self.launcher, '')}"
        )

    def _unpause(self, row: Row, now: float) -> str:
        if not self.paused:
            raise UserError("the queue is not paused")
        self.store.set_meta(paused=None)
        self.paused = False
        return "the queue goes on"

    def _add(self, row: Row, now: float) -> str:
        rows = self.store.jobs()
        known, position = {each["name"] for each in rows}, len(rows)
        passed_s = max(0.0, now - float(self.store.meta()["began"]))
        added: dict[str, RunJob] = {}
        for data in row["argument"]["jobs"]:
            run_job = RunJob.from_json(data)
            job = run_job.job
            if job.name in known | set(added):
                raise UserError(f"the run has a job {job.name!r} already")
            if job.gpus > self.gpus_total:
                raise UserError(f"{job.name} asks for {job.gpus}, the cluster has {self.gpus_total}")
            job = dataclasses.replace(job, arrival_s=passed_s + job.arrival_s)
            added[job.name] = dataclasses.replace(run_job, job=job)
        for run_job in added.values():
            insert_job(self.store, position, run_job)
            position += 1
        self.jobs.update(added)
        return f"{', '.join(added)} added" if added else "no job was added: the list is empty"


def insert_job(store: Store, position: int, run_job: RunJob) -> None:
    """A job that has not arrived yet."""
    job = run_job.job
    store.insert(
        "jobs", name=job.name, position=position, gpus=job.gpus, iterations=job.iterations, arrival_s=job.arrival_s,
        priority=job.priority, exchange=job.exchange, spec=run_job.as_json(), state="pending", attempt=0,
        reason="not yet arrived",
    )  # fmt: skip


def _cancel_reason(row: Row) -> str:
    why = str(row["argument"].get("why") or "")
    who = f"cancelled by {row['by']}" if row["by"] else "cancelled"
    return f"{who}: {why}" if why else who


# Finding -----------------------------------------------------------------------------------------------------


def find_run(named: str = "", below: Path | None = None) -> Path:
    """The folder of a run: the one that is named, by its path or its name below `runs/`; else the newest found."""
    here = below or Path()
    if named:
        for path in (Path(named), here / named, here / "runs" / named):
            if (path / FILE).exists():
                return path
        raise UserError(f"holds no run (no {FILE})", place=named)
    found = sorted(newest_runs(here), reverse=True)
    if not found:
        raise UserError(
            "there is no run below this folder; name one: its folder, as --out gave it", place="run"
        )
    return found[0][1]


def newest_runs(here: Path, depth: int = 4) -> list[tuple[float, Path]]:
    """Runs below a folder, each with when its store was last written; hidden folders are left out."""
    found: list[tuple[float, Path]] = []
    level = [here]
    for _ in range(depth + 1):
        following: list[Path] = []
        for folder in level:
            with contextlib.suppress(OSError):
                if (folder / FILE).exists():
                    found.append(((folder / FILE).stat().st_mtime, folder))
                    continue
                entries = sorted(folder.iterdir())
                following += [
                    each for each in entries
                    if not each.name.startswith(".") and each.is_dir() and not each.is_symlink()
                ]  # fmt: skip
        level = following
    return found


def as_json(row: Row) -> Mapping[str, Any]:
    """A command's row for scripts: what was asked, and what became of it."""
    return {key: row[key] for key in ("id", "time", "kind", "job", "by", "state", "outcome", "taken")}
