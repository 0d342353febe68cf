"""From a scenario and a policy to the arrays that the engine runs on."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.core.bits import bit, seed_word, threshold_of
from paceline.core.custodian.program import new_custodians
from paceline.core.priority import PriorityRule
from paceline.core.sender.congestion import CONGESTION, FIXED
from paceline.core.sender.program import NEVER_NS, new_senders, start
from paceline.core.switch.memory import EARLY, RULES
from paceline.core.switch.memory import POLICIES as SWITCH_POLICIES
from paceline.core.switch.program import new_switches
from paceline.core.wire import ENVELOPE_BYTES, HEADER_BYTES
from paceline.errors import SettingError
from paceline.models.catalogue import ModelProfile
from paceline.sim.build.tables import Tables, build_tables
from paceline.sim.build.topology import (
    Topology,
    add_other_traffic,
    build_links,
    fill_stacks,
    place_jobs,
    server_of_places,
    wake_delays_ns,
)
from paceline.sim.engine import world as w
from paceline.sim.engine.event_queue import new_queue, set_time
from paceline.sim.engine.links import new_pool
from paceline.sim.engine.world import World, new_records
from paceline.sim.faults import Faults
from paceline.sim.hosts.tcp import CONNECTION, SEGMENT, TRAIN_BYTES, TRAINS, open_connection
from paceline.sim.scenario import Scenario, ScenarioJob, check_help

SAMPLES = 1024
NO_ITERATION = 2**31 - 1
"""Later than any."""
CHECK_LANES = 4
"""Integers carried for each packet when results are checked; each tells workers and chunks apart."""


@dataclass
class Setup:
    """A world ready to run, and what is needed to read its results."""

    scenario: Scenario
    policy: str
    jobs: list[ScenarioJob]
    models: list[ModelProfile]
    topology: Topology
    tables: Tables
    world: World
    room: int


@dataclass(frozen=True)
class _Sizes:
    """How much of everything a policy needs."""

    hosted: bool
    """Workers' hosts are custodians: as the scenario says, or as well, since some job wants custody."""
    dedicated: int
    pool: int
    span: int
    slots: int
    width: int
    workers: int
    custodians: int
    workers_most: int


