"""`paceline cancel`, `priority`, `pause`, `unpause`, `add`: change a run that goes on, from any terminal."""

from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.commands.output import JsonFile, write_json
from paceline.commands.status import RunOption

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="The run's folder. Default: the newest below this one.")
]
WAIT_S = 15.0


def cancel(
    job: JobArgument,
    run: RunOption = "",
    why: Annotated[str, typer.Option(help="Kept with the job.")] = "",
    json_file: JsonFile = "",
) -> None:
    """End a job of a run, wherever it stands; it does not come back with --resume.

    A job that runs gets SIGTERM, the run's time of grace, and SIGKILL. The
    others go on, and are planned anew.

    Examples:

      paceline cancel resnet-a

      paceline cancel resnet-a --run out/run --why "wrong data"
    """
    _asked(run, "cancel", json_file, job=job, argument={"why": why})


def priority(
    job: JobArgument,
    value: Annotated[float, typer.Argument(metavar="PRIORITY", help="Above 0; 1 is ordinary.")],
    run: RunOption = "",
    json_file: JsonFile = "",
) -> None:
    """Change the priority of a job that waits.

    The next plan counts it. A job that runs, or stands in the queue of Slurm or
    Ray, keeps its slots or its place there.

    Examples:

      paceline priority resnet-a 4
    """
    _asked(run, "priority", json_file, job=job, argument={"priority": value})


def pause(run: RunArgument = "", json_file: JsonFile = "") -> None:
    """Start no further jobs of a run; what runs goes on.

    Examples:

      paceline pause

      paceline pause out/run
    """
    _asked(run, "pause", json_file)


def unpause(run: RunArgument = "", json_file: JsonFile = "") -> None:
    """Let a paused queue go on.

    Examples:

      paceline unpause out/run
    """
    _asked(run, "unpause", json_file)


def add(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's folder.")],
    jobs: Annotated[Path, typer.Argument(metavar="JOBS", help="Job file (TOML), each job with a command.")],
    json_file: JsonFile = "",
) -> None:
    """Add jobs to a run; their arrival counts from now.

    A run that has ended takes them with `paceline run --resume RUN`.

    Examples:

      paceline add out/run more.toml
    """
    from paceline.launch.control import ask_to_add, find_run

    folder = find_run(run)
    _tell(folder, ask_to_add(folder, jobs, _me()), json_file)


def _asked(run: str, kind: str, json_file: str, **what: Any) -> None:
    from paceline.launch.control import ask, find_run

    folder = find_run(run)
    _tell(folder, ask(folder, kind, by=_me(), **what), json_file)


def _tell(folder: Path, number: int, json_file: str) -> None:
    """Wait for the planner, and say what it did; exit code 1 if it refused."""
    from paceline.errors import EXIT_FAILED
    from paceline.launch.control import as_json, planner_alive, wait

    row = wait(folder, number, WAIT_S)
    if json_file:
        write_json(json_file, {"run_dir": str(folder), **as_json(row)})
    if json_file != "-":
        if row["state"] != "asked":
            typer.echo(f"{folder}: {'' if row['state'] == 'done' else 'refused: '}{row['outcome']}")
        elif planner_alive(folder):
            typer.echo(f"{folder}: asked; the planner has not taken it within {WAIT_S:.0f} s, and will")
        else:
            typer.echo(
                f"{folder}: no planner is alive; it is done when the run goes on: paceline run --resume {folder}"
            )
    if row["state"] == "refused":
        raise typer.Exit(EXIT_FAILED)


def _me() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # A user without a name, as in some containers.
        return ""
