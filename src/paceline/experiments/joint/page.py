"""The page of the joint experiment: every combination, what each idea gives, and how good the model is."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from paceline.experiments.joint import points as setting
from paceline.report.page import COLOURS, Page, figure_layout

Row = dict[str, Any]

_LABELS = {"ff": "first-fit", "sjf-bco": "SJF-BCO", "bco-plus": "bco-plus"}


def write_page(
    path: Path,
    rows: Sequence[Row],
    table: Sequence[Row],
    steps: Sequence[Row],
    summary: dict[str, Row],
    quick: bool,
) -> None:
    """One self-contained file."""
    mode = "quick: small jobs, two workloads" if quick else f"{table[0]['seeds']} workloads"
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
    for topology in dict.fromkeys(row["topology"] for row in table):
        part = [row for row in table if row["topology"] == topology]
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
            for row in table
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
    page.heading("Setting")
    page.items(_setting())
    page.heading("All rows")
    page.table(list(rows[0]), [list(row.values()) for row in rows])
    page.write(path)


def _bars(table: Sequence[Row], figure: str, title: str) -> Any:
    import plotly.graph_objects as go

    chart = go.Figure()
    ways = list(dict.fromkeys((row["exchange"], row["straggler"]) for row in table))
    for colour, (exchange, straggler) in zip(COLOURS, ways, strict=False):
        part = [row for row in table if (row["exchange"], row["straggler"]) == (exchange, straggler)]
        chart.add_bar(
            x=[_LABELS[row["planner"]] for row in part],
            y=[row[f"{figure}_ms"] for row in part],
            name=exchange if straggler == "off" else f"{exchange} + {straggler}",
            marker_color=colour,
        )
    chart.update_layout(**figure_layout(title, "planner", "ms"))
    chart.update_layout(barmode="group")
    return chart


def _errors(rows: Sequence[Row]) -> tuple[list[str], list[list[object]]]:
    lines: list[list[object]] = []
    for planner in setting.PLANNERS:
        for exchange in setting.EXCHANGES:
            part = [
                row
                for row in rows
                if not row["slow_server"] and (row["planner"], row["exchange"]) == (planner, exchange)
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
    gpus = setting.GPUS_PER_SERVER
    return [
        f"{setting.RACKS * setting.SERVERS_PER_RACK} servers with {gpus} GPUs, links of {setting.RATE_BPS / 1e9:g} "
        f"Gb/s; {setting.RACKS} racks with uplinks of {setting.UPPER_RATE_BPS / 1e9:g} Gb/s, or, for comparison, all "
        f"under one switch; {setting.SLOTS} aggregators a switch. A ring cannot be helped: its cells with help "
        "are those without.",
        f"Server {setting.SLOW_SERVER} computes {setting.SLOWDOWN:g} times as slow; the scheduler does not know it.",
        "The scheduler plans by its model, anew at every arrival and end; its decision then runs packet by packet: a "
        "job starts when the jobs before it on its GPUs have ended.",
        "The ranks of a server sum among themselves; a job on k servers has k flows. A job on one server uses no "
        "network, and nobody can help it.",
        "Every combination runs at the best of three windows, found on another workload than those measured.",
        "Jobs are small and short so that a run takes seconds; sending takes "
        f"{min(setting.RATIOS):g} to {max(setting.RATIOS):g} of the time of computing.",
    ]
