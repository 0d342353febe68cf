"""The ESA paper's claim as an experiment: preemptive, priority-driven switch memory against what people know.

The paper's abstract gives the claim (average JCT up to 1.35 times better than ATP and SwitchML) and the two
ideas; the mechanism that runs here is our reconstruction (`core/switch/memory.py`, `core/switch/program.py`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.experiments.esa.page import write_page
from paceline.experiments.esa.points import Point, all_points, run_point
from paceline.experiments.sweep.harness import HERE, Sweep, run_points, write_csv, write_summary
from paceline.sim.run import warm_up

PAPER_SPEEDUP = 1.35

Row = dict[str, Any]


def reproduce(out: Path, quick: bool, sweep: Sweep = HERE) -> dict[str, Row]:
    """Run all points, write rows.csv, summary.json and index.html into `out`; gives the summary."""
    # The heaviest first: no process is left alone with a long point at the end.
    points = sorted(all_points(quick), key=_weight, reverse=True)
    rows = run_points(run_point, points, "points", sweep, prepare=warm_up)
    order = {point: number for number, point in enumerate(all_points(quick))}
    rows = [row for _, row in sorted(zip(points, rows, strict=True), key=lambda pair: order[pair[0]])]
    write_csv(out / "rows.csv", rows)
    pairs = compare(rows)
    write_csv(out / "speedups.csv", pairs)
    summary = summarise(pairs)
    write_summary(out, summary)
    write_page(out / "index.html", rows, pairs, summary, quick)
    return summary


def _weight(point: Point) -> float:
    return (
        point.jobs
        * point.workers
        * (4.0 if point.loss else 1.0)
        * (0.2 if point.policy == "switchml" else 1.0)
    )


def compare(rows: Sequence[Row]) -> list[Row]:
    """For each workload, every policy's average JCT over ESA's: above 1, ESA is better."""
    by_workload: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        key = (row["sweep"], row["mix"], row["jobs"], row["slots"], row["workers"], row["loss"])
        by_workload.setdefault(key, {})[row["policy"]] = row
    pairs = []
    for policies in by_workload.values():
        esa = policies["esa"]
        pair: Row = {key: esa[key] for key in ("sweep", "x", "mix", "setting")}
        for name, row in policies.items():
            if name != "esa":
                whole = row["avg_jct_ms"] is not None and esa["avg_jct_ms"] is not None
                pair[name] = row["avg_jct_ms"] / esa["avg_jct_ms"] if whole else None
        pairs.append(pair)
    return pairs


def summarise(pairs: Sequence[Row]) -> dict[str, Row]:
    """The figures that scripts read, each with the setting it was seen at."""

    def extreme(policy: str, best: bool) -> Row:
        known = [pair for pair in pairs if pair[policy] is not None]
        pair = (max if best else min)(known, key=lambda pair: pair[policy])
        return {
            "paper": PAPER_SPEEDUP if best else None,
            "ours": round(pair[policy], 3),
            "setting": f"{pair['sweep']} sweep: {pair['setting']}",
        }

    summary = {"esa_over_atp_best": extreme("atp", True), "esa_over_atp_worst": extreme("atp", False)}
    summary["esa_over_switchml_best"] = extreme("switchml", True)
    summary["esa_over_switchml_worst"] = extreme("switchml", False)
    for strawman in ("always-preempt", "coin-flip"):
        key = strawman.replace("-", "_")
        summary[f"esa_over_{key}_best"] = {**extreme(strawman, True), "paper": None}
        summary[f"esa_over_{key}_worst"] = extreme(strawman, False)
    for host in ("ring", "ps"):
        summary[f"esa_over_{host}_best"] = {**extreme(host, True), "paper": None}
    return summary
