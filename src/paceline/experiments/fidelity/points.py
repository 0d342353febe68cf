"""The points of the fidelity experiment: random workloads and placements, judged by the model and by packets.

A workload is drawn by seed: 2 to 40 jobs on servers with a few GPUs each, under one switch or in racks whose uplinks
carry a quarter to all of what their servers send; models of 4 to 16 layers that send for 0.05 to 2 times as long as
they compute; switch memory from scarce to ample. Each workload is placed in four ways and summed by one exchange. A
placement says which GPUs each job has and in which order; the model tells when each job starts and ends; the packet
simulator runs the same placement: a job starts when the jobs before it on its GPUs have ended.
"""

import random
from dataclasses import dataclass
from statistics import mean
from typing import Any, Literal

import numpy as np

from paceline.core.wire import ENVELOPE_BYTES, HEADER_BYTES
from paceline.schedule import timeline
from paceline.schedule.breakdown import breakdown
from paceline.schedule.inputs.cluster import Cluster, Server, SwitchMemory
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Floats, Ints, Model, Problem
from paceline.schedule.plan import Plan, Schedule
from paceline.sim.results import RunResult
from paceline.sim.run import simulate
from paceline.sim.scenario import Scenario

EXCHANGES = ("ring", "atp", "switchml", "esa")
PLACEMENTS = ("packed", "rack", "random", "wide")
RATE_BPS = 100e9
ELEMENTS = 256
DELAY_S = 1e-6
JITTER = 0.05
RATIOS = (0.05, 2.0)
SLOTS = (64, 128, 256, 512, 1024)
OVERSUBSCRIPTION = (1.0, 1.5, 2.0, 3.0, 4.0)
_GPUS = (2, 2, 3, 4, 4, 6, 8, 8, 12, 16)


@dataclass(frozen=True)
class FidelityPoint:
    """One workload under one exchange; `seed` draws everything."""

    seed: int
    exchange: str
    quick: bool = False

    @property
    def label(self) -> str:
        return f"workload {self.seed}, {self.exchange}"


@dataclass(frozen=True)
class SharedJob:
    """One job: what scheduler and simulator both need to know."""

    name: str
    gpus: int
    iterations: int
    size_bytes: int
    ratio: float
    layers: int

    @property
    def compute_s(self) -> float:
        return self.size_bytes * 8 / RATE_BPS / self.ratio


@dataclass(frozen=True)
class Workload:
    """Jobs and the cluster they run on."""

    works: tuple[SharedJob, ...]
    servers: int
    gpus: int
    racks: int
    oversubscription: float
    slots: int

    @property
    def uplink_bps(self) -> float:
        return RATE_BPS * self.servers / self.racks / self.oversubscription


def draw(point: FidelityPoint) -> Workload:
    """The workload of a seed; its size and speed ratios spread evenly over their ranges."""
    rng = random.Random(f"fidelity {point.seed}")
    racks = rng.choice((1, 1, 2, 4))
    servers = racks * rng.choice((2, 3, 4) if racks > 1 else (6, 8, 12))
    gpus = rng.choice((2, 4))
    count = round(2 * 20 ** rng.random())
    works = []
    for number in range(count):
        low, high = RATIOS
        works.append(
            SharedJob(
                name=f"j{number:02d}",
                gpus=min(rng.choice(_GPUS), servers * gpus),
                iterations=rng.randint(4, 8) if point.quick else rng.randint(6, 16),
                size_bytes=rng.choice((500_000, 1_000_000, 2_000_000)),
                ratio=low * (high / low) ** rng.random(),
                layers=rng.choice((4, 8, 16)),
            )
        )
    oversubscription = rng.choice(OVERSUBSCRIPTION)
    # SwitchML needs two for each job.
    slots = max(rng.choice(SLOTS), 2 * count)
    return Workload(tuple(works), servers, gpus, racks, oversubscription, slots)


