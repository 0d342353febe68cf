"""SA-ATP's claim as an experiment: leading workers lend storage and compute to a straggling one.

The paper gives the claim (iteration time down by 57 %, training 1.8 times as fast) and the idea; the mechanism that
runs here, custody and takeover, is ours (`core/sender/roles.py`, `core/help`, `sim/help`).

    python -m paceline.experiments.sa_atp.experiment out/sa-atp docs/sa-atp.md

renews the tables of docs/sa-atp.md from a finished run.
"""

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.experiments.sa_atp.points import (
    CONTENTION,
    MICRO_BATCHES,
    MODELS,
    SAMPLES,
    SaAtpPoint,
    all_points,
    compute_s_of,
    run_point,
    send_s_of,
)
from paceline.experiments.sweep import HERE, Sweep, run_points, write_csv, write_summary
from paceline.generated import renew, table
from paceline.models.catalogue import profile
from paceline.report.chart import COLOURS, Chart
from paceline.report.page import Page
from paceline.sim.run import warm_up

PAPER_CUT = 0.57
PAPER_SPEEDUP = 1.8

Row = dict[str, Any]

_SHOWN = (
    ("atp", "off", "ATP"),
    ("esa", "off", "ESA"),
    ("ring", "off", "ring"),
    ("atp", "custody", "custody"),
    ("atp", "takeover", "takeover"),
    ("atp", "both", "both"),
    ("esa", "both", "both, on ESA"),
    ("atp", "backup", "backup workers (inexact)"),
    ("atp", "timeout", "timeout (inexact)"),
)
_NAME = {(policy, mode): name for policy, mode, name in _SHOWN}
_COLOUR = {name: COLOURS[i % len(COLOURS)] for i, (_, _, name) in enumerate(_SHOWN)}
_CLAIMS = {
    "iteration_cut_n8_f2.5": "iteration time cut, 8 workers, f = 2.5",
    "iteration_cut_n8_f4": "iteration time cut, 8 workers, f = 4",
    "training_speedup_best": "training, times faster, at best",
    "bound_ratio_n8_min": "takeover's bound over our iteration time, 8 workers, at worst",
    "other_jobs_jct_gain": "other jobs' JCT, times better with custody",
    "idle_cost": "cost when nobody straggles",
}
_COLUMNS = ("workload", "what", "ms", "C_s + G/B_s", "takeover bound", "bound / ms", "over ATP", "sums")


def reproduce(out: Path, quick: bool, sweep: Sweep = HERE) -> tuple[list[Row], dict[str, Row]]:
    """Run all points, write rows.csv, summary.json and index.html into `out`; gives the rows and the summary."""
    rows = run_points(run_point, all_points(quick), "points", sweep, prepare=warm_up, weight=_weight)
    compare(rows)
    write_csv(out / "rows.csv", rows)
    summary = summarise(rows)
    write_summary(out, summary)
    write_page(out / "index.html", rows, summary, quick)
    return rows, summary


def _weight(point: SaAtpPoint) -> float:
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


def write_page(path: Path, rows: Sequence[Row], summary: dict[str, Row], quick: bool) -> None:
    """One self-contained file."""
    mode = "quick: a sixteenth of samples and gradients, fewer points" if quick else "full models"
    page = Page(
        "SA-ATP: leading workers carry the straggler, exactly",
        f"Iteration time with slow workers, against ATP, ESA, ring all-reduce, backup workers and a timeout ({mode}).",
    )
    page.heading("Claim and measurement")
    page.table(
        ["claim", "paper", "ours", "setting"],
        [[_CLAIMS[key], entry["paper"], entry["ours"], entry["setting"]] for key, entry in summary.items()],
    )
    page.heading("One slow worker")
    for model in dict.fromkeys(row["model"] for row in rows if row["pattern"] == "one slow"):
        for workers in sorted({row["workers"] for row in rows if row["pattern"] == "one slow"}):
            part = [
                r for r in rows if (r["pattern"], r["model"], r["workers"]) == ("one slow", model, workers)
            ]
            if part:
                page.figure(
                    _figure(part, "factor", f"{model}, {workers} workers", "times slower", True),
                    _caption(workers),
                )
    _table(page, [row for row in rows if row["pattern"] == "one slow"])
    spells = [row for row in rows if row["pattern"] == "spells"]
    page.heading("Slow for a while, at random")
    if len({row["chance"] for row in spells}) > 1:
        page.figure(
            _figure(
                spells, "chance", "resnet50, 8 workers, spells of 0.5 to 2 iterations", "probability", True
            ),
            "Each worker, with this probability in each iteration, is 2.5 times slower for 0.5 to 2 iterations. The "
            "bound shares all work at every moment among all workers.",
        )
    _table(page, spells)
    page.heading("A contended link")
    page.text(
        f"Other traffic takes {CONTENTION:.0%} of one worker's uplink or downlink. Its gradient is as large however "
        "little it computes, so takeover cannot help; custody lets the leaders run ahead, and the results still wait."
    )
    _table(page, [row for row in rows if row["pattern"].startswith("traffic")])
    page.heading("The other jobs")
    page.text(
        "Four jobs that mostly send share a switch with memory for two; one worker of the first is four times slower. "
        "Only the first job has help. The others finish sooner when its sums do not wait in the switch."
    )
    four = [row for row in rows if row["pattern"] == "four jobs"]
    page.figure(_others_figure(four), "Average JCT of the other three jobs, mean over the seeds.")
    page.table(
        ["policy", "straggler", "others' JCT, ms", "own iteration, ms", "window"],
        [[r["policy"], r["straggler"], r["others_jct_ms"], r["iteration_ms"], r["window"]] for r in four],
    )
    page.heading("Nobody slow")
    _table(page, [row for row in rows if row["pattern"] == "nobody"])
    _explain(page)
    page.write(path)


