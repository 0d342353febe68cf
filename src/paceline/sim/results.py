"""What a run reports: completion times, switch memory over time, traffic, and whether sums were exact."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from paceline.core.custodian import program as custody
from paceline.core.switch.program import COUNTER_NAMES
from paceline.errors import NEEDS_PANDAS, optional_module
from paceline.sim.build.arrays import Setup
from paceline.sim.engine import world as w
from paceline.sim.help.coordinator import Coordinators
from paceline.sim.help.watch import HelpDecision
from paceline.units import format_seconds


@dataclass(frozen=True)
class JobResult:
    """One job: completion time since its arrival, and why it failed if it did."""

    name: str
    """Its own, or the model's with a number."""
    model: str
    """The model profile."""
    workers: int
    """How many it has."""
    arrival_s: float
    """When it came."""
    jct_s: float | None
    """Completion time, from arrival to end; None if it did not end."""
    iterations: int
    """How many it was to do."""
    mean_iteration_s: float | None
    """Of those it did; None if it did not end."""
    blocked_share: float | None
    """Share of its life in which workers waited for results."""
    failed: str | None = None
    """Why it failed, if it did."""
    waited_s: float = 0.0
    """From its arrival to its start, while jobs that come before it ran."""
    straggler: str = "off"
    """Which help its stragglers got."""
    left_out: int = 0
    """Contributions that the sums are without: more than none makes them inexact."""
    claims: dict[str, int] = field(default_factory=dict)
    """Micro-batches that leaders took over: first claims, second claims, and claims that were fenced."""
    deaths: int = 0
    """Workers that were noticed to be dead."""


@dataclass(frozen=True)
class Occupancy:
    """Aggregators held, by job, at sampled times (all switches together)."""

    time_s: list[float]
    slots_by_job: list[list[int]]
    slots_total: int


@dataclass(frozen=True)
class RunResult:
    """One scenario under one policy."""

    policy: str
    """The policy it ran under."""
    seed: int
    """Of everything that is drawn at random."""
    avg_jct_s: float | None
    """Mean completion time of the jobs; None unless all are done."""
    makespan_s: float | None
    """From the first arrival to the last end; None unless all are done."""
    jobs: list[JobResult]
    """One for each job, copies counted singly."""
    switch: dict[str, float]
    """Counters of all switches together, and how full their memory was."""
    transport: dict[str, int]
    """Packets sent, resent, lost, marked; timeouts, queries."""
    traffic_bytes: int
    """Over all links together."""
    traffic_by_link_bytes: dict[str, int]
    """The same, by kind of link."""
    events: int
    """Events that the engine went through."""
    events_by_kind: dict[str, int]
    """The same: packets that arrive, by kind of link, and timers."""
    packets: int
    """Packets that switches forwarded."""
    wall_s: float
    """Real time that the run took: it differs from run to run, as do `parts_s`."""
    exact: bool | None
    """Whether every sum was the true one; None if nobody checked."""
    checked: int
    """Results that were compared with the true sum."""
    wrong: int
    """Those of them that differed."""
    failed: str | None
    """Which jobs failed and why; None if none did."""
    settings: dict[str, Any]
    """Transport, custodians, switch and help as they were for this policy."""
    decisions: list[HelpDecision]
    """What the coordinators decided about stragglers, when and why."""
    occupancy: Occupancy = field(repr=False)
    """Aggregators held over time."""
    parts_s: dict[str, float] = field(default_factory=dict, repr=False, compare=False)
    """Real time by part: building, loading compiled code, events, coordinators, figures."""

    def to_dict(self, with_occupancy: bool = False) -> dict[str, Any]:
        """Plain data for scripts."""
        data = asdict(self)
        del data["parts_s"]
        if not with_occupancy:
            del data["occupancy"]
        return data

    def to_dataframe(self) -> Any:
        """One row a job, with policy and seed; needs pandas."""
        rows = [{"policy": self.policy, "seed": self.seed, **asdict(job)} for job in self.jobs]
        return optional_module("pandas", NEEDS_PANDAS).DataFrame(rows)

    def __repr__(self) -> str:
        """One line: what ran, how long it took, and whether the sums were right."""
        done = "not all done" if self.avg_jct_s is None else f"average JCT {format_seconds(self.avg_jct_s)}"
        sums = {True: "exact", False: "INEXACT", None: "not checked"}[self.exact]
        failed = f", failed: {self.failed}" if self.failed else ""
        return (
            f"<RunResult {self.policy}, seed {self.seed}: {len(self.jobs)} jobs, {done}, sums {sums}{failed}>"
        )


