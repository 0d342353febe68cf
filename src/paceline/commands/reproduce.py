"""`paceline reproduce`: the papers' experiments, each with its tables beside the published values.

The commands share their options. A further one takes `jobs: Processes = None, ray: RayAddress = None, resume: Resume =
False, legend: Legend = False, json_file: JsonFile = ""` and runs inside `with sweep_options(out, jobs, ray, resume) as
sweep:`, which it hands to its experiment; what comes of it goes to `_tell`.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.commands.output import (
    JsonFile,
    Legend,
    finite,
    page_console,
    print_legend,
    print_table,
    write_json,
)

if TYPE_CHECKING:
    from paceline.experiments.sweep import Sweep

OutFolder = Annotated[Path, typer.Option(help="Folder for the page, the CSV files and summary.json.")]
Processes = Annotated[int | None, typer.Option(min=1, help="Processes on this machine; default: all cores.")]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help='Run the points on a Ray cluster: host:port, ray://host:port, "auto", or "local" to start one here.',
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from what is finished in the folder.")]
PAGE_COLUMNS = 160
"""Width of what is printed where there is no terminal."""


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


def esa(
    out: OutFolder = Path("out/esa"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points: two minutes on two cores.")] = False,
    jobs: Processes = None,
    ray: RayAddress = None,
    resume: Resume = False,
    legend: Legend = False,
    json_file: JsonFile = "",
) -> None:
    """Repeat the ESA paper's claim: average job completion time by jobs, switch memory, workers and loss.

    Every policy is tuned at every point. Writes index.html, rows.csv, speedups.csv and summary.json.

    Examples:

      paceline reproduce esa --quick

      paceline reproduce esa --out out/esa --resume

      paceline reproduce esa --ray head:6379
    """
    from paceline.experiments.esa.experiment import reproduce

    with sweep_options(out, jobs, ray, resume) as sweep:
        summary = reproduce(out, quick, sweep)
    rows = [
        (claim, _number(entry["paper"], 2), _number(entry["ours"], 2), entry["setting"])
        for claim, entry in summary.items()
    ]
    _tell(out, ("claim", "paper", "ours", "setting"), rows, summary, legend, json_file)


def fidelity(
    out: OutFolder = Path("out/fidelity"),
    quick: Annotated[bool, typer.Option("--quick", help="64 placements instead of 320.")] = False,
    first_seed: Annotated[int, typer.Option(min=0, help="Draw workloads from this seed on.")] = 0,
    jobs: Processes = None,
    ray: RayAddress = None,
    resume: Resume = False,
    legend: Legend = False,
    json_file: JsonFile = "",
) -> None:
    """The scheduler's predictions against packets, over random placements.

    2 to 40 jobs on stars and leaf-spines, summed by ring, ATP, SwitchML or ESA, placed in four ways each: run times by
    the model and by the packet simulator.

    Writes index.html, rows.csv, errors.csv and summary.json.

    Examples:

      paceline reproduce fidelity --quick

      paceline reproduce fidelity --first-seed 1000 --out out/fresh
    """
    from paceline.experiments.fidelity.experiment import reproduce

    with sweep_options(out, jobs, ray, resume) as sweep:
        summary = reproduce(out, quick, sweep, first_seed)
    rows = [(figure, _number(entry["ours"], 3), entry["setting"]) for figure, entry in summary.items()]
    _tell(out, ("figure", "ours", "setting"), rows, summary, legend, json_file)


def joint(
    out: OutFolder = Path("out/joint"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and smaller jobs: about a minute.")] = False,
    jobs: Processes = None,
    ray: RayAddress = None,
    resume: Resume = False,
    legend: Legend = False,
    json_file: JsonFile = "",
) -> None:
    """Placement, switch memory and straggler help, alone and together, packet by packet.

    {first-fit, SJF-BCO, bco-plus} x {ring, ATP, ESA} x {stragglers left alone, helped by custody and takeover}, on a
    leaf-spine and on a star, with one slow server.

    Writes index.html, rows.csv, combinations.csv, ideas.csv and summary.json.

    Examples:

      paceline reproduce joint --quick

      paceline reproduce joint --out out/joint
    """
    from paceline.experiments.joint.experiment import reproduce

    with sweep_options(out, jobs, ray, resume) as sweep:
        summary = reproduce(out, quick, sweep)
    rows = [(figure, _number(entry["ours"], 2), entry["setting"]) for figure, entry in summary.items()]
    _tell(out, ("figure", "ours", "setting"), rows, summary, legend, json_file)


def live(
    out: OutFolder = Path("out/live"),
    quick: Annotated[
        bool,
        typer.Option("--quick", help="One workload, one seed, no ATP: eight short cells, seven minutes."),
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Drawn workloads of each kind. Default: 3.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            callback=finite, min=0.0, help="Begin no further cell after so long; --resume goes on from there."
        ),
    ] = None,
    jobs: Processes = None,
    resume: Resume = False,
    legend: Legend = False,
    json_file: JsonFile = "",
) -> None:
    """The three ideas on real links: training processes on an emulated cluster, beside the simulator's predictions.

    {first fit, bco-plus} x {Gloo, ATP, esa-plus} x {wait for the slow server, takeover} on two workloads, one of them
    beside other traffic. Cells run one after the other, a minute each; --jobs is for the predictions. Needs PyTorch,
    and root or user namespaces. Other work on the machine spoils it.

    Writes index.html, rows.csv, cells.csv, combinations.csv, ideas.csv, summary.json, and the runs themselves.

    Examples:

      paceline reproduce live --quick

      paceline reproduce live --out out/live --minutes 10 --resume
    """
    from paceline.experiments.live.experiment import Unfinished, reproduce

    with sweep_options(out, jobs, None, resume) as sweep:
        summary = reproduce(out, quick, sweep, seeds, None if minutes is None else 60 * minutes)
    if isinstance(summary, Unfinished):
        told = f"{summary.done} of {summary.cells} cells are done; the same command with --resume goes on"
        if json_file:
            write_json(json_file, {"cells": summary.cells, "done": summary.done, "page": None})
        if json_file != "-":
            typer.echo(told)
        return
    rows = [(figure, _number(entry["ours"], 3), entry["setting"]) for figure, entry in summary.items()]
    _tell(out, ("figure", "ours", "setting"), rows, summary, legend, json_file)


def sa_atp(
    out: OutFolder = Path("out/sa-atp"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer points, smaller models: two minutes on two cores.")
    ] = False,
    jobs: Processes = None,
    ray: RayAddress = None,
    resume: Resume = False,
    legend: Legend = False,
    json_file: JsonFile = "",
) -> None:
    """Repeat SA-ATP's claim: iteration time and training speed with slow workers, and what other jobs feel of it.

    Writes index.html, rows.csv and summary.json.

    Examples:

      paceline reproduce sa-atp --quick

      paceline reproduce sa-atp --out out/sa-atp --resume
    """
    from paceline.experiments.sa_atp.experiment import reproduce

    with sweep_options(out, jobs, ray, resume) as sweep:
        found, summary = reproduce(out, quick, sweep)
    if json_file != "-":
        console = page_console(PAGE_COLUMNS)
        print_table(console, SA_ATP_COLUMNS, [_sa_atp_row(row) for row in found], texts=3)
        if legend:
            print_legend(console, SA_ATP_COLUMNS)
        console.print()
    rows = [
        (claim, _number(entry["paper"], 2), _number(entry["ours"], 3), entry["setting"])
        for claim, entry in summary.items()
    ]
    _tell(out, ("claim", "paper", "ours", "setting"), rows, summary, legend, json_file)


SA_ATP_COLUMNS = (
    "setting", "policy", "straggler", "iteration", "C_s + G/B_s", "takeover bound", "ratio", "over ATP",
    "others' JCT", "sums",
)  # fmt: skip


def _sa_atp_row(row: dict[str, Any]) -> list[str]:
    """Iteration time, both bounds, and how it stands to the takeover bound and to plain ATP."""
    times = (row["iteration_ms"], row["bound_custody_ms"], row["bound_takeover_ms"])
    return [
        *(row["setting"], row["policy"], row["straggler"]),
        *(_number(time, 1, " ms") for time in times),
        *(_number(row[key], 3) for key in ("bound_ratio", "speedup_over_atp")),
        _number(row["others_jct_ms"], 2, " ms"),
        row["failed"] or row["sums"],
    ]


def sjf_bco(
    out: OutFolder = Path("out/sjf-bco"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer seeds: about a minute on two cores.")] = False,
    jobs: Processes = None,
    ray: RayAddress = None,
    resume: Resume = False,
    legend: Legend = False,
    json_file: JsonFile = "",
) -> None:
    """Repeat the SJF-BCO paper's figures 4-7: four schedulers, kappa, 10/15/20 servers, lambda.

    Writes index.html, a CSV file a figure and summary.json into the folder.

    Examples:

      paceline reproduce sjf-bco --quick

      paceline reproduce sjf-bco --out out/sjf-bco --resume

      paceline reproduce sjf-bco --ray head:6379
    """
    from paceline.experiments.sjf_bco.experiment import reproduce

    with sweep_options(out, jobs, ray, resume) as sweep:
        summary = reproduce(out, quick, sweep)
    rows = [(figure, _value(entry["paper"]), _value(entry["ours"])) for figure, entry in summary.items()]
    _tell(out, ("figure", "paper", "ours"), rows, summary, legend, json_file)


def _tell(
    out: Path,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    summary: Any,
    legend: bool,
    json_file: str,
) -> None:
    """What an experiment found: for people, as JSON, or both."""
    page = out / "index.html"
    if json_file:
        write_json(json_file, {"summary": summary, "page": str(page)})
    if json_file == "-":
        return
    console = page_console(PAGE_COLUMNS)
    print_table(console, columns, rows, texts=len(columns))
    if legend:
        print_legend(console, columns)
    console.print(f"page: {page}", markup=False)


def _number(value: float | None, digits: int, unit: str = "") -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def _value(value: object) -> str:
    """A figure of the scheduler's experiment, of whatever kind it is."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return " < ".join(str(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item:.0f}" for key, item in value.items())
    return str(value)
