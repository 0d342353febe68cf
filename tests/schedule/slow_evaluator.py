"""An evaluator that shares nothing with the product's: it recomputes everything from the definitions.

Slotted time is walked slot by slot; continuous time from event to event with every job's rate computed anew.
"""

import math

from paceline.schedule.model import Problem


def spread_counts(problem: Problem, where: list[dict[int, int]], active: set[int]) -> dict[int, int]:
    """The inner sum of (6): on each server, the active jobs with some but not all of their workers there."""
    counts: dict[int, int] = {}
    for j in active:
        for s, workers in where[j].items():
            if 0 < workers < problem.jobs[j].gpus:
                counts[s] = counts.get(s, 0) + 1
    return counts


def tau_s(problem: Problem, where: list[dict[int, int]], active: set[int], j: int) -> float:
    """(6)-(8) for job j, in seconds."""
    job, cluster, model = problem.jobs[j], problem.cluster, problem.model
    m, w = job.gradient_bytes * 8, job.gpus
    counts = spread_counts(problem, where, active)
    p = max((counts[s] if workers < w else 0) for s, workers in where[j].items())
    servers = len(where[j])
    compute = job.forward_s * job.batch + job.backward_s + model.xi2_s * servers
    if p == 0:
        bandwidth = cluster.intra_bps
    else:
        bandwidth = cluster.inter_bps / model.f(model.alpha, max(1.0, model.xi1 * p))
        if job.exchange == "in-network":
            if cluster.switch is not None:
                bandwidth = min(bandwidth, switch_share_bps(problem, where, active, j))
            return m / bandwidth + compute
    return (m / w) * 2 * (w - 1) / bandwidth + (m / w) * (w - 1) / model.reduce_bps + compute


def switch_share_bps(problem: Problem, where: list[dict[int, int]], active: set[int], j: int) -> float:
    """Job j's share of the memory of the busiest switch on its way."""
    servers, memory = problem.cluster.servers, problem.cluster.switch
    assert memory is not None

    def switches(i: int) -> set[str]:
        racks = {servers[s].rack for s in where[i]}
        return racks | {"the upper switch"} if len(racks) > 1 else racks

    users = [i for i in active if problem.jobs[i].exchange == "in-network" and len(where[i]) > 1]
    most = max(sum(switch in switches(i) for i in users) for switch in switches(j))
    return memory.slots * memory.payload * 8 / memory.round_trip / most


def evaluate(
    problem: Problem, order: list[int], gpus: list[list[int]], not_before: list[float]
) -> tuple[list[float], list[float]]:
    """Start and end of every job, in seconds; `not_before` in seconds."""
    server_of = [s for s, server in enumerate(problem.cluster.servers) for _ in range(server.gpus)]
    where: list[dict[int, int]] = []
    for held in gpus:
        counts: dict[int, int] = {}
        for gpu in held:
            counts[server_of[gpu]] = counts.get(server_of[gpu], 0) + 1
        where.append(counts)
    queues: dict[int, list[int]] = {gpu: [] for gpu in range(len(server_of))}
    for j in order:
        for gpu in gpus[j]:
            queues[gpu].append(j)
    release = [max(job.arrival_s, not_before[j]) for j, job in enumerate(problem.jobs)]
    if problem.model.slot_s is not None:
        return _slotted(problem, gpus, where, queues, release, problem.model.slot_s)
    return _continuous(problem, gpus, where, queues, release)


def _heads(queues: dict[int, list[int]], gpus: list[list[int]], n: int, active: set[int]) -> list[int]:
    return [j for j in range(n) if j not in active and all(queues[g] and queues[g][0] == j for g in gpus[j])]


def _slotted(problem, gpus, where, queues, release, slot_s):  # type: ignore[no-untyped-def]
    n = len(problem.jobs)
    start, end = [math.nan] * n, [math.nan] * n
    done = [0] * n
    active: set[int] = set()
    slot = 0
    while any(math.isnan(t) for t in end):
        for j in _heads(queues, gpus, n, active):
            if math.ceil(release[j] / slot_s - 1e-9) <= slot:
                active.add(j)
                start[j] = slot * slot_s
        step = {j: math.floor(slot_s / tau_s(problem, where, active, j) + 1e-9) for j in active}
        slot += 1
        for j, iterations in step.items():
            done[j] += iterations
            if done[j] >= problem.jobs[j].iterations:
                active.remove(j)
                end[j] = slot * slot_s
                for gpu in gpus[j]:
                    queues[gpu].pop(0)
        assert slot < 10**6
    return start, end


def _continuous(problem, gpus, where, queues, release):  # type: ignore[no-untyped-def]
    n = len(problem.jobs)
    start, end = [math.nan] * n, [math.nan] * n
    left = [float(job.iterations) for job in problem.jobs]
    active: set[int] = set()
    now = 0.0
    while any(math.isnan(t) for t in end):
        waiting = []
        for j in _heads(queues, gpus, n, active):
            if release[j] <= now:
                active.add(j)
                start[j] = now
            else:
                waiting.append(release[j])
        rates = {j: 1.0 / tau_s(problem, where, active, j) for j in active}
        moments = [now + left[j] / rates[j] for j in active] + waiting
        after = min(moments)
        for j in list(active):
            left[j] -= rates[j] * (after - now)
            if left[j] <= 1e-9 * problem.jobs[j].iterations:
                active.remove(j)
                end[j] = after
                for gpu in gpus[j]:
                    queues[gpu].pop(0)
        now = after
    return start, end
