"""What can be saved of a damaged `run.sqlite`: every row that can still be read, and outcomes from attempts' folders.

A run goes on only if nothing could run twice by that: its `meta` and all its jobs are there, and each job's last
attempt is, or has left its outcome in its folder. The damaged file stays, as `run.sqlite.damaged`.

SQLite does not notice a byte that is wrong within a value. So what a run goes on by is read once before anything is
done (`check_values`, `told_as_damage`): a state that there is none of, a job that cannot be made, an attempt of nobody.
"""

import contextlib
import json
import math
import sqlite3
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.launch.launchers import supervisor
from paceline.launch.launchers.protocol import Task
from paceline.launch.store import FILE, TABLES, Store

_NEEDED = (
    "version",
    "request",
    "cluster",
    "state",
    "run_id",
    "began",
    "ended",
    "launcher",
    "policy",
    "objective",
    "switch",
)
_FINAL = ("done", "failed", "cancelled")
JOB_STATES = ("pending", "waiting", "starting", "running", "done", "failed", "cancelled", "stopped")
ATTEMPT_STATES = ("intent", "prepared", "released", "ended")
OUTCOMES = ("done", "failed", "stopped", "lost")
_GAP_MAX = 100_000
"""Rows between the first and the last readable ones that are looked for one by one."""


_SENSELESS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What comes of working with a value that is not what was written."""


def mend(folder: Path) -> str:
    """Put a file that can be read in the place of a damaged one; a line that says so, or nothing where all is well."""
    path = folder / FILE
    if _is_whole(path):
        return ""
    anew = folder / f"{FILE}.anew"
    anew.unlink(missing_ok=True)
    anew.touch(mode=0o600)
    with contextlib.closing(sqlite3.connect(anew, isolation_level=None)) as new, told_as_damage(folder):
        for statement in TABLES.split(";\n"):
            new.execute(statement)
        saved = _copy(path, new)
        outcomes = _check(folder, new)
    path.replace(folder / f"{FILE}.damaged")
    (folder / f"{FILE}-journal").unlink(missing_ok=True)
    anew.replace(path)
    more = f", and {outcomes} outcomes from folders of attempts" if outcomes else ""
    return f"{FILE} was damaged: {saved} rows were saved{more}; the damaged file is {FILE}.damaged"


@contextlib.contextmanager
def told_as_damage(folder: Path) -> Iterator[None]:
    """What cannot be read inside is one line, and nothing was done."""
    try:
        yield
    except _SENSELESS as error:
        raise _too_little(folder, f"a value in it makes no sense ({type(error).__name__}: {error})") from None


@contextlib.contextmanager
def shown_as_damage(folder: Path) -> Iterator[None]:
    """For those who only look: what cannot be shown is one line."""
    try:
        yield
    except _SENSELESS as error:
        raise UserError(
            f"{FILE} is damaged: a value in it makes no sense ({type(error).__name__}: {error})",
            place=str(folder),
        ) from None


def check_values(folder: Path, store: Store) -> None:
    """Refuse values that cannot be what was written."""
    with told_as_damage(folder):
        meta = store.meta()
        for key in _NEEDED:
            _among(key, meta)
        jobs = {row["name"]: row for row in store.jobs()}
        attempts = {(row["job"], row["attempt"]): row for row in store.attempts()}
        for name, row in jobs.items():
            _among(row["state"], JOB_STATES)
            _among(row["spec"]["job"]["name"], (name,))
            if row["attempt"]:
                _among((name, row["attempt"]), attempts)
            for column in ("gpus", "position", "attempt", "iterations", "arrival_s", "priority"):
                _number(row[column])
        for (name, number), row in attempts.items():
            _among(name, jobs)
            _among(number, range(1, jobs[name]["attempt"] + 1))
            _among(row["state"], ATTEMPT_STATES)
            _among(row["outcome"], (None, *OUTCOMES))
            Task.from_json(row["task"])
            _number(row["intended"])
        for row in store.placements():
            _among((row["job"], row["attempt"]), attempts)
            for gpu in row["gpus"]:
                _number(gpu)


def _among(value: object, known: Container[object]) -> None:
    if value not in known:
        raise ValueError(f"{value!r}")


def _number(value: object) -> None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")


def _is_whole(path: Path) -> bool:
    try:
        with contextlib.closing(_opened(path)) as db:
            return [row[0] for row in db.execute("PRAGMA integrity_check(1)")] == ["ok"]
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return False


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", 30.0, isolation_level=None, uri=True)


def _copy(path: Path, new: sqlite3.Connection) -> int:
    """Every readable row of every table; how many."""
    saved = 0
    tables = [row[0] for row in new.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    with contextlib.closing(_opened(path)) as old:
        for table in tables:
            known = [row[1] for row in new.execute(f"PRAGMA table_info({table})")]
            for rowid, row in _readable(old, table):
                columns = [name for name in row if name in known]
                names = ", ".join(f'"{name}"' for name in ("rowid", *columns))
                marks = ", ".join("?" for _ in range(len(columns) + 1))
                values = [rowid, *(row[name] for name in columns)]
                with contextlib.suppress(sqlite3.IntegrityError):
                    new.execute(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})", values)
                    saved += 1
    return saved


def _readable(db: sqlite3.Connection, table: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows from the front up to the damage, from the back down to it, and one by one between."""
    found: dict[int, dict[str, Any]] = {}
    edges = []
    for order in ("ASC", "DESC"):
        last = None
        with contextlib.suppress(sqlite3.DatabaseError, UnicodeDecodeError):
            for rowid, row in _select(db, f"SELECT rowid AS _row, * FROM {table} ORDER BY _row {order}"):
                found[rowid] = row
                last = rowid
        edges.append(last)
    front, back = edges
    if front is not None and back is not None and front < back:
        for rowid in range(front + 1, min(back, front + _GAP_MAX)):
            with contextlib.suppress(sqlite3.DatabaseError, UnicodeDecodeError):
                for _, row in _select(db, f"SELECT rowid AS _row, * FROM {table} WHERE rowid = {rowid}"):
                    found[rowid] = row
    return iter(sorted(found.items()))


