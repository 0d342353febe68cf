"""The command line: `paceline COMMAND`. Commands import what they need when they run, so help is quick."""

import sys

import typer

from paceline.errors import EXIT_USAGE, UserError

app = typer.Typer(
    name="paceline",
    no_args_is_help=True,
    add_completion=False,
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
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_version
    ),
) -> None:
    """Many deep-learning jobs finish sooner on one shared cluster."""


def _register() -> None:
    from paceline.commands import BENCHMARKS, CLUSTERS, COMMANDS, METRICS, REPRODUCTIONS

    for name, command in COMMANDS.items():
        app.command(name)(command)
    for name, command in REPRODUCTIONS.items():
        reproduce.command(name)(command)
    for name, command in BENCHMARKS.items():
        bench.command(name)(command)
    for name, command in CLUSTERS.items():
        cluster.command(name)(command)
    for name, command in METRICS.items():
        metrics.command(name)(command)


_register()


def main() -> None:
    """Run a command; a user's mistake is one line on stderr and exit code 2, never a traceback."""
    try:
        app()
    except UserError as error:
        print(f"paceline: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        print("paceline: interrupted", file=sys.stderr)
        sys.exit(130)
