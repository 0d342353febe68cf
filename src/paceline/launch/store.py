"""A run's state on disk: the folder's layout, the tables of its SQLite file, and how they are written and read.

A run's folder (`RUN_DIR`):

    run.sqlite                 the tables below; the planner writes them, and others the rows of `commands`
    lock                       held (flock) by the planner that is alive; its process id is inside
    down/SERVER                a file by this name marks a server of the local launcher as down
    attempts/JOB.N/            all files of the N-th attempt of a job, from 1 on
        task.json              what is to be run (`protocol.Task`)
        rank-R.log             standard output and error of rank R
        status-R               where rank R may write its progress (PACELINE_STATUS)
        progress-0             the steps that were counted in rank 0 (PACELINE_PROGRESS)
        remaining_s            expected remaining seconds; written anew at every plan
        claim.json, exit.json  the supervisor's: who runs this attempt, how it ended

All times are seconds since 1970 (`REAL`); `meta.began` is the time of the run's start, and a job arrives at
`began + arrival_s`. JSON is in columns of that name's comment. Nothing is ever deleted.

Every change is a transaction of its own, so that the next planner after one that was killed finds the last whole
step. `Store.open_to_read` is for reports: it writes nothing of its own, and works while the run goes on.
"""

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from paceline.errors import UserError
from paceline.names import unicode_text
from paceline.report.run.read import RunData, run_of

