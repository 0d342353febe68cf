"""Where the time of a job of a run went: what was measured of its waiting, and its training judged without each cause.

Queue, start-up and lost attempts are measured. Training is split by the model (`schedule/why.py`), with every job on
the slots that it had, from when it started, for as long as it really ran. What the model cannot account for is told
as such: first what the switch measured of the latest worker, then the rest, which may be below zero.
"""

from collections.abc import Callable
from dataclasses import replace
from statistics import median

from paceline.errors import UserError
from paceline.launch.jobs import RunJob
from paceline.report.run.read import Attempt, Row, RunData
from paceline.schedule import why
from paceline.schedule.inputs.sources import ClusterSource
from paceline.schedule.model import Problem
from paceline.schedule.plan import Placement, Schedule, Segment
from paceline.schedule.why import ByModel, Judge, Part, Why

FITS = 3
"""How often others' iterations are fitted to how long they really ran."""


def of_run(run: RunData, name: str, judge_with: Callable[[ByModel], Judge] | None = None) -> Why:
    """The parts of the completion time of a job that has ended, or of the time until now.

    `judge_with`: makes another judge of the model's, such as one by packets.
    """
    rows = {row["name"]: row for row in run.jobs}
    if name not in rows:
        raise UserError(f"the run has no job {name!r}; it has: {', '.join(rows)}", place="why")
    row = rows[name]
    end_s = run.end_s if row["ended"] is None else run.at(row["ended"])
    total_s = max(0.0, end_s - float(row["arrival_s"]))
    tries = [each for each in run.tries if each.job == name]
    if not tries:
        return Why(name, total_s, (Part("queue", total_s, f"it is {row['state']}: {row['reason']}"),))
    last = tries[-1]
    lost_s = sum(each.end_s - each.start_s for each in tries[:-1])
    starting_s = min(_starting_s(run, row, last), max(0.0, last.end_s - last.start_s))
    trains_s = max(0.0, min(last.end_s, end_s) - last.start_s - starting_s)
    queue_s = total_s - lost_s - starting_s - trains_s
    parts = [Part("queue", queue_s), Part("start-up", starting_s)]
    if lost_s:
        parts.append(Part("lost attempts", lost_s, f"{len(tries) - 1} before the last"))
    share = _share_done(row)
    if share is None:
        note = f"not split: it told no iterations, and is {row['state']}"
        return Why(name, total_s, (*parts, Part("training", trains_s, note)))
    schedule, slow = _as_it_was(run, name)
    j = why.index_of(schedule, name)
    by_model = ByModel(schedule.problem, schedule.placements, j, slow)
    judge = judge_with(by_model) if judge_with is not None else by_model
    running = [
        replace(part, seconds=part.seconds * share) for part in why.split(schedule, j, judge, by_model)
    ]
    rest_s = trains_s - sum(part.seconds for part in running)
    return Why(name, total_s, (*parts, *_with_rest(run, name, row, running, rest_s, share)))


def _starting_s(run: RunData, row: Row, last: Attempt) -> float:
    told = run.figure_of(row, "trains_since")
    return max(0.0, run.at(float(told)) - last.start_s) if isinstance(told, int | float) else 0.0


def _share_done(row: Row) -> float | None:
    """Of its iterations: all, or what the job told before it ended or now; None if that is not known."""
    if row["state"] == "done":
        return 1.0
    if row["iteration"] is None:
        return None
    return min(1.0, float(row["iteration"]) / max(float(row["iterations"]), 1.0))


def _with_rest(
    run: RunData, name: str, row: Row, running: list[Part], rest_s: float, share: float
) -> list[Part]:
    lags = run.lags_s.get(name, {})
    if len(lags) > 1 and rest_s > 0:
        latest = max(lags, key=lambda worker: lags[worker])
        behind_s = lags[latest] - median(lag for worker, lag in lags.items() if worker != latest)
        cost_s = min(rest_s, max(0.0, behind_s) * float(row["iterations"]) * share)
        straggler = running[-1]
        note = f"{run.worker_name(name, latest)} came {behind_s * 1e3:.3g} ms after the others, by the switch"
        running = [*running[:-1], replace(straggler, seconds=straggler.seconds + cost_s, note=note)]
        rest_s -= cost_s
    return [*running, Part("not explained", rest_s, "measured, less what the model expects")]


def _as_it_was(run: RunData, name: str) -> tuple[Schedule, list[float]]:
    """The run as a schedule, and by job how many times as long its slowest server takes as its fastest."""
    cluster_data = run.meta["cluster"]
    source = ClusterSource(cluster_data["name"], cluster_data["data"], {})
    last = {each.job: each for each in run.tries}
    rows = [row for row in run.jobs if row["name"] in last]
    jobs = tuple(RunJob.from_json(row["spec"]).job for row in rows)
    # Of an emulated cluster the file knows; of others what the run has learned.
    known = {server: float(row["factor"]) for server, row in run.slow_servers.items()}
    slow_of = known | {
        server.name: server.slow for server in source.file.cluster().servers if server.slow != 1.0
    }
    paces = [[slow_of.get(server, 1.0) for server in last[job.name].servers] for job in jobs]
    slow = [max(pace) / min(pace) for pace in paces]
    learned = {
        row["job"]: float(row["factor"]) for row in run.predictions if row["learned"] and row["factor"]
    }
    # What a run has learned of a job's computing is its own, or holds on a slow server of its that was not known.
    apart = [any(server in known for server in last[job.name].servers) for job in jobs]
    bases = [
        learned[job.name] * min(pace) / (1.0 if own else ratio) if job.name in learned else min(pace)
        for job, pace, ratio, own in zip(jobs, paces, slow, apart, strict=True)
    ]
    alike = [replace(job.computing(base), arrival_s=0.0) for job, base in zip(jobs, bases, strict=True)]
    problem = source.problem(alike)
    placements = tuple(
        Placement(job.name, (Segment(last[job.name].start_s, last[job.name].end_s, last[job.name].gpus),), "")
        for job in jobs
    )
    fitted = _fitted(problem, placements, slow)
    # The job itself does what it was asked to do: how much longer that took is what has to be explained.
    mixed = tuple(own if own.name == name else other for own, other in zip(alike, fitted.jobs, strict=True))
    return Schedule(replace(fitted, jobs=mixed), "as it was", placements), slow


def _fitted(problem: Problem, placements: tuple[Placement, ...], slow: list[float]) -> Problem:
    """With iterations of a length such that each job runs as long as it did: neighbours meet as they met."""
    everyone = frozenset(range(len(problem.jobs)))
    fitted = problem
    for _ in range(FITS):
        judged = ByModel(fitted, placements, 0, slow).schedule(everyone, True, True)
        took = {each.job: each.end_s - each.start_s for each in judged.placements}
        jobs = [
            replace(
                job,
                iterations=max(
                    1e-6, job.iterations * (place.end_s - place.start_s) / max(took[job.name], 1e-9)
                ),
            )
            for job, place in zip(fitted.jobs, placements, strict=True)
        ]
        fitted = replace(fitted, jobs=tuple(jobs))
    return fitted
