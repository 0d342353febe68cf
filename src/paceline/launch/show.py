"""What a user sees of a run: a live table on a terminal, one line an event elsewhere, a summary at the end."""

import sys
import time
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from paceline.launch.store import Row, Store
from paceline.units import format_seconds

COLUMNS = ("job", "state", "servers", "iteration", "rate", "path", "expected end")
_STYLES = {"done": "green", "failed": "bold red", "running": "cyan", "stopped": "yellow", "starting": "cyan"}


class Lines:
    """One line an event, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr

    def event(self, row: Row) -> None:
        reason = f" ({row['reason']})" if row["reason"] else ""
        clock = time.strftime("%H:%M:%S", time.localtime(row["time"]))
        print(
            f"{clock} {row['kind']}: {row['text']}{reason}".replace("\n", " "), file=self.stream, flush=True
        )

    def tick(self, store: Store, now: float) -> None:
        """Nothing between events."""

    def close(self) -> None:
        """Nothing is held."""


class LiveTable:
    """A table that is drawn anew, with the last events below it."""

    def __init__(self, console: Console, events: int = 6, redraw_s: float = 0.25) -> None:
        self._last: list[Row] = []
        self._events, self._redraw_s, self._drawn = events, redraw_s, 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def event(self, row: Row) -> None:
        self._last = [*self._last, row][-self._events :]

    def tick(self, store: Store, now: float) -> None:
        if now - self._drawn < self._redraw_s:
            return
        self._drawn = now
        rows = _in_view(store.jobs(), max(5, self._live.console.height - self._events - 4))
        below = [Text(f"{row['text']}  {row['reason']}", style="dim", no_wrap=True) for row in self._last]
        self._live.update(Group(table(store, rows, now), *below), refresh=True)

    def close(self) -> None:
        self._live.stop()


def _in_view(rows: list[Row], most: int) -> list[Row]:
    """The rows that fit the screen: what runs comes before what waits, and that before what has ended."""
    order = {"running": 0, "starting": 0, "failed": 1, "waiting": 2, "pending": 3, "stopped": 4, "done": 5}
    kept = sorted(rows, key=lambda row: (order[row["state"]], row["position"]))[:most]
    return sorted(kept, key=lambda row: row["position"])


def table(store: Store, rows: list[Row], now: float) -> Table:
    """The jobs as they are now."""
    where: dict[str, str] = {}
    for place in store.placements():
        name = f"{place['server']}:{place['slots']}"
        key = f"{place['job']}.{place['attempt']}"
        where[key] = f"{where[key]} {name}" if key in where else name
    made = Table(box=None, pad_edge=False)
    for i, column in enumerate(COLUMNS):
        made.add_column(column, justify="right" if i in (3, 4, 6) else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(escape(cell) for cell in _cells(row, where, now)), style=_STYLES.get(row["state"], ""))
    return made


def _cells(row: Row, where: dict[str, str], now: float) -> list[str]:
    iteration = "" if row["iteration"] is None else f"{row['iteration']:.0f}/{row['iterations']:.0f}"
    rate = "" if row["rate"] is None else f"{row['rate']:.3g}/s"
    left = ""
    if row["state"] == "running" and row["expected_end"] is not None:
        late = row["expected_end"] <= now
        left = "overdue" if late else f"in {format_seconds(round(row['expected_end'] - now, 1))}"
    servers = where.get(f"{row['name']}.{row['attempt']}", "")
    return [row["name"], row["state"], servers, iteration, rate, row["path"] or "", left]


def summary(store: Store) -> dict[str, Any]:
    """The run as plain data, for `--json`."""
    meta = store.meta()
    began = float(meta["began"])
    places: dict[str, list[Row]] = {}
    for place in store.placements():
        places.setdefault(place["job"], []).append(place)
    jobs, completion, ends = [], [], []
    for row in store.jobs():
        last = [place for place in places.get(row["name"], []) if place["attempt"] == row["attempt"]]
        folder = store.folder / "attempts" / f"{row['name']}.{row['attempt']}"
        jct = None if row["ended"] is None else row["ended"] - began - row["arrival_s"]
        if row["state"] == "done" and jct is not None:
            completion.append(jct)
        if row["ended"] is not None:
            ends.append(row["ended"] - began)
        jobs.append(
            {
                "name": row["name"],
                "state": row["state"],
                "exit_code": row["exit_code"],
                "attempts": row["attempt"],
                "servers": {place["server"]: place["slots"] for place in last},
                "arrival_s": row["arrival_s"],
                "start_s": None if row["started"] is None else row["started"] - began,
                "end_s": None if row["ended"] is None else row["ended"] - began,
                "jct_s": jct,
                "progress": row["progress"],
                "reason": row["reason"],
                "logs": sorted(str(path) for path in folder.glob("rank-*.log")),
            }
        )
    return {
        "run_dir": str(store.folder),
        "run_id": meta["run_id"],
        "state": meta["state"],
        "launcher": meta["launcher"],
        "policy": meta["policy"],
        "makespan_s": max(ends, default=None),
        "avg_jct_s": sum(completion) / len(completion) if completion else None,
        "plans": len(store.plans()),
        "jobs": jobs,
    }
