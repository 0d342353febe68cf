"""SA-ATP's claim as an experiment: leading workers lend storage and compute to a straggling one.

The paper gives the claim (iteration time down by 57 %, training 1.8 times as fast) and the idea; the mechanism that
runs here, custody and takeover, is ours (`core/sender/roles.py`, `core/help`, `sim/help`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.experiments.sa_atp.page import write_page
from paceline.experiments.sa_atp.points import Point, all_points, run_point
from paceline.experiments.sweep.harness import HERE, Sweep, run_points, write_csv, write_summary
from paceline.sim.models import profile
from paceline.sim.run import warm_up

PAPER_CUT = 0.57
PAPER_SPEEDUP = 1.8

Row = dict[str, Any]


def reproduce(out: Path, quick: bool, sweep: Sweep = HERE) -> tuple[list[Row], dict[str, Row]]:
    """Run all points, write rows.csv, summary.json and index.html into `out`; gives the rows and the summary."""
    wanted = all_points(quick)
    # The heaviest first: no process is left alone with a long point at the end.
    points = sorted(wanted, key=_weight, reverse=True)
    rows = run_points(run_point, points, "points", sweep, prepare=warm_up)
    order = {point: number for number, point in enumerate(wanted)}
    rows = [row for _, row in sorted(zip(points, rows, strict=True), key=lambda pair: order[pair[0]])]
    compare(rows)
    write_csv(out / "rows.csv", rows)
    summary = summarise(rows)
    write_summary(out, summary)
    write_page(out / "index.html", rows, summary, quick)
    return rows, summary


def _weight(point: Point) -> float:
    size = profile(point.model).gradient_bytes / 1e8 if point.pattern != "four jobs" else 1.0
    return size * point.workers * point.iterations


def compare(rows: Sequence[Row]) -> None:
    """Add to each row how it stands to plain ATP on the same workload."""
    plain = {workload(row): row["iteration_ms"] for row in rows if _is(row, "atp", "off")}
    for row in rows:
        base, ours = plain.get(workload(row)), row["iteration_ms"]
        known = base is not None and ours is not None
        row["speedup_over_atp"] = base / ours if known else None
        row["iteration_cut"] = 1 - ours / base if known else None


def workload(row: Row) -> tuple[Any, ...]:
    """What rows that can be compared have in common."""
    return tuple(row[key] for key in ("pattern", "model", "workers", "factor", "chance"))


def _is(row: Row, policy: str, mode: str) -> bool:
    return bool(row["policy"] == policy and row["straggler"] == mode)


def summarise(rows: Sequence[Row]) -> dict[str, Row]:
    """The figures that scripts read, each with the setting it was seen at."""
    slow = [row for row in rows if row["pattern"] == "one slow"]
    both = [row for row in slow if _is(row, "atp", "both") and row["iteration_cut"] is not None]
    summary = {}
    for factor in (2.5, 4.0):
        part = [row for row in both if row["workers"] == 8 and row["factor"] == factor]
        least = min(part, key=lambda row: row["iteration_cut"])
        summary[f"iteration_cut_n8_f{factor:g}"] = {
            "paper": PAPER_CUT,
            "ours": round(least["iteration_cut"], 3),
            "setting": f"both against atp, the least of {len(part)} models: {least['setting']}",
        }
    best = max(both, key=lambda row: row["speedup_over_atp"])
    summary["training_speedup_best"] = {
        "paper": PAPER_SPEEDUP,
        "ours": round(best["speedup_over_atp"], 3),
        "setting": f"both against atp: {best['setting']}",
    }
    # Every way to be slow, each against its own bound.
    eight = [row for row in rows if row["workers"] == 8 and row["pattern"] != "nobody"]
    near = [
        row for row in eight if row["straggler"] in ("takeover", "both") and row["bound_ratio"] is not None
    ]
    worst = min(near, key=lambda row: row["bound_ratio"])
    summary["bound_ratio_n8_min"] = {
        "paper": None,
        "ours": round(worst["bound_ratio"], 3),
        "setting": f"{worst['policy']} with {worst['straggler']}: {worst['setting']}",
    }
    summary["other_jobs_jct_gain"] = _others(rows)
    summary["idle_cost"] = _idle(rows)
    return summary


def _others(rows: Sequence[Row]) -> Row:
    """ESA with custody in the straggling job alone, against ATP and ESA without: the other jobs' average JCT."""
    times: dict[tuple[str, str], float] = {}
    for policy, mode in (("atp", "off"), ("esa", "off"), ("atp", "custody"), ("esa", "custody")):
        part = [row for row in rows if row["pattern"] == "four jobs" and _is(row, policy, mode)]
        known = [row["others_jct_ms"] for row in part if row["others_jct_ms"] is not None]
        times[policy, mode] = sum(known) / len(known) if known and len(known) == len(part) else float("nan")
    ours = times["esa", "custody"]
    over = {policy: times[policy, "off"] / ours for policy in ("atp", "esa")}
    on_atp = times["atp", "off"] / times["atp", "custody"]
    return {
        "paper": None,
        "ours": round(min(over.values()), 3),
        "setting": (
            f"one of four jobs straggles (f = 4): esa with custody is {over['esa']:.3f} times better for the other "
            f"three than esa, {over['atp']:.3f} than atp; atp with custody {on_atp:.3f} than atp"
        ),
    }


def _idle(rows: Sequence[Row]) -> Row:
    """What help costs when nobody straggles: both against off."""
    idle = [row for row in rows if row["pattern"] == "nobody" and row["iteration_ms"] is not None]
    plain = {row["model"]: row["iteration_ms"] for row in idle if row["straggler"] == "off"}
    costs = {
        row["model"]: row["iteration_ms"] / plain[row["model"]] - 1
        for row in idle
        if row["straggler"] == "both"
    }
    worst = max(costs, key=lambda model: costs[model])
    return {
        "paper": None,
        "ours": round(costs[worst], 4),
        "setting": f"both against off; 8 equal workers; the most of {len(costs)} models: {worst}",
    }
