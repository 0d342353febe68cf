"""`paceline plan`: which job runs where and when, by one or several policies, and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
    from paceline.experiments.planned import Compared
    from paceline.schedule.inputs.jobs import Job
    from paceline.schedule.inputs.sources import ClusterSource
    from paceline.schedule.plan import Schedule

HELP = """Plan training jobs on a shared cluster, and compare scheduling policies.

A table of makespan, completion times and the gap to a bound no schedule can beat, and a Gantt chart.

Jobs that arrive over time are planned for online: nobody sees the future.

Examples:

  paceline plan --cluster examples/plan/cluster.toml --jobs examples/plan/jobs.toml

  paceline plan --cluster paper:1 --jobs paper:1 --policy all --html plan.html

  paceline plan --cluster cluster.toml --jobs jobs.csv --policy bco-plus --explain resnet-a

  paceline plan --cluster cluster.toml --jobs j.csv --what-if servers=+2 --what-if "inter_server=100 Gbit/s"

  paceline plan --cluster cluster.toml --trace philly:cluster_job_log --limit 500 --objective jct --json -
"""


def plan(
    cluster: Annotated[str, typer.Option(help="Cluster file (TOML), or paper:SEED, paper:SEED:SERVERS.")],
    jobs: Annotated[
        str,
        typer.Option(
            help="Job list (TOML or CSV), paper:SEED, or philly-like:SEED, then :JOBS, then :HOURS."
        ),
    ] = "",
    trace: Annotated[
        str, typer.Option(metavar="FORMAT:PATH", help="Instead of jobs: philly, helios, pai or swf.")
    ] = "",
    policy: Annotated[
        list[str] | None,
        typer.Option(help="A policy, several (repeat, or commas), or all. Default: sjf-bco, bco-plus, ls."),
    ] = None,
    objective: Annotated[
        Literal["makespan", "jct"],
        typer.Option(help="What is minimised: the last end, or the mean wait + run."),
    ] = "makespan",
    explain: Annotated[str, typer.Option(metavar="JOB", help="Say why this job is where it is.")] = "",
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Compare with a change: a key of the cluster file, servers=+2 or -2, gpus=16 (of every server),"
            " without=JOB, priority.JOB=9; commas join, repeat to ask again.",
        ),
    ] = None,
    packets: Annotated[
        bool, typer.Option("--packets", help="Run the best plan packet by packet, beside what was expected.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="For rand, bco-plus and the models of a trace.")] = 0,
    work: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Plans that bco-plus tries. Default: 2500, fewer for more than 160 jobs. A seed has one plan.",
        ),
    ] = None,
    budget: Annotated[
        float,
        typer.Option(
            callback=finite,
            min=0.0,
            metavar="SECONDS",
            help="How long bco-plus may search at most; it is said if that strikes.",
        ),
    ] = 60.0,
    no_later: Annotated[
        float | None,
        typer.Option(
            callback=finite,
            metavar="RATIO",
            min=1.0,
            help="bco-plus lets no job end more than so many times as late as first fit would. Default: no bound.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many jobs.")] = None,
    gantt: Annotated[bool, typer.Option(help="Show the Gantt chart in the terminal.")] = True,
    json_file: JsonFile = "",
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page.")] = None,
    legend: Legend = False,
) -> None:
    from paceline.report import plan as output
    from paceline.schedule.explain import explain as explain_job
    from paceline.schedule.inputs.sources import ClusterSource, checked
    from paceline.schedule.inputs.sources import what_if as changed_problem

    source = ClusterSource.read(cluster)
    listed, remarks = _jobs(source, jobs, trace, seed, limit)
    names = _names(policy or [])
    if explain:
        _check_job(explain, listed)
    questions = [(change, *changed_problem(source, listed, change)) for change in what_if or []]
    for number, (change, changed_source, changed_jobs) in enumerate(questions):
        checked(changed_jobs, changed_source.file.cluster().gpus_total, f"--what-if {change}")
        if changed_source.file.device != source.file.device:
            # Jobs that name a model take another time on other devices.
            anew, _ = _jobs(changed_source, jobs, trace, seed, limit)
            questions[number] = (change, *changed_problem(source, anew, change))
    schedules = _run(source, listed, names, objective, (seed, budget, work, no_later), "")
    best = output.best_of(schedules, objective)
    remarks += output.caps(schedules)
    rows, changed_json = [], []
    for change, changed_source, changed_jobs in questions:
        changed = _run(
            changed_source, changed_jobs, names, objective, (seed, budget, work, no_later), f" if {change}"
        )
        for before, after in zip(schedules, changed, strict=True):
            rows.append(output.what_if_row(change, before, after))
            entry = after.to_dict()
            changed_json.append({"change": change, **{k: v for k, v in entry.items() if k != "placements"}})
    explained = explain_job(best, explain, objective) if explain else []
    compared = _compare(best, seed) if packets else []
    if json_file:
        document = {
            "objective": objective,
            "instance": output.instance_json(schedules),
            "remarks": remarks,
            "policies": [schedule.to_dict() for schedule in schedules],
            "what_if": changed_json,
            "explanation": explained,
        }
        if packets:
            document["packets"] = [each.to_dict() for each in compared]
        write_json(json_file, document)
    if html is not None:
        output.write_page(html, schedules, objective, rows, remarks, explained)
    if json_file != "-":
        _show(schedules, best, objective, rows, remarks, explained, gantt, html, legend)
        if compared:
            _show_packets(best, compared, legend)


plan.__doc__ = HELP


def _jobs(
    source: "ClusterSource", jobs: str, trace: str, seed: int, limit: int | None
) -> "tuple[tuple[Job, ...], list[str]]":
    from paceline.errors import UserError
    from paceline.schedule.inputs import sources

    if bool(jobs) == bool(trace):
        raise UserError("give either --jobs or --trace", place="plan")
    total = source.file.cluster().gpus_total
    if trace:
        return sources.read_trace_jobs(trace, total, seed, limit)
    read = sources.read_jobs(jobs, total, source.file.device.flop_rate)
    return sources.checked(read, total, jobs)[:limit], []


def _names(given: list[str]) -> list[str]:
    from paceline.schedule.policies import NAMES, by_name

    wanted = [name.strip() for entry in given for name in entry.split(",") if name.strip()]
    names = wanted or ["sjf-bco", "bco-plus", "ls"]
    names = [each for name in names for each in (NAMES if name == "all" else (name,))]
    for name in names:
        by_name(name)
    return list(dict.fromkeys(names))


def _check_job(name: str, jobs: "tuple[Job, ...]") -> None:
    # Before any planning: a misspelt name should cost nothing.
    import difflib

    from paceline.errors import UserError

    known = [job.name for job in jobs]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the first job is {known[0]!r}"
        raise UserError(f"there is no job {name!r}; {hint}", place="--explain")


def _run(
    source: "ClusterSource",
    jobs: "tuple[Job, ...]",
    names: list[str],
    objective: Literal["makespan", "jct"],
    search: tuple[int, float, int | None, float | None],
    note: str,
) -> "list[Schedule]":
    """`search`: the seed, how long and how far bco-plus may search, and how late it may let a job end."""
    from dataclasses import replace

    from rich.console import Console

    from paceline.schedule import planning
    from paceline.schedule.kernels import announce
    from paceline.schedule.policies import by_name

    seed, budget, work, no_later = search
    problem = source.problem(jobs)
    announce()
    console = Console(stderr=True)
    schedules = []
    for name in names:
        chosen = by_name(name, seed=seed, budget_s=budget, work=work, no_later=no_later)
        if console.is_terminal:
            with console.status(f"{name}: planning {len(jobs)} jobs{note} ..."):
                schedules.append(planning.plan(problem, chosen, objective))
        else:
            schedules.append(planning.plan(problem, chosen, objective))
    # A bound that one of them proved holds for all that do not preempt.
    best = max(schedules, key=lambda schedule: schedule.lower_bound_s)
    return [
        s if s.preempts else replace(s, lower_bound_s=best.lower_bound_s, bound_by=best.bound_by)
        for s in schedules
    ]


def _compare(best: "Schedule", seed: int) -> "list[Compared]":
    from paceline.experiments.planned import compare

    return compare(best, seed)


PACKETS_COLUMNS = ("job", "servers", "expected", "simulated", "error")


def _show_packets(best: "Schedule", compared: "list[Compared]", legend: bool) -> None:
    from paceline.units import format_seconds

    console = page_console(110)
    console.print(f"\n{best.policy}, packet by packet, an iteration:", style="bold")
    print_table(
        console,
        PACKETS_COLUMNS,
        [
            (
                each.job,
                str(each.servers),
                format_seconds(each.expected_s),
                format_seconds(each.simulated_s),
                f"{each.error:+.1%}",
            )
            for each in compared
        ],
    )
    mean = sum(abs(each.error) for each in compared) / len(compared)
    console.print(f"mean error {mean:.1%}")
    if legend:
        print_legend(console, PACKETS_COLUMNS)


def _show(
    schedules: "list[Schedule]",
    best: "Schedule",
    objective: Literal["makespan", "jct"],
    what_if: list[list[str]],
    remarks: list[str],
    explained: list[str],
    gantt: bool,
    html: Path | None,
    legend: bool,
) -> None:
    from paceline.report import plan as output
    from paceline.report.gantt import text_gantt
    from paceline.units import format_seconds

    console = page_console(110)
    for remark in remarks:
        console.print(remark, style="dim", markup=False)
    problem = best.problem
    console.print(
        f"{len(problem.jobs)} jobs on {len(problem.cluster.servers)} servers,"
        f" {problem.cluster.gpus_total} GPUs; no schedule ends before {format_seconds(best.lower_bound_s)}"
        f" ({best.bound_by})"
    )
    print_table(console, output.COLUMNS, [output.row(s) for s in schedules])
    if legend:
        print_legend(console, output.COLUMNS)
    if len(schedules) > 1:
        console.print(output.ranked_by(schedules, objective), style="dim", markup=False)
    if gantt:
        console.print(f"\n{best.policy}:", style="bold")
        console.print(text_gantt(best, min(console.width, 140)), markup=False, soft_wrap=True)
    if what_if:
        console.print("\nWhat if:", style="bold")
        print_table(console, output.WHAT_IF_COLUMNS, what_if, texts=2)
        if legend:
            print_legend(console, output.WHAT_IF_COLUMNS)
    if explained:
        console.print()
        for line in explained:
            console.print(line, markup=False)
    if html is not None:
        console.print(f"\npage: {html}", markup=False)
