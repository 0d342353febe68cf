"""Why a job is where it is, in words: the policy's reason, what it waited for, whom it contends with, and
what the next best choice would have cost, found by judging the alternatives."""

import itertools
from dataclasses import dataclass

import numpy as np

from paceline.errors import UserError
from paceline.schedule import timeline
from paceline.schedule.breakdown import breakdown, sentence
from paceline.schedule.model import Ints, Problem
from paceline.schedule.plan import Objective, Placement, Schedule, score
from paceline.units import format_seconds


def explain(schedule: Schedule, name: str, objective: Objective) -> list[str]:
    """Sentences about one job of a schedule."""
    problem = schedule.problem
    names = [job.name for job in problem.jobs]
    if name not in names:
        raise UserError(f"there is no job {name!r}; the first is {names[0]!r}", place="--explain")
    j = names.index(name)
    job, mine = problem.jobs[j], schedule.placements[j]
    where = ", ".join(
        f"{count} on {server}" for server, count in problem.cluster.by_server(mine.gpus).items()
    )
    lines = [
        f"{name} ({job.gpus} GPUs, {job.iterations:g} iterations) under {schedule.policy}: {where}, from"
        f" {_time(mine.start_s)} to {_time(mine.end_s)}.",
        f"Why there: {mine.reason}.",
        _waited(schedule, j),
        _contention(schedule, j),
    ]
    if problem.model.links and not schedule.preempts:
        lines.append(sentence(breakdown(schedule, j)))
    if schedule.preempts:
        pieces = len(mine.segments)
        lines.append(
            f"It ran in {pieces} piece{'s' if pieces > 1 else ''}; the policy preempts, so no single"
        )
        lines[-1] += " other placement can be judged against this one."
    else:
        lines.append(_next_best(schedule, j, objective))
    return lines


def _time(seconds: float) -> str:
    return format_seconds(seconds) if seconds else "0 s"


def _waited(schedule: Schedule, j: int) -> str:
    mine, job = schedule.placements[j], schedule.problem.jobs[j]
    wait_s = mine.start_s - job.arrival_s
    if wait_s <= 1e-9 * max(1.0, mine.end_s):
        return "It did not wait."
    held = set(mine.gpus)
    before = [
        other.job
        for i, other in enumerate(schedule.placements)
        if i != j
        and held & set(other.gpus)
        and abs(other.end_s - mine.start_s) <= 1e-9 * max(1.0, mine.start_s)
    ]
    cause = f"for {', '.join(before[:3])} to leave its GPUs" if before else "by the policy's decision"
    return f"It waited {format_seconds(wait_s)} {cause}."


@dataclass(frozen=True)
class _Stretch:
    start_s: float
    end_s: float
    p: int
    others: frozenset[int]


def contention_over_time(schedule: Schedule, j: int) -> list[_Stretch]:
    """p_j of (6) from start to end, with the spread jobs that share a server, piece by piece."""
    server_of = schedule.problem.cluster.server_of
    spread: list[tuple[int, float, float, frozenset[int]]] = []
    for i, placement in enumerate(schedule.placements):
        for segment in placement.segments:
            servers = frozenset(int(server_of[g]) for g in segment.gpus)
            if len(servers) > 1:
                spread.append((i, segment.start_s, segment.end_s, servers))
    stretches = []
    for i, begin, end, servers in spread:
        if i != j:
            continue
        near = [entry for entry in spread if entry[3] & servers and entry[1] < end and entry[2] > begin]
        cuts = sorted({begin, end, *(t for entry in near for t in entry[1:3] if begin < t < end)})
        for left, right in itertools.pairwise(cuts):
            active = [entry for entry in near if entry[1] <= left and entry[2] >= right]
            p = max(sum(s in entry[3] for entry in active) for s in servers)
            others = frozenset(entry[0] for entry in active if entry[0] != j)
            stretches.append(_Stretch(left, right, p, others))
    return stretches


