"""The event-driven heart of the evaluator: jobs start and end, and the jobs affected are priced anew.

`start` and `leave` change the contention of (6) on the job's servers and re-evaluate (6)-(9) for the spread
jobs there, and for no others: a job's progress is brought up to date only when its rate changes. Time is
in units: seconds, or whole slots with `floor(1/tau)` iterations each. Nothing here reads a clock.

Invariants: `crowd[s]` is the number of active spread jobs on server s and `on_server[s, :crowd[s]]` names
them; `rack_count[r]` counts the active spread in-network jobs that touch rack r (its last entry: those that
span racks, which share the upper switch); the heap holds each waiting start and each predicted end once.

Kernels are compiled by Numba and kept on disk (`paceline.compile.cache`): the first compilation after a change says so
on stderr, every later start loads the machine code in a moment. `NUMBA_DISABLE_JIT=1` runs them interpreted.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.compile.cache import config, is_on_disk, kept_on_disk
from paceline.compile.linking import njit
from paceline.schedule.model import ClusterT, Floats, Ints, JobsT, PriceT

F = TypeVar("F", bound=Callable[..., Any])

_kernels: list[Callable[..., Any]] = []


def compiled(function: F) -> F:
    """`numba.njit`, kept on disk; the wrapped function keeps its type for the checker."""
    wrapped: Any = kept_on_disk(njit(cache=True, error_model="numpy"), function)
    _kernels.append(wrapped)
    return wrapped  # type: ignore[no-any-return]


@functools.cache
def announce() -> None:
    """Say on stderr, once, that a compilation is about to happen, if it is; call before the first kernel."""
    if config.DISABLE_JIT or any(is_on_disk(kernel) for kernel in _kernels):
        return
    print(
        "paceline: compiling the scheduler's kernels (once, about half a minute) ...",
        file=sys.stderr,
        flush=True,
    )


WAITING, DUE, RUNNING, DONE = 0, 1, 2, 3
"""Phases of a job."""


class State(NamedTuple):
    """Everything that changes while time passes; times are in units, and a job's entries are at its index."""

    remaining: Floats
    """Iterations left, as of `since`."""
    rate: Floats
    """Iterations a unit of time; 0 while the job does not run."""
    since: Floats
    """When `remaining` was last brought up to date."""
    start: Floats
    """When the job first ran; NaN before."""
    end: Floats
    """When it was done; NaN before."""
    phase: NDArray[np.int8]
    """WAITING, DUE, RUNNING or DONE."""
    gpus: Ints
    """GPUs of each job, flat, at `jobs.base`."""
    servers: Ints
    """Servers of each job, flat, at `jobs.base`; the first `servers_n` count."""
    servers_n: Ints
    """How many servers the job uses."""
    crowd: Ints
    """By server: active spread jobs."""
    on_server: Ints
    """`[server, i]`: which they are."""
    rack_count: Ints
    """By rack: active spread in-network jobs; last: those that span racks."""
    sharing: Ints
    """The active spread in-network jobs, in any order; the first `sharing_n[0]` count."""
    sharing_n: Ints
    """One entry: how many these are."""
    p: Ints
    """Contention of each spread job that runs, (6)."""
    key: Floats
    """When the job's next event is: its start, or its predicted end."""
    heap: Ints
    """Jobs with an event to come, the earliest first; the first `heap_n[0]` count."""
    position: Ints
    """Where the job is in the heap; -1: nowhere."""
    heap_n: Ints
    """One entry: how many are in the heap."""


@compiled
def new_state(jobs: JobsT, cluster: ClusterT) -> State:
    """No job started."""
    n, servers, flat = len(jobs.gpus), len(cluster.first_gpu) - 1, jobs.base[-1]
    largest = 1
    for s in range(servers):
        largest = max(largest, cluster.first_gpu[s + 1] - cluster.first_gpu[s])
    racks = 0
    for s in range(servers):
        racks = max(racks, cluster.rack_of[s] + 1)
    return State(
        remaining=jobs.iterations.copy(),
        rate=np.zeros(n),
        since=np.zeros(n),
        start=np.full(n, np.nan),
        end=np.full(n, np.nan),
        phase=np.zeros(n, dtype=np.int8),
        gpus=np.zeros(flat, dtype=np.int64),
        servers=np.zeros(flat, dtype=np.int64),
        servers_n=np.zeros(n, dtype=np.int64),
        crowd=np.zeros(servers, dtype=np.int64),
        on_server=np.zeros((servers, largest), dtype=np.int64),
        rack_count=np.zeros(racks + 1, dtype=np.int64),
        sharing=np.zeros(n, dtype=np.int64),
        sharing_n=np.zeros(1, dtype=np.int64),
        p=np.zeros(n, dtype=np.int64),
        key=np.zeros(n),
        heap=np.zeros(n, dtype=np.int64),
        position=np.full(n, -1, dtype=np.int64),
        heap_n=np.zeros(1, dtype=np.int64),
    )


