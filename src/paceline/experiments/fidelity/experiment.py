"""How far the scheduler's predictions are from packets: `paceline reproduce fidelity`. All of it is ours.

    python -m paceline.experiments.fidelity.experiment out/fidelity docs/scheduling.md

renews the tables and the picture of docs/scheduling.md from a finished run.
"""

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from paceline.experiments.fidelity.points import EXCHANGES, all_points, run_point
from paceline.experiments.sweep import HERE, Sweep, run_points, write_csv, write_summary
from paceline.generated import renew, table
from paceline.report.chart import COLOURS, Chart
from paceline.report.draw import svg
from paceline.report.page import Page
from paceline.schedule import planning
from paceline.sim.run import warm_up

Row = dict[str, Any]
WORST = 12
NOTHING = 0.02
"""A smaller share of an iteration is not worth a reason."""


def reproduce(out: Path, quick: bool, sweep: Sweep = HERE, first_seed: int = 0) -> dict[str, Row]:
    """Run all points, write rows.csv, errors.csv, summary.json and index.html; gives the summary."""
    results = run_points(run_point, all_points(quick, first_seed), "points", sweep, prepare=_prepare)
    rows = [row for rows in results for row in rows]
    write_csv(out / "rows.csv", rows)
    errors = [*by(rows, "exchange"), *by(rows, "cause")]
    write_csv(out / "errors.csv", errors)
    write_csv(out / "worst.csv", worst(rows))
    summary = summarise(rows, quick, first_seed)
    write_summary(out, summary)
    write_page(out / "index.html", rows, errors, summary)
    return summary


def _prepare() -> None:
    warm_up()
    planning.warm_up()


def by(rows: Sequence[Row], key: str) -> list[Row]:
    """Errors of the model, and of the paper's, for each value of a column."""
    table_rows: list[Row] = []
    for value in sorted({str(row[key]) for row in rows}):
        part = [row for row in rows if str(row[key]) == value]
        table_rows.append({"by": key, "value": value, "job runs": len(part), **_figures(part)})
    return table_rows


def _figures(rows: Sequence[Row]) -> Row:
    sizes = [abs(float(row["error"])) for row in rows]
    return {
        "mean": mean(sizes),
        "median": median(sizes),
        "p95": float(np.quantile(sizes, 0.95)),
        "worst": max(sizes),
        "bias": mean(float(row["error"]) for row in rows),
        "paper's mean": mean(abs(float(row["paper_error"])) for row in rows),
    }


def rank_correlation(rows: Sequence[Row]) -> float:
    """Does the model order the placements of a workload as packets do? Spearman's, mean over workloads."""
    found = []
    for seed in {row["seed"] for row in rows}:
        placements = {
            row["placement"]: (float(row["avg_jct_ms"]), float(row["expected_avg_jct_ms"]))
            for row in rows
            if row["seed"] == seed
        }
        if len(placements) > 2:
            simulated, expected = (_ranks(values) for values in zip(*placements.values(), strict=True))
            found.append(float(np.corrcoef(simulated, expected)[0, 1]))
    return mean(found)


def _ranks(values: Sequence[float]) -> Any:
    """Places in order; what differs by less than a thousandth shares one."""
    steps = np.round(np.log(values) / np.log(1.001))
    return np.array([np.mean(np.flatnonzero(np.sort(steps) == step)) for step in steps]) + 1e-9 * np.arange(
        len(values)
    )


def summarise(rows: Sequence[Row], quick: bool, first_seed: int) -> dict[str, Row]:
    """The figures that scripts read."""
    placements = len({(row["seed"], row["placement"]) for row in rows})
    setting = (
        f"run times of {len(rows)} spread jobs in {placements} random placements from seed {first_seed} on, "
        f"model against packets{' (quick)' if quick else ''}"
    )
    all_errors = _figures(rows)
    summary = {
        "model_error_mean": _entry(all_errors["mean"], setting),
        "model_error_p95": _entry(all_errors["p95"], setting),
    }
    for exchange in ("esa", "ring", "atp", "switchml"):
        part = [row for row in rows if row["exchange"] == exchange]
        summary[f"model_error_{exchange}"] = _entry(_figures(part)["mean"] if part else None, setting)
    summary["rank_correlation"] = _entry(
        rank_correlation(rows), "Spearman's, of the placements of one workload by average completion time"
    )
    return summary


def _entry(ours: float | None, setting: str) -> Row:
    return {"paper": None, "ours": None if ours is None else round(ours, 4), "setting": setting}