def cluster_of(load: Workload, policy: Literal["esa", "atp", "switchml"]) -> Cluster:
    """The cluster as the scheduler sees it: rates are those of gradients, without headers."""
    per_rack = load.servers // load.racks
    payload = 4 * ELEMENTS
    goodput = payload / (payload + HEADER_BYTES + ENVELOPE_BYTES)
    return Cluster(
        tuple(Server(f"s{i}", load.gpus, f"rack{i // per_rack}") for i in range(load.servers)),
        intra_bps=100 * RATE_BPS,
        inter_bps=RATE_BPS * goodput,
        switch=SwitchMemory(slots=load.slots, payload=payload, round_trip=8 * DELAY_S, policy=policy),
        uplink_bps=load.uplink_bps * goodput,
        delay_s=DELAY_S,
    )


def problem_of(load: Workload, exchange: str, model: Model) -> Problem:
    """The workload as the scheduler sees it."""
    jobs = tuple(
        Job(
            work.name,
            work.gpus,
            work.iterations,
            work.size_bytes,
            forward_s=work.compute_s / 3,
            backward_s=2 * work.compute_s / 3,
            exchange="ring" if exchange == "ring" else "in-network",
            layers=work.layers,
            jitter=JITTER,
        )
        for work in load.works
    )
    policy: Any = "esa" if exchange == "ring" else exchange
    return Problem(cluster_of(load, policy), jobs, model)


