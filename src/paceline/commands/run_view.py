"""A run as commands show it: a table of its jobs, why those that failed did, and the whole as plain data."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from paceline.launch.store import Row, Store

COLUMNS = (
    "job", "state", "servers", "iteration", "rate", "predicted", "measured", "error", "path", "expected end",
)  # fmt: skip
"""`predicted` and `measured` are times of an iteration."""
SCREEN_COLUMNS = (*COLUMNS, "priority")
"""Of `paceline top`."""
_SPARED = ("error", "predicted", "measured", "expected end", "rate", "path")
"""What a narrow terminal is not shown, in this order; first of all what is empty."""
_GAP = 2
"""Between two columns."""
_LEFT = ("job", "state", "servers", "path")
STYLES = {
    "done": "green", "failed": "bold red", "running": "cyan", "stopped": "yellow", "cancelled": "yellow",
    "starting": "cyan",
}  # fmt: skip
OBJECTIVES = {"makespan": "the last end (makespan)", "jct": "the mean completion time (jct)"}


def ranked_by(store: "Store") -> str:
    """What the plans were made for, and how the run did by that and by the other."""
    from paceline.units import format_seconds

    objective, told = store.meta()["objective"], summary(store)
    known = {"makespan": told["makespan_s"], "jct": told["avg_jct_s"]}
    first, second = (objective, "jct" if objective == "makespan" else "makespan")
    figures = ", ".join(
        f"{OBJECTIVES[each]} {format_seconds(round(value, 1))}"
        for each in (first, second)
        if (value := known[each]) is not None
    )
    return f"planned for {OBJECTIVES[objective]}" + (f": {figures}" if figures else "")


def rows_in_view(rows: "list[Row]", most: int) -> "list[Row]":
    """The rows that fit the screen: what runs comes before what waits, and that before what has ended."""
    order = {"running": 0, "starting": 0, "failed": 1, "waiting": 2, "pending": 3, "stopped": 4, "cancelled": 4,
             "done": 5}  # fmt: skip
    kept = sorted(rows, key=lambda row: (order[row["state"]], row["position"]))[:most]
    return sorted(kept, key=lambda row: row["position"])


def job_table(store: "Store", rows: "list[Row]", now: float, width: int) -> "Table":
    """The jobs as they are now, in columns that fit the screen, and under them which servers are slow."""
    from rich.markup import escape
    from rich.table import Table

    servers, predictions = servers_of(store), store.last_predictions()
    cells = [
        cells_of(row, servers.get((row["name"], row["attempt"]), ""), predictions.get(row["name"]), now)
        for row in rows
    ]
    shown = columns_in_view(cells, width)
    left_out = [column for i, column in enumerate(COLUMNS) if i not in shown and any(own[i] for own in cells)]
    below = [f"no room for: {', '.join(left_out)}"] if left_out else []
    slow = [f"{row['server']} ({row['factor']:.3g} times as long)" for row in store.slow_servers()]
    if slow:
        below.append(f"slow servers, as learned: {escape(', '.join(slow))}")
    table = Table(box=None, pad_edge=False, caption="\n".join(below) or None, caption_justify="left")
    for i in shown:
        folds = COLUMNS[i] == "servers"
        table.add_column(
            COLUMNS[i], justify="left" if COLUMNS[i] in _LEFT else "right", no_wrap=not folds, overflow="fold"
        )
    for row, own in zip(rows, cells, strict=True):
        table.add_row(*(escape(own[i]) for i in shown), style=STYLES.get(row["state"], ""))
    return table


def columns_in_view(
    cells: "Sequence[Sequence[str]]", width: int, columns: "Sequence[str]" = COLUMNS
) -> list[int]:
    """Which columns a table of this width has: what is left out is left out whole, and nothing is cut off."""
    need = [max([len(column), *(len(row[i]) for row in cells)]) for i, column in enumerate(columns)]
    empty = [column for column in _SPARED if not any(row[columns.index(column)] for row in cells)]
    shown = list(range(len(columns)))
    for column in [*empty, *(each for each in _SPARED if each not in empty)]:
        if sum(need[i] for i in shown) + _GAP * (len(shown) - 1) <= width:
            break
        shown.remove(columns.index(column))
    return shown


def servers_of(store: "Store") -> dict[tuple[str, int], str]:
    """The servers of each attempt, by job and number."""
    found: dict[tuple[str, int], list[str]] = {}
    for row in store.placements():
        found.setdefault((row["job"], row["attempt"]), []).append(f"{row['server']}:{row['slots']}")
    return {key: " ".join(servers) for key, servers in found.items()}


def _prediction(row: "Row | None") -> list[str]:
    """What an iteration was expected to take, what it took, and how far off that is."""
    from paceline.report.run.read import prediction_error
    from paceline.units import format_seconds

    if row is None:
        return ["", "", ""]
    error = prediction_error(row)
    measured = "" if error is None else format_seconds(row["measured_s"])
    return [
        format_seconds(row["predicted_s"]),
        measured,
        "" if error is None else f"{round(error, 2) + 0.0:+.0%}",
    ]


def cells_of(row: "Row", servers: str, prediction: "Row | None", now: float) -> list[str]:
    """A job's row under `COLUMNS`."""
    from paceline.units import format_seconds

    iteration = "" if row["iteration"] is None else f"{row['iteration']:.0f}/{row['iterations']:.0f}"
    rate = "" if row["rate"] is None else f"{row['rate']:.3g}/s"
    left = ""
    if row["state"] == "running" and row["expected_end"] is not None:
        late = row["expected_end"] <= now
        left = "overdue" if late else f"in {format_seconds(round(row['expected_end'] - now, 1))}"
    waits = row["state"] in ("waiting", "pending")
    return [
        row["name"],
        row["state"],
        f"asks for {row['gpus']}" if waits else servers,
        iteration,
        rate,
        *_prediction(prediction),
        row["path"] or "",
        left,
    ]