@compiled
def _settle(state: State, i: int) -> None:
    # Move the entry at heap place i up or down to where its key belongs.
    heap, position, key, n = state.heap, state.position, state.key, state.heap_n[0]
    j = heap[i]
    while i > 0:
        parent = (i - 1) // 2
        other = heap[parent]
        if key[other] < key[j] or (key[other] == key[j] and other < j):
            break
        heap[i] = other
        position[other] = i
        i = parent
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        a = heap[child]
        if child + 1 < n:
            b = heap[child + 1]
            if key[b] < key[a] or (key[b] == key[a] and b < a):
                child += 1
                a = b
        if key[j] < key[a] or (key[j] == key[a] and j < a):
            break
        heap[i] = a
        position[a] = i
        i = child
    heap[i] = j
    position[j] = i


@compiled
def schedule_event(state: State, j: int, when: float) -> None:
    """Job j's next event (its start, or its predicted end) is at `when`; replaces an earlier prediction."""
    state.key[j] = when
    if state.position[j] < 0:
        state.position[j] = state.heap_n[0]
        state.heap[state.heap_n[0]] = j
        state.heap_n[0] += 1
    _settle(state, state.position[j])


@compiled
def drop_event(state: State, j: int) -> None:
    """Forget job j's next event."""
    i = state.position[j]
    if i < 0:
        return
    state.position[j] = -1
    state.heap_n[0] -= 1
    last = state.heap[state.heap_n[0]]
    if last != j:
        state.heap[i] = last
        state.position[last] = i
        _settle(state, i)


@compiled
def contention(state: State, jobs: JobsT, j: int) -> int:
    """(6): p_j."""
    if state.servers_n[j] <= 1:
        return 0
    p = 0
    for i in range(jobs.base[j], jobs.base[j] + state.servers_n[j]):
        p = max(p, state.crowd[state.servers[i]])
    return p


@compiled
def iteration(jobs: JobsT, price: PriceT, j: int, servers: int, p: int, sharing: int) -> float:
    """(8): units of time one iteration takes."""
    if jobs.gpus[j] == 1:
        exchange = 0.0
    elif servers == 1:
        exchange = jobs.ring_bytes[j] / price.intra
    elif jobs.in_network[j]:
        bandwidth = min(price.spread[p], price.memory / max(1, sharing))
        return float(jobs.net_bytes[j] / bandwidth + price.overhead * servers + jobs.compute[j])
    else:
        exchange = jobs.ring_bytes[j] / price.spread[p]
    return float(exchange + jobs.reduce[j] + price.overhead * servers + jobs.compute[j])


@compiled
def _memory_sharers(state: State, jobs: JobsT, cluster: ClusterT, j: int) -> int:
    # In-network jobs on the busiest switch that j crosses; a job over several racks also crosses the upper.
    most, first, several = 1, -1, False
    for i in range(jobs.base[j], jobs.base[j] + state.servers_n[j]):
        rack = cluster.rack_of[state.servers[i]]
        most = max(most, state.rack_count[rack])
        several = several or (first >= 0 and rack != first)
        first = rack
    if several:
        most = max(most, state.rack_count[-1])
    return most


@compiled
def reprice(state: State, jobs: JobsT, cluster: ClusterT, price: PriceT, j: int, now: float) -> None:
    """Bring job j up to `now` and predict its end at the rate that holds from now on."""
    sharing = 1
    if jobs.in_network[j] and state.servers_n[j] > 1:
        sharing = _memory_sharers(state, jobs, cluster, j)
    tau = iteration(jobs, price, j, state.servers_n[j], state.p[j], sharing)
    rate = np.floor(1.0 / tau + 1e-9) if price.slotted else 1.0 / tau
    if rate == state.rate[j]:
        return
    state.remaining[j] = max(0.0, state.remaining[j] - state.rate[j] * (now - state.since[j]))
    state.since[j] = now
    state.rate[j] = rate
    left = state.remaining[j] / rate
    schedule_event(state, j, now + (np.ceil(left - 1e-9) if price.slotted else left))


@compiled
def _count_racks(state: State, jobs: JobsT, cluster: ClusterT, j: int, step: int) -> None:
    first, several = -1, False
    for i in range(jobs.base[j], jobs.base[j] + state.servers_n[j]):
        rack = cluster.rack_of[state.servers[i]]
        new = True
        for k in range(jobs.base[j], i):
            new = new and cluster.rack_of[state.servers[k]] != rack
        if new:
            state.rack_count[rack] += step
        several = several or (first >= 0 and rack != first)
        first = rack
    if several:
        state.rack_count[-1] += step