def _contention(schedule: Schedule, j: int) -> str:
    problem = schedule.problem
    stretches = contention_over_time(schedule, j)
    if not stretches:
        return "It fits on one server, so it shares no link with anybody."
    total = sum(stretch.end_s - stretch.start_s for stretch in stretches)
    alone = sum(s.end_s - s.start_s for s in stretches if s.p <= 1)
    least = float(problem.shortest[j]) * problem.unit_s
    slower = max(0.0, total / least - 1.0)  # rounded, it may be a little less
    met: dict[int, float] = {}
    for stretch in stretches:
        for other in stretch.others:
            met[other] = met.get(other, 0.0) + stretch.end_s - stretch.start_s
    worst = sorted(met, key=lambda i: -met[i])[:3]
    names = ", ".join(f"{problem.jobs[i].name} ({format_seconds(met[i])})" for i in worst)
    servers = len(problem.cluster.by_server(schedule.placements[j].gpus))
    text = f"It is spread over {servers} servers, {slower:.1%} slower than at best"
    if not names:
        return f"{text}; no other spread job shares them."
    most = max(stretch.p for stretch in stretches)
    return (
        f"{text}; up to {most} spread jobs (itself included) meet on one of them, longest {names}; alone on"
        f" its links {alone / total:.0%} of the time."
    )


def _next_best(schedule: Schedule, j: int, objective: Objective) -> str:
    problem = schedule.problem
    order = np.lexsort(
        (np.arange(len(problem.jobs)), np.array([p.start_s for p in schedule.placements]))
    ).astype(np.int64)
    gpus = np.concatenate([np.array(placement.gpus, dtype=np.int64) for placement in schedule.placements])
    chosen = score(problem, schedule.end_s / problem.unit_s, objective)
    best: tuple[float, float, Ints] | None = None
    for alternative in alternatives(schedule.placements, problem, j):
        changed = gpus.copy()
        changed[problem.jobs_t.base[j] : problem.jobs_t.base[j + 1]] = alternative
        _, end = timeline.run(problem, order, changed)
        found = (score(problem, end, objective), float(end[j]), alternative)
        if best is None or found[:2] < best[:2]:
            best = found
    if best is None:
        return "There is no other place for it."
    where = ", ".join(f"{n} on {server}" for server, n in problem.cluster.by_server(best[2]).items())
    word = "makespan" if objective == "makespan" else "mean completion time"
    change = (best[0] - chosen) * problem.unit_s
    verdict = f"{format_seconds(abs(change))} {'more' if change > 0 else 'less'}" if change else "no change"
    own = (best[1] * problem.unit_s) - schedule.placements[j].end_s
    ends = f"{format_seconds(abs(own))} {'later' if own > 0 else 'earlier'}" if own else "at the same time"
    return f"Next best choice, all else in the same order: {where}; {word} {verdict}, itself ending {ends}."


def alternatives(placements: tuple[Placement, ...], problem: Problem, j: int) -> list[Ints]:
    """Other GPUs for job j, the soonest free: of each server large enough, of all, of all but one server."""
    mine, g = placements[j], problem.jobs[j].gpus
    free_at = np.zeros(problem.cluster.gpus_total)
    for i, placement in enumerate(placements):
        if i != j and placement.start_s <= mine.start_s:
            held = list(placement.gpus)
            free_at[held] = np.maximum(free_at[held], placement.end_s)
    first = problem.cluster.first_gpu
    groups = [np.arange(first[s], first[s + 1]) for s in range(len(first) - 1)]
    everywhere = np.arange(problem.cluster.gpus_total)
    groups.append(everywhere)
    # A spread job: the same, but without one of the servers it uses now.
    for s in sorted({int(problem.cluster.server_of[gpu]) for gpu in mine.gpus}):
        groups.append(everywhere[problem.cluster.server_of != s])
    found = []
    for group in groups:
        if len(group) >= g:
            taken = np.sort(group[np.argsort(free_at[group], kind="stable")][:g])
            if set(taken.tolist()) != set(mine.gpus) and problem.cluster.by_server(
                taken
            ) != problem.cluster.by_server(mine.gpus):
                found.append(taken)
    return found
