"""The three ideas on real links: `paceline reproduce live`. All of it is ours.

{first-fit, bco-plus} x {Gloo's ring, ATP, esa-plus} x {wait for the slow, takeover}, two workloads, several seeds,
each cell a `paceline run` on an emulated cluster, beside the packet simulator's word for it. Cells run one after the
other: they share this machine's processors. With a limit the run stops between two cells, and `--resume` goes on; the
tables have what there is, each combination with its seeds, against the baseline of the same workload and seed.

    python -m paceline.experiments.live.experiment out/live docs/live.md

renews the tables of docs/live.md from a finished run.
"""

import csv
import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from paceline.experiments.live.cells import (
    CalibrationTask,
    CellTask,
    calibrate,
    check_possible,
    compile_ahead,
    run_cell,
)
from paceline.experiments.live.page import IDEAS, KEYS, combination_label, write_page
from paceline.experiments.live.predict import Calibration, PredictionTask, predict
from paceline.experiments.live.workloads import (
    BASELINE,
    EXCHANGES,
    PLANNERS,
    RATE,
    SERVERS,
    SLOWDOWN,
    STRAGGLERS,
    TOGETHER,
    WORKLOADS,
    LivePoint,
    all_points,
)
from paceline.experiments.sweep import HERE, DoneFile, Sweep, key_of, run_points, write_csv, write_summary
from paceline.generated import renew, table
from paceline.sim.run import warm_up

Row = dict[str, Any]
Key = tuple[str, ...]
"""Planner, exchange, and what is done about stragglers."""


@dataclass(frozen=True)
class Unfinished:
    """A run that stopped at its limit; the tables have what was done."""

    done: int
    cells: int


def reproduce(
    out: Path, quick: bool, sweep: Sweep = HERE, seeds: int | None = None, limit_s: float | None = None
) -> dict[str, Row] | Unfinished:
    """Run all cells and predict them; write rows, cells, combinations and ideas (CSV), summary.json and index.html."""
    check_possible()
    points = all_points(quick, seeds)
    cells, paces = _measure(out, points, sweep, limit_s)
    compared = comparable(cells)
    if not compared:
        return Unfinished(len(cells), len(points))
    tasks = [PredictionTask(json.dumps(cell), Calibration(**paces[cell["workload"]])) for cell in compared]
    again = Sweep(sweep.processes, sweep.ray, out / "predictions", sweep.resume)
    predictions = run_points(predict, tasks, "predictions", again, prepare=warm_up)
    summary = conclude(out, compared, predictions, paces)
    return summary if len(cells) == len(points) else Unfinished(len(cells), len(points))


def comparable(cells: Sequence[Row]) -> list[Row]:
    """The cells of those workloads and seeds that have their baseline and all three ideas, in the tables' order."""
    found = {(cell["workload"], cell["seed"], *(cell[name] for name in KEYS)): cell for cell in cells}
    return [
        found[(load, seed, *key)]
        for load in WORKLOADS
        for seed in sorted({cell["seed"] for cell in cells})
        for key in itertools.product(PLANNERS, EXCHANGES, STRAGGLERS)
        if (load, seed, *key) in found
        and all((load, seed, *other) in found for other in (BASELINE, TOGETHER))
    ]


def conclude(
    out: Path, cells: Sequence[Row], predictions: Sequence[list[Row]], paces: dict[str, Row]
) -> dict[str, Row]:
    """Tables, summary and page of what was measured and predicted."""
    rows = [
        row for cell, foreseen in zip(cells, predictions, strict=True) for row in job_rows(cell, foreseen)
    ]
    write_csv(out / "rows.csv", rows)
    whole = [cell_row(cell, [row for row in rows if _is_of(row, cell)]) for cell in cells]
    write_csv(out / "cells.csv", whole)
    combined = combine(whole, rows)
    write_csv(out / "combinations.csv", combined)
    ideas = ablation(whole)
    (out / "ideas.csv").unlink(missing_ok=True)
    if ideas:
        write_csv(out / "ideas.csv", ideas)
    summary = summarise(rows, whole)
    write_summary(out, summary)
    write_page(out / "index.html", rows, whole, combined, ideas, summary, paces)
    return summary


def _measure(
    out: Path, points: Sequence[LivePoint], sweep: Sweep, limit_s: float | None
) -> tuple[list[Row], dict[str, Row]]:
    """Computing times of every workload, then the cells in their order, until the limit."""
    began = time.monotonic()
    folder = (out / "runs").resolve()
    loads = dict.fromkeys(point.workload for point in points)
    calibrations = [CalibrationTask(load, str(folder / f"{load}-alone")) for load in loads]
    one = Sweep(1, None, out / "calibration", sweep.resume)
    found = run_points(calibrate, calibrations, "one job alone", one, prepare=compile_ahead)
    with DoneFile(out / "cells", sweep.resume) as done:
        tasks = [CellTask(point, str(folder / point.label)) for point in points]
        finished = [key_of(run_cell, task) in done for task in tasks]
    cells: list[Row] = []
    for task, is_done in zip(tasks, finished, strict=True):
        if not is_done and limit_s is not None and time.monotonic() - began > limit_s:
            continue  # what was done before is read all the same
        cells += run_points(run_cell, [task], task.point.label, Sweep(1, None, out / "cells", resume=True))
    return cells, dict(zip(loads, found, strict=True))


