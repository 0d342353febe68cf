"""The three ideas alone and together: placement, switch memory, stragglers, on one workload.

{first-fit, SJF-BCO, bco-plus} x {ring, ATP, ESA} x {stragglers left alone, helped}: average completion time and
makespan of every combination, what each idea gives by itself and on top of the others, and how far the
scheduler's model is from the packets. No paper has this experiment: all of it is ours.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from paceline.experiments.joint.page import write_page
from paceline.experiments.joint.points import all_points, run_point
from paceline.experiments.sweep.harness import HERE, Sweep, run_points, write_csv, write_summary
from paceline.schedule import planning
from paceline.sim.run import warm_up

Row = dict[str, Any]
Key = tuple[str, str, str, str]

BASELINE: Key = ("leaf-spine", "ff", "atp", "off")
TOGETHER: Key = ("leaf-spine", "bco-plus", "esa", "both")


def reproduce(out: Path, quick: bool, sweep: Sweep = HERE) -> dict[str, Row]:
    """Run all points, write rows.csv, combinations.csv, summary.json and index.html; gives the summary."""
    results = run_points(run_point, all_points(quick), "points", sweep, prepare=_prepare)
    rows = [row for rows in results for row in rows]
    write_csv(out / "rows.csv", rows)
    table = combine(rows)
    write_csv(out / "combinations.csv", table)
    steps = ablation(table)
    write_csv(out / "ideas.csv", steps)
    summary = summarise(rows, table)
    write_summary(out, summary)
    write_page(out / "index.html", rows, table, steps, summary, quick)
    return summary


def _prepare() -> None:
    """Compile once, before processes start."""
    warm_up()
    planning.warm_up()


def combine(rows: Sequence[Row]) -> list[Row]:
    """Each combination over all seeds, and how many times better than the baseline it is."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        if row["slow_server"]:
            groups.setdefault(_key(row), []).append(row)
    base = {
        (topology, row["seed"]): row
        for topology in dict.fromkeys(key[0] for key in groups)
        for row in groups[(topology, *BASELINE[1:])]
    }
    return [_combined(key, group, base) for key, group in groups.items()]


def _key(row: Row) -> Key:
    return row["topology"], row["planner"], row["exchange"], row["straggler"]


def _combined(key: Key, group: Sequence[Row], base: dict[tuple[str, int], Row]) -> Row:
    whole = all(row["failed"] is None for row in group)
    row: Row = dict(zip(("topology", "planner", "exchange", "straggler"), key, strict=True))
    row["seeds"] = len(group)
    for figure in ("avg_jct_ms", "makespan_ms"):
        row[figure] = mean(r[figure] for r in group) if whole else None
        gains = [base[key[0], r["seed"]][figure] / r[figure] for r in group] if whole else []
        row[f"{figure.removesuffix('_ms')}_gain"] = mean(gains) if gains else None
        row[f"{figure.removesuffix('_ms')}_gain_min"] = min(gains) if gains else None
    return row


def ablation(table: Sequence[Row]) -> list[Row]:
    """What one idea gives: on top of the baseline, and on top of the other two; does it add up?"""
    by_key = {_key(row): row for row in table}
    steps = []
    for name, place, new in (
        ("placement: bco-plus instead of first-fit", 1, "bco-plus"),
        ("switch memory: ESA instead of ATP", 2, "esa"),
        ("stragglers: both instead of off", 3, "both"),
    ):
        alone, without = list(BASELINE), list(TOGETHER)
        alone[place], without[place] = new, BASELINE[place]
        step: Row = {"idea": name}
        for figure in ("avg_jct", "makespan"):
            together = by_key[TOGETHER][f"{figure}_ms"]
            first, rest = by_key[tuple(alone)], by_key[tuple(without)]  # type: ignore[index]
            step[f"{figure}_alone"] = _ratio(by_key[BASELINE][f"{figure}_ms"], first[f"{figure}_ms"])
            step[f"{figure}_last"] = _ratio(rest[f"{figure}_ms"], together)
        steps.append(step)
    return steps


def _ratio(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else before / after


def summarise(rows: Sequence[Row], table: Sequence[Row]) -> dict[str, Row]:
    """The figures that scripts read."""
    best = next(row for row in table if _key(row) == TOGETHER)
    setting = (
        f"bco-plus + ESA + straggler help over first-fit + ATP, {best['seeds']} workloads of {rows[0]['jobs']} jobs "
        "on 16 servers in 4 racks of a leaf-spine, one of them 2.5 times as slow"
    )
    judged = [
        row
        for row in rows
        if not row["slow_server"] and row["planner"] == "bco-plus" and row["exchange"] == "esa"
    ]
    error = mean(row["model_error"] for row in judged)
    return {
        "joint_avg_jct_over_ff_atp": _entry(best["avg_jct_gain"], setting),
        "joint_makespan_over_ff_atp": _entry(best["makespan_gain"], setting),
        "model_error_mean": _entry(
            error,
            "run time of spread jobs, scheduler's in-network model against packets (bco-plus, ESA, no slow server)",
        ),
    }


def _entry(ours: float | None, setting: str) -> Row:
    return {"paper": None, "ours": None if ours is None else round(ours, 3), "setting": setting}
