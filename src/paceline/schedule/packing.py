"""Load-based placement of a whole list of jobs: the rules of SJF-BCO and of its baselines, compiled.

Every GPU carries a load U, the sum of the estimated times of the jobs given to it; a job may take a GPU only
while `U + rho_hat <= theta`. Loads are kept sorted inside each server, so that no job costs a full sort:
the GPUs a server can offer are a prefix, and the globally least loaded ones come from a merge of prefixes.

Paper: section 5, algorithms 2 (FA-FFP) and 3 (LBSGF). FA-FFP as printed takes the least loaded GPUs, which
is what list scheduling does; its prose packs into occupied servers. `PACK` is the prose, `LEAST` the print.
"""

from typing import NamedTuple

import numpy as np

from paceline.schedule.compiled import compiled
from paceline.schedule.contention import ClusterT, Floats, Ints, JobsT

PACK, LEAST, BALANCED, FIRST, PACK_ONE, RANDOM = 0, 1, 2, 3, 4, 5
"""FA-FFP's prose; FA-FFP's print and LS; LBSGF; FF; ours: the prose, but one server if one has room; RAND."""


class Loads(NamedTuple):
    """U of each GPU, and each server's GPUs from the least to the most loaded."""

    load: Floats
    sorted: Ints
    total: Floats


@compiled
def new_loads(cluster: ClusterT, initial: Floats) -> Loads:
    """The loads before the first job; `initial` is what already runs."""
    servers = len(cluster.first_gpu) - 1
    loads = Loads(initial.copy(), np.arange(len(initial)), np.zeros(servers))
    for s in range(servers):
        for i in range(cluster.first_gpu[s], cluster.first_gpu[s + 1]):
            loads.total[s] += initial[i]
            _sink(loads, i, cluster.first_gpu[s])
    return loads


@compiled
def _sink(loads: Loads, i: int, first: int) -> None:
    # Insertion towards the front: everything before place i is sorted.
    gpu = loads.sorted[i]
    while i > first and loads.load[loads.sorted[i - 1]] > loads.load[gpu]:
        loads.sorted[i] = loads.sorted[i - 1]
        i -= 1
    loads.sorted[i] = gpu


@compiled
def _give(cluster: ClusterT, loads: Loads, taken: Ints, weight: float) -> None:
    # Add the job's load to its GPUs and restore the order inside the servers touched.
    for gpu in taken:
        loads.load[gpu] += weight
        loads.total[cluster.server_of[gpu]] += weight
    done = -1
    for gpu in taken:
        s = cluster.server_of[gpu]
        if s != done:
            for i in range(cluster.first_gpu[s] + 1, cluster.first_gpu[s + 1]):
                _sink(loads, i, cluster.first_gpu[s])
            done = s


@compiled
def _pack(cluster: ClusterT, loads: Loads, g: int, limit: float, taken: Ints) -> bool:
    # Prose of FA-FFP: GPUs of occupied servers first, in the servers' order, the least loaded of each; a
    # job larger than what is over of one server runs on into the next.
    servers = len(cluster.first_gpu) - 1
    n = 0
    for occupied in (True, False):
        for s in range(servers):
            if (loads.total[s] > 0.0) == occupied:
                i = cluster.first_gpu[s]
                while n < g and i < cluster.first_gpu[s + 1] and loads.load[loads.sorted[i]] <= limit:
                    taken[n] = loads.sorted[i]
                    n += 1
                    i += 1
                if n == g:
                    return True
    return False


@compiled
def _one_server(cluster: ClusterT, loads: Loads, g: int, limit: float, occupied_first: bool) -> int:
    # The first server that can take the whole job, an occupied one if asked; -1: none.
    empty = -1
    for s in range(len(cluster.first_gpu) - 1):
        first = cluster.first_gpu[s]
        if cluster.first_gpu[s + 1] - first >= g and loads.load[loads.sorted[first + g - 1]] <= limit:
            if loads.total[s] > 0.0 or not occupied_first:
                return s
            if empty < 0:
                empty = s
    return empty