def _is_of(row: Row, cell: Row) -> bool:
    return all(row[key] == cell[key] for key in ("workload", "seed", *KEYS))


def job_rows(cell: Row, foreseen: Sequence[Row]) -> list[Row]:
    """One row a job: live, simulated, and the error of the simulated iteration time."""
    rows = []
    for job, simulated in zip(cell["jobs"], foreseen, strict=True):
        rows.append(
            {
                **{key: cell[key] for key in ("workload", "seed", *KEYS)},
                "job": job["name"],
                "ranks": job["gpus"],
                "servers": " ".join(f"{server}:{ranks}" for server, ranks in job["servers"].items()),
                "steps": job["steps"],
                "path": job["path"],
                "jct_s": job["jct_s"],
                "queue_s": job["queue_s"],
                "start_s": job["start_s"],
                "train_s": job["train_s"],
                "iteration_s": job["iteration_s"],
                "simulated_s": simulated["iteration_s"],
                "error": simulated["iteration_s"] / job["iteration_s"] - 1.0,
                "simulated_jct_s": simulated["jct_s"],
                "taken_over": job["taken_over"],
                "loss": job["loss"],
            }
        )
    return rows


def cell_row(cell: Row, rows: Sequence[Row]) -> Row:
    """One cell: its figures, and the mean iteration time of its jobs beside the simulated one."""
    live_s = mean(row["iteration_s"] for row in rows)
    simulated_s = mean(row["simulated_s"] for row in rows)
    return {
        **{key: cell[key] for key in ("workload", "seed", *KEYS)},
        "avg_jct_s": cell["avg_jct_s"],
        "makespan_s": cell["makespan_s"],
        "iteration_s": live_s,
        "simulated_s": simulated_s,
        "error": simulated_s / live_s - 1.0,
        "job_error": mean(abs(row["error"]) for row in rows),
        "simulated_avg_jct_s": mean(row["simulated_jct_s"] for row in rows),
        "cores": cell["cores"],
        "wall_s": cell["wall_s"],
    }


def gains(cells: Sequence[Row], figure: str, key: Key, over: Key = BASELINE) -> list[float]:
    """How many times better one combination is than another, for each workload and seed that has both."""
    found = {(cell["workload"], cell["seed"], *(cell[name] for name in KEYS)): cell[figure] for cell in cells}
    places = dict.fromkeys(place[:2] for place in found)
    return [
        found[(*place, *over)] / found[(*place, *key)]
        for place in places
        if (*place, *over) in found and (*place, *key) in found
    ]


def worst_job(rows: Sequence[Row], key: Key) -> float:
    """The least that a job gains over its own completion time in the baseline."""
    jct_s = {
        (row["workload"], row["seed"], row["job"], *(row[name] for name in KEYS)): row["jct_s"]
        for row in rows
    }
    jobs = dict.fromkeys(place[:3] for place in jct_s)
    return min(float(jct_s[(*job, *BASELINE)] / jct_s[(*job, *key)]) for job in jobs if (*job, *key) in jct_s)


