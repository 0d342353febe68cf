"""What a measured iteration says: the prediction for jobs as they run now, and the computing that would have made it
right.

Sending is what the model knows (sizes, links, neighbours); how long a device computes is what a user types, and may
be wrong. So the difference between prediction and measurement is put down to computing: `computing_factor` is how many
times as long as expected the job must compute for its iteration to take what was measured, all else as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from paceline.schedule import contention, kernels
from paceline.schedule.inputs.cluster import Cluster
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model, Problem
from paceline.schedule.timeline import Timeline

LEAST = 0.01
"""A job computes at least this share of what was expected: a shorter iteration has another reason."""


class Moment:
    """Jobs that run together now, by index, each on its GPUs: what an iteration of each takes."""

    def __init__(
        self,
        cluster: Cluster,
        model: Model,
        jobs: Sequence[Job],
        gpus: Sequence[Sequence[int]],
        slowness: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        alike = tuple(replace(job, arrival_s=0.0) for job in jobs)
        self.problem = Problem(cluster, alike, model, slowness=slowness)
        self._timeline = Timeline(self.problem)
        self._timeline.advance(0.0)
        for j, own in enumerate(gpus):
            self._timeline.start(j, own, "runs already")

    def iteration_s(self, j: int) -> float:
        """Seconds of an iteration of job j, by the model."""
        return self.problem.unit_s / float(self._timeline.state.rate[j])

    def slowness(self, j: int) -> float:
        """How many times as long job j computes on its servers as on servers that are not slow, by what is known."""
        problem = self.problem
        if not problem.network_t.on:
            return 1.0
        return float(kernels.slowness_of(self._timeline.state, problem.jobs_t, problem.cluster_t, j))

    def gpus_of(self, j: int) -> tuple[int, ...]:
        """Where job j runs."""
        return tuple(int(gpu) for gpu in self._timeline.gpus_of(j))

    def computing_factor(self, j: int, measured_s: float) -> float:
        """How many times as long as expected job j computes, if an iteration takes so long; never below `LEAST`."""
        compute_s = self.problem.jobs[j].compute_s
        if compute_s <= 0.0:
            return 1.0
        return max(LEAST, self._factor(j, measured_s, compute_s))

    def _factor(self, j: int, measured_s: float, compute_s: float) -> float:
        problem, state = self.problem, self._timeline.state
        jobs, network, unit = problem.jobs_t, problem.network_t, problem.unit_s
        servers, racks = int(state.servers_n[j]), int(state.racks_n[j])
        if not network.on or servers == 1:
            longer = self.slowness(j) * contention.slowest_of(float(jobs.jitter[j]), 1) if network.on else 1.0
            rest_s = self.iteration_s(j) - compute_s * longer
            return (measured_s - rest_s) / (compute_s * longer)
        longer = self.slowness(j) * contention.slowest_of(float(jobs.jitter[j]), servers)
        rate = kernels.rate_of(state, jobs, problem.cluster_t, problem.price_t, j)
        sent = kernels.sent_of(state, jobs, problem.cluster_t, problem.price_t, j, rate)
        rest = measured_s / unit - contention.latency(network, int(jobs.kind[j]), racks)
        # An iteration is the longest of several lines, each of which grows with computing: the first to reach the
        # measured time decides.
        computing = longer * (float(jobs.forward[j]) + jobs.released[j])
        reached = (rest - sent * jobs.left[j])[computing > 0.0] / computing[computing > 0.0]
        return float(np.min(reached))
