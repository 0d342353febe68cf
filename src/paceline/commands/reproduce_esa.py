"""`paceline reproduce esa`: ESA against ATP, SwitchML, ring, parameter server and two strawmen."""

from pathlib import Path
from typing import Annotated

import typer

from paceline.commands.sweep_options import Jobs, RayAddress, Resume, sweep_options


def esa(
    out: Annotated[Path, typer.Option(help="Folder for the page, the CSV files and summary.json.")] = Path(
        "out/esa"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points: two minutes on two cores.")] = False,
    jobs: Jobs = None,
    ray: RayAddress = None,
    resume: Resume = False,
) -> None:
    """Repeat the ESA paper's claim: average job completion time by jobs, switch memory, workers and loss.

    Every policy is tuned at every point. Writes index.html, rows.csv, speedups.csv and summary.json.

    Examples:

      paceline reproduce esa --quick

      paceline reproduce esa --out out/esa --resume

      paceline reproduce esa --ray head:6379
    """
    from rich.console import Console
    from rich.table import Table

    from paceline.experiments.esa.experiment import reproduce

    with sweep_options(out, jobs, ray, resume) as sweep:
        summary = reproduce(out, quick, sweep)
    console = Console(width=None if Console().is_terminal else 160, highlight=False)
    table = Table(box=None, pad_edge=False)
    for name in ("claim", "paper", "ours", "setting"):
        table.add_column(name)
    for key, entry in summary.items():
        paper = "-" if entry["paper"] is None else f"{entry['paper']:.2f}"
        table.add_row(key, paper, f"{entry['ours']:.2f}", entry["setting"])
    console.print(table)
    console.print(f"page: {out / 'index.html'}", markup=False)