def combine(cells: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Each combination on each workload: medians over the seeds, and their spread."""
    combined = []
    for load in dict.fromkeys(cell["workload"] for cell in cells):
        part = [cell for cell in cells if cell["workload"] == load]
        jobs = [row for row in rows if row["workload"] == load]
        for key in dict.fromkeys(tuple(cell[name] for name in KEYS) for cell in part):
            group = [cell for cell in part if tuple(cell[name] for name in KEYS) == key]
            row: Row = {"workload": load, **dict(zip(KEYS, key, strict=True)), "seeds": len(group)}
            for figure in ("avg_jct", "makespan"):
                values = [cell[f"{figure}_s"] for cell in group]
                times = gains(part, f"{figure}_s", key)
                row |= {
                    f"{figure}_s": median(values),
                    f"{figure}_min_s": min(values),
                    f"{figure}_max_s": max(values),
                }
                row |= {f"{figure}_gain": median(times), f"{figure}_gain_min": min(times)}
            row["worst_job"] = worst_job(jobs, key)
            row["iteration_s"] = median(cell["iteration_s"] for cell in group)
            row["simulated_s"] = median(cell["simulated_s"] for cell in group)
            row["error"] = mean(cell["error"] for cell in group)
            row["error_max"] = max(abs(cell["error"]) for cell in group)
            combined.append(row)
    return combined


def ablation(cells: Sequence[Row]) -> list[Row]:
    """What one idea gives, median over workloads and seeds: on top of the baseline, and with the other two there.

    Of the ideas whose cells were run; `cases`: workloads and seeds that have them.
    """
    steps = []
    for place, name in enumerate(IDEAS):
        alone, without = list(BASELINE), list(TOGETHER)
        alone[place], without[place] = TOGETHER[place], BASELINE[place]
        step: Row = {"idea": name}
        for figure in ("avg_jct", "makespan"):
            first = gains(cells, f"{figure}_s", tuple(alone))
            last = gains(cells, f"{figure}_s", TOGETHER, tuple(without))
            if first and last:
                step |= {f"{figure}_alone": median(first), f"{figure}_last": median(last)}
        if len(step) > 1:
            steps.append({**step, "cases": min(len(first), len(last))})
    return steps


def summarise(rows: Sequence[Row], cells: Sequence[Row]) -> dict[str, Row]:
    """The figures that scripts read."""
    loads = list(dict.fromkeys(cell["workload"] for cell in cells))
    seeds = len({cell["seed"] for cell in cells})
    where = (
        f"workloads: {', '.join(loads)}; seeds: {seeds}; six jobs on {len(SERVERS)} emulated servers with links of "
        f"{RATE}, one of them {SLOWDOWN:g} times as slow"
    )
    together = combination_label(TOGETHER)
    summary: dict[str, Row] = {}
    for name, figure in (("avg_jct", "avg_jct_s"), ("makespan", "makespan_s")):
        times = gains(cells, figure, TOGETHER)
        spread = f"median, {min(times):.2f} to {max(times):.2f}"
        summary[f"live_{name}_over_ff_gloo"] = _entry(median(times), f"{together}; {where}; {spread}")
    summary["live_worst_job_over_ff_gloo"] = _entry(
        worst_job(rows, TOGETHER), f"the job that gains least; {together}; {where}"
    )
    errors = [abs(cell["error"]) for cell in cells]
    judged = f"mean iteration time of a cell's jobs, simulated against live, {len(cells)} cells; {where}"
    summary["sim_error_mean"] = _entry(mean(errors), judged)
    summary["sim_error_max"] = _entry(max(errors), judged)
    singly = [abs(row["error"]) for row in rows]
    each = f"iteration time of each of {len(rows)} job runs, simulated against live; {where}"
    summary["sim_error_job_mean"] = _entry(mean(singly), each)
    summary["sim_error_job_p95"] = _entry(float(np.quantile(singly, 0.95)), each)
    summary["sim_error_job_max"] = _entry(max(singly), each)
    summary["live_loss_difference_max"] = _entry(
        loss_difference(rows), "largest relative difference of a job's loss from that of the baseline"
    )
    return summary


def loss_difference(rows: Sequence[Row]) -> float:
    """The largest relative difference between a job's loss and the baseline's."""
    base = {
        (row["workload"], row["seed"], row["job"]): float(row["loss"])
        for row in rows
        if tuple(row[name] for name in KEYS) == BASELINE
    }
    return max(
        abs(float(row["loss"]) / max(1e-12, base[row["workload"], row["seed"], row["job"]]) - 1.0)
        for row in rows
    )


def _entry(ours: float, setting: str) -> Row:
    return {"paper": None, "ours": float(f"{ours:.4g}"), "setting": setting}


def docs_tables(folder: Path) -> str:
    """The tables of docs/live.md, from a finished run."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    combined = _read(folder / "combinations.csv")
    parts = [
        table(
            ("figure", "ours", "where"),
            [(f"`{key}`", entry["ours"], entry["setting"]) for key, entry in summary.items()],
        )
    ]
    for load in dict.fromkeys(row["workload"] for row in combined):
        columns = (
            f"`{load}`",
            "seeds",
            "avg JCT, s",
            "spread",
            "times",
            "makespan, s",
            "times",
            "worst job",
            "iteration, s",
        )
        parts.append(
            table(
                (*columns, "simulated", "error"),
                [_docs_row(row) for row in combined if row["workload"] == load],
            )
        )
    if (folder / "ideas.csv").exists():
        shown = ("avg_jct_alone", "avg_jct_last", "makespan_alone", "makespan_last")
        parts.append(
            table(
                ("what one idea gives", "avg JCT, alone", "last", "makespan, alone", "last", "cases"),
                [
                    (row["idea"], *(f"{float(row[key]):.2f}" for key in shown), row["cases"])
                    for row in _read(folder / "ideas.csv")
                ],
            )
        )
    return "\n\n".join(parts)


def _docs_row(row: dict[str, str]) -> tuple[str, ...]:
    figure = {key: float(value) for key, value in row.items() if key not in ("workload", *KEYS)}
    return (
        combination_label((row["planner"], row["exchange"], row["stragglers"])),
        f"{figure['seeds']:.0f}",
        f"{figure['avg_jct_s']:.1f}",
        f"{figure['avg_jct_min_s']:.1f} to {figure['avg_jct_max_s']:.1f}",
        f"{figure['avg_jct_gain']:.2f}",
        f"{figure['makespan_s']:.1f}",
        f"{figure['makespan_gain']:.2f}",
        f"{figure['worst_job']:.2f}",
        f"{figure['iteration_s']:.2f}",
        f"{figure['simulated_s']:.2f}",
        f"{figure['error']:+.0%}",
    )


def _read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


if __name__ == "__main__":
    renew(sys.argv[2:], {"figures": docs_tables(Path(sys.argv[1]))})
