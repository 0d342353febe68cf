"""`paceline run`: plan a list of jobs, launch each where the plan puts it, watch, plan anew, collect."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.commands.output import JsonFile, Legend, finite, page_console, print_legend, write_json
from paceline.commands.run_view import COLUMNS, failures, job_table, ranked_by, rows_in_view, summary

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.launch.store import Row, Store

HELP = """Run a list of jobs: plan, launch each on the slots that the plan gives it, watch, plan anew.

The job file is that of `paceline plan`, each job with a `command`, started once for each GPU (slot) with the
variables of torchrun and Paceline's own. State is on disk: a run whose planner was killed goes on with --resume.

Ctrl-C stops the jobs and ends. Exit code: 0 all done or cancelled, 1 some job failed, 2 cannot run as
asked, 130 interrupted.

Examples:

  paceline run examples/run/jobs.toml --cluster examples/run/cluster.toml --out out/run

  paceline run --resume out/run

  paceline run jobs.toml --launcher slurm --sbatch "--partition=gpu" --policy sjf-bco

  paceline run jobs.toml --launcher ray --address 10.0.0.1:6379 --json -

  paceline run jobs.toml --switch auto --switch-memory 1MiB --dashboard

  paceline run examples/demo/jobs.toml --cluster examples/demo/cluster.toml --network emulated --switch auto
