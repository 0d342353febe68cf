"""The page of the SA-ATP experiment: what was claimed, what we saw, and what is ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.experiments.sa_atp.points import (
    CONTENTION,
    MICRO_BATCHES,
    MODELS,
    SAMPLES,
    compute_s_of,
    send_s_of,
)
from paceline.report.page import COLOURS, Page, figure_layout

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


def _figure(rows: Sequence[Row], x: str, title: str, axis: str, bound: bool) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for policy, mode, name in _SHOWN:
        part = sorted(
            (r for r in rows if (r["policy"], r["straggler"]) == (policy, mode)), key=lambda r: r[x]
        )
        if part:
            figure.add_scatter(
                x=[row[x] for row in part],
                y=[row["iteration_ms"] for row in part],
                name=name,
                mode="lines+markers",
                line={
                    "color": _COLOUR[name],
                    "width": 3 if mode == "both" else 2,
                    "dash": "dot" if mode in ("backup", "timeout") else "solid",
                },
            )
    if bound:
        ideal = {row[x]: row["bound_takeover_ms"] for row in rows}
        figure.add_scatter(
            x=sorted(ideal),
            y=[ideal[at] for at in sorted(ideal)],
            name="takeover bound",
            mode="lines",
            line={"color": "#52606d", "dash": "dash", "width": 1},
        )
    figure.update_layout(**figure_layout(title, axis, "ms an iteration"))
    figure.update_xaxes(tickvals=sorted({row[x] for row in rows}))
    figure.update_yaxes(rangemode="tozero")
    return figure


def _others_figure(rows: Sequence[Row]) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for i, mode in enumerate(("off", "custody", "both")):
        means = []
        for policy in ("atp", "esa"):
            known = [
                row["others_jct_ms"]
                for row in rows
                if (row["policy"], row["straggler"]) == (policy, mode) and row["others_jct_ms"] is not None
            ]
            means.append(sum(known) / len(known) if known else None)
        texts = ["" if mean is None else f"{mean:.2f}" for mean in means]
        figure.add_bar(
            name=mode, x=["ATP", "ESA"], y=means, text=texts, textposition="outside", marker_color=COLOURS[i],
            cliponaxis=False,
        )  # fmt: skip
    figure.update_layout(**figure_layout("Average JCT of the other jobs", "", "ms", barmode="group"))
    return figure


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
