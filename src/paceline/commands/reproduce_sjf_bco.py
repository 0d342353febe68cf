"""`paceline reproduce sjf-bco`: the scheduler paper's figures over many seeds, beside its values."""

from pathlib import Path
from typing import Annotated

import typer

from paceline.commands.sweep_options import Jobs, RayAddress, Resume, sweep_options


def sjf_bco(
    out: Annotated[Path, typer.Option(help="Folder for the page, the CSV files and summary.json.")] = Path(
        "out/sjf-bco"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer seeds: about a minute on two cores.")] = False,
    jobs: Jobs = None,
    ray: RayAddress = None,
    resume: Resume = False,
) -> None:
    """Repeat the SJF-BCO paper's figures 4-7: four schedulers, kappa, 10/15/20 servers, lambda.

    Writes index.html, a CSV file a figure and summary.json into the folder.

    Examples:

      paceline reproduce sjf-bco --quick

      paceline reproduce sjf-bco --out out/sjf-bco --resume

      paceline reproduce sjf-bco --ray head:6379
    """
    from rich.console import Console
    from rich.table import Table

    from paceline.experiments.sjf_bco.experiment import reproduce

    with sweep_options(out, jobs, ray, resume) as sweep:
        entries = reproduce(out, quick, sweep)
    console = Console(width=None if Console().is_terminal else 120, highlight=False)
    table = Table(box=None, pad_edge=False)
    for name in ("figure", "paper", "ours"):
        table.add_column(name)
    for key, entry in entries.items():
        table.add_row(key, _show(entry["paper"]), _show(entry["ours"]))
    console.print(table)
    console.print(f"page: {out / 'index.html'}", markup=False)


def _show(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return " < ".join(str(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item:.0f}" for key, item in value.items())
    return str(value)
