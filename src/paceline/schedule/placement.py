"""Which GPUs a list of jobs gets, compiled: by loads, before anything runs, or in time, as GPUs fall free.

**By loads** (`place_all`): the rules of SJF-BCO and of its baselines. Every GPU carries a load U, the sum of the
estimated times of the jobs given to it; a job may take a GPU only while `U + rho_hat <= theta`. Loads are kept sorted
inside each server, so that no job costs a full sort: the GPUs a server can offer are a prefix, and the globally least
loaded ones come from a merge of prefixes.

Paper: section 5, algorithms 2 (FA-FFP) and 3 (LBSGF). FA-FFP as printed takes the least loaded GPUs, which
is what list scheduling does; its prose packs into occupied servers. `PACK` is the prose, `LEAST` the print.

**In time** (`run_list`): whenever GPUs fall free, they are given to the waiting jobs in an order. The order, and for
each job whether it may spread and whether it holds back those behind it, are the genes of `bco-plus`; the same kernel
serves it as backfilling (nobody holds back) and as strict order. A job goes to the server it fills best; a job that
must or may spread takes the fewest servers, or the least contended.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.schedule.kernels import DUE, State, compiled, drop_event, leave, new_state, schedule_event
from paceline.schedule.kernels import start as start_job
from paceline.schedule.model import ClusterT, Floats, Ints, JobsT, PriceT

PACK, LEAST, BALANCED, FIRST, PACK_ONE, RANDOM = 0, 1, 2, 3, 4, 5
"""FA-FFP's prose; FA-FFP's print and LS; LBSGF; FF; ours: the prose, but one server if one has room; RAND."""


LOCAL, FEWEST, QUIETEST = 0, 1, 2
"""Spread only where no server is large enough; over the fewest servers; over the least contended ones."""


class Loads(NamedTuple):
    """The load U of each GPU, in units of time."""

    load: Floats
    """By GPU."""
    sorted: Ints
    """The GPUs of each server, from the least to the most loaded."""
    total: Floats
    """Of all GPUs of a server together, by server."""


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


@compiled
def best_fit(cluster: ClusterT, free: Ints, g: int) -> int:
    """Of the fastest servers the one that g GPUs fill best: the fewest free ones left over; -1 when none has room."""
    best = -1
    for s in range(len(free)):
        if g > free[s]:
            continue
        if (
            best < 0
            or cluster.slow[s] < cluster.slow[best]
            or (cluster.slow[s] == cluster.slow[best] and free[s] < free[best])
        ):
            best = s
    return best


@compiled
def choose_spread(state: State, cluster: ClusterT, free: Ints, g: int, quiet: bool, share: Ints) -> bool:
    """GPUs a server for a spread job, the fastest first; most free GPUs, or fewest contenders; False: no room."""
    share[:] = 0
    left = g
    while left > 0:
        best = -1
        for s in range(len(free)):
            if share[s] > 0 or free[s] == 0:
                continue
            if best < 0:
                best = s
                continue
            if cluster.slow[s] != cluster.slow[best]:
                if cluster.slow[s] < cluster.slow[best]:
                    best = s
            elif quiet and state.crowd[s] != state.crowd[best]:
                if state.crowd[s] < state.crowd[best]:
                    best = s
            elif min(free[s], left) != min(free[best], left):
                if free[s] > free[best]:
                    best = s
            elif free[s] < free[best]:
                best = s
        if best < 0:
            return False
        share[best] = min(left, free[best])
        left -= share[best]
    return True


@compiled
def take_gpus(cluster: ClusterT, busy: NDArray[np.bool_], s: int, wanted: int, out: Ints, at: int) -> None:
    """Write the first `wanted` free GPUs of server s to `out[at:]` and mark them busy."""
    n = 0
    for gpu in range(cluster.first_gpu[s], cluster.first_gpu[s + 1]):
        if n < wanted and not busy[gpu]:
            busy[gpu] = True
            out[at + n] = gpu
            n += 1


@compiled
def _try(
    state: State, jobs: JobsT, cluster: ClusterT, free: Ints, busy: NDArray[np.bool_], share: Ints,
    j: int, mode: int, largest: int,
) -> bool:  # fmt: skip
    g = jobs.gpus[j]
    s = best_fit(cluster, free, g)
    if s >= 0:
        take_gpus(cluster, busy, s, g, state.gpus, jobs.base[j])
        free[s] -= g
        return True
    if mode == LOCAL and g <= largest:
        return False
    if not choose_spread(state, cluster, free, g, mode == QUIETEST, share):
        return False
    at = jobs.base[j]
    for s in range(len(free)):
        if share[s] > 0:
            take_gpus(cluster, busy, s, share[s], state.gpus, at)
            free[s] -= share[s]
            at += share[s]
    return True


@compiled
def run_list(
    jobs: JobsT,
    cluster: ClusterT,
    price: PriceT,
    order: Ints,
    mode: Ints,
    hold: NDArray[np.bool_],
    pinned: NDArray[np.bool_],
    gpus: Ints,
) -> tuple[Floats, Floats, Ints]:
    """Start, end and GPUs of every job when the waiting ones are served in `order` whenever GPUs are free.

    `mode[j]` is LOCAL, FEWEST or QUIETEST; while a job with `hold[j]` waits, nobody behind it starts. Jobs
    that are `pinned` already run, from time 0 on, on their place of `gpus`.
    """
    state = new_state(jobs, cluster)
    servers = len(cluster.first_gpu) - 1
    free = cluster.first_gpu[1:] - cluster.first_gpu[:-1]
    largest, idle = free.max(), free.sum()
    busy = np.zeros(len(cluster.server_of), dtype=np.bool_)
    share = np.zeros(servers, dtype=np.int64)
    waiting = order.copy()
    queued = 0
    for j in order:
        if not pinned[j]:
            waiting[queued] = j
            queued += 1
            state.phase[j] = DUE
            schedule_event(state, j, jobs.arrival[j])
            continue
        for i in range(jobs.base[j], jobs.base[j + 1]):
            state.gpus[i] = gpus[i]
            busy[gpus[i]] = True
            free[cluster.server_of[gpus[i]]] -= 1
        idle -= jobs.gpus[j]
        start_job(state, jobs, cluster, price, j, 0.0)
    while state.heap_n[0] > 0:
        now = state.key[state.heap[0]]
        while state.heap_n[0] > 0 and state.key[state.heap[0]] <= now:
            j = state.heap[0]
            if state.phase[j] == DUE:
                drop_event(state, j)
                state.phase[j] = 0
                continue
            leave(state, jobs, cluster, price, j, now, True)
            idle += jobs.gpus[j]
            for i in range(jobs.base[j], jobs.base[j + 1]):
                busy[state.gpus[i]] = False
                free[cluster.server_of[state.gpus[i]]] += 1
        too_large = 1 << 60
        kept = 0
        blocked = False
        for i in range(queued):
            j = waiting[i]
            g = jobs.gpus[j]
            if state.phase[j] == DUE or blocked or g > idle or (g >= too_large and mode[j] == LOCAL):
                blocked = blocked or (hold[j] and state.phase[j] != DUE)
                waiting[kept] = j
                kept += 1
            elif _try(state, jobs, cluster, free, busy, share, j, mode[j], largest):
                idle -= g
                start_job(state, jobs, cluster, price, j, now)
            else:
                too_large = min(too_large, g if g <= largest else too_large)
                blocked = blocked or hold[j]
                waiting[kept] = j
                kept += 1
        queued = kept
    return state.start, state.end, state.gpus
