"""`paceline reproduce sa-atp`: help for stragglers against ATP, ESA, ring, backup workers and a timeout."""

from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.commands.sweep_options import Jobs, RayAddress, Resume, sweep_options


def sa_atp(
    out: Annotated[Path, typer.Option(help="Folder for the page, the CSV file and summary.json.")] = Path(
        "out/sa-atp"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer points, smaller models: two minutes on two cores.")
    ] = False,
    jobs: Jobs = None,
    ray: RayAddress = None,
    resume: Resume = False,
) -> None:
    """Repeat SA-ATP's claim: iteration time and training speed with slow workers, and what other jobs feel of it.

    Writes index.html, rows.csv and summary.json.

    Examples:

      paceline reproduce sa-atp --quick

      paceline reproduce sa-atp --out out/sa-atp --resume
    """
    from rich.console import Console
    from rich.table import Table

    from paceline.experiments.sa_atp.experiment import reproduce

    with sweep_options(out, jobs, ray, resume) as sweep:
        rows, summary = reproduce(out, quick, sweep)
    console = Console(width=None if Console().is_terminal else 160, highlight=False)
    console.print(_rows_table(rows))
    console.print()
    table = Table(box=None, pad_edge=False)
    for name in ("claim", "paper", "ours", "setting"):
        table.add_column(name)
    for key, entry in summary.items():
        paper = "-" if entry["paper"] is None else f"{entry['paper']:.2f}"
        ours = "-" if entry["ours"] is None else f"{entry['ours']:.3f}"
        table.add_row(key, paper, ours, entry["setting"])
    console.print(table)
    console.print(f"page: {out / 'index.html'}", markup=False)


def _rows_table(rows: list[dict[str, Any]]) -> Any:
    """Every row: iteration time, both bounds, and how it stands to the takeover bound and to plain ATP."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("setting", "policy", "straggler"):
        table.add_column(name)
    for name in ("iteration", "C_s + G/B_s", "takeover bound", "ratio", "over ATP", "others' JCT", "sums"):
        table.add_column(name, justify="right")
    for row in rows:
        times = (row["iteration_ms"], row["bound_custody_ms"], row["bound_takeover_ms"])
        table.add_row(
            row["setting"],
            row["policy"],
            row["straggler"],
            *("-" if time is None else f"{time:.1f} ms" for time in times),
            *("-" if row[key] is None else f"{row[key]:.3f}" for key in ("bound_ratio", "speedup_over_atp")),
            "-" if row["others_jct_ms"] is None else f"{row['others_jct_ms']:.2f} ms",
            row["failed"] or row["sums"],
        )
    return table
