"""A finished plan, run packet by packet: what the scheduler expects of each job beside what the simulator gives.

Real jobs send more packets than anyone wants to wait for. So sizes and rates are divided by the same number, which
leaves times as they are, and jobs run a part of their iterations, all by the same share, which leaves their order.
"""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from paceline.core.wire import ENVELOPE_BYTES, HEADER_BYTES
from paceline.errors import UserError
from paceline.models.profile import Measured, ProfileExchange, entry_text
from paceline.schedule.inputs.cluster import Cluster, SwitchMemory
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.plan import Schedule
from paceline.schedule.why import ByModel
from paceline.sim.run import simulate
from paceline.sim.scenario import Scenario

PACKETS = 20_000_000
"""Of a run, about."""
PACKETS_AN_ITERATION = 2_000
"""Of a worker, at most."""
ITERATIONS_MIN = 3
WORKERS_ALONE = 4
ROOMY_SLOTS = 1 << 16
"""More aggregators than the packets under way of any job that is judged."""
_PAYLOAD_BYTES = 1024


@dataclass(frozen=True)
class Compared:
    """One job: seconds of an iteration, expected and simulated."""

    job: str
    servers: int
    expected_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        return self.expected_s / self.simulated_s - 1.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "servers": self.servers,
            "expected_s": self.expected_s,
            "simulated_s": self.simulated_s,
            "error": self.error,
        }


def _write_profile(path: Path, job: Job, smaller: float) -> Path:
    """The job's gradients, smaller, at their own times; a ring waits for whole buckets."""
    released, sizes = _in_packets(job.releases, smaller)
    seen = Measured(
        "a plan",
        job.gpus,
        job.batch,
        [(job.forward_s * job.batch, released)],
        [str(number) for number in range(len(sizes))],
        sizes,
        max(4, round(job.bucket_bytes / smaller)) if job.exchange == "ring" else None,
        exchange=_alone(job),
    )
    path.write_text(entry_text(seen), encoding="utf-8")
    return path


def _in_packets(releases: Sequence[tuple[float, int]], smaller: float) -> tuple[list[float], list[int]]:
    """Times and sizes of what is released, smaller and in whole packets: what fills none leaves with the next."""
    released: list[float] = []
    sizes: list[int] = []
    ready = 0.0
    for number, (time_s, size_bytes) in enumerate(releases, 1):
        ready += size_bytes / smaller
        leaves = ready if number == len(releases) else ready // _PAYLOAD_BYTES * _PAYLOAD_BYTES
        if leaves > 0 or number == len(releases):
            released.append(max(time_s, 1e-9))
            sizes.append(max(64, round(leaves)))
            ready -= leaves
    return released, sizes


def _alone(job: Job) -> tuple[ProfileExchange, ...]:
    """A step of the job where no link limits it, each of a few workers with a core of its own."""
    if job.overhead_s <= 0.0:
        return ()
    workers = max(2, min(job.gpus, WORKERS_ALONE))
    name: Literal["gloo", "switch"] = "gloo" if job.exchange == "ring" else "switch"
    step_s = job.compute_s + job.overhead_s
    return (ProfileExchange(name=name, step=step_s, workers=workers, cores=workers),)


def compare(schedule: Schedule, seed: int = 0) -> list[Compared]:
    """Every job of the plan, in its order."""
    with tempfile.TemporaryDirectory(prefix="paceline-plan-") as folder:
        scenario = scenario_of(schedule, Path(folder))
        result = simulate(scenario, scenario.policies[0], seed=seed)
    if result.failed is not None:
        raise UserError(f"the packet simulation did not end: {result.failed}", place="--packets")
    iterations = {job.name: job.iterations for job in scenario.job}
    ran = {job.name: (job.jct_s or 0.0) - job.waited_s for job in result.jobs}
    where = schedule.problem.cluster.server_of
    return [
        Compared(
            placement.job,
            len({int(where[gpu]) for gpu in placement.gpus}),
            (placement.end_s - placement.start_s) / job.iterations,
            ran[placement.job] / iterations[placement.job],
        )
        for placement, job in zip(schedule.placements, schedule.problem.jobs, strict=True)
    ]


@dataclass(frozen=True)
class ByPackets:
    """The packet simulator as judge of one job among others (`schedule/why.py`), on the places that a model has."""

    model: ByModel
    seed: int = 0
    packets: int = 2_000_000
    """Of each simulation, about."""

    def __call__(self, others: frozenset[int], memory_limits: bool, stragglers: bool) -> float:
        schedule = self.model.schedule(others, memory_limits, stragglers)
        problem = schedule.problem
        first_s = min(each.start_s for each in schedule.placements)
        began = {each.job: each.start_s - first_s for each in schedule.placements}
        jobs = tuple(replace(job, arrival_s=began[job.name]) for job in problem.jobs)
        with tempfile.TemporaryDirectory(prefix="paceline-plan-") as folder:
            changed = replace(schedule, problem=replace(problem, jobs=jobs))
            scenario = scenario_of(changed, Path(folder), self.packets)
            if not memory_limits:
                roomy = scenario.switch.model_copy(update={"slots": ROOMY_SLOTS})
                scenario = scenario.model_copy(update={"switch": roomy})
            result = simulate(scenario, scenario.policies[0], seed=self.seed)
        if result.failed is not None:
            raise UserError(f"the packet simulation did not end: {result.failed}", place="--packets")
        name = self.model.problem.jobs[self.model.j].name
        (mine,) = [job for job in result.jobs if job.name == name]
        (asked,) = [job for job in scenario.job if job.name == name]
        iterations = self.model.problem.jobs[self.model.j].iterations
        return ((mine.jct_s or 0.0) - mine.waited_s) / asked.iterations * iterations