FILE = "run.sqlite"
Row = dict[str, Any]
VERSION = 1
EVENT_KINDS = (
    "run", "arrival", "plan", "start", "running", "end", "lost", "retry", "stop",
    "server", "switch", "path", "backend", "launcher", "resume", "network", "command", "learn", "slow",
)  # fmt: skip
TABLES = """
CREATE TABLE IF NOT EXISTS meta (
    key TEXT PRIMARY KEY,      -- version, run_id, began, ended, launcher, policy, objective, state, switch, options
    value TEXT NOT NULL        -- JSON
);
CREATE TABLE IF NOT EXISTS servers (
    name TEXT PRIMARY KEY,
    position INTEGER NOT NULL, -- in the cluster's order; GPUs (slots) are numbered server after server
    slots INTEGER NOT NULL,
    rack TEXT NOT NULL,
    state TEXT NOT NULL,       -- up or down
    reason TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS jobs (
    name TEXT PRIMARY KEY,
    position INTEGER NOT NULL, -- in the job file's order
    gpus INTEGER NOT NULL,
    iterations REAL NOT NULL,
    arrival_s REAL NOT NULL,   -- after the run's start
    priority REAL NOT NULL,
    exchange TEXT NOT NULL,    -- ring or in-network
    spec TEXT NOT NULL,        -- JSON: the whole job as the file has it
    state TEXT NOT NULL,       -- pending: not yet arrived. waiting: has no slots. starting: given to the launcher.
                               -- running, done, failed, cancelled, stopped (with the run, and goes on with it)
    attempt INTEGER NOT NULL,  -- the last attempt; 0: none yet
    reason TEXT NOT NULL,      -- why it is in this state, or on these servers
    started REAL,              -- of the first attempt that ran
    ended REAL,
    exit_code INTEGER,
    iteration REAL,            -- of the last progress
    rate REAL,                 -- iterations a second, of the last progress
    path TEXT,                 -- switch, custodian or ring, of the last progress
    progress TEXT,             -- JSON: the whole last progress line
    expected_end REAL          -- by the last plan
);
CREATE TABLE IF NOT EXISTS attempts (
    job TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    token TEXT NOT NULL UNIQUE,-- in the job's environment as PACELINE_ATTEMPT; names it in Slurm and Ray
    state TEXT NOT NULL,       -- intent: before the launcher is asked. prepared: the launcher knows it, no line runs.
                               -- released: it may run. ended: `outcome` says how
    task TEXT NOT NULL,        -- JSON: protocol.Task
    handle TEXT,               -- JSON: what the launcher knows it by
    intended REAL NOT NULL,
    released REAL,
    ended REAL,
    outcome TEXT,              -- done, failed, stopped; lost: a server or the launcher took it away, it is placed anew
    exit_code INTEGER,
    reason TEXT NOT NULL,
    PRIMARY KEY (job, attempt)
);
CREATE TABLE IF NOT EXISTS placements (
    job TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    server TEXT NOT NULL,
    slots INTEGER NOT NULL,    -- how many of the server's
    gpus TEXT NOT NULL,        -- JSON: which of the cluster's
    start REAL NOT NULL,
    "end" REAL,                -- NULL: still held
    reason TEXT NOT NULL,      -- the policy's
    PRIMARY KEY (job, attempt, server)
);
CREATE TABLE IF NOT EXISTS plans (
    id INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    policy TEXT NOT NULL,
    trigger TEXT NOT NULL,     -- what made it necessary
    running TEXT NOT NULL,     -- JSON: {job: iterations left} pinned to their slots
    decisions TEXT NOT NULL,   -- JSON: [{job, servers, start_s, end_s, reason, now}], seconds after `time`
    settings TEXT NOT NULL,    -- JSON: the policy's
    took_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    kind TEXT NOT NULL,        -- EVENT_KINDS
    job TEXT,                  -- NULL: of the whole run
    text TEXT NOT NULL,        -- one line for people
    reason TEXT NOT NULL,
    figures TEXT NOT NULL      -- JSON: the numbers that it was based on
);
CREATE TABLE IF NOT EXISTS samples (
    time REAL NOT NULL,
    job TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    iteration REAL,
    rate REAL,
    path TEXT,
    figures TEXT NOT NULL      -- JSON: the other keys of the progress line (loss, straggler, ...)
);
CREATE INDEX IF NOT EXISTS samples_by_job ON samples (job, time);
CREATE TABLE IF NOT EXISTS predictions (
    job TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    since REAL NOT NULL,       -- the plan that it is of: who runs beside the job stays the same until the next
    factor REAL NOT NULL,      -- how many times as long as its file says the job was expected to compute
    predicted_s REAL NOT NULL, -- of an iteration
    measured_s REAL,           -- NULL: not enough progress to tell
    iterations REAL,           -- over so many
    learned REAL               -- the factor that would have made the prediction right
);
CREATE TABLE IF NOT EXISTS slowness (
    time REAL NOT NULL,
    server TEXT NOT NULL,
    factor REAL NOT NULL,      -- how many times as long its devices take, as learned from its jobs; 1: it is not slow
    reason TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS switch_samples (
    time REAL NOT NULL,
    job TEXT,                  -- as the switch names it; NULL: of the whole switch
    slots_in_use REAL,
    preemptions REAL,
    figures TEXT NOT NULL      -- JSON: every other figure of /metrics for this job
);
CREATE TABLE IF NOT EXISTS commands (
    id INTEGER PRIMARY KEY,
    time REAL NOT NULL,        -- when it was asked
    kind TEXT NOT NULL,        -- control.KINDS
    job TEXT,                  -- NULL: of the whole run
    argument TEXT NOT NULL,    -- JSON: what else it needs
    "by" TEXT NOT NULL,        -- who asked
    state TEXT NOT NULL,       -- asked, done: the planner has taken it, refused
    outcome TEXT NOT NULL,     -- one line for people
    taken REAL                 -- when the planner took it
);
"""


class Tell(Protocol):
    """Passes an event on: to disk, and to the run's onlooker."""

    def __call__(
        self, now: float, kind: str, text: str, *, job: str | None = None, reason: str = "",
        figures: Mapping[str, object] | None = None,
    ) -> None: ...  # fmt: skip


