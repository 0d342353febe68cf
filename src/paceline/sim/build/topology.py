"""Hosts, switches and links of a scenario, and which worker sits where.

Workers' hosts come first; each dedicated custodian gets a host of its own after them. In a star there is one
switch, leaf 0; or leaf 0 is a hub that only forwards, and the switches are servers with a link to it, numbered as
upper switches are. In a leaf-spine the hosts are dealt to the leaves in equal runs, and every leaf has a link to
every upper switch.
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.core.wire import ENVELOPE_BYTES, HEADER_BYTES
from paceline.errors import JobError, SettingError
from paceline.sim.engine.links import (
    DETOURS,
    FLYING,
    FS_PER_NS,
    LANE,
    LINK,
    NO_STACK,
    RING_START,
    STACK_OF_ENDPOINT,
    UNLIMITED_FS,
    Links,
)
from paceline.sim.engine.records import aligned_records
from paceline.sim.engine.world import new_records
from paceline.sim.scenario import Scenario, ScenarioJob

WAKES = 4096
"""Delays to draw from; a power of two."""


@dataclass(frozen=True)
class Topology:
    """Where everything is: hosts by worker and by custodian, leaf by host."""

    hosts: int
    leaves: int
    uppers: int
    leaf_of_host: list[int]
    worker_hosts: list[list[int]]
    custodian_hosts: list[list[int]]

    @property
    def switches(self) -> int:
        return self.leaves + self.uppers

    @property
    def links(self) -> int:
        return 2 * self.hosts + 2 * self.leaves * self.uppers


def place_jobs(scenario: Scenario, jobs: list[ScenarioJob], dedicated: int) -> Topology:
    """Put workers and custodians on hosts; `dedicated` custodian hosts for each job."""
    network = scenario.network
    worker_hosts_total = network.hosts or sum(job.workers for job in jobs)
    star = network.topology == "star"
    shared = scenario.custodians.placement == "shared"
    if shared and not star:
        raise SettingError(
            "a server that all jobs share is possible in a star only", key=("custodians", "placement")
        )
    leaves = 1 if star else min(network.leaves, worker_hosts_total)
    leaf_of_host = [host * leaves // worker_hosts_total for host in range(worker_hosts_total)]
    order = list(range(worker_hosts_total))
    if network.placement == "spread":
        rank_in_leaf = [host - leaf_of_host.index(leaf_of_host[host]) for host in order]
        order.sort(key=lambda host: (rank_in_leaf[host], leaf_of_host[host]))
    worker_hosts: list[list[int]] = []
    custodian_hosts: list[list[int]] = []
    turn = 0
    for job in jobs:
        if job.workers > worker_hosts_total:
            raise JobError(
                f"has {job.workers} workers, but there are only {worker_hosts_total} hosts",
                job=job.name,
            )
        if job.hosts is not None:
            for host in job.hosts:
                if not 0 <= host < worker_hosts_total:
                    raise JobError(
                        f"host {host} does not exist; hosts are 0..{worker_hosts_total - 1}",
                        job=job.name,
                    )
            worker_hosts.append(list(job.hosts))
        else:
            worker_hosts.append([order[(turn + i) % worker_hosts_total] for i in range(job.workers)])
            turn += job.workers
        for leaf in {leaf_of_host[host] for host in worker_hosts[-1]}:
            members = sum(1 for host in worker_hosts[-1] if leaf_of_host[host] == leaf)
            if members > 64:
                raise JobError(f"has {members} workers under one switch; a mask holds 64", job=job.name)
        extra = []
        for c in range(dedicated):
            # Under a leaf of the job's own: what it sends to the job must meet the job's switch.
            if shared and custodian_hosts:
                extra.append(worker_hosts_total + c)
            else:
                extra.append(len(leaf_of_host))
                leaf_of_host.append(leaf_of_host[worker_hosts[-1][c % job.workers]])
        custodian_hosts.append(extra)
    uppers = network.switches if star else network.uppers
    return Topology(len(leaf_of_host), leaves, uppers, leaf_of_host, worker_hosts, custodian_hosts)


def build_links(scenario: Scenario, topology: Topology, ring: int, stacks: int = 0) -> Links:
    """All links with empty rings of `ring` packets; detours too if packets can be struck; then room for stacks."""
    network = scenario.network
    struck = scenario.faults.strikes_packets
    nodes = topology.hosts + topology.switches
    total = topology.links + (DETOURS * nodes if struck else 0) + stacks
    state = aligned_records(total, LINK)
    for host in range(topology.hosts):
        leaf = topology.leaf_of_host[host]
        _set(state[host], network.rate, network.delay, None, None, leaf, True)
        _set(
            state[topology.hosts + host], network.rate, network.delay, network.queue, network.ecn, host, False
        )
    hosts_per_leaf = max(topology.leaf_of_host.count(leaf) for leaf in range(topology.leaves))
    upper_rate = network.upper_rate or network.rate * hosts_per_leaf / max(1, topology.uppers)
    if network.switches:
        upper_rate = network.switch_rate or network.rate
    for leaf in range(topology.leaves):
        for upper in range(topology.uppers):
            up = 2 * topology.hosts + leaf * topology.uppers + upper
            down = up + topology.leaves * topology.uppers
            _set(
                state[up],
                upper_rate,
                network.delay,
                network.queue,
                network.ecn,
                topology.leaves + upper,
                True,
            )
            _set(state[down], upper_rate, network.delay, network.queue, network.ecn, leaf, True)
    state.burst_fs[: topology.links] = network.burst * state.fs_per_byte[: topology.links]
    state.detour[:] = -1
    state.stack[:] = NO_STACK
    state.length_max[:] = ring
    state.mask[:] = min(RING_START, ring) - 1
    if struck:
        for at in range(topology.links):
            node = state[at].to + (topology.hosts if state[at].to_switch else 0)
            state[at].detour = topology.links + DETOURS * node
        for node in range(nodes):
            for d in range(DETOURS):
                record = state[topology.links + DETOURS * node + d]
                delay_ns = scenario.faults.reorder_delay * 3**d
                _set(
                    record,
                    0.0,
                    delay_ns,
                    None,
                    None,
                    node if node < topology.hosts else node - topology.hosts,
                    False,
                )
                record.to_switch = int(node >= topology.hosts)
                record.detour = -1
    classes = scenario.switch.classes
    for at in _where_jobs_meet(topology) if classes > 1 else []:
        state[at].classes = classes
    lanes = (total, classes) if classes > 1 else (1, 1)
    return Links(
        state,
        new_records((total, ring), FLYING),
        new_records(lanes, LANE),
        np.zeros((*lanes, ring if classes > 1 else 1), dtype=np.int32),
        np.zeros((*lanes, ring if classes > 1 else 1), dtype=np.int32),
    )


SERVER_PLACES_MAX = 1 << 16


def server_of_places(scenario: Scenario, policy: str, jobs: list[ScenarioJob], slots: int, pool: int) -> Any:
    """`[job, place]`: the switch that sums a job's chunks at a place, where servers are switches; else empty.

    Chunks are dealt out one by one. Their aggregators are in a row, so with each turn of the row the dealing shifts by
    one: else every switch would use some of its aggregators only. A place of a pool stays at one switch.
    """
    if scenario.network.switches == 0 or policy in ("ring", "ps"):
        return np.zeros((len(jobs), 0), dtype=np.int64)
    dealt = [job.switches or list(range(1, scenario.network.switches + 1)) for job in jobs]
    turn = math.lcm(*(len(numbers) for numbers in dealt))
    row = slots if turn * slots <= SERVER_PLACES_MAX else turn
    places = np.arange(pool or turn * row)
    shifted = places if pool else places % row + places // row
    return np.array([np.array(numbers)[shifted % len(numbers)] for numbers in dealt], dtype=np.int64)


def _where_jobs_meet(topology: Topology) -> list[int]:
    """Links that several jobs may use: between switches, and of hosts that serve more than one."""
    meet = list(range(2 * topology.hosts, topology.links))
    placed = zip(topology.worker_hosts, topology.custodian_hosts, strict=True)
    jobs_on = Counter(host for workers, servers in placed for host in {*workers, *servers})
    for host, jobs in jobs_on.items():
        if jobs > 1:
            meet += [host, topology.hosts + host]
    return meet


def _set(
    link: Any, rate_bps: float, delay_ns: int, queue: int | None, ecn: int | None, to: int, to_switch: bool
) -> None:
    link.fs_per_byte = round(8e9 * FS_PER_NS / rate_bps) if rate_bps else 0
    link.delay_ns = delay_ns
    link.queue_fs = UNLIMITED_FS if queue is None else queue * link.fs_per_byte
    link.ecn_fs = UNLIMITED_FS if ecn is None else ecn * link.fs_per_byte
    link.to = to
    link.to_switch = int(to_switch)


def add_other_traffic(links: Links, scenario: Scenario, topology: Topology) -> None:
    """Flows of constant rate on hosts' links."""
    for flow in scenario.faults.other_traffic:
        if flow.rate >= scenario.network.rate:
            raise SettingError(
                "other traffic must leave some of the link's rate", key=("faults", "other_traffic")
            )
        link = links.state[flow.host + (topology.hosts if flow.direction == "to" else 0)]
        if link.other_num > 0:
            raise SettingError("one flow a link and direction", key=("faults", "other_traffic"))
        link.other_num = round(FS_PER_NS * flow.rate / scenario.network.rate)
        link.other_from_ns, link.other_until_ns = flow.start, flow.end


