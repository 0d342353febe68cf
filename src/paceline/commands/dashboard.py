"""`paceline dashboard`: a live page of runs and switches in the browser."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import subprocess

HELP = """Show runs and switches in the browser, live: jobs, slots, cluster, switch memory, stragglers, events.

RUN is a run's folder, or its name below `runs/`; without one, and without --switch, the newest run below this folder.
Everybody who can reach the page may look. To cancel a job, change its priority, pause the queue or add a job takes the
token, which is printed here. Ends on Ctrl-C; the runs go on.

Examples:

  paceline dashboard out/run

  paceline dashboard out/baseline out/paceline --switch 127.0.0.1:7070

  paceline dashboard --listen 10.0.0.1:7080 --token-file token out/run
"""
DEFAULT_LISTEN = "127.0.0.1:7080"
LAST_LINE = "dashboard:"
"""Begins the last line that is printed before the page is served."""
STARTED_S = 60.0
"""So long a run or a switch waits for that line."""


def dashboard(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN ...", help="Folders of runs.")] = None,
    switch: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="A switch to watch; may be repeated.")
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Where the page is. Default: 127.0.0.1:7080, or the next free port."
        ),
    ] = "",
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The token that steering asks for. Default: a new one."),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Take no commands, with or without token.")
    ] = False,
    stragglers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML with a table `stragglers`: thresholds, a callback."),
    ] = None,
) -> None:
    from paceline.dashboard.hub import Hub
    from paceline.dashboard.run_source import open_run
    from paceline.dashboard.server import bound_socket, new_token, serve
    from paceline.dashboard.stragglers import StragglerRules, StragglerScores, callback_of, load_rules
    from paceline.dashboard.switch_source import SwitchSource
    from paceline.errors import UserError, optional_module
    from paceline.launch.control import find_run
    from paceline.live.switch_client import ControlPlane
    from paceline.secret_files import read_token

    missing = "the dashboard needs starlette and uvicorn: pip install 'paceline[switch]'"
    for module in ("uvicorn", "starlette"):
        optional_module(module, missing, place="dashboard")
    rules = load_rules(stragglers) if stragglers else StragglerRules()
    callback = callback_of(rules)
    named = runs or ([] if switch else [""])
    sources = [open_run(find_run(name), rules, callback) for name in named]
    for address in switch or []:
        ControlPlane.parse(address)
    watched = [SwitchSource(address, StragglerScores(rules, callback)) for address in switch or []]
    host, _, port = (listen or DEFAULT_LISTEN).rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"{listen!r} is not HOST:PORT", place="--listen")
    steering = bool(sources) and not read_only
    token = (read_token(token_file) or new_token()) if steering else ""
    made = bound_socket(host.strip("[]"), int(port), any_after=not listen)
    url = f"http://{host}:{made.getsockname()[1]}/"
    if steering and token_file is None:
        typer.echo(f"to steer:  {url}#token={token}", err=True)
    typer.echo(f"{LAST_LINE} {url}", err=True)
    serve(Hub(sources, watched, steering), made, token)


dashboard.__doc__ = HELP


def start_beside(arguments: list[str]) -> "subprocess.Popen[bytes]":
    """A dashboard in a process of its own, which ends with this one: what it shows is not slowed down by it.

    Returns when it has told where it is, which is passed on: a table that is drawn from then on does not hide it.
    """
    import subprocess
    import sys
    import threading

    from paceline.bench.processes import die_with_parent

    command = [sys.executable, "-c", "from paceline.cli import main; main()", "dashboard", *arguments]
    started = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    told = threading.Event()

    def pass_on() -> None:
        assert started.stderr is not None
        for line in started.stderr:
            typer.echo(line.decode(errors="replace"), nl=False, err=True)
            if line.startswith(LAST_LINE.encode()):
                told.set()
        told.set()

    threading.Thread(target=pass_on, name="paceline-dashboard", daemon=True).start()
    told.wait(STARTED_S)
    return started
