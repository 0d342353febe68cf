"""`paceline report`: a run's folder as one page, a trace, or two runs side by side."""

from pathlib import Path
from typing import Annotated

import typer

from paceline.commands.output import JsonFile, write_json


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR [RUN_DIR]", help="One run, or two to compare.")
    ],
    out: Annotated[
        Path | None, typer.Option("--html", "--out", help="The page; default: report.html in the (last) run.")
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option("--perfetto", help="Also write a trace for ui.perfetto.dev to this file.")
    ] = None,
    json_file: JsonFile = "",
) -> None:
    """Make one self-contained HTML page of a run: who ran where and why, completion times, switch memory, stragglers.

    Works while the run goes on. With two runs, the page shows what the second gained over the first.

    Examples:

      paceline report out/run

      paceline report out/run --perfetto trace.json

      paceline report out/baseline out/paceline --html difference.html
    """
    from paceline.errors import UserError
    from paceline.launch.salvage import shown_as_damage
    from paceline.launch.store import read_run
    from paceline.report import perfetto as perfetto_trace
    from paceline.report.run import compare as run_compare
    from paceline.report.run import page as run_page

    if len(runs) > 2:
        raise UserError("one run, or two to compare", place="report")
    if len(runs) == 2 and perfetto is not None:
        raise UserError("a trace is of one run", place="--perfetto")
    read = []
    for folder in runs:
        with shown_as_damage(folder):
            read.append(read_run(folder))
    page = out or runs[-1] / ("report.html" if len(runs) == 1 else "comparison.html")
    with shown_as_damage(runs[-1]):
        if len(read) == 2:
            run_compare.write_page(page, read[0], read[1])
        else:
            run_page.write_page(page, read[0])
        if perfetto is not None:
            perfetto_trace.write_trace(perfetto, read[0])
    if json_file:
        found = {**run_compare.summary(read), "page": str(page)}
        write_json(json_file, found if perfetto is None else {**found, "perfetto": str(perfetto)})
    if json_file == "-":
        return
    for run in read:
        typer.echo(f"{run.name}: {run_page.verdict(run)}")
    if len(read) == 2:
        typer.echo(run_compare.conclusion(read[0], read[1]))
    typer.echo(f"page: {page}")
    if perfetto is not None:
        typer.echo(f"trace: {perfetto}")