def place(load: Workload, style: str, seed: int) -> tuple[Ints, Ints]:
    """An order of the jobs and GPUs for each, in one of four styles."""
    rng = random.Random(f"place {style} {seed}")
    order = list(range(len(load.works)))
    rng.shuffle(order)
    used = [0] * (load.servers * load.gpus)
    chosen: dict[int, list[int]] = {}
    per_rack = load.servers // load.racks
    for j in order:
        wanted = load.works[j].gpus
        servers = list(range(load.servers))
        rng.shuffle(servers)
        busy = [sum(used[s * load.gpus : (s + 1) * load.gpus]) for s in range(load.servers)]
        if style == "packed":
            servers.sort(key=lambda s: busy[s])
        elif style == "rack":
            first = min(range(load.racks), key=lambda r: sum(busy[r * per_rack : (r + 1) * per_rack]))
            servers.sort(key=lambda s: ((s // per_rack - first) % load.racks, busy[s]))
        slots = [(i, s) for s in servers for i in range(load.gpus)]
        if style == "wide":
            # One GPU of each server before a second of any.
            slots.sort(key=lambda slot: slot[0])
        taken = []
        for _, s in slots[:wanted] if style != "random" else rng.sample(slots, wanted):
            # Of a server, the GPU with the fewest jobs that is not taken yet.
            free = [s * load.gpus + k for k in range(load.gpus) if s * load.gpus + k not in taken]
            taken.append(min(free, key=lambda gpu: used[gpu]))
        for gpu in taken:
            used[gpu] += load.works[j].iterations
        chosen[j] = sorted(taken)
    gpus = np.array([gpu for j in range(len(order)) for gpu in chosen[j]], dtype=np.int64)
    return np.array(order, dtype=np.int64), gpus


def scenario_of(load: Workload, order: Ints, gpus: Ints) -> Scenario:
    """A placement as a scenario: hosts of each job, and who goes before whom on each GPU."""
    base = np.concatenate(([0], np.cumsum([work.gpus for work in load.works])))
    last_on_gpu: dict[int, str] = {}
    jobs: list[dict[str, Any]] = []
    for j in order:
        work = load.works[j]
        mine = [int(gpu) for gpu in gpus[base[j] : base[j + 1]]]
        hosts = sorted({gpu // load.gpus for gpu in mine})
        before = {last_on_gpu[gpu] for gpu in mine if gpu in last_on_gpu}
        last_on_gpu |= dict.fromkeys(mine, work.name)
        jobs.append(
            {
                "name": work.name,
                "workers": len(hosts),
                "hosts": hosts,
                "iterations": work.iterations,
                "after": sorted(before),
                "size": work.size_bytes,
                "ratio": work.ratio,
                "layers": work.layers,
                "jitter": JITTER,
            }
        )
    network: dict[str, Any] = {"hosts": load.servers, "rate": RATE_BPS, "elements": ELEMENTS}
    if load.racks > 1:
        network |= {"topology": "leaf-spine", "leaves": load.racks, "upper_rate": load.uplink_bps}
    return Scenario.model_validate(
        {
            "name": "fidelity",
            "horizon": "100",
            "network": network,
            "switch": {"slots": load.slots},
            "job": jobs,
        }
    )


def predict(load: Workload, exchange: str, order: Ints, gpus: Ints, model: Model) -> tuple[Floats, Floats]:
    """Start and end of each job in seconds, by a model."""
    return timeline.run(problem_of(load, exchange, model), order, gpus)


def expected_schedule(load: Workload, exchange: str, order: Ints, gpus: Ints) -> Schedule:
    """The placement as the model of shared links judges it."""
    problem = problem_of(load, exchange, Model(links=True))
    plan = Plan(order, gpus, np.zeros(len(order)), [""] * len(order))
    return timeline.judge(problem, plan, "drawn")


def causes(load: Workload, exchange: str, hosts: list[int], work: SharedJob) -> str:
    """What matters most for a job, for tables of errors by cause."""
    per_rack = load.servers // load.racks
    if exchange in ("atp", "switchml") and load.slots <= 128:
        return "scarce memory"
    if len({host // per_rack for host in hosts}) > 1 and load.oversubscription > 1:
        return "uplinks"
    return "sends much" if work.ratio > 0.5 else "computes much"


def rows_of(
    point: FidelityPoint, load: Workload, style: str, order: Ints, gpus: Ints, result: RunResult
) -> list[dict[str, Any]]:
    """One row for each job that spans servers: its run time by packets, by this model and by the paper's."""
    ours = expected_schedule(load, point.exchange, order, gpus)
    paper = predict(load, point.exchange, order, gpus, Model(xi2_s=8 * DELAY_S, reduce_bps=1e15))
    base = np.concatenate(([0], np.cumsum([work.gpus for work in load.works])))
    rows = []
    for job in result.jobs:
        j = next(number for number, work in enumerate(load.works) if work.name == job.name)
        hosts = sorted({int(gpu) // load.gpus for gpu in gpus[base[j] : base[j + 1]]})
        ran_s = (job.jct_s or 0.0) - job.waited_s
        if len(hosts) < 2 or ran_s <= 0:
            continue
        parts = breakdown(ours, j)
        expected_s = ours.placements[j].end_s - ours.placements[j].start_s
        rows.append(
            {
                "seed": point.seed,
                "exchange": point.exchange,
                "placement": style,
                "jobs": len(load.works),
                "racks": load.racks,
                "oversubscription": load.oversubscription,
                "slots": load.slots,
                "job": job.name,
                "servers": len(hosts),
                "ratio": load.works[j].ratio,
                "cause": causes(load, point.exchange, hosts, load.works[j]),
                "simulated_ms": 1e3 * ran_s,
                "expected_ms": 1e3 * expected_s,
                "neighbours": parts.neighbours_s / parts.total_s,
                "memory": parts.memory_s / parts.total_s,
                "error": expected_s / ran_s - 1.0,
                "paper_error": float(paper[1][j] - paper[0][j]) / ran_s - 1.0,
                "avg_jct_ms": 1e3 * (result.avg_jct_s or 0.0),
                "expected_avg_jct_ms": 1e3 * mean(each.end_s for each in ours.placements),
            }
        )
    return rows


def run_point(point: FidelityPoint) -> list[dict[str, Any]]:
    """All placements of a workload, by packets and by the models."""
    load = draw(point)
    rows: list[dict[str, Any]] = []
    for style in PLACEMENTS:
        order, gpus = place(load, style, point.seed)
        result = simulate(scenario_of(load, order, gpus), point.exchange, seed=point.seed)
        if result.failed is None:
            rows += rows_of(point, load, style, order, gpus, result)
    return rows


def all_points(quick: bool, first_seed: int = 0) -> list[FidelityPoint]:
    """Workloads by seed, exchanges in turn: 4 placements each, 320 in all and 64 if it must be quick."""
    count = 16 if quick else 80
    return [
        FidelityPoint(seed, EXCHANGES[seed % len(EXCHANGES)], quick=True)
        for seed in range(first_seed, first_seed + count)
    ]