def collect(setup: Setup, coordinators: Coordinators, reason: str, check: bool, wall_s: float) -> RunResult:
    """Read a finished world."""
    world = setup.world
    jobs = [_job_result(setup, coordinators, j, reason) for j in range(len(setup.jobs))]
    whole = not any(job.left_out for job in jobs)
    times = [job.jct_s for job in jobs if job.jct_s is not None]
    complete = len(times) == len(jobs)
    ends = [job.arrival_s + job.jct_s for job in jobs if job.jct_s is not None]
    checked, wrong = int(world.jobs.checked.sum()), int(world.jobs.wrong.sum())
    failures = [f"{job.name}: {job.failed}" for job in jobs if job.failed]
    state = world.links.state[: setup.topology.links]
    senders = world.senders.state
    return RunResult(
        policy=setup.policy,
        seed=setup.scenario.seed,
        avg_jct_s=float(np.mean(times)) if complete else None,
        makespan_s=max(ends) - min(job.arrival_s for job in jobs) if complete else None,
        jobs=jobs,
        switch=_switch_figures(setup),
        transport={
            "sent": int(senders.sent.sum()),
            "resent": int(senders.resent.sum()),
            "timeouts": int(senders.timeouts.sum()),
            "duplicate_results": int(senders.duplicates.sum()),
            "ecn_marks": int(senders.marks.sum()),
            "credits": int(senders.credits.sum()),
            "queries": int(senders.queries.sum()),
            "queue_drops": int(state.drops.sum()),
            "receive_drops": int(world.links.state.drops[setup.topology.links :].sum()),
            "lost": int(world.control[w.LOST]),
            "duplicated": int(world.control[w.DUPLICATED]),
            "reordered": int(world.control[w.REORDERED]),
        },
        traffic_bytes=int(state.size_bytes.sum()),
        traffic_by_link_bytes=_traffic_by_link(setup),
        events=int(world.control[w.EVENTS]),
        events_by_kind=_events_by_kind(setup),
        packets=int(world.control[w.FORWARDED]),
        wall_s=wall_s,
        exact=(wrong == 0 and checked > 0 and not failures and whole)
        if check
        else (None if whole else False),
        checked=checked,
        wrong=wrong,
        failed="; ".join(failures) or None,
        settings={
            "transport": setup.scenario.transport.model_dump(),
            "custodians": setup.scenario.custodians.model_dump(),
            "switch": setup.scenario.switch.model_dump(),
            "straggler": setup.scenario.straggler.model_dump(),
        },
        decisions=coordinators.decisions(),
        occupancy=_occupancy(setup),
    )


def _job_result(setup: Setup, coordinators: Coordinators, j: int, reason: str) -> JobResult:
    job, record = setup.jobs[j], setup.world.jobs[j]
    first = int(record.first_worker)
    workers = setup.world.workers[first : first + job.workers]
    coordinator = coordinators.jobs.get(j)
    help_given: dict[str, Any] = {"straggler": job.straggler}
    if coordinator:
        help_given |= {"left_out": coordinator.job.left_out, "deaths": len(coordinator.job.dead)}
        help_given |= {"claims": dict(coordinator.job.claims)} if job.takes_over else {}
    if record.done_ns == 0:
        failure = coordinator.job.failure if coordinator else None
        return JobResult(
            job.name, job.model, job.workers, job.arrival * 1e-9, None, job.iterations, None, None,
            failure or _why_failed(setup, j, reason), **help_given,
        )  # fmt: skip
    life_s = float(record.done_ns - record.arrival_ns) * 1e-9
    waited_s = float(record.started_ns - record.arrival_ns) * 1e-9
    ran_s = life_s - waited_s
    blocked_s = float(np.mean(workers.blocked_ns)) * 1e-9
    return JobResult(
        name=job.name,
        model=job.model,
        workers=job.workers,
        arrival_s=job.arrival * 1e-9,
        jct_s=life_s,
        iterations=job.iterations,
        mean_iteration_s=ran_s / job.iterations,
        blocked_share=min(1.0, max(0.0, blocked_s / ran_s)),
        waited_s=waited_s,
        **help_given,
    )