def _explain(page: Page) -> None:
    page.heading("What is the paper's, what is ours")
    page.items(
        [
            "The paper's: synchronous in-network aggregation suffers from stragglers; leading workers use spare "
            "compute and storage to help; iteration time down by 57 %, training 1.8 times as fast, on P4 switches.",
            "Ours: custody (leaders complete sums without the straggler, and keep them), takeover (the micro-batch "
            "ledger), when a worker counts as a straggler, and all parameters of this experiment.",
            "Backup workers and the timeout leave contributions out: their sums are INEXACT, and each row says how "
            "many were left out. Both stop the straggler at once and fill in zeros: kinder to them than reality.",
            "Baselines: window tuned for each model and number of workers, no micro-batches. Help runs with the window "
            "of the same policy without help.",
        ]
    )
    page.table(
        ["model", "C: computing, ms", "G/B: sending once, ms", "samples", "micro-batches with takeover"],
        [[m, 1e3 * compute_s_of(m), 1e3 * send_s_of(m), SAMPLES, MICRO_BATCHES] for m in MODELS],
    )


def _caption(workers: int) -> str:
    return (
        f"Mean iteration of {workers} workers, one of them slow from the start; dashed: takeover's bound "
        "N C / (N - 1 + 1/f). Dotted lines are inexact."
    )


def _figure(rows: Sequence[Row], x: str, title: str, axis: str, bound: bool) -> Chart:
    chart = Chart(title, axis, "ms an iteration", x_ticks=sorted({row[x] for row in rows}))
    for policy, mode, name in _SHOWN:
        part = sorted(
            (r for r in rows if (r["policy"], r["straggler"]) == (policy, mode)), key=lambda r: r[x]
        )
        if part:
            chart.line(
                name,
                [row[x] for row in part],
                [row["iteration_ms"] for row in part],
                _COLOUR[name],
                dash="dot" if mode in ("backup", "timeout") else "",
                width=3.0 if mode == "both" else 2.0,
                dots=True,
            )
    if bound:
        ideal = {row[x]: row["bound_takeover_ms"] for row in rows}
        chart.line(
            "takeover bound", sorted(ideal), [ideal[at] for at in sorted(ideal)], "#52606d", "dash", 1.0
        )
    return chart


def _others_figure(rows: Sequence[Row]) -> Chart:
    chart = Chart("Average JCT of the other jobs", y="ms")
    for mode in ("off", "custody", "both"):
        means = []
        for policy in ("atp", "esa"):
            known = [
                row["others_jct_ms"]
                for row in rows
                if (row["policy"], row["straggler"]) == (policy, mode) and row["others_jct_ms"] is not None
            ]
            means.append(sum(known) / len(known) if known else None)
        texts = ["" if mean is None else f"{mean:.2f}" for mean in means]
        chart.bars(mode, ["ATP", "ESA"], means, texts=texts)
    return chart


def _table(page: Page, rows: Sequence[Row]) -> None:
    page.table(
        _COLUMNS,
        [
            [
                _workload(row),
                _NAME[(row["policy"], row["straggler"])],
                row["iteration_ms"],
                row["bound_custody_ms"],
                row["bound_takeover_ms"],
                row["bound_ratio"],
                row["speedup_over_atp"],
                row["failed"] or row["sums"],
            ]
            for row in rows
        ],
    )


def _workload(row: Row) -> str:
    """A row's workload in few words."""
    if row["pattern"] == "spells":
        return f"{row['model']}, {row['chance']:.0%}"
    slow = f", f {row['factor']:g}" if row["pattern"] == "one slow" else ""
    link = f", {row['pattern']}" if row["pattern"].startswith("traffic") else ""
    return f"{row['model']}, N {row['workers']}{slow}{link}"


def docs_tables(folder: Path) -> str:
    """The tables of docs/sa-atp.md, from a finished run: claims, and iteration times of eight workers."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    claims = [
        (
            _CLAIMS[key],
            "-" if entry["paper"] is None else f"{entry['paper']:g}",
            entry["ours"],
            entry["setting"],
        )
        for key, entry in summary.items()
    ]
    by_setting: dict[str, dict[tuple[str, str], dict[str, str]]] = {}
    for row in csv.DictReader((folder / "rows.csv").read_text(encoding="utf-8").splitlines()):
        if row["workers"] == "8" and row["pattern"] not in ("four jobs", "nobody"):
            by_setting.setdefault(row["setting"], {})[row["policy"], row["straggler"]] = row
    ways = [(policy, mode) for policy, mode, _ in _SHOWN if (policy, mode) != ("esa", "both")]
    times = []
    for setting, found in by_setting.items():
        both = found["atp", "both"]
        cells = [_ms(found.get(way), "iteration_ms") for way in ways]
        bounds = [_ms(both, "bound_custody_ms"), _ms(both, "bound_takeover_ms")]
        ratio = both["bound_ratio"]
        times.append((setting, *cells, *bounds, f"{float(ratio):.3f}" if ratio else "-"))
    marked = {"backup": "backup*", "timeout": "timeout*"}
    names = [policy if mode == "off" else marked.get(mode, mode) for policy, mode in ways]
    head = ("ms an iteration", *names, "C_s + G/B_s", "takeover bound", "ratio of both")
    return "\n\n".join(
        (
            table(("figure", "paper", "ours", "where"), claims),
            table(head, times),
            "\\* INEXACT: the slow worker's contributions are left out.",
        )
    )


def _ms(row: dict[str, str] | None, key: str) -> str:
    return f"{float(row[key]):.1f}" if row and row[key] else "-"


if __name__ == "__main__":
    renew(sys.argv[2:], {"figures": docs_tables(Path(sys.argv[1]))})
