"""The page of the live experiment: bars of every combination, what each idea gives, live against simulated."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.experiments.live.workloads import (
    GPUS,
    MICRO_BATCHES,
    RATE,
    SERVERS,
    SLOTS_PER_SERVER,
    SLOWDOWN,
    SWITCH_MEMORY,
    WORKLOADS,
)
from paceline.report.chart import Chart
from paceline.report.page import Page

Row = dict[str, Any]
KEYS = ("planner", "exchange", "stragglers")
LABELS = {
    "ff": "first fit",
    "bco-plus": "bco-plus",
    "gloo": "Gloo",
    "atp": "ATP",
    "esa-plus": "esa-plus",
    "wait": "",
    "help": "takeover",
}
IDEAS = (
    "placement: bco-plus instead of first fit",
    "sums in the switch: esa-plus instead of Gloo",
    "stragglers: takeover instead of waiting",
)


def combination_label(key: Sequence[str]) -> str:
    """In words."""
    return ", ".join(LABELS[part] for part in key if LABELS[part])


def write_page(
    path: Path,
    rows: Sequence[Row],
    cells: Sequence[Row],
    combined: Sequence[Row],
    ideas: Sequence[Row],
    summary: dict[str, Row],
    paces: dict[str, Row],
) -> None:
    """One self-contained file."""
    page = Page(
        "Placement, switch memory and stragglers, live",
        "Real training processes on an emulated cluster: every combination of the three ideas, and what the packet "
        "simulator says of each.",
    )
    page.heading("Figures")
    page.table(
        ["figure", "ours", "setting"],
        [[key, entry["ours"], entry["setting"]] for key, entry in summary.items()],
    )
    for load in dict.fromkeys(row["workload"] for row in combined):
        part = [row for row in combined if row["workload"] == load]
        page.heading(f"Workload: {load}")
        page.figure(
            _bars(part), "Median over the seeds; lines from the least to the most. Shorter is better."
        )
        page.table(
            ["combination", "avg JCT s", "times", "least", "makespan s", "times", "worst job", "iteration s",
             "simulated s", "error"],
            [
                [
                    combination_label([row[key] for key in KEYS]), row["avg_jct_s"], row["avg_jct_gain"],
                    row["avg_jct_gain_min"], row["makespan_s"], row["makespan_gain"], row["worst_job"],
                    row["iteration_s"], row["simulated_s"], row["error"],
                ]
                for row in part
            ],
        )  # fmt: skip
    page.heading("What each idea gives")
    page.text(
        "Median over workloads and seeds. Alone: added to first fit, Gloo, nobody helped. Last: added when the other "
        "two are there. Where the second figure is the smaller one, the ideas overlap."
    )
    page.table(
        [
            "idea",
            "avg JCT, alone",
            "avg JCT, last",
            "makespan, alone",
            "makespan, last",
            "workloads and seeds",
        ],
        [list(step.values()) for step in ideas],
    )
    page.heading("The packet simulator against live")
    page.figure(_scatter(rows), "Iteration times of all job runs; on the line the simulator is right.")
    page.heading("Setting")
    page.items(_setting(paces))
    page.heading("All cells")
    page.table(list(cells[0]), [list(cell.values()) for cell in cells])
    page.heading("All job runs")
    page.table(list(rows[0]), [list(row.values()) for row in rows])
    page.write(path)


def _bars(combined: Sequence[Row]) -> Chart:
    chart = Chart("Average completion time", "planner", "s")
    for way in dict.fromkeys((row["exchange"], row["stragglers"]) for row in combined):
        part = [row for row in combined if (row["exchange"], row["stragglers"]) == way]
        chart.bars(
            combination_label(way),
            [LABELS[row["planner"]] for row in part],
            [row["avg_jct_s"] for row in part],
            low=[row["avg_jct_min_s"] for row in part],
            high=[row["avg_jct_max_s"] for row in part],
        )
    return chart


def _scatter(rows: Sequence[Row]) -> Chart:
    chart = Chart("Iteration time of a job", "live, s", "simulated, s", height=520)
    for way in dict.fromkeys((row["exchange"], row["stragglers"]) for row in rows):
        part = [row for row in rows if (row["exchange"], row["stragglers"]) == way]
        chart.dots(
            combination_label(way),
            [row["iteration_s"] for row in part],
            [row["simulated_s"] for row in part],
            texts=[f"{row['workload']} {row['seed']}, {row['job']}: {row['servers']}" for row in part],
        )
    ends = [f(row["iteration_s"] for row in rows) for f in (min, max)]
    chart.line("equal", ends, ends, "#888", width=1.0)
    return chart


def _setting(paces: dict[str, Row]) -> list[str]:
    found = [
        f"{len(SERVERS)} servers with {SLOTS_PER_SERVER} slots are network namespaces on this machine, with links of "
        f"{RATE} both ways; server slow computes {SLOWDOWN:g} times as slow, which no planner knows. The switch has "
        f"{SWITCH_MEMORY}.",
        f"Six jobs of {', '.join(str(gpus) for gpus in GPUS)} ranks, in an order and with numbers of steps drawn by "
        f"the seed, all there from the beginning. A step is {MICRO_BATCHES} micro-batches and one all-reduce. "
        "Processes, PyTorch, Gloo, switch, takeover and planner are real; a sleep stands for the device.",
        "Completion times include queueing and starting, with Python and torch loaded before in all cells.",
        "Simulated: the same placements and starts; computing times of one job alone; nothing fitted to a cell.",
    ]
    for name, pace in paces.items():
        load = WORKLOADS[name]
        other = f"; {load.background} of other traffic on the first server's link" if load.background else ""
        found.append(
            f"{name}: {load.gradient_bytes / 1e6:.1f} MB of gradient; a micro-batch takes "
            f"{pace['healthy_s'] * 1e3:.0f} ms, {pace['slow_s'] * 1e3:.0f} ms on the slow server{other}"
        )
    return found