def _slots_of(switch: SwitchMemory, cluster: Cluster, smaller: float) -> int:
    """Aggregators that are as many beside the packets of a round trip as the cluster's.

    Packets do not shrink with the links' rates, so a round trip has fewer of them; never less than one a link.
    """
    delay_bytes = cluster.delay_s * cluster.inter_bps / 8
    under_way = 1.0 + delay_bytes / switch.payload
    here = 1.0 + delay_bytes / smaller / _PAYLOAD_BYTES
    return math.ceil(switch.slots * here / under_way)


def scenario_of(schedule: Schedule, folder: Path, packets: int = PACKETS) -> Scenario:
    """The plan as a scenario: hosts of each job, and who goes before whom on each GPU.

    Jobs from a profile or a model keep their own layers and times, as profiles in the folder.
    """
    problem = schedule.problem
    cluster = problem.cluster
    if schedule.preempts:
        raise UserError("a plan that preempts cannot be run packet by packet", place="--packets")
    exchanges = {job.exchange for job in problem.jobs if job.gpus > 1} or {"ring"}
    if len(exchanges) > 1:
        raise UserError(
            "jobs with rings and jobs with sums in the network cannot be run together packet by packet",
            place="--packets",
        )
    policy = "ring" if exchanges == {"ring"} else (cluster.switch.policy if cluster.switch else "esa")
    sizes = [max(job.gradient_bytes, 64 * job.layers) for job in problem.jobs]
    smaller = max(1.0, max(sizes) / (PACKETS_AN_ITERATION * _PAYLOAD_BYTES))
    overhead = 1.0 + (HEADER_BYTES + ENVELOPE_BYTES) / _PAYLOAD_BYTES
    rate_bps = cluster.inter_bps * overhead / smaller
    total = sum(
        job.iterations * size / smaller / _PAYLOAD_BYTES * 4 * job.gpus
        for job, size in zip(problem.jobs, sizes, strict=True)
    )
    share = min(1.0, packets / total)
    last_on_gpu: dict[int, str] = {}
    jobs: list[dict[str, Any]] = []
    for placement in sorted(schedule.placements, key=lambda placement: placement.start_s):
        j = next(number for number, job in enumerate(problem.jobs) if job.name == placement.job)
        job, size = problem.jobs[j], max(round(sizes[j] / smaller), 64 * problem.jobs[j].layers)
        hosts = sorted({int(cluster.server_of[gpu]) for gpu in placement.gpus})
        before = {last_on_gpu[gpu] for gpu in placement.gpus if gpu in last_on_gpu}
        last_on_gpu |= dict.fromkeys(placement.gpus, job.name)
        jobs.append(
            {
                "name": job.name,
                "workers": len(hosts),
                "hosts": hosts,
                "iterations": max(ITERATIONS_MIN, round(job.iterations * share)),
                "arrival": job.arrival_s * share,
                "after": sorted(before),
                "jitter": job.jitter,
                **(
                    {"profile": str(_write_profile(folder / f"{j}.toml", job, smaller))}
                    if job.releases
                    else {
                        "size": size,
                        "ratio": size * 8 / rate_bps / max(job.compute_s, 1e-9),
                        "layers": job.layers,
                    }
                ),
            }
        )
    racks = int(cluster.rack_of.max()) + 1
    network: dict[str, Any] = {
        "hosts": len(cluster.servers),
        "rate": rate_bps,
        "elements": _PAYLOAD_BYTES // 4,
        "delay": cluster.delay_s,
    }
    even = list(cluster.rack_of) == [i * racks // len(cluster.servers) for i in range(len(cluster.servers))]
    if racks > 1 and even:
        network |= {"topology": "leaf-spine", "leaves": racks}
        if cluster.uplink_bps is not None:
            network["upper_rate"] = cluster.uplink_bps * overhead / smaller
    slots = _slots_of(cluster.switch, cluster, smaller) if cluster.switch else 1024
    return Scenario.model_validate(
        {
            "name": "plan",
            "horizon": "9000 s",
            "policies": [policy],
            "network": network,
            "switch": {"slots": max(2 * len(jobs), slots)},
            "transport": {"bucket": max(1, round(25_000_000 / smaller))},
            "job": jobs,
        }
    )
