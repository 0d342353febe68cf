"""The three ideas alone and together: placement, switch memory, stragglers, on one workload.

{first-fit, SJF-BCO, bco-plus} x {ring, ATP, ESA} x {stragglers left alone, helped}: average completion time and
makespan of every combination, what each idea gives by itself and on top of the others, and how far the
scheduler's model is from the packets. No paper has this experiment: all of it is ours.

    python -m paceline.experiments.joint.experiment out/joint docs/joint.md

renews the tables of docs/joint.md from a finished run.
"""

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from paceline.experiments.joint.points import (
    BY_MODEL,
    EXCHANGES,
    GPUS_PER_SERVER,
    PLANNERS,
    RACKS,
    RATE_BPS,
    RATIOS,
    SERVERS_PER_RACK,
    SLOTS,
    SLOW_SERVER,
    SLOWDOWN,
    UPPER_RATE_BPS,
    all_points,
    run_point,
)
from paceline.experiments.sweep import HERE, Sweep, run_points, write_csv, write_summary
from paceline.generated import renew, table
from paceline.report.chart import Chart
from paceline.report.page import Page
from paceline.schedule import planning
from paceline.sim.run import warm_up

Row = dict[str, Any]
Key = tuple[str, str, str, str]

_LABELS = {
    "ff": "first-fit",
    "sjf-bco": "SJF-BCO",
    "bco-plus": "bco-plus",
    "ring": "ring",
    "atp": "ATP",
    "esa": "ESA",
}

_WORTH = ("planner", "exchange", "avg JCT, ms: by the paper's model", "by ours", "times",
          "makespan, ms: by the paper's model", "by ours", "times", "error: the paper's", "ours")  # fmt: skip

BASELINE: Key = ("leaf-spine", "ff", "atp", "off")
TOGETHER: Key = ("leaf-spine", "bco-plus", "esa", "both")


def reproduce(out: Path, quick: bool, sweep: Sweep = HERE) -> dict[str, Row]:
    """Run all points, write rows.csv, combinations.csv, summary.json and index.html; gives the summary."""
    results = run_points(run_point, all_points(quick), "points", sweep, prepare=_prepare)
    rows = [row for rows in results for row in rows]
    write_csv(out / "rows.csv", rows)
    combined = combine(rows)
    write_csv(out / "combinations.csv", combined)
    steps = ablation(combined)
    write_csv(out / "ideas.csv", steps)
    write_csv(out / "models.csv", worth(rows))
    summary = summarise(rows, combined)
    write_summary(out, summary)
    write_page(out / "index.html", rows, combined, steps, summary, quick)
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


def ablation(combined: Sequence[Row]) -> list[Row]:
    """What one idea gives: on top of the baseline, and on top of the other two; does it add up?"""
    by_key = {_key(row): row for row in combined}
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


def worth(rows: Sequence[Row]) -> list[Row]:
    """What better predictions are worth: plans by the paper's model against plans by ours, both judged by packets."""
    found = []
    for planner in BY_MODEL:
        for exchange in EXCHANGES:
            part = [
                row
                for row in rows
                if not row["slow_server"] and (row["planner"], row["exchange"]) == (planner, exchange)
            ]
            paper, links = ([row for row in part if row["model"] == model] for model in ("paper", "links"))
            if not paper or any(row["failed"] is not None for row in part):
                continue
            row = {"planner": planner, "exchange": exchange}
            for figure in ("avg_jct", "makespan"):
                before, after = (
                    {each["seed"]: each[f"{figure}_ms"] for each in rows} for rows in (paper, links)
                )
                row[f"{figure}_paper_ms"] = mean(before.values())
                row[f"{figure}_links_ms"] = mean(after.values())
                row[f"{figure}_gain"] = mean(before[seed] / after[seed] for seed in after)
            row["error_paper"] = mean(each["model_error"] for each in paper)
            row["error_links"] = mean(each["model_error"] for each in links)
            found.append(row)
    return found


