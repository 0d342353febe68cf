"""List scheduling in time: whenever GPUs fall free, give them to the waiting jobs in an order; compiled.

The order, and for each job whether it may spread and whether it holds back those behind it, are the genes of
`bco-plus`; the same kernel serves it as backfilling (nobody holds back) and as strict order. A job goes to
the server it fills best; a job that must or may spread takes the fewest servers, or the least contended.
"""

import numpy as np
from numpy.typing import NDArray

from paceline.schedule.compiled import compiled
from paceline.schedule.contention import ClusterT, Floats, Ints, JobsT, PriceT
from paceline.schedule.kernels import DUE, State, drop_event, leave, new_state, schedule_event
from paceline.schedule.kernels import start as start_job

LOCAL, FEWEST, QUIETEST = 0, 1, 2
"""Spread only where no server is large enough; over the fewest servers; over the least contended ones."""


@compiled
def best_fit(cluster: ClusterT, free: Ints, g: int) -> int:
    """The server that g GPUs fill best: the fewest free ones left over; -1 when none has room."""
    best, over = -1, 1 << 60
    for s in range(len(free)):
        if g <= free[s] < over:
            best, over = s, free[s]
    return best


@compiled
def choose_spread(state: State, free: Ints, g: int, quiet: bool, share: Ints) -> bool:
    """GPUs a server for a spread job: most free GPUs first, or fewest contenders first; False: no room."""
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
            if quiet and state.crowd[s] != state.crowd[best]:
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
    if not choose_spread(state, free, g, mode == QUIETEST, share):
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