def _select(db: sqlite3.Connection, query: str) -> Iterator[tuple[int, dict[str, Any]]]:
    cursor = db.execute(query)
    names = [column[0] for column in cursor.description]
    for values in cursor:
        row = dict(zip(names, values, strict=True))
        yield int(row.pop("_row")), row


def _check(folder: Path, new: sqlite3.Connection) -> int:
    """Refuse what could run a job twice; how many outcomes came from the attempts' own folders."""
    new.row_factory = sqlite3.Row
    meta = {row["key"] for row in new.execute("SELECT key FROM meta")}
    missing = [key for key in _NEEDED if key not in meta]
    jobs = list(new.execute("SELECT * FROM jobs ORDER BY position"))
    if missing or not jobs or [row["position"] for row in jobs] != list(range(len(jobs))):
        raise _too_little(folder, "some of its jobs or settings are lost")
    outcomes = 0
    for job in jobs:
        number = int(job["attempt"])
        row = new.execute(
            "SELECT 1 FROM attempts WHERE job = ? AND attempt = ?", (job["name"], number)
        ).fetchone()
        if number > 0 and row is None:
            if not _take_outcome(folder, new, job["name"], number, job["state"]):
                raise _too_little(folder, f"how attempt {number} of job {job['name']} does is lost")
            outcomes += 1
    return outcomes


def _take_outcome(folder: Path, new: sqlite3.Connection, job: str, number: int, state: str) -> bool:
    """The end of an attempt from its own folder."""
    place = folder / "attempts" / f"{job}.{number}"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, sqlite3.DatabaseError):
        token = str((supervisor.read_json(place / "task.json") or {}).get("token", ""))
        found = supervisor.read_outcome(place, token)
        if found is None:
            return False
        code = int(found["exit_code"])
        outcome = "done" if code == 0 else "failed"
        task = Task("", job, number, token, (), {}, "", (), str(place.resolve()))
        new.execute(
            "INSERT INTO attempts (job, attempt, token, state, task, intended, ended, outcome, exit_code, reason) "
            "VALUES (?, ?, ?, 'ended', ?, ?, ?, ?, ?, 'its row was lost; from its folder')",
            (
                job,
                number,
                token or f"{job}.{number}",
                json.dumps(task.as_json()),
                found["ended"],
                found["ended"],
                outcome,
                code,
            ),
        )
        if state not in _FINAL:
            new.execute(
                "UPDATE jobs SET state = ?, ended = ?, exit_code = ?, reason = ? WHERE name = ?",
                (outcome, found["ended"], code, "from its folder: the table was damaged", job),
            )
        return True
    return False


def _too_little(folder: Path, why: str) -> UserError:
    (folder / f"{FILE}.anew").unlink(missing_ok=True)
    told = f"{FILE} is damaged, and {why}: the run cannot go on; outcomes are in attempts/*/exit.json"
    return UserError(told, place=str(folder))
