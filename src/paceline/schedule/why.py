"""Where a job's completion time went: by judging its run again and again, each time without one more cause.

The steps go one way: all jobs, then without one neighbour after the other (the worst first), then with as much switch
memory as anyone could use, then with workers that are all equally fast, then computing alone. Each part is what its
step saves, so the parts add up to the whole, and none is counted twice. Starts stay where they were: a job that is
left out does not let others begin sooner.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from paceline.errors import UserError
from paceline.schedule import timeline
from paceline.schedule.inputs.cluster import SwitchMemory
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Problem
from paceline.schedule.plan import Placement, Schedule, Segment

UNLIMITED_SLOTS = 10**9
NAMED_MAX = 5
"""Neighbours that are left out one by one; the rest goes together."""
NOTHING_S = 1e-9

Judge = Callable[[frozenset[int], bool, bool], float]
"""Seconds that the job runs: among these others, with the memory that there is or more, with stragglers or without."""


@dataclass(frozen=True)
class Part:
    """A cause, and the seconds that it cost."""

    cause: str
    """queue, start-up, lost attempts, computing, exposed sending, contention, switch memory, straggler,
    not explained."""
    seconds: float
    note: str = ""
    """The neighbour's name, or what else is to be said."""


@dataclass(frozen=True)
class Why:
    """A job's completion time, in parts that add up to it."""

    job: str
    total_s: float
    parts: tuple[Part, ...]
    remarks: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        parts = [{"cause": each.cause, "seconds": each.seconds, "note": each.note} for each in self.parts]
        return {"job": self.job, "total_s": self.total_s, "parts": parts, "remarks": list(self.remarks)}


@dataclass(frozen=True)
class ByModel:
    """The scheduler's own model as judge of one job among others that keep their places and starts."""

    problem: Problem
    placements: Sequence[Placement]
    j: int
    slow: Sequence[float] = ()
    """By job: how many times as long its slowest server takes; empty: all alike."""

    def __call__(self, others: frozenset[int], memory_limits: bool, stragglers: bool) -> float:
        schedule = self.schedule(others, memory_limits, stragglers)
        (mine,) = [each for each in schedule.placements if each.job == self.problem.jobs[self.j].name]
        return mine.end_s - mine.start_s

    def schedule(self, others: frozenset[int], memory_limits: bool, stragglers: bool) -> Schedule:
        """The jobs that are left, judged anew."""
        problem, j = self.problem, self.j
        kept = sorted(others | {j}, key=lambda i: (self.placements[i].start_s, i))
        jobs = [self._job(i, stragglers or i != j) for i in kept]
        cluster = problem.cluster
        if not memory_limits and cluster.switch is not None:
            cluster = replace(cluster, switch=roomy(cluster.switch))
        left = Problem(cluster, tuple(jobs), problem.model)
        gpus = np.concatenate([np.array(sorted(self.placements[i].gpus), dtype=np.int64) for i in kept])
        starts_s = np.array([self.placements[i].start_s for i in kept])
        order = np.arange(len(kept), dtype=np.int64)
        start, end = timeline.run(left, order, gpus, starts_s / left.unit_s)
        placed = tuple(
            Placement(
                problem.jobs[i].name,
                (Segment(float(start[at]) * left.unit_s, float(end[at]) * left.unit_s, self.placements[i].gpus),),
                "",
            )
            for at, i in enumerate(kept)
        )  # fmt: skip
        return Schedule(left, "as it was", placed)

    def _job(self, i: int, stragglers: bool) -> Job:
        job = replace(self.problem.jobs[i], arrival_s=0.0)
        if not stragglers:
            return replace(job, jitter=0.0)
        return job.computing(self.slow[i]) if self.slow else job


def roomy(switch: SwitchMemory) -> SwitchMemory:
    """The same switch with more memory than anyone could use."""
    return switch.model_copy(update={"slots": UNLIMITED_SLOTS})


def of_plan(schedule: Schedule, name: str, judge: Judge | None = None) -> Why:
    """The parts of a job's completion time in a plan."""
    j = index_of(schedule, name)
    if schedule.preempts:
        raise UserError(
            f"{schedule.policy} runs jobs in pieces, which cannot be judged without one cause", place="why"
        )
    job, mine = schedule.problem.jobs[j], schedule.placements[j]
    by_model = ByModel(schedule.problem, schedule.placements, j)
    running = split(schedule, j, judge or by_model, by_model)
    parts = [Part("queue", mine.start_s - job.arrival_s, _held_before(schedule, j)), *running]
    if judge is not None:
        rest_s = (mine.end_s - mine.start_s) - sum(part.seconds for part in running)
        parts.append(Part("not explained", rest_s, "what the plan expected, less what packets took"))
    return Why(name, mine.end_s - job.arrival_s, tuple(parts))


def index_of(schedule: Schedule, name: str) -> int:
    """The number of a job; a name that is not there is the user's mistake."""
    names = [job.name for job in schedule.problem.jobs]
    if name not in names:
        raise UserError(f"there is no job {name!r}; there are: {', '.join(names[:12])}", place="why")
    return names.index(name)


def split(schedule: Schedule, j: int, judge: Judge, by_model: Judge) -> list[Part]:
    """The parts of the time that a job runs, as the judge has it; the model says whom to leave out first."""
    job, mine = schedule.problem.jobs[j], schedule.placements[j]
    # All of them, not only those beside the job: who slows a neighbour down decides how long it is one.
    others = frozenset(range(len(schedule.placements))) - {j}
    beside = [
        i for i in others
        if schedule.placements[i].start_s < mine.end_s and schedule.placements[i].end_s > mine.start_s
    ]  # fmt: skip
    whole_s = by_model(others, True, True)
    saved_s = {i: whole_s - by_model(others - {i}, True, True) for i in beside}
    worst = sorted(beside, key=lambda i: (-saved_s[i], i))
    named = [i for i in worst if saved_s[i] > NOTHING_S][:NAMED_MAX]
    left, now_s, parts = others, judge(others, True, True), []
    for i in named:
        left -= {i}
        without_s = judge(left, True, True)
        parts.append(Part("contention", now_s - without_s, f"with {schedule.problem.jobs[i].name}"))
        now_s = without_s
    if left:
        alone_s = judge(frozenset(), True, True)
        if abs(now_s - alone_s) > NOTHING_S:
            parts.append(Part("contention", now_s - alone_s, "with the others together"))
        now_s = alone_s
    roomy_s = judge(frozenset(), False, True)
    even_s = judge(frozenset(), False, False)
    computing_s = min(job.iterations * job.compute_s, even_s)
    return [
        Part("computing", computing_s),
        Part("exposed sending", even_s - computing_s),
        *parts,
        Part("switch memory", now_s - roomy_s),
        Part("straggler", roomy_s - even_s),
    ]


def _held_before(schedule: Schedule, j: int) -> str:
    mine = schedule.placements[j]
    if mine.start_s <= schedule.problem.jobs[j].arrival_s + NOTHING_S:
        return ""
    held = [
        other.job for i, other in enumerate(schedule.placements)
        if i != j and set(other.gpus) & set(mine.gpus) and abs(other.end_s - mine.start_s) <= 1e-6 * mine.start_s
    ]  # fmt: skip
    return f"its GPUs were held by {', '.join(held[:3])}" if held else "by the policy's decision"