def _sizes(scenario: Scenario, policy: str, jobs: list[ScenarioJob], check: bool) -> _Sizes:
    with_custodians = policy not in ("ring", "switchml")
    on_workers = scenario.custodians.placement == "workers"
    dedicated = scenario.custodians.per_job if with_custodians and not on_workers else 0
    hosted = with_custodians and (on_workers or any(job.has_custody for job in jobs))
    window = scenario.transport.window or scenario.network.bdp_packets()
    pool = 0
    # Room behind a chunk that is late, so that one loss does not stop the stream.
    ahead = 4 if scenario.transport.in_order or scenario.transport.recovery == "ask" else 2
    span = 1 << max(4, (ahead * window - 1).bit_length())
    if any(job.has_custody for job in jobs):
        span = max(span, 1 << (budget_chunks(scenario) - 1).bit_length())
    if policy == "ring":
        # Nothing but the socket's buffer limits a connection.
        packets = scenario.transport.buffer // packet_bytes(scenario)
        span = 1 << max(4, packets.bit_length() - 1)
    if policy == "switchml":
        pool = min(window, scenario.switch.slots // 2 // len(jobs))
        if pool < 1:
            raise SettingError(
                f"{scenario.switch.slots} slots are too few: {len(jobs)} jobs need two each under switchml",
                key=("switch", "slots"),
            )
        span = pool
    workers = sum(job.workers for job in jobs)
    return _Sizes(
        hosted=hosted,
        dedicated=dedicated,
        pool=pool,
        span=span,
        slots=1 if policy in ("ring", "ps") else scenario.switch.slots,
        width=min(CHECK_LANES, scenario.network.elements) if check else 0,
        workers=workers,
        custodians=workers * hosted + dedicated * len(jobs),
        workers_most=max(job.workers for job in jobs),
    )


def packet_bytes(scenario: Scenario) -> int:
    """A whole packet on a link."""
    return HEADER_BYTES + ENVELOPE_BYTES + 4 * scenario.network.elements


def budget_chunks(scenario: Scenario) -> int:
    """How far a leader may run ahead of its results under custody."""
    return max(64, scenario.straggler.budget // (4 * scenario.network.elements))


def build(scenario: Scenario, policy: str, seed: int, check: bool, rule: PriorityRule) -> Setup:
    """Everything for one run of `policy`."""
    scenario = scenario.for_policy(policy)
    jobs = scenario.expanded_jobs()
    models = [job.model_profile(scenario.network.rate) for job in jobs]
    sizes = _sizes(scenario, policy, jobs, check)
    topology = place_jobs(scenario, jobs, sizes.dedicated)
    scenario.faults.check({job.name: job.workers for job in jobs}, topology.hosts, topology.switches)
    check_help(policy, jobs)
    if scenario.network.switches and any(death.switch == 0 for death in scenario.faults.switch_dies):
        raise SettingError(
            "switch 0 is the hub, which only forwards: those that sum are numbered from 1",
            key=("faults", "switch_dies"),
        )
    tables = build_tables(scenario, jobs, models, rule)
    copies = sizes.workers_most if policy == "ps" else 1
    # The most that one event can put on a host's uplink, and the least that must be free before it.
    room = 2 * sizes.span * copies + 4 * sizes.workers_most + 256
    sharing = max(
        sum(hosts.count(host) for hosts in topology.worker_hosts) for host in range(max(1, topology.hosts))
    )
    ring = 1 << (max(1024, 2 * sizes.span * copies * max(1, sharing) + 256) - 1).bit_length()
    if policy == "ps":
        ring = min(ring, 1 << 15)
    elif policy == "ring":
        # Trains that wait for a host's own link, or a full queue of a switch; receipts between them.
        waiting_bytes = scenario.network.queue + TRAINS * TRAIN_BYTES * sharing
        most = 2 * (waiting_bytes // packet_bytes(scenario) + scenario.network.bdp_packets()) + 1024
        ring = 1 << (most - 1).bit_length()
    programs = _programs(sizes, topology, jobs) if scenario.hosts.are_programs else []
    links = build_links(scenario, topology, ring, topology.switches + max(programs) + 1 if programs else 0)
    first_stack = links.state.shape[0] - (topology.switches + max(programs) + 1 if programs else 0)
    if programs:
        fill_stacks(links, scenario, first_stack, topology.switches)
    add_other_traffic(links, scenario, topology)
    timers = links.state.shape[0]
    levels = [1] * topology.leaves + [1 if scenario.network.switches else 2] * topology.uppers
    code = SWITCH_POLICIES["none" if policy in ("ring", "ps") else policy]
    on_ring = policy == "ring"
    helped = max((job.workers for job in jobs if job.takes_over), default=0)
    world = World(
        control=np.zeros(w.CONTROL_SIZE, dtype=np.int64),
        random=np.array([seed_word(seed, 1), seed_word(seed, 4)], dtype=np.uint64),
        queue=new_queue(timers + sizes.workers + sizes.custodians + 2),
        links=links,
        pool=new_pool(max(4096, 2 * room), sizes.width),
        switch=new_switches(
            levels,
            sizes.slots,
            len(jobs),
            sizes.width,
            code,
            scenario.switch.stale,
            seed,
            scenario.switch.relay,
            sum(RULES[name] for name in set(scenario.switch.rules)),
            scenario.switch.margin,
        ),
        senders=new_senders(sizes.workers, sizes.span),
        custodians=new_custodians(sizes.custodians, 2 * sizes.span, topology.leaves, sizes.width),
        jobs=new_records(len(jobs), w.JOB),
        workers=new_records(sizes.workers, w.WORKER),
        pending=np.zeros((sizes.workers, tables.layers.shape[1]), dtype=np.int64),
        layers=tables.layers,
        layer_of=tables.layer_of,
        priorities=tables.priorities,
        buckets=tables.buckets,
        members=np.zeros(0, dtype=np.int32),
        member_first=np.zeros(0, dtype=np.int64),
        endpoints=new_records(sizes.workers + sizes.custodians, w.ENDPOINT),
        host_dead=np.zeros(topology.hosts, dtype=np.int8),
        held=np.zeros((sizes.workers, 2 * sizes.span, sizes.width), dtype=np.int32),
        connections=new_records(sizes.workers if on_ring else 1, CONNECTION),
        segments=new_records((sizes.workers if on_ring else 1, sizes.span), SEGMENT),
        ring_seen=np.zeros((sizes.workers if on_ring else 1, sizes.span), dtype=np.int64),
        ring_values=np.zeros(
            (sizes.workers, 2, tables.places if on_ring else 1, sizes.width), dtype=np.int32
        ),
        deaths=_deaths(scenario.faults, jobs),
        after=_predecessors(jobs),
        samples=np.zeros((SAMPLES, len(jobs)), dtype=np.int32),
        sample_ns=np.zeros(SAMPLES, dtype=np.int64),
        outbox=np.zeros((room, 3), dtype=np.int64),
        left_out=np.zeros((len(jobs), 2), dtype=np.uint64),
        mail=np.zeros((4, 2), dtype=np.int64),
        shares=np.zeros((sizes.workers if helped else 1, helped), dtype=np.uint64),
        server_of=server_of_places(scenario, policy, jobs, sizes.slots, sizes.pool),
        stack_of=np.array(
            [first_stack + topology.switches + program for program in programs] or [0], dtype=np.int64
        ),
        wakes_ns=wake_delays_ns(scenario),
        cores_fs=np.zeros(scenario.hosts.cores, dtype=np.int64),
        computing_ns=np.zeros(scenario.hosts.cores, dtype=np.int64),
    )
    members, member_first = _members(topology, len(jobs), flat=scenario.network.switches > 0)
    world = world._replace(members=members, member_first=member_first)
    setup = Setup(scenario, policy, jobs, models, topology, tables, world, room)
    _fill_control(setup, sizes, timers, seed)
    _fill_jobs(setup, sizes)
    set_time(world.queue, int(world.control[w.CLOCK]), 0)
    return setup


def _programs(sizes: _Sizes, topology: Topology, jobs: list[ScenarioJob]) -> list[int]:
    """The number of each endpoint's program: a worker's custodian is part of the worker's."""
    programs = list(range(sizes.workers))
    first = 0
    more = sizes.workers
    for j, job in enumerate(jobs):
        if sizes.hosted:
            programs += range(first, first + job.workers)
        for _ in topology.custodian_hosts[j]:
            programs.append(more)
            more += 1
        first += job.workers
    return programs


def _fill_control(setup: Setup, sizes: _Sizes, timers: int, seed: int) -> None:
    control, topology, faults = setup.world.control, setup.topology, setup.scenario.faults
    control[w.HOSTS], control[w.LEAVES], control[w.UPPERS] = topology.hosts, topology.leaves, topology.uppers
    control[w.WORKERS], control[w.TIMERS] = sizes.workers, timers
    control[w.CLOCK] = timers + sizes.workers + sizes.custodians
    control[w.COORDINATOR] = control[w.CLOCK] + 1
    control[w.JOBS_LEFT] = len(setup.jobs)
    control[w.LOSS] = threshold_of(faults.loss)
    control[w.DUPLICATE] = threshold_of(faults.duplicate)
    control[w.REORDER] = threshold_of(faults.reorder)
    control[w.SAMPLE_EVERY_NS] = 2_000
    control[w.TRAIN_BYTES] = setup.scenario.hosts.train
    control[w.TURN_NS] = setup.scenario.hosts.turn
    control[w.RING_ACK_EVERY] = setup.scenario.transport.ack_every
    control[w.PACKET_BYTES] = packet_bytes(setup.scenario)
    control[w.JITTER_SEED] = int(seed_word(seed, 3)) & 0x7FFFFFFF


def _deaths(faults: Faults, jobs: list[ScenarioJob]) -> object:
    names = [job.name for job in jobs]
    rows = [(death.time, w.SWITCH_DIES, death.switch) for death in faults.switch_dies]
    rows += [(death.time, w.HOST_DIES, death.host) for death in faults.host_dies]
    rows += [(loss.time, w.CUSTODIAN_FORGETS, names.index(loss.job)) for loss in faults.custodian_forgets]
    deaths = new_records(len(rows), w.DEATH)
    for i, row in enumerate(sorted(rows)):
        deaths[i] = row
    return deaths


def _predecessors(jobs: list[ScenarioJob]) -> object:
    """For each job in turn, the jobs that must have ended before it starts."""
    numbers = {job.name: j for j, job in enumerate(jobs)}
    waiting = {job.name: set(job.after) for job in jobs}
    for job in jobs:
        for name in job.after:
            if name not in numbers:
                raise SettingError(
                    f"job {job.name!r} comes after {name!r}, which does not exist", key=("job", "after")
                )
    while waiting:
        ready = [name for name, before in waiting.items() if not before & waiting.keys()]
        if not ready:
            raise SettingError(
                f"jobs wait for each other: {', '.join(sorted(waiting))}", key=("job", "after")
            )
        for name in ready:
            del waiting[name]
    flat = [numbers[name] for job in jobs for name in job.after]
    return np.array(flat or [0], dtype=np.int32)


def _members(topology: Topology, jobs: int, flat: bool) -> tuple[object, object]:
    """What is below each switch, by job: endpoints under a leaf, leaves under an upper switch; `flat`: endpoints."""
    members: list[int] = []
    first: list[int] = []
    for s in range(topology.switches):
        endpoint = 0
        for j in range(jobs):
            first.append(len(members))
            leaves = [topology.leaf_of_host[host] for host in topology.worker_hosts[j]]
            if flat:
                members.extend(range(endpoint, endpoint + len(leaves)))
            elif s < topology.leaves:
                members.extend(endpoint + i for i, leaf in enumerate(leaves) if leaf == s)
            else:
                members.extend(sorted(set(leaves)))
            endpoint += len(leaves)
    first.append(len(members))
    return np.array(members, dtype=np.int32), np.array(first, dtype=np.int64)


def _fill_jobs(setup: Setup, sizes: _Sizes) -> None:
    world, topology, tables, scenario = setup.world, setup.topology, setup.tables, setup.scenario
    worker = custodian = 0
    for j, job in enumerate(setup.jobs):
        leaves = [topology.leaf_of_host[host] for host in topology.worker_hosts[j]]
        fan_in = {leaf: leaves.count(leaf) for leaf in leaves}
        record = world.jobs[j]
        record.arrival_ns, record.chunks, record.table = job.arrival, tables.chunks[j], tables.first[j]
        record.needed, record.micro_batches = job.workers, job.parts
        record.cut_until = NO_ITERATION
        record.forward_ns = int(tables.layers[j].forward_ns.sum())
        record.backward_ns = int(tables.layers[j].backward_ns.sum())
        record.overlap = w.DDP if job.overlap == "ddp" else w.LAYERS
        _fill_spells(record, job.name, scenario.faults)
        record.after_first = sum(len(earlier.after) for earlier in setup.jobs[:j])
        record.after_count = len(job.after)
        record.flows, record.iterations = tables.flows[j], job.iterations
        record.first_worker, record.workers = worker, job.workers
        record.first_custodian, record.custodians = custodian, sizes.dedicated
        record.on_workers = int(sizes.hosted)
        record.copies = int(sizes.dedicated > 0 and scenario.switch.copies)
        record.layers, record.buckets = len(setup.models[j].layers), tables.bucket_counts[j]
        record.transport = w.RING if setup.policy == "ring" else w.IN_NETWORK
        record.overhead_ns, record.overhead_spread = job.overhead or 0, math.sqrt(3.0) * job.overhead_spread
        record.replicate = int(setup.policy == "ps")
        for s in range(topology.switches):
            world.switch.jobs[s, j].pool_base = j * sizes.pool
            world.switch.jobs[s, j].pool_size = sizes.pool
        for rank, host in enumerate(topology.worker_hosts[j]):
            _fill_worker(setup, sizes, worker + rank, j, rank, leaves, fan_in)
            world.endpoints[worker + rank] = (host, leaves[rank])
        keepers = [*(topology.worker_hosts[j] if sizes.hosted else []), *topology.custodian_hosts[j]]
        for number, host in enumerate(keepers):
            k = custodian + number
            _fill_custodian(setup, k, j, number if sizes.hosted else job.workers + number, fan_in)
            world.endpoints[sizes.workers + k] = (host, topology.leaf_of_host[host])
        worker += job.workers
        custodian += len(keepers)


def _fill_spells(record: Any, name: str, faults: Faults) -> None:
    """The last table for a job counts; lengths are in iterations of pure computation."""
    compute_ns = int(record.forward_ns + record.backward_ns)
    for spells in faults.slow_spells:
        if spells.job == name:
            record.spell_chance = round(spells.probability * 0x10000)
            record.spell_num = round(spells.factor * 1_000_000)
            record.spell_low_ns = round(spells.shortest * compute_ns)
            record.spell_high_ns = round(spells.longest * compute_ns)


def _fill_worker(
    setup: Setup, sizes: _Sizes, i: int, j: int, rank: int, leaves: list[int], fan_in: dict[int, int]
) -> None:
    scenario, job = setup.scenario, setup.jobs[j]
    record = setup.world.workers[i]
    record.job, record.rank = j, rank
    record.slow_num = record.slow_den = 1_000_000
    for slow in scenario.faults.slow:
        if slow.job == job.name and slow.worker == rank:
            record.slow_num = round(1_000_000 * slow.factor)
    record.jitter_num = round(1_000_000 * job.jitter)
    record.processor_num = round(1_000_000 * job.processor)
    record.due_ns = NEVER_NS
    transport = scenario.transport
    ring = setup.policy == "ring"
    sender = setup.world.senders.state[i]
    sender.job, sender.worker, sender.rack = j, rank, leaves[rank]
    sender.mask = bit(leaves[:rank].count(leaves[rank]))
    sender.fan_in, sender.fan_in_upper = fan_in[leaves[rank]], len(fan_in)
    sender.count = scenario.network.elements
    sender.slots = sizes.pool if sizes.pool else sizes.slots
    sender.span = sizes.span
    sender.pool = int(sizes.pool > 0)
    sender.flush = int(not sizes.pool and not ring)
    sender.congestion = FIXED if sizes.pool else CONGESTION[transport.congestion]
    sender.inquires = int(transport.recovery == "ask" and not sizes.pool and not ring)
    sender.in_order = int(sender.inquires or (transport.in_order and not sizes.pool and not ring))
    sender.queue_ns = float(transport.queue_target)
    sender.minds_memory = int(setup.policy in EARLY and transport.queue_target > 0)
    sender.increase = transport.increase or max(1.0, (transport.window or 1) / 64)
    sender.window_max = float(sizes.pool or transport.window or 1)
    sender.window_min = min(float(transport.window_min), sender.window_max)
    sender.rto_min_ns, sender.rto_max_ns = transport.rto_min, transport.rto_max
    sender.reorder_chunks, sender.reorder_rtts = transport.reorder_chunks, transport.reorder_rtts
    sender.resends_max = transport.resends_max
    if job.has_custody:
        sender.budget = min(budget_chunks(scenario), sizes.span)
    if ring:
        connection = setup.world.connections[i]
        connection.rto_min_ns, connection.rto_max_ns = transport.rto_min, transport.rto_max
        connection.expired_max = transport.resends_max
        open_connection(setup.world, i, transport.rto_start)
    start(setup.world.senders, i, float(transport.window_start or sender.window_max), transport.rto_start)


def _fill_custodian(setup: Setup, k: int, j: int, number: int, fan_in: dict[int, int]) -> None:
    world, scenario = setup.world, setup.scenario
    record = world.custodians.state[k]
    record.job, record.endpoint = j, number
    record.ring = world.custodians.chunks.shape[1]
    # A new epoch may find results with some workers only: then custodians must ask for them.
    asks = setup.policy not in ("atp", "ps") or setup.jobs[j].straggler != "off"
    record.reminders = record.pulls = int(asks)
    record.fan_in_upper = len(fan_in)
    record.count = scenario.network.elements
    record.slots = world.switch.config[0].slots
    record.patience_ns = scenario.custodians.patience
    record.patience_max_ns = scenario.custodians.patience_max
    record.eager = int(scenario.custodians.eager)
    record.patience_rtts = scenario.custodians.patience_rtts
    record.patience_min_ns = scenario.custodians.patience
    record.reorder_chunks = scenario.transport.reorder_chunks
    record.passed, record.reach = -1, 1
    record.timer_ns = NEVER_NS
    for leaf, members in fan_in.items():
        world.custodians.fan_in[k, leaf] = members
