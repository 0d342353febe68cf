"""Why an iteration takes as long as it does: computing, sending, latency, memory, neighbours; by the model of links.

Each part is what the iteration takes with it, less what it takes without: first with all links and memory for the job,
then with a round trip, then with the switch's memory, then among its neighbours, as the plan has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.schedule import contention
from paceline.schedule.model import Problem
from paceline.schedule.plan import Schedule


@dataclass(frozen=True)
class Breakdown:
    """Seconds of an iteration, mean over the job's run."""

    total_s: float
    computing_s: float
    exposed_s: float
    """Sending that nothing hides, with all links for the job."""
    latency_s: float
    memory_s: float
    neighbours_s: float
    """What sharing links and memory with others adds."""
    by_neighbour: dict[str, float]
    """The same, split by the time in which each of them sends while the job runs."""


def breakdown(schedule: Schedule, j: int) -> Breakdown:
    """The parts of job j's iteration in a schedule; for the model of shared links."""
    problem = schedule.problem
    job, mine = problem.jobs[j], schedule.placements[j]
    servers, racks = _extent(problem, mine.gpus)
    ran_s = sum(segment.end_s - segment.start_s for segment in mine.segments)
    total_s = ran_s / job.iterations
    longer = contention.slowest_of(job.jitter, servers)
    computing_s = job.compute_s * longer
    if servers == 1:
        return Breakdown(total_s, computing_s, total_s - computing_s, 0.0, 0.0, 0.0, {})
    free = problem.network_t._replace(slots=np.inf, delay=0.0)
    steps = [computing_s]
    for network in (free, free._replace(delay=problem.network_t.delay), problem.network_t):
        steps.append(_alone_s(problem, network, j, servers, racks))
    neighbours_s = total_s - steps[-1]
    return Breakdown(
        total_s,
        computing_s,
        steps[1] - steps[0],
        steps[2] - steps[1],
        steps[3] - steps[2],
        neighbours_s,
        _split(schedule, j, neighbours_s),
    )


def sentence(parts: Breakdown) -> str:
    """The parts in words, the largest neighbours by name."""
    from paceline.units import format_seconds

    words = [
        f"{format_seconds(value)} {name}"
        for name, value in (
            ("computing", parts.computing_s),
            ("of sending that nothing hides", parts.exposed_s),
            ("of latency", parts.latency_s),
            ("for want of switch memory", parts.memory_s),
            ("because of neighbours", parts.neighbours_s),
        )
        if abs(value) > 1e-3 * parts.total_s
    ]
    text = f"An iteration takes {format_seconds(parts.total_s)}: {', '.join(words)}"
    named = sorted(parts.by_neighbour.items(), key=lambda entry: -entry[1])[:3]
    if named and parts.neighbours_s > 1e-3 * parts.total_s:
        text += f" ({', '.join(f'{name} {format_seconds(value)}' for name, value in named)})"
    return text + "."


def _extent(problem: Problem, gpus: Sequence[int]) -> tuple[int, int]:
    """Servers and racks of so many GPUs."""
    servers = {int(problem.cluster.server_of[gpu]) for gpu in gpus}
    return len(servers), len({int(problem.cluster.rack_of[server]) for server in servers})


def _alone_s(problem: Problem, network: contention.NetworkT, j: int, servers: int, racks: int) -> float:
    """An iteration with nobody else on the network."""
    jobs = problem.jobs_t
    kind = int(jobs.kind[j])
    rate = network.rate
    if racks > 1:
        rate = min(rate, network.uplink / contention.copies_on_uplinks(kind))
    longer = contention.slowest_of(float(jobs.jitter[j]), servers)
    sent = contention.sending(network, kind, float(jobs.net_bytes[j]), servers, racks, rate, 1.0)
    trip = contention.latency(network, kind, racks)
    tau = contention.iteration(float(jobs.forward[j]), jobs.released[j], jobs.left[j], longer, sent, trip)
    return float(tau) * problem.unit_s


def _split(schedule: Schedule, j: int, neighbours_s: float) -> dict[str, float]:
    """By how long others that share a server or a rack's uplink send while job j runs."""
    problem = schedule.problem
    where, racks = problem.cluster.server_of, problem.cluster.rack_of
    mine = schedule.placements[j]
    servers = {int(where[gpu]) for gpu in mine.gpus}
    own_racks = {int(racks[server]) for server in servers}
    weights: dict[str, float] = {}
    for i, other in enumerate(schedule.placements):
        theirs = {int(where[gpu]) for gpu in other.gpus}
        their_racks = {int(racks[server]) for server in theirs}
        meet = servers & theirs or (len(own_racks) > 1 and len(their_racks) > 1 and own_racks & their_racks)
        if i == j or len(theirs) < 2 or not meet:
            continue
        together_s = sum(
            max(0.0, min(a.end_s, b.end_s) - max(a.start_s, b.start_s))
            for a in mine.segments
            for b in other.segments
        )
        alone_s = _alone_s(problem, problem.network_t, i, len(theirs), len(their_racks))
        sends = 1.0 - problem.jobs[i].forward_s * problem.jobs[i].batch / alone_s
        if together_s > 0.0:
            weights[other.job] = together_s * max(sends, 1e-9)
    total = sum(weights.values())
    return {name: neighbours_s * weight / total for name, weight in weights.items()} if total else {}
