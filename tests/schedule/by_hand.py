"""Schedules made by hand, for tests of what is shown of them."""

from paceline.schedule.inputs.cluster import Cluster, Server
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model, Problem
from paceline.schedule.plan import Placement, Schedule, Segment

CLUSTER = Cluster((Server("a", 2), Server("b", 2)), intra_bps=1e15, inter_bps=8e9)


def two_spread() -> Schedule:
    jobs = (Job("one", 2, 10, 10**9, backward_s=1.0), Job("two", 2, 5, 10**9, backward_s=1.0))
    problem = Problem(CLUSTER, jobs, Model(alpha=0.5, xi2_s=0.0, reduce_bps=1e18))
    placements = (
        Placement("one", (Segment(0.0, 27.5, (0, 2)),), "by hand"),
        Placement("two", (Segment(0.0, 17.5, (1, 3)),), "by hand"),
    )
    return Schedule(problem, "hand", placements, lower_bound_s=10.0, plan_s=0.1)