@compiled
def _reprice_around(state: State, jobs: JobsT, cluster: ClusterT, price: PriceT, j: int, now: float) -> None:
    # Jobs that share a server's link with j and see their p change, and jobs that share a switch's memory.
    for i in range(jobs.base[j], jobs.base[j] + state.servers_n[j]):
        s = state.servers[i]
        crowd = state.crowd[s]
        for k in range(crowd):
            other = state.on_server[s, k]
            if crowd > state.p[other]:
                state.p[other] = crowd
                reprice(state, jobs, cluster, price, other, now)
            elif crowd + 1 == state.p[other]:
                # Only a server that has just been left can have been the fullest one.
                p = contention(state, jobs, other)
                if p != state.p[other]:
                    state.p[other] = p
                    reprice(state, jobs, cluster, price, other, now)
    if jobs.in_network[j]:
        for k in range(state.sharing_n[0]):
            reprice(state, jobs, cluster, price, state.sharing[k], now)


@compiled
def find_servers(state: State, jobs: JobsT, cluster: ClusterT, j: int) -> None:
    """From the job's GPUs, which are ascending, the distinct servers."""
    base, n = jobs.base[j], 0
    for i in range(base, base + jobs.gpus[j]):
        s = cluster.server_of[state.gpus[i]]
        if n == 0 or state.servers[base + n - 1] != s:
            state.servers[base + n] = s
            n += 1
    state.servers_n[j] = n


@compiled
def start(state: State, jobs: JobsT, cluster: ClusterT, price: PriceT, j: int, now: float) -> None:
    """Job j runs from now on, on the GPUs written at its place of `state.gpus`."""
    find_servers(state, jobs, cluster, j)
    state.phase[j] = RUNNING
    if np.isnan(state.start[j]):
        state.start[j] = now
    state.since[j] = now
    state.rate[j] = 0.0
    state.p[j] = 0
    if state.servers_n[j] == 1:
        reprice(state, jobs, cluster, price, j, now)
        return
    for i in range(jobs.base[j], jobs.base[j] + state.servers_n[j]):
        s = state.servers[i]
        state.on_server[s, state.crowd[s]] = j
        state.crowd[s] += 1
    if jobs.in_network[j]:
        state.sharing[state.sharing_n[0]] = j
        state.sharing_n[0] += 1
        _count_racks(state, jobs, cluster, j, 1)
    state.p[j] = contention(state, jobs, j)
    reprice(state, jobs, cluster, price, j, now)
    _reprice_around(state, jobs, cluster, price, j, now)


@compiled
def leave(
    state: State, jobs: JobsT, cluster: ClusterT, price: PriceT, j: int, now: float, done: bool
) -> None:
    """Job j ends (`done`) or is preempted now; what it had computed stays."""
    left = state.remaining[j] - state.rate[j] * (now - state.since[j])
    state.remaining[j] = 0.0 if done else max(0.0, left)
    state.phase[j] = DONE if done else WAITING
    state.rate[j] = 0.0
    drop_event(state, j)
    if done:
        state.end[j] = now
    if state.servers_n[j] == 1:
        return
    for i in range(jobs.base[j], jobs.base[j] + state.servers_n[j]):
        s = state.servers[i]
        state.crowd[s] -= 1
        for k in range(state.crowd[s]):
            if state.on_server[s, k] == j:
                state.on_server[s, k] = state.on_server[s, state.crowd[s]]
                break
    if jobs.in_network[j]:
        state.sharing_n[0] -= 1
        for k in range(state.sharing_n[0]):
            if state.sharing[k] == j:
                state.sharing[k] = state.sharing[state.sharing_n[0]]
                break
        _count_racks(state, jobs, cluster, j, -1)
    _reprice_around(state, jobs, cluster, price, j, now)


@compiled
def run_queues(
    jobs: JobsT, cluster: ClusterT, price: PriceT, order: Ints, gpus: Ints, not_before: Floats
) -> tuple[Floats, Floats]:
    """Start and end of every job when each GPU serves its jobs in `order`, one after another.

    A job starts as soon as all its GPUs have come to it, it has arrived, and `not_before` has passed.
    """
    state = new_state(jobs, cluster)
    n = len(jobs.gpus)
    state.gpus[:] = gpus
    following = np.full(jobs.base[-1], -1, dtype=np.int64)
    ahead = np.zeros(n, dtype=np.int64)
    tail = np.full(len(cluster.server_of), -1, dtype=np.int64)
    for j in order:
        for i in range(jobs.base[j], jobs.base[j + 1]):
            if tail[gpus[i]] >= 0:
                following[tail[gpus[i]]] = j
                ahead[j] += 1
            tail[gpus[i]] = i
    for j in order:
        if ahead[j] == 0:
            state.phase[j] = DUE
            schedule_event(state, j, max(jobs.arrival[j], not_before[j]))
    while state.heap_n[0] > 0:
        j = state.heap[0]
        now = state.key[j]
        if state.phase[j] == DUE:
            drop_event(state, j)
            start(state, jobs, cluster, price, j, now)
            continue
        leave(state, jobs, cluster, price, j, now, True)
        for i in range(jobs.base[j], jobs.base[j + 1]):
            k = following[i]
            if k >= 0:
                ahead[k] -= 1
                if ahead[k] == 0:
                    state.phase[k] = DUE
                    schedule_event(state, k, max(now, max(jobs.arrival[k], not_before[k])))
    return state.start, state.end
