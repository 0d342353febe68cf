"""`paceline doctor`: is this machine ready, and what to do where it is not."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from paceline.commands.output import JsonFile, Legend, page_console, print_legend, write_json

STATES = ("ok", "worth a look", "bad", "left out")
_STYLES = dict(zip(STATES, ("green", "yellow", "bold red", "dim"), strict=True))


def doctor(
    switch: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Also look at this switch, or several (commas). Default: PACELINE_SWITCH.",
        ),
    ] = "",
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The switch's token. Default: PACELINE_TOKEN.")
    ] = None,
    launcher: Annotated[
        Literal["local", "slurm", "ray"], typer.Option(help="What has to be reachable for `paceline run`.")
    ] = "local",
    address: Annotated[str, typer.Option(help="Of the Ray cluster. Default: RAY_ADDRESS.")] = "",
    legend: Legend = False,
    json_file: JsonFile = "",
) -> None:
    """Look at this machine: what is there, what is missing, and what to do.

    Python, torch, compiled code, MTU, UDP buffers, shared memory, namespaces,
    Slurm, Ray; with a switch: whether it answers, whether the token is right,
    and whether a packet of full size goes there and comes back.

    Exit code: 0 nothing is in the way, 1 something is.

    Examples:

      paceline doctor

      paceline doctor --switch 10.0.0.1:7070 --token-file token

      paceline doctor --launcher slurm --json -
    """
    import os

    from paceline.errors import EXIT_FAILED
    from paceline.launch.doctor import Wanted, examine, to_json
    from paceline.secret_files import read_token

    token = read_token(token_file) if token_file else os.environ.get("PACELINE_TOKEN", "")
    wanted = Wanted(switch or os.environ.get("PACELINE_SWITCH", ""), token, launcher, address)
    page = page_console(100)
    findings = []
    for each in examine(wanted):
        findings.append(each)
        if json_file == "-":
            continue
        page.print(f"[{_STYLES[each.state]}]{each.state:<13}[/] {each.what:<14}", end="")
        page.print(each.text, markup=False, soft_wrap=True)
        if each.todo and each.state != "ok":
            page.print(f"{'':28} to do: {each.todo}", markup=False, soft_wrap=True)
    if legend and json_file != "-":
        print_legend(page, (*STATES, *dict.fromkeys(each.what for each in findings)))
    if json_file:
        write_json(json_file, to_json(findings))
    if any(each.state == "bad" for each in findings):
        raise typer.Exit(EXIT_FAILED)
