"""`paceline top`: a run on the whole screen, with keys to steer it; needs the package textual."""

from typing import Annotated

import typer

from paceline.commands.output import Legend, finite, page_console, print_legend

MISSING = "the full-screen view needs Textual: pip install 'paceline[top]'; `paceline status` needs nothing"


def top(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run's folder. Default: the newest below this one.")
    ] = "",
    legend: Legend = False,
    every: Annotated[
        float, typer.Option(callback=finite, min=0.1, metavar="SECONDS", help="Seconds between two looks.")
    ] = 0.5,
) -> None:
    """Watch a run on the whole screen, in any terminal, over ssh too.

    The jobs, the selected job's reason and last log lines, and the events.
    Keys: up and down choose a job, c cancels it, + and - change its priority,
    p pauses the queue and lets it go on, l explains the columns, q leaves. The
    run goes on without. --legend explains the columns and ends.

    Examples:

      paceline top

      paceline top out/run

      paceline top --legend
    """
    import sys

    from paceline.errors import UserError, optional_module
    from paceline.launch.control import find_run

    if legend:
        from paceline.commands.run_view import SCREEN_COLUMNS

        print_legend(page_console(80), SCREEN_COLUMNS)
        return
    folder = find_run(run)
    optional_module("textual", MISSING, place="top")
    if not sys.stdout.isatty():
        raise UserError("needs a terminal; for a pipe: paceline status", place="top")
    from paceline.commands.top_screen import RunScreen

    RunScreen(folder, every).run()
