"""The points of the joint experiment: one workload, planned by a scheduler, run packet by packet.

The cluster has servers with a few GPUs each, in the racks of a leaf-spine or all under one switch. The ranks of a job
on one server sum among themselves, so a job on k servers has k flows, and one on a single server none: the view of
the live data plane and of the scheduler's model. Jobs arrive over time and the scheduler plans them by its own model,
anew at each arrival and each end. Its decision (the GPUs of each job, and the order in which each GPU is used) then
runs in the packet simulator: a job starts when it has arrived and the jobs before it on its GPUs have ended. Nobody
tells the scheduler that one server is slow.

The workload's job sizes and times are small so that a run is seconds of work; what matters is their ratios.
"""

import functools
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.schedule import planning
from paceline.schedule.inputs.cluster import Cluster, Server, SwitchMemory
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model, Problem
from paceline.schedule.plan import Schedule
from paceline.schedule.policies import Policy, by_name
from paceline.sim.results import RunResult
from paceline.sim.run import simulate
from paceline.sim.scenario import Scenario

PLANNERS = ("ff", "sjf-bco", "bco-plus")
BY_MODEL = ("sjf-bco", "bco-plus")
"""Those that decide by the scheduler's model."""
EXCHANGES = ("ring", "atp", "esa")
STRAGGLERS = ("off", "both")

RACKS = 4
SERVERS_PER_RACK = 4
GPUS_PER_SERVER = 4
RATE_BPS = 100e9
UPPER_RATE_BPS = 200e9
"""Of a rack's uplink: half of what its servers can send."""
ELEMENTS = 256
SLOTS = 128
SLOW_SERVER = 5
SLOWDOWN = 2.5
TUNING_SEED = 1000
LAYERS = 8
MICRO_BATCHES = 8
JITTER = 0.05
RATIOS = (0.05, 0.1, 0.25, 0.5, 1.0)
"""Sending over computing, of the jobs."""
HELP = {"patience": "100 us", "budget": "64 kB", "dead_after": "1 s", "latency": "10 us"}
"""For iterations of a millisecond or a few; the defaults are for those of a hundred."""

# What jobs ask for: most are small, a few are large [the shape of the SJF-BCO paper's mix].
_GPUS = (1, 2, 2, 4, 4, 4, 8, 8, 8, 16)


@dataclass(frozen=True)
class JointPoint:
    """One run: who plans, how gradients are summed, and what is done about stragglers."""

    planner: str
    exchange: str
    straggler: str
    seed: int
    jobs: int
    slow: bool = True
    quick: bool = False
    seeds: tuple[int, ...] = ()
    """Measured seeds; `seed` alone if there are none."""
    topology: str = "leaf-spine"
    model: str = "links"
    """What the scheduler plans by: `links`, or the `paper`'s."""

    @property
    def label(self) -> str:
        help_mode = "" if self.straggler == "off" else f" + {self.straggler}"
        return f"{self.planner} + {self.exchange}{help_mode}"


@dataclass(frozen=True)
class Work:
    """One job of the workload: what scheduler and simulator both need to know."""

    name: str
    gpus: int
    iterations: int
    size_bytes: int
    ratio: float
    arrival_s: float

    @property
    def compute_s(self) -> float:
        """Computation of an iteration; sending takes `ratio` times as long at the link's rate."""
        return self.size_bytes * 8 / RATE_BPS / self.ratio


def workload(seed: int, jobs: int, quick: bool) -> list[Work]:
    """Jobs whose arrivals come a little faster than the cluster can serve them, so that queues form."""
    draw = random.Random(seed)
    works: list[Work] = []
    now_s = 0.0
    for number in range(jobs):
        size_bytes = draw.choice((1_000_000, 2_000_000) if quick else (2_000_000, 4_000_000, 8_000_000))
        gpus = draw.choice(_GPUS)
        work = Work(
            name=f"j{number:02d}",
            gpus=gpus,
            iterations=draw.randint(4, 10) if quick else draw.randint(8, 24),
            size_bytes=size_bytes,
            ratio=draw.choice(RATIOS),
            arrival_s=now_s,
        )
        works.append(work)
        mean_s = work.compute_s * work.iterations * gpus / (RACKS * SERVERS_PER_RACK * GPUS_PER_SERVER)
        now_s += draw.expovariate(1.0) * mean_s
    return works


