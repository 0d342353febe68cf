"""The run's state on disk: one SQLite file, written by the planner alone; `schema.py` says what is in it.

Every change is a transaction of its own, so that whoever comes after a planner that was killed finds the last
whole step. `Store.open_to_read` is for reports: it writes nothing of its own, and works while the run goes on.
"""

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.launch import schema
from paceline.report.run.read import RunData, run_of

FILE = "run.sqlite"
Row = dict[str, Any]


class Store:
    """The tables of one run. Rows come as dictionaries; columns that hold JSON are decoded."""

    _JSON = frozenset(
        ("spec", "progress", "task", "handle", "gpus_list", "running", "decisions", "settings", "figures")
    )

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder = folder
        self._db = connection
        self._db.row_factory = sqlite3.Row

    @classmethod
    def create(cls, folder: Path) -> "Store":
        """A new run in a folder that holds none yet."""
        if (folder / FILE).exists():
            raise UserError(
                f"holds a run already; go on with it: paceline run --resume {folder}", place=str(folder)
            )
        (folder / "attempts").mkdir(parents=True, exist_ok=True)
        (folder / "down").mkdir(exist_ok=True)
        store = cls(folder, sqlite3.connect(folder / FILE, timeout=30.0, isolation_level=None))
        with store.transaction():
            for statement in schema.TABLES.split(";\n"):
                store._db.execute(statement)
            store.set_meta(version=schema.VERSION)
        return store

    @classmethod
    def open(cls, folder: Path) -> "Store":
        """The run of a folder, to go on with."""
        return cls._opened(folder, read_only=False)

    @classmethod
    def open_to_read(cls, folder: Path) -> "Store":
        """The run of a folder, finished or not, to look at."""
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
                f"{path.resolve().as_uri()}?mode={mode}", 30.0, isolation_level=None, uri=True
            )
            store = cls(folder, db)
            version = store.meta().get("version")
        except (sqlite3.DatabaseError, ValueError) as error:
            raise UserError(f"{FILE} cannot be read: {error}", place=str(folder)) from None
        if version != schema.VERSION:
            raise UserError(f"{FILE} has version {version}, this is {schema.VERSION}", place=str(folder))
        return store

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes inside, or none. Inside another transaction it is part of that one."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # Reading ---------------------------------------------------------------------------------------------

    def meta(self) -> dict[str, Any]:
        return {row["key"]: json.loads(row["value"]) for row in self._db.execute("SELECT * FROM meta")}

    def jobs(self) -> list[Row]:
        return self._rows("SELECT * FROM jobs ORDER BY position")

    def job(self, name: str) -> Row:
        return self._rows("SELECT * FROM jobs WHERE name = ?", name)[0]

    def servers(self) -> list[Row]:
        return self._rows("SELECT * FROM servers ORDER BY position")

    def attempts(self, *, open_only: bool = False) -> list[Row]:
        """In the order in which they were intended."""
        where = "WHERE state != 'ended'" if open_only else ""
        return self._rows(f"SELECT * FROM attempts {where} ORDER BY intended, rowid")

    def placements(self) -> list[Row]:
        """One row for each server of each attempt; `gpus` is the list of the cluster's GPU numbers."""
        return self._rows("SELECT *, gpus AS gpus_list FROM placements ORDER BY start, rowid")

    def plans(self) -> list[Row]:
        return self._rows("SELECT * FROM plans ORDER BY id")

    def events(self, after: int = 0) -> list[Row]:
        return self._rows("SELECT * FROM events WHERE id > ? ORDER BY id", after)

    def samples(self, job: str | None = None) -> list[Row]:
        where = "WHERE job = ?" if job is not None else ""
        return self._rows(
            f"SELECT * FROM samples {where} ORDER BY time, rowid", *([job] if job is not None else [])
        )

    def switch_samples(self) -> list[Row]:
        return self._rows("SELECT * FROM switch_samples ORDER BY time, rowid")

    def tables(self) -> dict[str, list[Row]]:
        """Every table but `meta`, as one moment shows them."""
        self._db.execute("BEGIN")
        try:
            return {
                "servers": self.servers(), "jobs": self.jobs(), "attempts": self.attempts(),
                "placements": self.placements(), "plans": self.plans(), "events": self.events(),
                "samples": self.samples(), "switch_samples": self.switch_samples(),
            }  # fmt: skip
        finally:
            self._db.execute("ROLLBACK")

    def _rows(self, query: str, *values: object) -> list[Row]:
        found = []
        for raw in self._db.execute(query, values):
            row = {key: self._decoded(key, raw[key]) for key in raw.keys()}  # noqa: SIM118 (a Row is no dict)
            if "gpus_list" in row:
                row["gpus"] = row.pop("gpus_list")
            found.append(row)
        return found

    def _decoded(self, key: str, value: Any) -> Any:
        return json.loads(value) if key in self._JSON and value is not None else value

    # Writing ---------------------------------------------------------------------------------------------

    def set_meta(self, **values: object) -> None:
        with self.transaction():
            for key, value in values.items():
                self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))

    def insert(self, table: str, **values: object) -> int:
        """A new row; values that SQLite has no type for are written as JSON. Returns its number."""
        columns = ", ".join(f'"{key}"' for key in values)
        marks = ", ".join("?" for _ in values)
        done = self._db.execute(
            f"INSERT INTO {table} ({columns}) VALUES ({marks})", [_plain(value) for value in values.values()]
        )
        return int(done.lastrowid or 0)

    def update_job(self, name: str, **values: object) -> None:
        self._update("jobs", "name = ?", (name,), values)

    def update_attempt(self, job: str, attempt: int, **values: object) -> None:
        self._update("attempts", "job = ? AND attempt = ?", (job, attempt), values)

    def update_server(self, name: str, state: str, reason: str) -> None:
        self._update("servers", "name = ?", (name,), {"state": state, "reason": reason})

    def end_placements(self, job: str, attempt: int, when: float) -> None:
        self._update("placements", 'job = ? AND attempt = ? AND "end" IS NULL', (job, attempt), {"end": when})

    def _update(self, table: str, where: str, keys: Iterable[object], values: Mapping[str, object]) -> None:
        changes = ", ".join(f'"{key}" = ?' for key in values)
        self._db.execute(
            f"UPDATE {table} SET {changes} WHERE {where}", [*(_plain(v) for v in values.values()), *keys]
        )

    def event(self, when: float, kind: str, text: str, *, job: str | None = None, reason: str = "",
              figures: Mapping[str, object] | None = None) -> int:  # fmt: skip
        assert kind in schema.EVENT_KINDS, kind
        return self.insert(
            "events", time=when, kind=kind, job=job, text=text, reason=reason, figures=dict(figures or {})
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


def read_run(folder: Path) -> RunData:
    """The run in a folder; a folder without one is the user's mistake."""
    return run_of(folder, *read_tables(folder))


def _plain(value: object) -> object:
    return (
        value if value is None or isinstance(value, str | int | float) else json.dumps(value, default=_number)
    )


def _number(value: Any) -> object:
    # NumPy's numbers, which policies put into their settings.
    return value.item()
