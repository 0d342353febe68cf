"""`paceline why`: where the completion time of a job went, of a run or of a plan."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from paceline.commands.output import JsonFile, Legend, page_console, print_legend, print_table, write_json
from paceline.commands.status import RunOption

if TYPE_CHECKING:
    from paceline.schedule.why import Why


def why(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")],
    run: RunOption = "",
    cluster: Annotated[str, typer.Option(help="Of a plan instead: the cluster file.")] = "",
    jobs: Annotated[str, typer.Option(help="Of a plan instead: the job list.")] = "",
    policy: Annotated[str, typer.Option(help="The plan's policy.")] = "bco-plus",
    objective: Annotated[Literal["makespan", "jct"], typer.Option(help="The plan's.")] = "makespan",
    seed: Annotated[int, typer.Option(min=0, help="Of the plan and of --packets.")] = 0,
    packets: Annotated[
        bool,
        typer.Option("--packets", help="Judge by the packet simulator instead of the model; takes longer."),
    ] = False,
    legend: Legend = False,
    json_file: JsonFile = "",
) -> None:
    """Split a job's completion time into its causes.

    Queue, start-up, computing, sending that nothing hides, contention with each
    neighbour by name, switch memory, stragglers. Each is what the run would
    have saved without it, judged again step by step, so they add up to the whole.
    Of a run, what the model cannot account for is told too.

    Examples:

      paceline why resnet-a

      paceline why resnet-a --run out/run --packets

      paceline why resnet-a --cluster examples/plan/cluster.toml --jobs examples/plan/jobs.toml
    """
    from paceline.errors import UserError

    if bool(cluster) != bool(jobs) or (cluster and run):
        raise UserError("give --run, or --cluster and --jobs, or nothing for the newest run", place="why")
    if cluster:
        found = _of_plan(job, cluster, jobs, policy, objective, seed, packets)
    else:
        found = _of_run(job, run, seed, packets)
    if json_file:
        write_json(json_file, found.to_dict())
    if json_file != "-":
        _show(found, legend)


def _of_run(job: str, run: str, seed: int, packets: bool) -> "Why":
    from paceline.launch.control import find_run
    from paceline.launch.salvage import shown_as_damage
    from paceline.launch.store import read_run
    from paceline.launch.why import of_run
    from paceline.schedule.kernels import announce

    folder = find_run(run)
    with shown_as_damage(folder):
        data = read_run(folder)
        announce()
        if not packets:
            return of_run(data, job)
        from paceline.experiments.planned import ByPackets

        return of_run(data, job, lambda model: ByPackets(model, seed))


def _of_plan(
    job: str, cluster: str, jobs: str, policy: str, objective: Literal["makespan", "jct"], seed: int, packets: bool
) -> "Why":  # fmt: skip
    from paceline.schedule import planning
    from paceline.schedule import why as causes
    from paceline.schedule.inputs import sources
    from paceline.schedule.policies import by_name

    source = sources.ClusterSource.read(cluster)
    total = source.file.cluster().gpus_total
    listed = sources.checked(sources.read_jobs(jobs, total), total, jobs)
    schedule = planning.plan(source.problem(listed), by_name(policy, seed=seed), objective)
    if not packets:
        return causes.of_plan(schedule, job)
    from paceline.experiments.planned import ByPackets

    model = causes.ByModel(schedule.problem, schedule.placements, causes.index_of(schedule, job))
    return causes.of_plan(schedule, job, ByPackets(model, seed))


COLUMNS = ("cause", "", "time", "share")


def _show(found: "Why", legend: bool) -> None:
    from paceline.units import format_seconds

    page = page_console(100)
    page.print(f"{found.job} took {format_seconds(found.total_s)} from its arrival:", markup=False)
    whole = found.total_s or 1.0
    rows = [
        (
            part.cause,
            part.note,
            format_seconds(part.seconds) if part.seconds else "0 s",
            f"{part.seconds / whole:.1%}",
        )
        for part in found.parts
        if part.seconds or part.cause in ("queue", "computing")
    ]
    print_table(page, COLUMNS, rows, texts=2)
    if legend:
        print_legend(page, ("cause", "time of a cause", "share", *dict.fromkeys(row[0] for row in rows)))
    for remark in found.remarks:
        page.print(remark, markup=False)
