"""`paceline reproduce joint`: the three ideas alone and together on one workload."""

from pathlib import Path
from typing import Annotated

import typer

from paceline.commands.sweep_options import Jobs, RayAddress, Resume, sweep_options


def joint(
    out: Annotated[Path, typer.Option(help="Folder for the page, the CSV files and summary.json.")] = Path(
        "out/joint"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and smaller jobs: about a minute.")] = False,
    jobs: Jobs = None,
    ray: RayAddress = None,
    resume: Resume = False,
) -> None:
    """Placement, switch memory and straggler help, alone and together, packet by packet.

    {first-fit, SJF-BCO, bco-plus} x {ring, ATP, ESA} x {stragglers left alone, takeover, both}, on a cluster with
    one slow server; a leaf-spine of racks without help.

    Writes index.html, rows.csv, combinations.csv, ideas.csv and summary.json.

    Examples:

      paceline reproduce joint --quick

      paceline reproduce joint --out out/joint
    """
    from rich.console import Console
    from rich.table import Table

    from paceline.experiments.joint.experiment import reproduce

    with sweep_options(out, jobs, ray, resume) as sweep:
        summary = reproduce(out, quick, sweep)
    console = Console(width=None if Console().is_terminal else 160, highlight=False)
    table = Table(box=None, pad_edge=False)
    for name in ("figure", "ours", "setting"):
        table.add_column(name)
    for key, entry in summary.items():
        table.add_row(key, "-" if entry["ours"] is None else f"{entry['ours']:.2f}", entry["setting"])
    console.print(table)
    console.print(f"page: {out / 'index.html'}", markup=False)
