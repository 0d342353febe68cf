"""`paceline run`: plan a list of jobs, launch each where the plan puts it, watch, plan anew, collect."""

from pathlib import Path
from typing import Annotated

import typer

HELP = """Run a list of jobs: plan, launch each on the slots that the plan gives it, watch, plan anew.

The job file is that of `paceline plan`, each job with a `command`, started once for each GPU (slot) with the
variables of torchrun and Paceline's own. State is on disk: a run whose planner was killed goes on with --resume.

Ctrl-C stops the jobs and ends. Exit code: 0 all done, 1 some job failed, 2 cannot run as asked, 130 interrupted.

Examples:

  paceline run examples/run/jobs.toml --cluster examples/run/cluster.toml --out out/run

  paceline run --resume out/run

  paceline run jobs.toml --launcher slurm --sbatch "--partition=gpu" --policy sjf-bco

  paceline run jobs.toml --launcher ray --address 10.0.0.1:6379 --json -

  paceline run jobs.toml --switch auto --switch-memory 1MiB
"""


def run(
    jobs: Annotated[Path | None, typer.Argument(help="Job file (TOML), each job with a command.")] = None,
    cluster: Annotated[str, typer.Option(help="Cluster file (TOML). Default: what the launcher finds.")] = "",
    launcher: Annotated[str, typer.Option(metavar="local|slurm|ray", help="Where jobs run.")] = "local",
    policy: Annotated[str, typer.Option(help="bco-plus, sjf-bco, ls, ff or rand.")] = "bco-plus",
    objective: Annotated[str, typer.Option(metavar="makespan|jct", help="What is minimised.")] = "makespan",
    switch: Annotated[
        str, typer.Option(metavar="auto|HOST:PORT|none", help="Software switch: start one, use one, or none.")
    ] = "none",
    switch_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory of the switch of --switch auto. Default: 64MiB.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run's folder. Default: runs/DATE-TIME.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with the run of this folder.")
    ] = None,
    address: Annotated[str, typer.Option(help="Of the Ray cluster. Default: RAY_ADDRESS, else auto.")] = "",
    sbatch: Annotated[str, typer.Option(metavar="OPTIONS", help="Further options of sbatch.")] = "",
    grace: Annotated[float, typer.Option(min=0.0, help="Seconds between SIGTERM and SIGKILL.")] = 5.0,
    patience: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait for servers to come back when nothing else fits.")
    ] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="For rand and bco-plus.")] = 0,
    json_file: Annotated[
        str, typer.Option("--json", metavar="FILE|-", help="Write the outcome as JSON; - is stdout, alone.")
    ] = "",
) -> None:
    import shlex
    import time

    from rich.console import Console

    from paceline.errors import UserError
    from paceline.launch import session, show
    from paceline.launch.store import Store

    if (jobs is None) == (resume is None):
        raise UserError("give either a job file or --resume DIR", place="run")
    if resume is not None:
        folder = resume
    else:
        assert jobs is not None
        folder = out or Path("runs") / time.strftime("%Y%m%d-%H%M%S")
        request = session.Request(
            launcher, policy, objective, switch, switch_memory, seed, grace, patience, address,
            tuple(shlex.split(sbatch)),
        )  # fmt: skip
        session.create(jobs, cluster, request, folder)
    console = Console(stderr=True)
    watcher: show.LiveTable | show.Lines = show.LiveTable(console) if console.is_terminal else show.Lines()
    try:
        code = session.go_on(folder, watcher)
    finally:
        watcher.close()
    store = Store.open_to_read(folder)
    document = show.summary(store)
    if json_file == "-":
        typer.echo(session.as_text(document))
    else:
        if json_file:
            path = Path(json_file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(session.as_text(document) + "\n", encoding="utf-8")
        page = Console(width=None if Console().is_terminal else 110, highlight=False)
        page.print(show.table(store, store.jobs(), time.time()))
        page.print(f"\nstate and logs: {folder}", markup=False, soft_wrap=True)
    store.close()
    raise typer.Exit(code)


run.__doc__ = HELP