def cluster() -> Cluster:
    """The cluster as the scheduler sees it."""
    servers = tuple(
        Server(f"r{rack}s{i}", GPUS_PER_SERVER, f"rack{rack}")
        for rack in range(RACKS)
        for i in range(SERVERS_PER_RACK)
    )
    return Cluster(
        servers,
        intra_bps=100 * RATE_BPS,
        inter_bps=_goodput_bps(),
        switch=SwitchMemory(slots=SLOTS, payload=4 * ELEMENTS, round_trip=_ROUND_TRIP_S),
        uplink_bps=_goodput_bps() * UPPER_RATE_BPS / RATE_BPS,
    )


_ROUND_TRIP_S = 10e-6


def _goodput_bps() -> float:
    """The payload's share of the link."""
    from paceline.core.wire import ENVELOPE_BYTES, HEADER_BYTES

    payload = 4 * ELEMENTS
    return RATE_BPS * payload / (payload + HEADER_BYTES + ENVELOPE_BYTES)


def problem(point: JointPoint) -> Problem:
    """The workload as the scheduler sees it; slow servers are not in its picture."""
    works = workload(point.seed, point.jobs, point.quick)
    return Problem(
        cluster(),
        tuple(
            Job(
                work.name,
                work.gpus,
                work.iterations,
                work.size_bytes,
                forward_s=work.compute_s / 3,
                backward_s=2 * work.compute_s / 3,
                arrival_s=work.arrival_s,
                exchange="ring" if point.exchange == "ring" else "in-network",
                layers=LAYERS,
                jitter=JITTER,
            )
            for work in works
        ),
        Model(xi2_s=_ROUND_TRIP_S, reduce_bps=1e15, links=point.model == "links"),
    )


def plan(point: JointPoint) -> Schedule:
    """The scheduler's decision and what its model expects of it: one for all who sum in the network, helped or not."""
    exchange = "ring" if point.exchange == "ring" else "esa"
    return _plan(
        JointPoint(
            point.planner, exchange, "off", point.seed, point.jobs, quick=point.quick, model=point.model
        )
    )


@functools.lru_cache(maxsize=16)
def _plan(point: JointPoint) -> Schedule:
    return planning.plan(problem(point), policy_of(point), "jct")


def policy_of(point: JointPoint) -> Policy:
    """The planner of a point; it works so much, however long that takes, and so a seed has one plan."""
    return by_name(point.planner, seed=point.seed, budget_s=None)


def scenario(point: JointPoint, schedule: Schedule, window: int | None = None) -> Scenario:
    """The decision as a scenario: placements, and who goes before whom on each GPU."""
    works = {work.name: work for work in workload(point.seed, point.jobs, point.quick)}
    where = schedule.problem.cluster.server_of
    last_on_gpu: dict[int, str] = {}
    jobs: list[dict[str, Any]] = []
    slow: list[dict[str, Any]] = []
    for placement in sorted(schedule.placements, key=lambda placement: placement.start_s):
        work = works[placement.job]
        hosts = sorted({int(where[gpu]) for gpu in placement.gpus})
        before = {last_on_gpu[gpu] for gpu in placement.gpus if gpu in last_on_gpu}
        last_on_gpu |= dict.fromkeys(placement.gpus, work.name)
        job = {
            "name": work.name,
            "model": "communication-heavy",
            "workers": len(hosts),
            "hosts": hosts,
            "iterations": work.iterations,
            "arrival": work.arrival_s,
            "after": sorted(before),
            "size": work.size_bytes,
            "ratio": work.ratio,
            "layers": LAYERS,
            "jitter": JITTER,
        }
        if point.straggler != "off" and len(hosts) > 1:
            job |= {"straggler": point.straggler, "micro_batches": MICRO_BATCHES}
        jobs.append(job)
        if point.slow and SLOW_SERVER in hosts:
            slow.append({"job": work.name, "worker": hosts.index(SLOW_SERVER), "factor": SLOWDOWN})
    return Scenario.model_validate(
        {
            "name": "joint",
            "horizon": "100",
            "network": {
                "topology": point.topology,
                "hosts": RACKS * SERVERS_PER_RACK,
                "leaves": RACKS,
                "rate": RATE_BPS,
                "upper_rate": UPPER_RATE_BPS,
                "elements": ELEMENTS,
            },
            "switch": {"slots": SLOTS},
            "transport": {} if window is None else {"window": window},
            "straggler": HELP,
            "job": jobs,
            "faults": {"slow": slow},
        }
    )


