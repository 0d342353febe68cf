"""The event-driven heart of the evaluator: jobs start and end, and the jobs affected are priced anew.

`start` and `leave` change the contention of (6) on the job's servers and re-evaluate (6)-(9) for the spread
jobs there, and for no others: a job's progress is brought up to date only when its rate changes. Time is
in units: seconds, or whole slots with `floor(1/tau)` iterations each. Nothing here reads a clock.

Invariants: `crowd[s]` is the number of active spread jobs on server s and `on_server[s, :crowd[s]]` names
them; `rack_count[r]` counts the active spread in-network jobs that touch rack r (its last entry: those that
span racks, which share the upper switch); the heap holds each waiting start and each predicted end once.

Two models price a job: the paper's equations, and the sharing of links and switch memory (`contention.py`), where the
share of time in which a job sends (`busy`) depends on its neighbours' and theirs on its own. A start or an end goes
`SWEEPS` times over the jobs that share a link with the job; those further away notice at their own events.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.schedule import contention
from paceline.schedule.kernel_cache import announce, compiled
from paceline.schedule.model import ClusterT, Floats, Ints, JobsT, PriceT

__all__ = ["announce", "compiled"]

WAITING, DUE, RUNNING, DONE = 0, 1, 2, 3
"""Phases of a job."""
SWEEPS = 2
"""How often neighbours are priced anew after a start or an end."""
SAME = 1e-4
"""A change of a job's rate by less than this share is no change."""


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
    busy: Floats
    """Share of its iteration in which a spread job that runs sends."""
    link_busy: Floats
    """By server: the sum over its spread jobs."""
    racks_n: Ints
    """How many racks the job uses."""
    rack_busy: Floats
    """By rack: the sum over its spread jobs that span racks."""
    rack_jobs: Ints
    """By rack: how many these are."""
    on_rack: Ints
    """`[rack, i]`: which they are."""
    holding: Floats
    """By rack: the sum over all of its spread in-network jobs; last: over those that span racks."""
    seen: Ints
    """When a job was last looked at, in walks."""
    walks: Ints
    """One entry: walks so far."""


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
    in_rack = np.zeros(racks, dtype=np.int64)
    for s in range(servers):
        in_rack[cluster.rack_of[s]] += cluster.first_gpu[s + 1] - cluster.first_gpu[s]
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
        busy=np.zeros(n),
        link_busy=np.zeros(servers),
        racks_n=np.zeros(n, dtype=np.int64),
        rack_busy=np.zeros(racks),
        rack_jobs=np.zeros(racks, dtype=np.int64),
        on_rack=np.zeros((racks, min(n, in_rack.max())), dtype=np.int64),
        holding=np.zeros(racks + 1),
        seen=np.zeros(n, dtype=np.int64),
        walks=np.zeros(1, dtype=np.int64),
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
def contention_of(state: State, jobs: JobsT, j: int) -> int:
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
    if price.network.on:
        tau = _price_by_links(state, jobs, cluster, price, j)
    else:
        if jobs.in_network[j] and state.servers_n[j] > 1:
            sharing = _memory_sharers(state, jobs, cluster, j)
        tau = iteration(jobs, price, j, state.servers_n[j], state.p[j], sharing)
    rate = np.floor(1.0 / tau + 1e-9) if price.slotted else 1.0 / tau
    if rate == state.rate[j] or (price.network.on and abs(rate - state.rate[j]) < SAME * rate):
        return
    state.remaining[j] = max(0.0, state.remaining[j] - state.rate[j] * (now - state.since[j]))
    state.since[j] = now
    state.rate[j] = rate
    left = state.remaining[j] / rate
    schedule_event(state, j, now + (np.ceil(left - 1e-9) if price.slotted else left))


@compiled
def rate_of(state: State, jobs: JobsT, cluster: ClusterT, price: PriceT, j: int) -> float:
    """Bytes a unit of time that a spread job gets, on average while it sends."""
    network = price.network
    base, mine = jobs.base[j], state.busy[j]
    rate, free_there, free_everywhere = network.rate, 1.0, 1.0
    state.walks[0] += 1
    state.seen[j] = state.walks[0]
    for i in range(base, base + state.servers_n[j]):
        s = state.servers[i]
        crowd = state.crowd[s]
        if crowd <= 1:
            continue
        free = 1.0
        for k in range(crowd):
            other = state.on_server[s, k]
            if other != j:
                free *= 1.0 - state.busy[other]
            if state.seen[other] != state.walks[0]:
                state.seen[other] = state.walks[0]
                free_everywhere *= 1.0 - state.busy[other]
        here = contention.expected_rate(crowd - 1, state.link_busy[s] - mine, network.rate, network.rate)
        if here < rate:
            rate, free_there = here, free
    rate = contention.any_of_several(rate, network.rate, free_there, free_everywhere)
    if state.racks_n[j] > 1:
        for i in range(base, base + state.servers_n[j]):
            r = cluster.rack_of[state.servers[i]]
            uplink = network.uplink / contention.copies_on_uplinks(jobs.kind[j])
            others = state.rack_busy[r] - mine
            rate = min(rate, contention.expected_rate(state.rack_jobs[r] - 1, others, uplink, network.rate))
    return rate


@compiled
def holders_of(state: State, jobs: JobsT, cluster: ClusterT, j: int) -> float:
    """In-network jobs that send at a moment on the busiest switch that job j crosses, itself included."""
    most = 0.0
    for i in range(jobs.base[j], jobs.base[j] + state.servers_n[j]):
        most = max(most, state.holding[cluster.rack_of[state.servers[i]]])
    if state.racks_n[j] > 1:
        most = max(most, state.holding[-1])
    return float(1.0 + max(0.0, most - state.busy[j]))


