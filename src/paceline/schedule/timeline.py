"""The one judge: runs a plan, or a policy that decides as it goes, through the event-driven model.

`judge` executes a plan's queues; `Timeline` lets a policy start and preempt jobs one event at a time (the
form of Tiresias, LWF and online planning). Both call the same compiled kernels, in continuous time or in
the paper's slots: equations (6)-(9) are re-evaluated for every affected job at each start and end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.schedule import kernels
from paceline.schedule.kernels import announce
from paceline.schedule.model import Floats, Ints, Problem
from paceline.schedule.plan import Placement, Plan, Schedule, Segment


def run(problem: Problem, order: Ints, gpus: Ints, not_before: Floats | None = None) -> tuple[Floats, Floats]:
    """Start and end of every job, in units."""
    announce()
    earliest = np.zeros(len(problem.jobs)) if not_before is None else not_before
    return kernels.run_queues(problem.jobs_t, problem.cluster_t, problem.price_t, order, gpus, earliest)


def judge(problem: Problem, plan: Plan, policy: str) -> Schedule:
    """The schedule that comes of a plan."""
    start, end = run(problem, plan.order, plan.gpus, plan.not_before)
    unit = problem.unit_s
    placements = tuple(
        Placement(
            job.name,
            (
                Segment(
                    float(start[j]) * unit, float(end[j]) * unit, tuple(int(g) for g in plan.of(problem, j))
                ),
            ),
            plan.reasons[j],
        )
        for j, job in enumerate(problem.jobs)
    )
    return Schedule(problem, policy, placements, plan.settings)


@dataclass
class _Open:
    start: float
    gpus: Ints


class Timeline:
    """The cluster at one moment of virtual time; a policy moves it on. Times are in units.

    Call order: `advance` to the next event, then any number of `preempt` and `start`, again `advance`.
    """

    def __init__(self, problem: Problem) -> None:
        announce()
        self.problem = problem
        self.now = 0.0
        self.idle = np.ones(problem.cluster.gpus_total, dtype=np.bool_)
        self.service: Floats = np.zeros(len(problem.jobs))
        """GPU time attained by each job."""
        self.state = kernels.new_state(problem.jobs_t, problem.cluster_t)
        """What the kernels keep; to look at."""
        self._segments: list[list[Segment]] = [[] for _ in problem.jobs]
        self._reasons = [""] * len(problem.jobs)
        self._open: dict[int, _Open] = {}
        self._arrivals = [int(j) for j in np.argsort(-problem.jobs_t.arrival, kind="stable")]
        self.waiting: list[int] = []
        """Jobs that have arrived and do not run, in order of arrival."""

    @property
    def running(self) -> list[int]:
        return list(self._open)

    @property
    def next_arrival(self) -> float:
        return float(self.problem.jobs_t.arrival[self._arrivals[-1]]) if self._arrivals else np.inf

    @property
    def next_end(self) -> float:
        state = self.state
        return float(state.key[state.heap[0]]) if state.heap_n[0] else np.inf

    def remaining_iterations(self, j: int) -> float:
        state = self.state
        return max(0.0, float(state.remaining[j] - state.rate[j] * (self.now - state.since[j])))

    def contenders(self, servers: Sequence[int]) -> int:
        """The largest number of spread jobs on any of these servers now."""
        return max((int(self.state.crowd[s]) for s in servers), default=0)

    def spread_jobs(self, servers: Sequence[int]) -> set[int]:
        """The spread jobs that run on any of these servers now."""
        state = self.state
        return {int(state.on_server[s, k]) for s in servers for k in range(int(state.crowd[s]))}

    def gpus_of(self, j: int) -> Ints:
        return self._open[j].gpus

    def free_by_server(self) -> Ints:
        return np.add.reduceat(self.idle.astype(np.int64), self.problem.cluster.first_gpu[:-1])

    def advance(self, until: float = np.inf) -> bool:
        """Go to the next arrival or end, or to `until` if it is earlier; False when nothing is left."""
        when = min(self.next_arrival, self.next_end, until)
        if not np.isfinite(when):
            return False
        for j, run in self._open.items():
            self.service[j] += (when - self.now) * len(run.gpus)
        self.now = when
        while self.next_arrival <= when:
            self.waiting.append(self._arrivals.pop())
        while self.next_end <= when:
            self._leave(int(self.state.heap[0]), done=True)
        return True

    def start(self, j: int, gpus: Sequence[int] | Ints, reason: str) -> None:
        """Run job j from now on, on exactly these GPUs."""
        problem = self.problem
        chosen = np.sort(np.asarray(gpus, dtype=np.int64))
        assert len(chosen) == problem.jobs[j].gpus, "a gang is complete"
        assert bool(self.idle[chosen].all()), "a GPU serves one job at a time"
        base = problem.jobs_t.base
        self.state.gpus[base[j] : base[j + 1]] = chosen
        self.idle[chosen] = False
        self.waiting.remove(j)
        self._open[j] = _Open(self.now, chosen)
        self._reasons[j] = self._reasons[j] or reason
        kernels.start(self.state, problem.jobs_t, problem.cluster_t, problem.price_t, j, self.now)

    def preempt(self, j: int) -> None:
        """Take job j off its GPUs; what it has computed stays."""
        self._leave(j, done=False)
        self.waiting.append(j)

    def _leave(self, j: int, done: bool) -> None:
        problem = self.problem
        kernels.leave(self.state, problem.jobs_t, problem.cluster_t, problem.price_t, j, self.now, done)
        run = self._open.pop(j)
        self.idle[run.gpus] = True
        unit = problem.unit_s
        # A job whose rest was rounding alone when it was preempted has run before; a job of no time has not.
        if self.now > run.start or (done and not self._segments[j]):
            gpus = tuple(int(g) for g in run.gpus)
            self._segments[j].append(Segment(run.start * unit, self.now * unit, gpus))

    def schedule(self, policy: str, settings: dict[str, object]) -> Schedule:
        """The schedule once every job has ended."""
        assert not self.waiting
        assert not self._open
        placements = tuple(
            Placement(job.name, tuple(self._segments[j]), self._reasons[j])
            for j, job in enumerate(self.problem.jobs)
        )
        return Schedule(self.problem, policy, placements, settings)