def worst(rows: Sequence[Row]) -> list[Row]:
    """The job runs with the largest errors, as a table for people."""
    chosen = sorted(rows, key=lambda row: -abs(float(row["error"])))[:WORST]
    return [
        {
            "workload": f"{row['seed']}, {row['exchange']}, {row['placement']}",
            "job": row["job"],
            "servers": row["servers"],
            "setting": _setting(row),
            "simulated, ms": f"{float(row['simulated_ms']):.2f}",
            "expected, ms": f"{float(row['expected_ms']):.2f}",
            "error": f"{float(row['error']):+.2f}",
            "reason": reason(row),
        }
        for row in chosen
    ]


def _setting(row: Row) -> str:
    if int(row["racks"]) > 1:
        links = f"{row['racks']} racks, uplinks of 1/{float(row['oversubscription']):g}"
    else:
        links = "a star"
    return f"{row['jobs']} jobs, {links}, {row['slots']} aggregators, sends {float(row['ratio']):.2f} of computing"


def reason(row: Row) -> str:
    """Which part of the expectation did not come true: what the job was to lose to others, or for want of memory."""
    neighbours, memory = float(row["neighbours"]), float(row["memory"])
    turned_out = "it was less" if float(row["error"]) > 0 else "it was more"
    if max(neighbours, memory) < NOTHING:
        return f"expected to lose nothing to others; {turned_out}"
    if memory > neighbours:
        return f"expected to lose {memory:.0%} of its time for want of memory; {turned_out}"
    where = "links" if row["exchange"] in ("ring", "switchml") else "links and memory"
    return f"expected to lose {neighbours:.0%} of its time to neighbours on {where}; {turned_out}"


def write_page(path: Path, rows: Sequence[Row], errors: Sequence[Row], summary: dict[str, Row]) -> None:
    """One self-contained file."""
    page = Page(
        "Predictions against packets",
        "Run times of jobs that span servers: what the scheduler's model expects, and what the packet simulator gives.",
    )
    page.heading("Figures")
    page.table(
        ["figure", "ours", "setting"],
        [[key, entry["ours"], entry["setting"]] for key, entry in summary.items()],
    )
    page.figure(picture(rows), "On the line the prediction is right; both axes are logarithmic.")
    page.heading("Errors by exchange and by cause")
    page.table(list(errors[0]), [list(row.values()) for row in errors])
    page.heading("Worst cases")
    cases = worst(rows)
    page.table(list(cases[0]), [list(case.values()) for case in cases])
    page.write(path)


def picture(rows: Sequence[Row]) -> Chart:
    """Predicted against simulated run times."""
    chart = Chart("Run time of a job", "simulated, ms", "predicted, ms", height=620, log=True)
    ends = [f(float(row["simulated_ms"]) for row in rows) for f in (min, max)]
    chart.line("equal", ends, ends, "#888", width=1.0)
    for colour, exchange in zip(COLOURS, EXCHANGES, strict=False):
        part = [row for row in rows if row["exchange"] == exchange]
        simulated = [float(row["simulated_ms"]) for row in part]
        chart.dots(exchange, simulated, [float(row["expected_ms"]) for row in part], colour, radius=2.0)
    return chart


def docs_tables(folder: Path) -> str:
    """The tables of docs/scheduling.md, from a finished run."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = _read_rows(folder / "errors.csv")
    cases = _read_rows(folder / "worst.csv")
    return "\n\n".join(
        [
            table(
                ("figure", "ours", "where"),
                [(f"`{key}`", entry["ours"], entry["setting"]) for key, entry in summary.items()],
            ),
            table(
                ("error", "job runs", "mean", "median", "p95", "worst", "bias", "the paper's model, mean"),
                [
                    (row["value"], row["job runs"], *(f"{float(row[key]):.3f}" for key in _COLUMNS))
                    for row in rows
                ],
            ),
            table(tuple(cases[0]), [tuple(case.values()) for case in cases]),
        ]
    )


def _read_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


_COLUMNS = ("mean", "median", "p95", "worst", "bias", "paper's mean")


def draw_picture(folder: Path, path: Path) -> None:
    """The picture of docs/scheduling.md: dots of a finished run on logarithmic axes, on white."""
    rows = _read_rows(folder / "rows.csv")
    drawn = svg(picture(rows), "fidelity", width=620)
    white = '<rect width="100%" height="100%" fill="#fff"/>'
    path.write_text(drawn.replace(">", f">{white}", 1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_folder, page_path = Path(sys.argv[1]), Path(sys.argv[2])
    draw_picture(run_folder, page_path.parent / "images" / "fidelity.svg")
    renew([str(page_path)], {"fidelity": docs_tables(run_folder)})