@compiled
def sent_of(state: State, jobs: JobsT, cluster: ClusterT, price: PriceT, j: int, rate: float) -> float:
    """Time that all gradients of a spread job take at a rate, among those who hold switch memory now."""
    kind = jobs.kind[j]
    holders = holders_of(state, jobs, cluster, j) if kind == contention.ATP or kind == contention.ESA else 1.0
    servers, racks = state.servers_n[j], state.racks_n[j]
    return contention.sending(price.network, kind, jobs.net_bytes[j], servers, racks, rate, holders)


@compiled
def slowness_of(state: State, jobs: JobsT, cluster: ClusterT, j: int) -> float:
    """How many times as long job j computes on its servers: as the slowest does, or with help as all together."""
    if not cluster.uneven:
        return 1.0
    slowest, work = 0.0, 0.0
    for i in range(jobs.base[j], jobs.base[j + 1]):
        slow = cluster.slow[cluster.server_of[state.gpus[i]]]
        slowest = max(slowest, slow)
        work += 1.0 / slow
    return float(jobs.gpus[j] / work if jobs.helped[j] else slowest)


@compiled
def _price_by_links(state: State, jobs: JobsT, cluster: ClusterT, price: PriceT, j: int) -> float:
    # The iteration of job j among its neighbours of now; its share of time follows.
    servers, kind = state.servers_n[j], jobs.kind[j]
    longer = contention.slowest_of(jobs.jitter[j], servers) * slowness_of(state, jobs, cluster, j)
    if servers == 1:
        inside = jobs.ring_bytes[j] / price.intra if jobs.gpus[j] > 1 else 0.0
        return float(jobs.compute[j] * longer + inside + jobs.inside[j])
    rate = rate_of(state, jobs, cluster, price, j)
    sent = sent_of(state, jobs, cluster, price, j, rate)
    trip = contention.latency(price.network, kind, state.racks_n[j])
    tau = contention.iteration(jobs.forward[j], jobs.released[j], jobs.left[j], longer, sent, trip)
    used = contention.on_links(kind, jobs.net_bytes[j], rate, sent)
    _set_busy(state, jobs, cluster, j, min(1.0, used / tau))
    return tau


@compiled
def _first_of_rack(state: State, cluster: ClusterT, base: int, i: int) -> bool:
    # Is the server at place i the first of its rack among the job's?
    rack = cluster.rack_of[state.servers[i]]
    k = i - 1
    while k >= base and cluster.rack_of[state.servers[k]] != rack:
        k -= 1
    return k < base


@compiled
def _set_busy(state: State, jobs: JobsT, cluster: ClusterT, j: int, busy: float) -> None:
    more = busy - state.busy[j]
    state.busy[j] = busy
    base = jobs.base[j]
    for i in range(base, base + state.servers_n[j]):
        s = state.servers[i]
        state.link_busy[s] += more
        if _first_of_rack(state, cluster, base, i):
            r = cluster.rack_of[s]
            if state.racks_n[j] > 1:
                state.rack_busy[r] += more
            if jobs.in_network[j]:
                state.holding[r] += more
    if jobs.in_network[j] and state.racks_n[j] > 1:
        state.holding[-1] += more


@compiled
def _join_racks(state: State, jobs: JobsT, cluster: ClusterT, j: int, step: int) -> None:
    # How many racks the job uses; and, if several, its name on each of their lists, or off them.
    base, racks = jobs.base[j], 0
    for i in range(base, base + state.servers_n[j]):
        racks += _first_of_rack(state, cluster, base, i)
    state.racks_n[j] = racks
    if racks < 2:
        return
    for i in range(base, base + state.servers_n[j]):
        if not _first_of_rack(state, cluster, base, i):
            continue
        r = cluster.rack_of[state.servers[i]]
        if step > 0:
            state.on_rack[r, state.rack_jobs[r]] = j
            state.rack_jobs[r] += 1
            continue
        state.rack_jobs[r] -= 1
        for k in range(state.rack_jobs[r]):
            if state.on_rack[r, k] == j:
                state.on_rack[r, k] = state.on_rack[r, state.rack_jobs[r]]
                break


@compiled
def _settle_around(state: State, jobs: JobsT, cluster: ClusterT, price: PriceT, j: int, now: float) -> None:
    # Jobs that share a link with j, `SWEEPS` times, and j among them: each goes by the shares of time of the others.
    for _ in range(SWEEPS):
        if state.phase[j] == RUNNING:
            reprice(state, jobs, cluster, price, j, now)
        for i in range(jobs.base[j], jobs.base[j] + state.servers_n[j]):
            s = state.servers[i]
            for k in range(state.crowd[s]):
                if state.on_server[s, k] != j:
                    reprice(state, jobs, cluster, price, state.on_server[s, k], now)
            if state.racks_n[j] > 1 and _first_of_rack(state, cluster, jobs.base[j], i):
                r = cluster.rack_of[s]
                for k in range(state.rack_jobs[r]):
                    if state.on_rack[r, k] != j:
                        reprice(state, jobs, cluster, price, state.on_rack[r, k], now)


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
                p = contention_of(state, jobs, other)
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
    if price.network.on:
        _join_racks(state, jobs, cluster, j, 1)
        _settle_around(state, jobs, cluster, price, j, now)
        return
    state.p[j] = contention_of(state, jobs, j)
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
    if price.network.on:
        _set_busy(state, jobs, cluster, j, 0.0)
        _join_racks(state, jobs, cluster, j, -1)
        _settle_around(state, jobs, cluster, price, j, now)
        return
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