def wake_delays_ns(scenario: Scenario) -> Any:
    """`WAKES` delays, evenly spread over the distribution; compiled code draws one by its place."""
    if not scenario.hosts.wake:
        return np.zeros(1, dtype=np.int64)
    # Sampled and sorted: NumPy has no inverse of the normal distribution, and a table needs no better one.
    normal = np.sort(np.random.default_rng(1).standard_normal(64 * WAKES)).reshape(WAKES, 64).mean(axis=1)
    return np.round(scenario.hosts.wake * np.exp(scenario.hosts.wake_spread * normal)).astype(np.int64)


def fill_stacks(links: Links, scenario: Scenario, first: int, switches: int) -> None:
    """Set up the stacks: those of the switches first, then the others'; and lead the links' packets to them."""
    model = scenario.hosts
    packet_bytes = HEADER_BYTES + ENVELOPE_BYTES + 4 * scenario.network.elements
    for stack in range(first, links.state.shape[0]):
        record = links.state[stack]
        record.queue_fs = record.ecn_fs = UNLIMITED_FS
        record.packet_fs = model.packet * FS_PER_NS
        record.detour, record.stack = -1, NO_STACK
        record.length_max = min(links.flying.shape[1], max(1, model.receive_buffer // packet_bytes))
        record.to_switch = int(stack - first < switches)
        record.to = stack - first if record.to_switch else 0
    for at in range(first):
        record = links.state[at]
        if record.to_switch == 0:
            record.stack = STACK_OF_ENDPOINT
        elif model.software_switch and not (scenario.network.switches and record.to == 0):
            record.stack = first + record.to