"""


def run(
    jobs: Annotated[
        Path | None, typer.Argument(metavar="JOBS", help="Job file (TOML), each job with a command.")
    ] = None,
    cluster: Annotated[str, typer.Option(help="Cluster file (TOML). Default: what the launcher finds.")] = "",
    launcher: Annotated[str, typer.Option(metavar="local|slurm|ray", help="Where jobs run.")] = "local",
    policy: Annotated[str, typer.Option(help="bco-plus, sjf-bco, ls, ff or rand.")] = "bco-plus",
    objective: Annotated[str, typer.Option(metavar="makespan|jct", help="What is minimised.")] = "makespan",
    switch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="auto|HOST:PORT|none",
            help="Software switch: start one, use one or several (repeat, or commas), or none. Default: what the "
            "cluster file names, else none.",
        ),
    ] = None,
    switch_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory of the switch of --switch auto. Default: 64MiB.")
    ] = "",
    switch_policy: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Of the switch of --switch auto: esa-plus (default), esa, atp, ..."
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run's folder. Default: runs/DATE-TIME.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with the run of this folder.")
    ] = None,
    address: Annotated[str, typer.Option(help="Of the Ray cluster. Default: RAY_ADDRESS, else auto.")] = "",
    sbatch: Annotated[str, typer.Option(metavar="OPTIONS", help="Further options of sbatch.")] = "",
    network: Annotated[
        str,
        typer.Option(
            metavar="emulated", help="Make the cluster file's network out of namespaces on this machine."
        ),
    ] = "",
    warm: Annotated[
        str,
        typer.Option(
            metavar="MODULE,...",
            help="On an emulated network: load these once, and fork ranks (python SCRIPT) from there.",
        ),
    ] = "",
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove what killed measurements left on this machine, and end.")
    ] = False,
    grace: Annotated[
        float,
        typer.Option(
            callback=finite, min=0.0, max=1e8, metavar="SECONDS", help="Time between SIGTERM and SIGKILL."
        ),
    ] = 5.0,
    patience: Annotated[
        float,
        typer.Option(
            callback=finite,
            min=0.0,
            max=1e8,
            metavar="SECONDS",
            help="How long to wait for servers to come back when nothing else fits.",
        ),
    ] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="For rand and bco-plus.")] = 0,
    no_later: Annotated[
        float,
        typer.Option(
            callback=finite,
            metavar="RATIO",
            help="bco-plus lets no job end more than so many times as late as first fit would; 0: no bound.",
        ),
    ] = 1.05,
    legend: Legend = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Show the run in the browser while it lasts; prints where.")
    ] = False,
    json_file: JsonFile = "",
) -> None:
    import shlex
    import subprocess

    from rich.console import Console

    from paceline.emulation.enclosure import enclosed, enter
    from paceline.errors import UserError
    from paceline.launch import run as launch
    from paceline.launch.store import Store

    if clean:
        _clean()
        return
    if (jobs is None) == (resume is None):
        raise UserError("give either a job file or --resume DIR", place="run")
    if resume is not None:
        folder = resume
    else:
        assert jobs is not None
        folder = out or Path("runs") / time.strftime("%Y%m%d-%H%M%S")
        request = launch.RunRequest(
            launcher, policy, objective, ",".join(switch or []), switch_memory, seed, grace, patience, address,
            tuple(shlex.split(sbatch)), network, tuple(name for name in warm.split(",") if name),
            switch_policy, no_later,
        )  # fmt: skip
        launch.create(jobs, cluster, request, folder)
    page: subprocess.Popen[bytes] | None = None
    if dashboard and not enclosed():
        # Outside of an emulated network, where a browser can reach it; it ends with this process.
        from paceline.commands.dashboard import start_beside

        page = start_beside([str(folder)])
    if launch.asks_for_emulation(folder) and not enclosed():
        again = [
            sys.executable,
            "-c",
            "from paceline.cli import main; main()",
            "run",
            "--resume",
            str(folder),
        ]
        if legend:
            again.append("--legend")
        enter([*again, "--json", json_file] if json_file else again)
    console = Console(stderr=True)
    watcher: LiveTable | EventLines = LiveTable(console) if console.is_terminal else EventLines()
    try:
        code = launch.go_on(folder, watcher)
    finally:
        watcher.close()
        if page is not None:
            page.terminate()
            page.wait(10)
    store = Store.open_to_read(folder)
    if json_file:
        write_json(json_file, summary(store))
    if json_file != "-":
        shown = page_console(110)
        shown.print(job_table(store, store.jobs(), time.time(), shown.width))
        if legend:
            print_legend(shown, COLUMNS)
        for line in failures(store):
            shown.print(line, markup=False, soft_wrap=True)
        shown.print(ranked_by(store), style="dim", markup=False, soft_wrap=True)
        shown.print(f"\nstate and logs: {folder}", markup=False, soft_wrap=True)
    store.close()
    raise typer.Exit(code)


run.__doc__ = HELP


def _clean() -> None:
    """Emulated clusters end with their run; measurements with limited links may leave namespaces if they are killed."""
    from paceline.emulation import namespaces, processors

    groups = processors.remove_leftovers()
    for name in (removed := namespaces.remove_leftovers()):
        typer.echo(f"removed the network namespace {name}")
    for name in groups:
        typer.echo(f"removed the control group {name}")
    if not removed and not groups:
        typer.echo("nothing was left behind")


class EventLines:
    """Watches a run by one line an event on standard error, for logs and pipes."""

    def event(self, row: "Row") -> None:
        reason = f" ({row['reason']})" if row["reason"] else ""
        clock = time.strftime("%H:%M:%S", time.localtime(row["time"]))
        typer.echo(f"{clock} {row['kind']}: {row['text']}{reason}".replace("\n", " "), err=True)

    def tick(self, store: "Store", now: float) -> None:
        """Nothing between events."""

    def close(self) -> None:
        """Nothing is held."""


class LiveTable:
    """Watches a run by a table that is drawn anew, with the last events below it."""

    def __init__(self, console: "Console", events: int = 6, redraw_s: float = 0.25) -> None:
        from rich.live import Live

        self._last: list[Row] = []
        self._events, self._redraw_s, self._drawn = events, redraw_s, 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def event(self, row: "Row") -> None:
        self._last = [*self._last, row][-self._events :]

    def tick(self, store: "Store", now: float) -> None:
        from rich.console import Group
        from rich.text import Text

        if now - self._drawn < self._redraw_s:
            return
        self._drawn = now
        rows = rows_in_view(store.jobs(), max(5, self._live.console.height - self._events - 4))
        below = [Text(f"{row['text']}  {row['reason']}", style="dim", no_wrap=True) for row in self._last]
        self._live.update(Group(job_table(store, rows, now, self._live.console.width), *below), refresh=True)

    def close(self) -> None:
        self._live.stop()
