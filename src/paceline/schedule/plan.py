"""What a policy decides (`Plan`), and what comes of it when the one judge has run it (`Schedule`).

A plan gives every job its GPUs and every GPU its queue: jobs in `order`, each starting when all its GPUs
have come to it, not before `not_before`. A schedule adds the times, one reason a placement, and the figures
by which schedules are compared. Times of a plan are in the problem's units, those of a schedule in seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from paceline.errors import NEEDS_PANDAS, optional_module
from paceline.schedule.model import Floats, Ints, Problem
from paceline.units import format_seconds

Objective = Literal["makespan", "jct"]


@dataclass(frozen=True)
class Plan:
    """A decision: the order, the GPUs (flat, ascending within a job), the earliest starts, the reasons."""

    order: Ints
    gpus: Ints
    not_before: Floats
    reasons: Sequence[str]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def of(self, problem: Problem, j: int) -> Ints:
        """The GPUs of job j."""
        base = problem.jobs_t.base
        return self.gpus[base[j] : base[j + 1]]


@dataclass(frozen=True)
class Segment:
    """A stretch of time in which a job runs without a break."""

    start_s: float
    end_s: float
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """Where and when one job runs, and why there; more than one segment only if it was preempted."""

    job: str
    segments: tuple[Segment, ...]
    reason: str

    @property
    def start_s(self) -> float:
        return self.segments[0].start_s

    @property
    def end_s(self) -> float:
        return self.segments[-1].end_s

    @property
    def gpus(self) -> tuple[int, ...]:
        return self.segments[-1].gpus


@dataclass(frozen=True)
class Schedule:
    """A judged plan: placements in the order of the jobs, and the figures of comparison."""

    problem: Problem
    """Cluster, jobs and model."""
    policy: str
    """The policy that decided."""
    placements: tuple[Placement, ...]
    """Where, when and why, in the order of the jobs."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the policy chose or was given."""
    lower_bound_s: float = 0.0
    """No schedule of these jobs has a shorter makespan."""
    bound_by: str = ""
    """The argument that gives the lower bound."""
    plan_s: float = 0.0
    """How long planning took."""

    @cached_property
    def end_s(self) -> Floats:
        """When each job ends."""
        return np.array([placement.end_s for placement in self.placements])

    @cached_property
    def jct_s(self) -> Floats:
        """Completion times: end minus arrival."""
        return np.asarray(self.end_s - np.array([job.arrival_s for job in self.problem.jobs]))

    @property
    def preempts(self) -> bool:
        """Whether some job runs in pieces."""
        return any(len(placement.segments) > 1 for placement in self.placements)

    @property
    def makespan_s(self) -> float:
        """When the last job ends."""
        return float(self.end_s.max())

    @property
    def avg_jct_s(self) -> float:
        """Mean completion time."""
        return float(self.jct_s.mean())

    @property
    def p95_jct_s(self) -> float:
        """Completion time that 95 % of the jobs do not exceed."""
        return float(np.percentile(self.jct_s, 95))

    @property
    def utilisation(self) -> float:
        """Share of the GPU time up to the makespan in which GPUs are held by a job."""
        held = sum(
            (segment.end_s - segment.start_s) * len(segment.gpus)
            for placement in self.placements
            for segment in placement.segments
        )
        return held / (self.makespan_s * self.problem.cluster.gpus_total)

    @property
    def gap(self) -> float:
        """How far the makespan lies above the best known lower bound: 0.1 is 10 %."""
        above = self.makespan_s / self.lower_bound_s - 1.0 if self.lower_bound_s > 0 else float("nan")
        # Rounding of the last bit is no gap; a bound that is really beaten stays visible.
        return 0.0 if abs(above) < 1e-9 else above

    def to_dict(self) -> dict[str, Any]:
        """Figures and every placement, for scripts; times in seconds."""
        return {
            "policy": self.policy,
            "makespan": self.makespan_s,
            "avg_jct": self.avg_jct_s,
            "p95_jct": self.p95_jct_s,
            "utilisation": self.utilisation,
            "lower_bound": self.lower_bound_s,
            "gap": self.gap,
            "plan_s": self.plan_s,
            "settings": {
                key: value.item() if isinstance(value, np.generic) else value
                for key, value in self.settings.items()
            },
            "placements": [self._row(placement) for placement in self.placements],
        }

    def _row(self, placement: Placement) -> dict[str, Any]:
        row: dict[str, Any] = {
            "job": placement.job,
            "start": placement.start_s,
            "end": placement.end_s,
            "servers": self.problem.cluster.by_server(placement.gpus),
            "gpus": list(placement.gpus),
            "reason": placement.reason,
        }
        if len(placement.segments) > 1:
            row["segments"] = [
                {"start": segment.start_s, "end": segment.end_s, "gpus": list(segment.gpus)}
                for segment in placement.segments
            ]
        return row

    def to_dataframe(self) -> Any:
        """One row a job: where and when it runs, how long it takes, and why there; needs pandas."""
        rows = [
            {"policy": self.policy, **self._row(placement), "jct": float(jct)}
            for placement, jct in zip(self.placements, self.jct_s, strict=True)
        ]
        return optional_module("pandas", NEEDS_PANDAS).DataFrame(rows)

    def __repr__(self) -> str:
        """One line: the figures by which schedules are compared."""
        return (
            f"<Schedule {self.policy}: {len(self.placements)} jobs on {self.problem.cluster.gpus_total} GPUs,"
            f" makespan {format_seconds(self.makespan_s)}, average JCT {format_seconds(self.avg_jct_s)},"
            f" {self.gap:.1%} above the bound>"
        )


def score(problem: Problem, end: Floats, objective: Objective) -> float:
    """What is minimised, in units: the last end, or the mean completion time weighted by priority."""
    if objective == "makespan":
        return float(end.max())
    return float(np.average(end - problem.jobs_t.arrival, weights=problem.jobs_t.priority))