def _ratio(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else before / after


def summarise(rows: Sequence[Row], combined: Sequence[Row]) -> dict[str, Row]:
    """The figures that scripts read."""
    best = next(row for row in combined if _key(row) == TOGETHER)
    setting = (
        f"bco-plus + ESA + straggler help over first-fit + ATP, {best['seeds']} workloads of {rows[0]['jobs']} jobs "
        "on 16 servers in 4 racks of a leaf-spine, one of them 2.5 times as slow"
    )
    judged = [
        row
        for row in rows
        if not row["slow_server"]
        and (row["planner"], row["exchange"], row["model"]) == ("bco-plus", "esa", "links")
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


def write_page(
    path: Path,
    rows: Sequence[Row],
    combined: Sequence[Row],
    steps: Sequence[Row],
    summary: dict[str, Row],
    quick: bool,
) -> None:
    """One self-contained file."""
    mode = "quick: small jobs, two workloads" if quick else f"{combined[0]['seeds']} workloads"
    page = Page(
        "Placement, switch memory and stragglers: alone and together",
        f"Average completion time and makespan of {rows[0]['jobs']} jobs that share a cluster ({mode}).",
    )
    page.heading("The three together")
    page.table(
        ["figure", "ours", "setting"],
        [[key, entry["ours"], entry["setting"]] for key, entry in summary.items()],
    )
    page.heading("Every combination")
    for topology in dict.fromkeys(row["topology"] for row in combined):
        part = [row for row in combined if row["topology"] == topology]
        for figure, title in (("avg_jct", "average completion time"), ("makespan", "makespan")):
            page.figure(
                _bars(part, figure, f"{topology}: {title}"), "Mean over the workloads; shorter is better."
            )
    page.table(
        [
            "topology",
            "planner",
            "exchange",
            "stragglers",
            "avg JCT ms",
            "x ff+atp",
            "worst seed",
            "makespan ms",
            "x ff+atp",
        ],
        [
            [
                row["topology"],
                _LABELS[row["planner"]],
                row["exchange"],
                row["straggler"],
                row["avg_jct_ms"],
                row["avg_jct_gain"],
                row["avg_jct_gain_min"],
                row["makespan_ms"],
                row["makespan_gain"],
            ]
            for row in combined
        ],
    )
    page.heading("What each idea gives")
    page.text(
        "Alone: added to first-fit + ATP with stragglers left alone. Last: added when the other two are there. "
        "Where the second figure is the smaller one, the ideas overlap."
    )
    page.table(
        ["idea", "avg JCT, alone", "avg JCT, last", "makespan, alone", "makespan, last"],
        [list(step.values()) for step in steps],
    )
    page.heading("The scheduler's model against packets")
    page.table(*_errors(rows))
    page.heading("What better predictions are worth")
    page.text(
        "No slow server; the same workload planned by the paper's model and by ours, both run packet by packet."
    )
    page.table(_WORTH, [list(row.values()) for row in worth(rows)])
    page.heading("Setting")
    page.items(_setting())
    page.heading("All rows")
    page.table(list(rows[0]), [list(row.values()) for row in rows])
    page.write(path)


def _bars(combined: Sequence[Row], figure: str, title: str) -> Chart:
    chart = Chart(title, "planner", "ms")
    ways = list(dict.fromkeys((row["exchange"], row["straggler"]) for row in combined))
    for exchange, straggler in ways:
        part = [row for row in combined if (row["exchange"], row["straggler"]) == (exchange, straggler)]
        chart.bars(
            exchange if straggler == "off" else f"{exchange} + {straggler}",
            [_LABELS[row["planner"]] for row in part],
            [row[f"{figure}_ms"] for row in part],
        )
    return chart


def _errors(rows: Sequence[Row]) -> tuple[list[str], list[list[object]]]:
    lines: list[list[object]] = []
    for planner in PLANNERS:
        for exchange in EXCHANGES:
            part = [
                row
                for row in rows
                if not row["slow_server"]
                and (row["planner"], row["exchange"], row["model"]) == (planner, exchange, "links")
            ]
            if part:
                expected = mean(row["expected_avg_jct_ms"] / row["avg_jct_ms"] for row in part)
                lines.append([_LABELS[planner], exchange, mean(row["model_error"] for row in part), expected])
    return [
        "planner (no slow server)",
        "exchange",
        "mean error of a spread job's run time",
        "expected / simulated avg JCT",
    ], lines


def _setting() -> list[str]:
    gpus = GPUS_PER_SERVER
    return [
        f"{RACKS * SERVERS_PER_RACK} servers with {gpus} GPUs, links of {RATE_BPS / 1e9:g} "
        f"Gb/s; {RACKS} racks with uplinks of {UPPER_RATE_BPS / 1e9:g} Gb/s, or, for comparison, all "
        f"under one switch; {SLOTS} aggregators a switch. A ring cannot be helped: its cells with help "
        "are those without.",
        f"Server {SLOW_SERVER} computes {SLOWDOWN:g} times as slow; the scheduler does not know it.",
        "The scheduler plans by its model, anew at every arrival and end; its decision then runs packet by packet: a "
        "job starts when the jobs before it on its GPUs have ended.",
        "The ranks of a server sum among themselves; a job on k servers has k flows. A job on one server uses no "
        "network, and nobody can help it.",
        "Every combination runs at the best of three windows, found on another workload than those measured.",
        "Jobs are small and short so that a run takes seconds; sending takes "
        f"{min(RATIOS):g} to {max(RATIOS):g} of the time of computing.",
    ]


def docs_tables(folder: Path) -> str:
    """The tables of docs/joint.md, from a finished run."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = _read(folder / "combinations.csv")
    topologies = dict.fromkeys(row["topology"] for row in rows)
    return "\n\n".join(
        [
            table(
                ("figure", "ours", "where"),
                [(f"`{key}`", entry["ours"], entry["setting"]) for key, entry in summary.items()],
            ),
            *(_combinations(name, [row for row in rows if row["topology"] == name]) for name in topologies),
            table(
                ("what one idea gives", "avg JCT, alone", "last", "makespan, alone", "last"),
                [
                    (idea, *(_number(figure, 2) for figure in figures))
                    for idea, *figures in (row.values() for row in _read(folder / "ideas.csv"))
                ],
            ),
            table(
                _WORTH,
                [
                    (
                        _LABELS[planner],
                        _LABELS[exchange],
                        *(_number(f, d) for f, d in zip(figures, _DIGITS, strict=True)),
                    )
                    for planner, exchange, *figures in (row.values() for row in _read(folder / "models.csv"))
                ],
            ),
        ]
    )


_DIGITS = (2, 2, 3, 1, 1, 3, 2, 2)


def _combinations(topology: str, rows: Sequence[dict[str, str]]) -> str:
    """Every combination on one topology; "times" are against first-fit with ATP."""
    return table(
        (topology, "avg JCT, ms", "times", "worst workload", "makespan, ms", "times"),
        [
            (
                ", ".join(
                    [_LABELS[row["planner"]], _LABELS[row["exchange"]]]
                    + ([] if row["straggler"] == "off" else [row["straggler"]])
                ),
                _number(row["avg_jct_ms"], 1),
                _number(row["avg_jct_gain"], 2),
                _number(row["avg_jct_gain_min"], 2),
                _number(row["makespan_ms"], 1),
                _number(row["makespan_gain"], 2),
            )
            for row in rows
        ],
    )


def _read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def _number(text: str, digits: int) -> str:
    return f"{float(text):.{digits}f}" if text else "-"


if __name__ == "__main__":
    renew(sys.argv[2:], {"figures": docs_tables(Path(sys.argv[1]))})