def model_error(schedule: Schedule, result: RunResult) -> float:
    """Mean relative error of the scheduler's expected run time (without waiting) of spread jobs."""
    where = schedule.problem.cluster.server_of
    ran = {job.name: (job.jct_s or 0.0) - job.waited_s for job in result.jobs}
    errors = [
        abs((placement.end_s - placement.start_s) / ran[placement.job] - 1.0)
        for placement in schedule.placements
        if len({int(where[gpu]) for gpu in placement.gpus}) > 1 and ran[placement.job] > 0
    ]
    return sum(errors) / len(errors) if errors else 0.0


def best_window(point: JointPoint) -> int | None:
    """The window that suits this combination best, on a workload that is not measured; a ring has none."""
    if point.exchange == "ring":
        return None
    tuning = replace(point, seed=TUNING_SEED, seeds=())
    schedule = plan(tuning)
    bdp = scenario(tuning, schedule).network.bdp_packets()
    tried: dict[int, float] = {}
    for share in (0.5, 1, 2):
        window = max(8, round(share * bdp))
        result = simulate(scenario(tuning, schedule, window), point.exchange, seed=TUNING_SEED)
        if result.avg_jct_s is not None:
            tried[window] = result.avg_jct_s
    return min(tried, key=tried.__getitem__) if tried else None


def run_point(point: JointPoint) -> list[dict[str, Any]]:
    """Tune, plan, run, and report: one row a seed."""
    window = best_window(point)
    return [_measure(replace(point, seed=seed), window) for seed in point.seeds or (point.seed,)]


def _measure(point: JointPoint, window: int | None) -> dict[str, Any]:
    schedule = plan(point)
    result = simulate(scenario(point, schedule, window), point.exchange, seed=point.seed)
    return {
        "topology": point.topology,
        "planner": point.planner,
        "model": point.model,
        "exchange": point.exchange,
        "straggler": point.straggler,
        "slow_server": point.slow,
        "seed": point.seed,
        "jobs": point.jobs,
        "window": window,
        "avg_jct_ms": None if result.avg_jct_s is None else 1e3 * result.avg_jct_s,
        "makespan_ms": None if result.makespan_s is None else 1e3 * result.makespan_s,
        "expected_avg_jct_ms": 1e3 * schedule.avg_jct_s,
        "expected_makespan_ms": 1e3 * schedule.makespan_s,
        "model_error": model_error(schedule, result),
        "spread_jobs": sum(1 for job in result.jobs if job.workers > 1),
        "packets": result.packets,
        "failed": result.failed,
    }


def all_points(quick: bool) -> list[JointPoint]:
    """Every combination with a slow server; and without one, to judge the scheduler's model, and the paper's, alone."""
    seeds = (1, 2) if quick else (1, 2, 3, 4)
    jobs = 24 if quick else 40

    def points(
        topology: str, slow: bool, planners: Sequence[str], exchanges: Sequence[str], modes: Sequence[str],
        model: str = "links",
    ) -> list[JointPoint]:  # fmt: skip
        return [
            JointPoint(planner, exchange, mode, seeds[0], jobs, slow, quick, seeds, topology, model)
            for planner, exchange, mode in itertools.product(planners, exchanges, modes)
            if exchange != "ring" or mode == "off"
        ]

    every = [
        *points("leaf-spine", True, PLANNERS, EXCHANGES, STRAGGLERS),
        *points("leaf-spine", False, PLANNERS, EXCHANGES, ("off",)),
        *points("leaf-spine", False, BY_MODEL, EXCHANGES, ("off",), "paper"),
        *points("star", True, ("ff", "bco-plus"), ("atp", "esa"), STRAGGLERS),
    ]
    # Points that share a plan stand side by side: a process plans once for several.
    return sorted(every, key=lambda each: (PLANNERS.index(each.planner), each.model, each.exchange == "ring"))
