"""The command line: `paceline COMMAND`. Commands import what they need when they run, so help is quick."""

import os
import sys
from typing import NoReturn, TextIO, cast

import typer

from paceline.commands.help_text import Trimmed, fitted
from paceline.commands.output import with_json_target
from paceline.commands.usage import MISUSE, Commands, told
from paceline.errors import EXIT_OK, EXIT_USAGE, UserError

app = typer.Typer(
    name="paceline",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Many deep-learning jobs finish sooner on one shared cluster.",
)
reproduce = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Repeat a paper's experiment: tables, CSV, plots, a page."
)
bench = typer.Typer(cls=Commands, no_args_is_help=True, help="Measure the live data plane beside its peers.")
cluster = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Write a cluster file from what Slurm, Ray or a list of nodes says.",
)
metrics = typer.Typer(
    cls=Commands, no_args_is_help=True, help="A Grafana dashboard, Prometheus alert rules, all metrics."
)
GROUPS = [["reproduce"], ["bench"], ["cluster"], ["metrics"]]
"""Commands that are nothing without another word."""


def _version(wanted: bool) -> None:
    if wanted:
        from paceline import __version__

        typer.echo(f"paceline {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "-V", "--version", help="Print the version and exit.", is_eager=True, callback=_version
    ),
) -> None:
    """Many deep-learning jobs finish sooner on one shared cluster."""


def _register() -> None:
    from paceline.commands import BENCHMARKS, CLUSTERS, COMMANDS, METRICS, PANELS, REPRODUCTIONS

    panel_of = {name: panel for panel, names in PANELS.items() for name in names}
    for name, command in COMMANDS.items():
        app.command(name, help=fitted(command.__doc__), rich_help_panel=panel_of[name])(command)
    for name, group, commands in (
        ("cluster", cluster, CLUSTERS), ("metrics", metrics, METRICS),
        ("reproduce", reproduce, REPRODUCTIONS), ("bench", bench, BENCHMARKS),
    ):  # fmt: skip
        app.add_typer(group, name=name, rich_help_panel=panel_of[name])
        for own, command in commands.items():
            group.command(own, help=fitted(command.__doc__))(command)


_register()


def main() -> None:
    """Run a command; a user's mistake is one line on stderr and exit code 2, never a traceback."""
    before = sys.stdout
    try:
        try:
            code = app(args=_arguments(), standalone_mode=False)
        finally:
            sys.stdout, shown = before, sys.stdout
            shown.flush()
    except UserError as error:
        _refuse(error)
    except MISUSE as error:
        _refuse(told(error))
    except MemoryError as error:
        what = str(error).partition(" for an array")[0]
        _refuse(UserError(f"not enough memory for what is asked{what and ': '}{what}"))
    except (KeyboardInterrupt, typer.Abort):
        print("paceline: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        _leave_quietly()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Typer makes an exit code 1 of it.
            _leave_quietly()
        raise
    sys.exit(code if isinstance(code, int) else EXIT_OK)


def _refuse(error: UserError) -> NoReturn:
    print(f"paceline: {error}", file=sys.stderr)
    sys.exit(EXIT_USAGE)


def _arguments() -> list[str]:
    """What the user typed. Help is written without blanks at the ends of lines, so that it can be pasted."""
    given = with_json_target(sys.argv[1:])
    if not given or given in GROUPS:
        given.append("--help")
    if {"-h", "--help"} & set(given):
        sys.stdout = cast(TextIO, Trimmed(sys.stdout))
    return given


def _leave_quietly() -> None:
    """The reader of our output has gone (`| head`): no error. Nothing more may be written, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(EXIT_OK)