def summary(store: "Store") -> dict[str, Any]:
    """The run as plain data, for `--json`."""
    from paceline.report.run.logs import why_it_failed

    meta = store.meta()
    slots: dict[tuple[str, int], dict[str, int]] = {}
    for row in store.placements():
        slots.setdefault((row["job"], row["attempt"]), {})[row["server"]] = row["slots"]
    predictions = store.last_predictions()
    jobs = []
    for row in store.jobs():
        folder = store.folder / "attempts" / f"{row['name']}.{row['attempt']}"
        start_s, end_s = (_since(meta["began"], row[key]) for key in ("started", "ended"))
        jobs.append(
            {
                "name": row["name"],
                "state": row["state"],
                "exit_code": row["exit_code"],
                "attempts": row["attempt"],
                "servers": slots.get((row["name"], row["attempt"]), {}),
                "arrival_s": row["arrival_s"],
                "start_s": start_s,
                "end_s": end_s,
                "jct_s": None if end_s is None else end_s - row["arrival_s"],
                "progress": row["progress"],
                "prediction": _prediction_json(predictions.get(row["name"])),
                "reason": row["reason"],
                "last_line": None if (line := why_it_failed(store.folder, row)) is None else line.text,
                "logs": sorted(str(path) for path in folder.glob("rank-*.log")),
            }
        )
    completion_s = [job["jct_s"] for job in jobs if job["state"] == "done" and job["jct_s"] is not None]
    return {
        "run_dir": str(store.folder),
        "run_id": meta["run_id"],
        "state": meta["state"],
        "launcher": meta["launcher"],
        "policy": meta["policy"],
        "makespan_s": max((job["end_s"] for job in jobs if job["end_s"] is not None), default=None),
        "avg_jct_s": sum(completion_s) / len(completion_s) if completion_s else None,
        "slow_servers": [
            {key: row[key] for key in ("server", "factor", "reason")} for row in store.slow_servers()
        ],
        "plans": len(store.plans()),
        "jobs": jobs,
    }


def _prediction_json(row: "Row | None") -> dict[str, Any] | None:
    """The last prediction of a job's iteration, with what was measured (null: too short to tell)."""
    from paceline.report.run.read import prediction_error

    if row is None:
        return None
    kept = {key: row[key] for key in ("predicted_s", "measured_s", "iterations", "factor", "learned")}
    return {**kept, "error": prediction_error(row)}


def _since(began: float, when: float | None) -> float | None:
    return None if when is None else when - began


def failures(store: "Store") -> list[str]:
    """A line for each job that failed: why, the last line of its log, and where that is."""
    from paceline.report.run.logs import why_it_failed

    found = []
    for row in store.jobs():
        if row["state"] == "failed":
            line = why_it_failed(store.folder, row)
            found.append(f"{row['name']} failed: {row['reason']}" + (f"; {line}" if line else ""))
    return found


def headline(store: "Store", now: float) -> list[str]:
    """The run in a few lines: its state, who plans it, what its queue does."""
    from paceline.launch.control import planner_alive
    from paceline.units import format_seconds

    meta = store.meta()
    counts: dict[str, int] = {}
    for row in store.jobs():
        counts[row["state"]] = counts.get(row["state"], 0) + 1
    told = ", ".join(f"{count} {state}" for state, count in counts.items())
    alive = planner_alive(store.folder)
    state = meta["state"] if alive or meta["state"] != "running" else "left by its planner"
    if state == "new":
        state = "getting ready (its switch starts, code is compiled)" if alive else "not begun"
    end = meta["ended"] if meta["ended"] and not alive else now
    aim = OBJECTIVES.get(meta["objective"], "nothing known")
    lines = [
        f"run {store.folder}: {state} after {format_seconds(round(end - meta['began'], 1))}, {told}",
        f"launcher {meta['launcher']}, policy {meta['policy']}, plans for {aim}",
    ]
    if not alive and meta["state"] in ("new", "running", "stopped"):
        lines.append(f"no planner is alive; go on with it: paceline run --resume {store.folder}")
    if meta.get("paused"):
        lines.append(f"the queue is paused{by(meta['paused'].get('by', ''))}; let it go on: paceline unpause")
    lines += [
        f"server {row['name']} is down: {row['reason']}" for row in store.servers() if row["state"] == "down"
    ]
    return lines


def by(who: str) -> str:
    """` by NAME`, or nothing."""
    return f" by {who}" if who else ""
