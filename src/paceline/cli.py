"""The command line: `paceline COMMAND`. Commands import what they need when they run, so help is quick."""

import os
import sys
from typing import TextIO, cast

import typer

from paceline.commands.help_text import Trimmed, fitted
from paceline.commands.output import with_json_target
from paceline.errors import EXIT_OK, EXIT_USAGE, UserError

app = typer.Typer(
    name="paceline",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Many deep-learning jobs finish sooner on one shared cluster.",
)
reproduce = typer.Typer(no_args_is_help=True, help="Repeat a paper's experiment: tables, CSV, plots, a page.")
app.add_typer(reproduce, name="reproduce")
bench = typer.Typer(no_args_is_help=True, help="Measure the live data plane beside its peers.")
app.add_typer(bench, name="bench")
cluster = typer.Typer(
    no_args_is_help=True, help="Write a cluster file from what Slurm, Ray or a list of nodes says."
)
app.add_typer(cluster, name="cluster")
metrics = typer.Typer(no_args_is_help=True, help="A Grafana dashboard, Prometheus alert rules, all metrics.")
app.add_typer(metrics, name="metrics")


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
    from paceline.commands import BENCHMARKS, CLUSTERS, COMMANDS, METRICS, REPRODUCTIONS

    for group, commands in (
        (app, COMMANDS), (reproduce, REPRODUCTIONS), (bench, BENCHMARKS), (cluster, CLUSTERS), (metrics, METRICS),
    ):  # fmt: skip
        for name, command in commands.items():
            group.command(name, help=fitted(command.__doc__))(command)


_register()


def main() -> None:
    """Run a command; a user's mistake is one line on stderr and exit code 2, never a traceback."""
    before = sys.stdout
    try:
        try:
            app(args=_arguments())
        finally:
            sys.stdout, shown = before, sys.stdout
            shown.flush()
    except UserError as error:
        print(f"paceline: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        print("paceline: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        _leave_quietly()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Typer makes an exit code 1 of it.
            _leave_quietly()
        raise


def _arguments() -> list[str]:
    """What the user typed. Help is written without blanks at the ends of lines, so that it can be pasted."""
    given = with_json_target(sys.argv[1:])
    if not given or {"-h", "--help"} & set(given):
        sys.stdout = cast(TextIO, Trimmed(sys.stdout))
    return given


def _leave_quietly() -> None:
    """Whoever read our output has seen enough (`| head`): no error. Nothing more may be written, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(EXIT_OK)
