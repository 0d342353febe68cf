"""The options that every `paceline reproduce` command shares: how its points are run.

A command takes `jobs: Jobs = None, ray: RayAddress = None, resume: Resume = False` and runs inside
`with sweep_options(out, jobs, ray, resume) as sweep:`, which it hands to its experiment.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from paceline.experiments.sweep import Sweep

Jobs = Annotated[int | None, typer.Option(min=1, help="Processes on this machine; default: all cores.")]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help='Run the points on a Ray cluster: host:port, ray://host:port, "auto", or "local" to start one here.',
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from what is finished in the folder.")]


@contextmanager
def sweep_options(out: Path, jobs: int | None, ray: str | None, resume: bool) -> Iterator["Sweep"]:
    """How to run the points; an interrupted user is told how to go on."""
    from paceline.experiments.sweep import FILE_NAME, Sweep

    try:
        yield Sweep(processes=jobs, ray=ray, folder=out, resume=resume)
    except KeyboardInterrupt:
        if (out / FILE_NAME).exists():
            print(
                f"paceline: finished points are in {out}; the same command with --resume goes on",
                file=sys.stderr,
            )
        raise
