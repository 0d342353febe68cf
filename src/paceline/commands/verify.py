"""`paceline verify`: whether two runs got the same bits, by their passports, and where they first part."""

from pathlib import Path
from typing import Annotated

import typer

from paceline.commands.output import JsonFile, write_json

SHOWN = 10


def verify(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN [RUN]", help="A run's folder, a folder of passports, or one passport."),
    ],
    json_file: JsonFile = "",
) -> None:
    """Compare the bits of two runs that were made with PACELINE_PASSPORT=1: every reduced tensor on every rank.

    With one run, its ranks are compared among themselves.

    Exit code: 0 the same bits; 1 different, and where they first part; 2 no passports, empty or damaged ones.

    Examples:

      paceline verify out/monday out/tuesday

      paceline verify passport

      paceline verify out/a out/b --json
    """
    from paceline.errors import EXIT_FAILED, UserError
    from paceline.passport.verify import read_run
    from paceline.passport.verify import verify as compare

    if len(runs) > 2:
        raise UserError("one run, or two to compare", place="verify")
    read = [read_run(path) for path in runs]
    verdict = compare(*read)
    if verdict.same and verdict.reductions == 0:
        raise UserError("the passports hold no result, so there is nothing to compare", place="verify")
    if json_file:
        write_json(json_file, verdict.as_json())
    if json_file != "-":
        if verdict.same:
            among = "" if len(runs) == 2 else " on all ranks"
            typer.echo(
                f"the same bits{among}: {verdict.reductions} results of {verdict.ranks} ranks in {verdict.jobs} jobs"
            )
        for difference in verdict.differences[:SHOWN]:
            typer.echo(f"different: job {difference.job}: {difference.what}")
        if len(verdict.differences) > SHOWN:
            typer.echo(f"and {len(verdict.differences) - SHOWN} more")
    if not verdict.same:
        raise typer.Exit(EXIT_FAILED)