def _why_failed(setup: Setup, j: int, reason: str) -> str:
    """In words: who is missing, or what went away."""
    world, record = setup.world, setup.world.jobs[j]
    first = int(record.first_worker)
    workers = world.workers[first : first + int(record.workers)]
    dead = [str(int(worker.rank)) for worker in workers if worker.dead]
    if dead:
        return f"worker {', '.join(dead)} died"
    if record.failed_ns == 0:
        return reason or "did not finish"
    gone = [str(s) for s in range(world.switch.config.shape[0]) if world.switch.config[s].dead]
    if gone and setup.policy == "switchml":
        return f"switch {', '.join(gone)} died, and switchml has no fallback host"
    dead_hosts = [str(int(h)) for h in np.flatnonzero(world.host_dead)]
    if dead_hosts:
        return f"host {', '.join(dead_hosts)} with its custodian died"
    return f"a worker gave up after {setup.scenario.transport.resends_max} time-outs of one chunk"


def _switch_figures(setup: Setup) -> dict[str, float]:
    world = setup.world
    totals = world.switch.counters.sum(axis=(0, 1))
    figures: dict[str, float] = {name: int(totals[i]) for i, name in enumerate(COUNTER_NAMES)}
    asked = world.custodians.counters.sum(axis=0)
    figures["reminders_sent"] = int(asked[custody.REMINDERS_SENT])
    figures["pulls_sent"] = int(asked[custody.PULLS_SENT])
    occupancy = _occupancy(setup)
    used = [sum(row) for row in zip(*occupancy.slots_by_job, strict=True)]
    figures["utilisation_mean"] = float(np.mean(used)) / occupancy.slots_total if used else 0.0
    return figures


def _occupancy(setup: Setup) -> Occupancy:
    world = setup.world
    rows = int(world.control[w.SAMPLES])
    slots = world.switch.config.slots
    total = int(slots[1:].sum() if world.server_of.shape[1] > 0 else slots.sum())
    if setup.policy in ("ring", "ps"):
        return Occupancy([], [[] for _ in setup.jobs], total)
    return Occupancy(
        (world.sample_ns[:rows] * 1e-9).tolist(),
        [world.samples[:rows, j].tolist() for j in range(len(setup.jobs))],
        total,
    )


def _events_by_kind(setup: Setup) -> dict[str, int]:
    topology, state = setup.topology, setup.world.links.state
    arrived = state.packets - state.length - state.waiting
    hosts = topology.hosts
    kinds = {
        "host_up": int(arrived[:hosts].sum()),
        "host_down": int(arrived[hosts : 2 * hosts].sum()),
        "between_switches": int(arrived[2 * hosts : topology.links].sum()),
        "detours_and_programs": int(arrived[topology.links :].sum()),
    }
    return {**kinds, "timers": int(setup.world.control[w.EVENTS]) - sum(kinds.values())}


def _traffic_by_link(setup: Setup) -> dict[str, int]:
    topology, state = setup.topology, setup.world.links.state
    hosts = topology.hosts
    up = int(state.size_bytes[:hosts].sum())
    down = int(state.size_bytes[hosts : 2 * hosts].sum())
    between = int(state.size_bytes[2 * hosts : topology.links].sum())
    busiest = int(state.size_bytes[: topology.links].max())
    return {"host_up": up, "host_down": down, "between_switches": between, "busiest_link": busiest}