class Store:
    """The tables of one run. Rows come as dictionaries; columns that hold JSON are decoded."""

    _JSON = frozenset(
        ("spec", "progress", "task", "handle", "gpus_list", "running", "decisions", "settings", "figures",
         "argument")
    )  # fmt: skip

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder = folder
        self._db = connection
        self._db.row_factory = sqlite3.Row

    @classmethod
    def create(cls, folder: Path, file: str = FILE) -> "Store":
        """A new run in a folder that holds none yet; under another name it is not seen until it has its own."""
        check_no_run(folder)
        (folder / "attempts").mkdir(parents=True, exist_ok=True)
        (folder / "down").mkdir(exist_ok=True)
        # What jobs are given stands in it, the switch's token too: nobody else may read it.
        (folder / file).touch(mode=0o600)
        store = cls(folder, sqlite3.connect(folder / file, timeout=30.0, isolation_level=None))
        with store.transaction():
            store._create_tables()
            store.set_meta(version=VERSION)
        return store

    @classmethod
    def open(cls, folder: Path) -> "Store":
        """The run of a folder, to go on with."""
        store = cls._opened(folder, read_only=False)
        store._create_tables()
        return store

    @classmethod
    def open_to_read(cls, folder: Path) -> "Store":
        """The run of a folder, finished or not, to look at; by several threads, if these take turns."""
        if (folder / f"{FILE}-journal").exists():
            # A planner that was killed within a step: only a writer can take that step back.
            with contextlib.suppress(UserError):
                cls._opened(folder, read_only=False).close()
        return cls._opened(folder, read_only=True)

    @classmethod
    def _opened(cls, folder: Path, read_only: bool) -> "Store":
        path = folder / FILE
        if not path.exists():
            raise UserError(f"holds no run (no {FILE})", place=str(folder))
        mode = "ro" if read_only else "rw"
        try:
            db = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode={mode}", 30.0, isolation_level=None, uri=True,
                check_same_thread=not read_only,
            )  # fmt: skip
            store = cls(folder, db)
            version = store.meta().get("version")
        except (sqlite3.DatabaseError, ValueError) as error:
            raise UserError(f"{FILE} cannot be read: {error}", place=str(folder)) from None
        if version != VERSION:
            raise UserError(f"{FILE} has version {version}, this is {VERSION}", place=str(folder))
        return store

    def _create_tables(self) -> None:
        """Those that are not there: all of a new run, and what a run of an older release has not."""
        for statement in TABLES.split(";\n"):
            self._execute(statement)

    def close(self) -> None:
        self._db.close()

    def _execute(self, query: str, values: Iterable[Any] = ()) -> sqlite3.Cursor:
        """All of the file's errors come by here: a damaged file and a full disk are told in a line."""
        try:
            return self._db.execute(query, tuple(values))
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self._trouble(error) from None

    def _trouble(self, error: Exception) -> UserError:
        full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        what = "the disk is full; the run goes on with --resume when there is room" if full else error
        verb = "written" if full else "read"
        return UserError(f"{FILE} cannot be {verb}: {what}", place=str(self.folder))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes inside, or none. Inside another transaction it is part of that one."""
        if self._db.in_transaction:
            yield
            return
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:  # SQLite has ended it where the disk is full
                self._execute("ROLLBACK")
            raise
        self._execute("COMMIT")

    # Reading ---------------------------------------------------------------------------------------------

    def meta(self) -> dict[str, Any]:
        rows = self._found("SELECT * FROM meta")
        try:
            found = {row["key"]: json.loads(row["value"]) for row in rows}
        except (LookupError, TypeError, ValueError) as error:
            raise self._trouble(error) from None
        return _with_what_is_lost(found) if "request" in found else found

    def jobs(self) -> list[Row]:
        return self._rows("SELECT * FROM jobs ORDER BY position")

    def job(self, name: str) -> Row:
        return self._rows("SELECT * FROM jobs WHERE name = ?", name)[0]

    def servers(self) -> list[Row]:
        return self._rows("SELECT * FROM servers ORDER BY position")

    def attempts(self) -> list[Row]:
        """In the order in which they were intended."""
        return self._rows("SELECT * FROM attempts ORDER BY intended, rowid")

    def placements(self) -> list[Row]:
        """One row for each server of each attempt; `gpus` is the list of the cluster's GPU numbers."""
        return self._rows("SELECT *, gpus AS gpus_list FROM placements ORDER BY start, rowid")

    def plans(self) -> list[Row]:
        return self._rows("SELECT * FROM plans ORDER BY id")

    def events(self, after: int = 0) -> list[Row]:
        return self._rows("SELECT * FROM events WHERE id > ? ORDER BY id", after)

    def commands(self, after: int = 0) -> list[Row]:
        """Those with a greater number, in the order in which they were asked."""
        if not self._has("commands"):
            return []
        return self._rows("SELECT * FROM commands WHERE id > ? ORDER BY id", after)

    def _has(self, table: str) -> bool:
        """A run of an older release, opened to read, may lack one."""
        return bool(self._found("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)))

    def samples(self) -> list[Row]:
        return self._rows("SELECT * FROM samples ORDER BY time, rowid")

    def switch_samples(self) -> list[Row]:
        return self._rows("SELECT * FROM switch_samples ORDER BY time, rowid")

    def predictions(self) -> list[Row]:
        """In the order of plans; none in a run of a release that did not keep them."""
        if not self._has("predictions"):
            return []
        return self._rows("SELECT rowid AS id, * FROM predictions ORDER BY since, rowid")

    def slowness(self) -> list[Row]:
        """What was learned of servers, in its order; none in a run of a release that did not."""
        return self._rows("SELECT * FROM slowness ORDER BY time, rowid") if self._has("slowness") else []

    def slow_servers(self) -> list[Row]:
        """The last of each server that is slow."""
        last = {row["server"]: row for row in self.slowness()}
        return [row for row in last.values() if row["factor"] > 1.0]

    def last_predictions(self) -> dict[str, Row]:
        """By job: the last prediction that was measured, else the last of all."""
        rows = self.predictions()
        return {row["job"]: row for row in sorted(rows, key=lambda row: row["measured_s"] is not None)}

    def tables(self) -> dict[str, list[Row]]:
        """Every table but `meta`, as one moment shows them."""
        with self.snapshot():
            return {
                "servers": self.servers(), "jobs": self.jobs(), "attempts": self.attempts(),
                "placements": self.placements(), "plans": self.plans(), "events": self.events(),
                "samples": self.samples(), "switch_samples": self.switch_samples(),
                "predictions": self.predictions(), "slowness": self.slowness(),
            }  # fmt: skip

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Whatever is read inside is of one moment."""
        self._execute("BEGIN")
        try:
            yield
        finally:
            if self._db.in_transaction:
                self._execute("ROLLBACK")

    def rows_after(self, table: str, number: int) -> list[Row]:
        """Rows of a growing table that are newer than one with this number, which is their `id`."""
        return self._rows(f"SELECT rowid AS id, * FROM {table} WHERE rowid > ? ORDER BY rowid", number)

    def last_plan(self) -> list[Row]:
        """The newest plan, if there is any."""
        return self._rows("SELECT * FROM plans ORDER BY id DESC LIMIT 1")

    def data_version(self) -> int:
        """Another number whenever somebody else has written since this store was opened."""
        return int(self._found("PRAGMA data_version")[0][0])

    def _found(self, query: str, values: Iterable[Any] = ()) -> list[sqlite3.Row]:
        try:
            return self._execute(query, values).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self._trouble(error) from None

    def _rows(self, query: str, *values: object) -> list[Row]:
        found = []
        for raw in self._found(query, values):
            row = {key: self._decoded(key, raw[key]) for key in raw.keys()}  # noqa: SIM118 (a Row is no dict)
            if "gpus_list" in row:
                row["gpus"] = row.pop("gpus_list")
            found.append(row)
        return found

    def _decoded(self, key: str, value: Any) -> Any:
        try:
            return json.loads(value) if key in self._JSON and value is not None else value
        except (TypeError, ValueError, RecursionError) as error:
            raise self._trouble(error) from None

    # Writing ---------------------------------------------------------------------------------------------

    def set_meta(self, **values: object) -> None:
        with self.transaction():
            for key, value in values.items():
                self._execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))

    def insert(self, table: str, **values: object) -> int:
        """A new row; values that SQLite has no type for are written as JSON. Returns its number."""
        columns = ", ".join(f'"{key}"' for key in values)
        marks = ", ".join("?" for _ in values)
        done = self._execute(
            f"INSERT INTO {table} ({columns}) VALUES ({marks})", [_plain(value) for value in values.values()]
        )
        return int(done.lastrowid or 0)

    def update_job(self, name: str, **values: object) -> None:
        self._update("jobs", "name = ?", (name,), values)

    def update_attempt(self, job: str, attempt: int, **values: object) -> None:
        self._update("attempts", "job = ? AND attempt = ?", (job, attempt), values)

    def update_prediction(self, number: int, **values: object) -> None:
        self._update("predictions", "rowid = ?", (number,), values)

    def update_server(self, name: str, state: str, reason: str) -> None:
        self._update("servers", "name = ?", (name,), {"state": state, "reason": reason})

    def update_command(self, number: int, **values: object) -> None:
        self._update("commands", "id = ?", (number,), values)

    def end_placements(self, job: str, attempt: int, when: float) -> None:
        self._update("placements", 'job = ? AND attempt = ? AND "end" IS NULL', (job, attempt), {"end": when})

    def _update(self, table: str, where: str, keys: Iterable[object], values: Mapping[str, object]) -> None:
        changes = ", ".join(f'"{key}" = ?' for key in values)
        self._execute(
            f"UPDATE {table} SET {changes} WHERE {where}", [*(_plain(v) for v in values.values()), *keys]
        )

    def event(self, when: float, kind: str, text: str, *, job: str | None = None, reason: str = "",
              figures: Mapping[str, object] | None = None) -> int:  # fmt: skip
        assert kind in EVENT_KINDS, kind
        return self.insert(
            "events", time=when, kind=kind, job=job, text=text, reason=reason, figures=dict(figures or {})
        )


def check_no_run(folder: Path) -> None:
    """Refuse a folder that a run was written to."""
    if (folder / FILE).exists():
        raise UserError(
            f"holds a run already; go on with it: paceline run --resume {folder}", place=str(folder)
        )


def read_tables(folder: Path) -> tuple[Row, dict[str, list[Row]]]:
    """The run of a folder, to look at: its `meta`, and all other tables."""
    store = Store.open_to_read(folder)
    try:
        return store.meta(), store.tables()
    except (sqlite3.DatabaseError, ValueError) as error:
        raise UserError(f"{FILE} cannot be read: {error}", place=str(folder)) from None
    finally:
        store.close()


def _with_what_is_lost(meta: dict[str, Any]) -> dict[str, Any]:
    """A damaged file that was put together anew may lack entries: what was asked for has some of them once more."""
    asked = meta["request"]
    for key in ("launcher", "policy", "objective"):
        meta.setdefault(key, asked.get(key, "unknown"))
    for key, value in (("run_id", ""), ("state", "unknown"), ("ended", None)):
        meta.setdefault(key, value)
    return meta


def read_run(folder: Path) -> RunData:
    """The run in a folder; a folder without one is the user's mistake."""
    return run_of(folder, *read_tables(folder))


def _plain(value: object) -> object:
    if isinstance(value, str):
        return unicode_text(value)  # SQLite takes nothing else, and no row is worth a run
    return value if value is None or isinstance(value, int | float) else json.dumps(value, default=_number)


def _number(value: Any) -> object:
    # NumPy's numbers, which policies put into their settings.
    return value.item()