@compiled
def _least(cluster: ClusterT, loads: Loads, g: int, limit: float, taken: Ints, among: Ints) -> bool:
    # The g least loaded GPUs of the servers `among`: a merge of their sorted prefixes through a heap.
    heap = np.empty(len(among), dtype=np.int64)
    place = np.empty(len(among), dtype=np.int64)
    n = 0
    for a in range(len(among)):
        place[a] = cluster.first_gpu[among[a]]
        heap[n] = a
        n += 1
        i = n - 1
        while i > 0:
            parent = (i - 1) // 2
            if _earlier(loads, place, heap[parent], heap[i]):
                break
            heap[parent], heap[i] = heap[i], heap[parent]
            i = parent
    for k in range(g):
        if n == 0:
            return False
        a = heap[0]
        gpu = loads.sorted[place[a]]
        if loads.load[gpu] > limit:
            return False
        taken[k] = gpu
        place[a] += 1
        if place[a] == cluster.first_gpu[among[a] + 1]:
            n -= 1
            heap[0] = heap[n]
        i = 0
        while True:
            child = 2 * i + 1
            if child >= n:
                break
            if child + 1 < n and _earlier(loads, place, heap[child + 1], heap[child]):
                child += 1
            if _earlier(loads, place, heap[i], heap[child]):
                break
            heap[i], heap[child] = heap[child], heap[i]
            i = child
    return True


@compiled
def _earlier(loads: Loads, place: Ints, a: int, b: int) -> bool:
    x, y = loads.load[loads.sorted[place[a]]], loads.load[loads.sorted[place[b]]]
    return x < y or (x == y and a < b)


@compiled
def _least_busy(cluster: ClusterT, loads: Loads, wanted: float) -> Ints:
    # LBSGF's servers: by average load, as many as hold `wanted` GPUs together.
    servers = len(cluster.first_gpu) - 1
    chosen = np.zeros(servers, dtype=np.bool_)
    size, n = 0, 0
    while size < wanted and n < servers:
        best, least = -1, np.inf
        for s in range(servers):
            if not chosen[s]:
                average = loads.total[s] / (cluster.first_gpu[s + 1] - cluster.first_gpu[s])
                if average < least:
                    best, least = s, average
        chosen[best] = True
        size += cluster.first_gpu[best + 1] - cluster.first_gpu[best]
        n += 1
    return np.flatnonzero(chosen)


@compiled
def _first(cluster: ClusterT, loads: Loads, g: int, limit: float, taken: Ints) -> bool:
    # FF: the first server that can take the whole job, else GPUs in their order, server by server.
    s = _one_server(cluster, loads, g, limit, False)
    n = 0
    for gpu in range(cluster.first_gpu[max(0, s)], len(loads.load)):
        if loads.load[gpu] <= limit:
            taken[n] = gpu
            n += 1
            if n == g:
                return True
    return False


@compiled
def _random(loads: Loads, limit: float, taken: Ints, draws: Floats) -> bool:
    # RAND: any GPUs within the limit, by the uniform numbers given.
    offered = np.flatnonzero(loads.load <= limit)
    if len(offered) < len(taken):
        return False
    for k in range(len(taken)):
        pick = k + int(draws[k] * (len(offered) - k))
        taken[k] = offered[pick]
        offered[pick] = offered[k]
    return True


@compiled
def place_all(
    jobs: JobsT,
    cluster: ClusterT,
    order: Ints,
    weight: Floats,
    initial: Floats,
    theta: float,
    kappa: int,
    small: int,
    large: int,
    spread: float,
    draws: Floats,
) -> tuple[int, Ints]:
    """GPUs for all jobs in `order`: rule `small` up to kappa GPUs, `large` above; `spread` is lambda.

    `draws` holds a uniform number for each place of the flat GPUs (read by RANDOM only).
    Returns how many jobs were placed (all, or those before the first that did not fit) and the flat GPUs.
    """
    gpus = np.full(jobs.base[-1], -1, dtype=np.int64)
    loads = new_loads(cluster, initial)
    everywhere = np.arange(len(cluster.first_gpu) - 1)
    for n in range(len(order)):
        j = order[n]
        g = jobs.gpus[j]
        limit = theta * (1.0 + 1e-12) - weight[j]
        taken = np.empty(g, dtype=np.int64)
        rule = small if g <= kappa else large
        if rule in (PACK, PACK_ONE):
            s = _one_server(cluster, loads, g, limit, True) if rule == PACK_ONE else -1
            if s >= 0:
                taken[:] = loads.sorted[cluster.first_gpu[s] : cluster.first_gpu[s] + g]
                placed = True
            else:
                placed = _pack(cluster, loads, g, limit, taken)
        elif rule == LEAST:
            placed = _least(cluster, loads, g, limit, taken, everywhere)
        elif rule == BALANCED:
            placed = _least(cluster, loads, g, limit, taken, _least_busy(cluster, loads, spread * g))
        elif rule == RANDOM:
            placed = _random(loads, limit, taken, draws[jobs.base[j] : jobs.base[j + 1]])
        else:
            placed = _first(cluster, loads, g, limit, taken)
        if not placed:
            return n, gpus
        taken.sort()
        gpus[jobs.base[j] : jobs.base[j + 1]] = taken
        _give(cluster, loads, taken, weight[j])
    return len(order), gpus
