"""The analytical model: what one iteration takes, given where a job runs and who shares its links.

Follows equations (6)-(9) of the SJF-BCO paper (arXiv 2207.07817, section 4):

- (6) contention `p_j`: the largest number of spread jobs on any server of j, itself included; 0 when j fits
  on one server;
- (7) `k_j = xi1 * p_j`; ours: never below 1, since a job alone on its links has all of them;
- bandwidth of a spread job `b_e / f(alpha, k_j)`, of a job on one server `b_i`;
- (8) `tau_j = 2 m (w-1)/(w B) + m (w-1)/(w C) + xi2 * servers + Df*M + Db`;
- (9) is the sum over time, in `timeline.py`.

Ours: the overhead constant xi2 is apart from xi1 (the paper writes one xi for both), and the **in-network
job**: its workers send m once to the switch, so a spread one exchanges in `m/B` with B also limited by its
share of the switch's memory (slots x payload / round trip, divided among the in-network jobs of that
switch), and its workers reduce nothing themselves. On one server it is a ring like any other.

With `links`, another model prices jobs: `contention.py`, by the links and the switch memory that they share.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UserError
from paceline.schedule import contention
from paceline.schedule.contention import NetworkT
from paceline.schedule.inputs.cluster import Cluster, ClusterFile
from paceline.schedule.inputs.jobs import Job, check_fits

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ContentionFunction = Callable[[float, float], float]


def linear(alpha: float, k: float) -> float:
    """The paper's example: `f = k + alpha (k - 1)`."""
    return k + alpha * (k - 1.0)


def fair(alpha: float, k: float) -> float:
    """Equal shares and nothing lost."""
    return k


def quadratic(alpha: float, k: float) -> float:
    """Losses that grow with every further pair of contenders."""
    return k + alpha * (k - 1.0) * k / 2.0


CONTENTION: dict[str, ContentionFunction] = {"linear": linear, "fair": fair, "quadratic": quadratic}


@dataclass(frozen=True)
class Model:
    """The constants of the model; `slot_s` chooses the paper's slotted time, None continuous time."""

    alpha: float = 0.2
    xi1: float = 1.0
    xi2_s: float = 1e-3
    reduce_bps: float = 8e11
    f: ContentionFunction = linear
    slot_s: float | None = None
    links: bool = False
    """Price by shared links and switch memory instead."""

    @classmethod
    def from_file(cls, file: ClusterFile) -> "Model":
        section = file.model
        slotted = section.time == "slotted"
        return cls(
            section.alpha,
            section.xi1,
            section.overhead_per_server,
            section.reduce_speed,
            CONTENTION.get(section.contention, linear),
            section.slot if slotted else None,
            section.contention == "links",
        )

    def contention_k(self, p: int) -> float:
        """(7), never below 1."""
        return max(1.0, self.xi1 * p)


def exchange_s(job: Job, cluster: Cluster, model: Model, servers: int, p: int, sharing: int = 1) -> float:
    """Time of one gradient exchange on `servers` servers under contention p; `sharing` in-network jobs."""
    w = job.gpus
    if w == 1:
        return 0.0
    ring_bytes = 2.0 * job.gradient_bytes * (w - 1) / w
    if servers == 1:
        return ring_bytes * 8 / cluster.intra_bps
    bandwidth_bps = cluster.inter_bps / model.f(model.alpha, model.contention_k(p))
    if job.exchange == "ring":
        return ring_bytes * 8 / bandwidth_bps
    if cluster.switch is not None:
        bandwidth_bps = min(bandwidth_bps, cluster.switch.bytes_per_s * 8 / max(1, sharing))
    return job.gradient_bytes * 8 / bandwidth_bps


def iteration_s(job: Job, cluster: Cluster, model: Model, servers: int, p: int, sharing: int = 1) -> float:
    """(8): the time of one iteration."""
    w = job.gpus
    in_switch = job.exchange == "in-network" and servers > 1
    reduce_s = 0.0 if in_switch else job.gradient_bytes * 8 * (w - 1) / w / model.reduce_bps
    exchange = exchange_s(job, cluster, model, servers, p, sharing)
    return exchange + reduce_s + model.xi2_s * servers + job.compute_s


def _overhead_inside_s(job: Job) -> float:
    """What a ring costs a processor inside one server; what sums in the network cost there was not measured."""
    return job.overhead_s if job.exchange == "ring" and job.gpus > 1 else 0.0


class JobsT(NamedTuple):
    """The jobs as arrays, for the kernels; times in units (slots, or seconds), gradients in bytes."""

    gpus: Ints
    """How many the job wants."""
    base: Ints
    """Job j's GPUs and servers lie at `base[j] ..` of flat arrays of length `sum(gpus)`."""
    iterations: Floats
    """How many it does."""
    arrival: Floats
    """When it comes."""
    priority: Floats
    """Its weight in the mean completion time."""
    ring_bytes: Floats
    """What a worker sends an iteration around a ring."""
    net_bytes: Floats
    """What a worker sends an iteration to a switch that sums."""
    in_network: NDArray[np.bool_]
    """Does it sum in switches?"""
    reduce: Floats
    """Time an iteration that workers spend adding, around a ring."""
    compute: Floats
    """Time an iteration of forward and backward passes."""
    kind: Ints
    """How it exchanges gradients: `RING`, `ESA`, `ATP` or `SWITCHML` of `contention.py`."""
    forward: Floats
    """Time an iteration of the forward pass."""
    released: Floats
    """`[job, part]`: when parts of its gradients are released, from the start of the backward pass."""
    left: Floats
    """`[job, part]`: the share of its gradients that is still to be sent then."""
    jitter: Floats
    """The most by which a worker's computation varies, as a share."""
    inside: Floats
    """Processor time an iteration of a ring inside one server."""
    helped: NDArray[np.bool_]
    """Do ranks that are done compute for slow ones?"""


class ClusterT(NamedTuple):
    """The cluster as arrays."""

    first_gpu: Ints
    """Server s has the GPUs `first_gpu[s] .. first_gpu[s + 1] - 1`."""
    server_of: Ints
    """The server of each GPU."""
    rack_of: Ints
    """The rack of each server."""
    slow: Floats
    """How many times as long the devices of each server take, as far as that is known."""
    uneven: bool
    """Is any of them slow?"""


class PriceT(NamedTuple):
    """What the exchange costs: bandwidths in bytes a unit, by contention p."""

    spread: Floats
    """Of a spread job, by p."""
    intra: float
    """Inside a server."""
    memory: float
    """What the memory of a switch can turn over, shared by its in-network jobs."""
    overhead: float
    """Time an iteration for each server that a job uses."""
    slotted: bool
    """Is time counted in whole slots?"""
    network: NetworkT
    """For the model of shared links."""


@dataclass(frozen=True)
class Problem:
    """Jobs, cluster and model together: the one argument of every policy, bound and judge."""

    cluster: Cluster
    jobs: tuple[Job, ...]
    model: Model = Model()
    pinned: Mapping[int, Ints] = field(default_factory=dict)
    """Jobs that run already, by index, and their GPUs: they stay; time 0 is now (see `planning.py`)."""
    ongoing: bool = False
    """One of many plans of an online run: policies should be quick."""
    latest: Mapping[int, float] = field(default_factory=dict)
    """When jobs should have ended, by index, in units; for policies that heed it."""
    slowness: Mapping[str, float] = field(default_factory=dict)
    """How many times as long the devices of a server take, by its name, as far as that was learned."""

    def __post_init__(self) -> None:
        if not self.jobs:
            raise UserError("the list holds no jobs", place="jobs")
        check_fits(self.jobs, self.cluster.gpus_total, "jobs")
        if self.model.slot_s is not None:
            slowest = max(range(len(self.jobs)), key=lambda j: float(self.tau_max[j]))
            if self.tau_max[slowest] > 1.0:
                raise UserError(
                    f"an iteration of job {self.jobs[slowest].name!r} can take {self.tau_max[slowest]:.3g}"
                    f" slots, and the slotted model counts whole iterations a slot: lengthen model.slot",
                    place="model.slot",
                )

    @property
    def unit_s(self) -> float:
        """One unit of the kernels' time: a slot, or a second."""
        return self.model.slot_s or 1.0

    @cached_property
    def tau_min(self) -> Floats:
        """Shortest iteration of each job over all placements, in units: one server, or the fewest."""
        return np.array([self._tau_min(job) for job in self.jobs])

    def _tau_min(self, job: Job) -> float:
        fewest = self.fewest_servers(job.gpus)
        local = self._tau(job, 1, 0) if fewest == 1 else np.inf
        # A spread job can be the faster one: in-network, or where the links between servers are the faster.
        can_spread = job.gpus > 1 and len(self.cluster.servers) > 1
        spread = self._tau(job, max(2, fewest), 1) if can_spread else np.inf
        return min(local, spread)

    @cached_property
    def tau_max(self) -> Floats:
        """Longest iteration of each job over all placements: a GPU a server, every server full of others."""
        servers, largest = len(self.cluster.servers), self.cluster.gpus_max
        sharing = sum(1 for job in self.jobs if job.exchange == "in-network")
        local = np.array([self._tau(job, 1, 0) for job in self.jobs])
        spread = [
            self._tau(job, min(job.gpus, servers), min(largest, len(self.jobs)), sharing)
            if job.gpus > 1 and servers > 1
            else 0.0
            for job in self.jobs
        ]
        return np.asarray(np.maximum(local, np.array(spread)))

    def _tau(self, job: Job, servers: int, p: int, sharing: int = 1) -> float:
        if self.model.links:
            return self._tau_by_links(job, servers, p, sharing)
        return iteration_s(job, self.cluster, self.model, servers, p, sharing) / self.unit_s

    def _tau_by_links(self, job: Job, servers: int, p: int, sharing: int) -> float:
        """With p - 1 neighbours on each link, all of whom send all the time."""
        network, unit = self.network_t, self.unit_s
        longer = contention.slowest_of(job.jitter, servers)
        if servers == 1:
            inside_s = 2.0 * job.gradient_bytes * (job.gpus - 1) / job.gpus * 8 / self.cluster.intra_bps
            return (job.compute_s * longer + inside_s + _overhead_inside_s(job)) / unit
        crowded = p > 1 and len(set(self.cluster.rack_of)) > 1
        rate = contention.expected_rate(p - 1, float(p - 1), network.rate, network.rate)
        kind, racks = self._kind(job), 2 if crowded else 1
        if crowded:
            others, uplink = len(self.jobs) - 1, network.uplink / contention.copies_on_uplinks(kind)
            rate = min(rate, contention.expected_rate(others, float(others), uplink, network.rate))
        sent = contention.sending(network, kind, job.gradient_bytes, servers, racks, rate, float(sharing))
        released, left = job.parts
        return contention.iteration(
            job.forward_s * job.batch / unit,
            np.array(released) / unit,
            np.array(left),
            longer,
            sent,
            contention.latency(network, kind, racks),
        )

    def _kind(self, job: Job) -> int:
        policy = self.cluster.switch.policy if self.cluster.switch is not None else "esa"
        return contention.EXCHANGES["ring" if job.exchange == "ring" else policy]

    @cached_property
    def network_t(self) -> NetworkT:
        cluster, unit = self.cluster, self.unit_s
        switch = cluster.switch
        return NetworkT(
            on=self.model.links,
            rate=cluster.inter_bps / 8 * unit,
            uplink=(cluster.uplink_bps or np.inf) / 8 * unit,
            delay=cluster.delay_s / unit,
            payload=float(switch.payload if switch is not None else 1024),
            slots=float(switch.slots) if switch is not None else np.inf,
            jobs=float(len(self.jobs)),
        )

    def fewest_servers(self, gpus: int) -> int:
        """The smallest number of servers that hold so many GPUs."""
        return int(np.searchsorted(self._capacity, gpus)) + 1

    @cached_property
    def _capacity(self) -> Ints:
        return np.cumsum(sorted((s.gpus for s in self.cluster.servers), reverse=True))

    def duration(self, tau: Floats) -> Floats:
        """(9) for a constant iteration time: units until F_j iterations are done."""
        iterations = np.array([job.iterations for job in self.jobs], dtype=np.float64)
        if self.model.slot_s is None:
            return np.asarray(iterations * tau)
        return np.asarray(np.ceil(iterations / np.floor(1.0 / tau + 1e-9)))

    @cached_property
    def shortest(self) -> Floats:
        """l_j: the least time job j can take, in units."""
        return self.duration(self.tau_min)

    @cached_property
    def longest(self) -> Floats:
        """u_j: the most time job j can take, in units."""
        return self.duration(self.tau_max)

    @cached_property
    def jobs_t(self) -> JobsT:
        jobs, unit = self.jobs, self.unit_s
        gpus = np.array([job.gpus for job in jobs], dtype=np.int64)
        size = np.array([job.gradient_bytes for job in jobs], dtype=np.float64)
        share = (gpus - 1) / gpus
        arrival = np.array([job.arrival_s for job in jobs]) / unit
        return JobsT(
            gpus=gpus,
            base=np.concatenate(([0], np.cumsum(gpus))).astype(np.int64),
            iterations=np.array([job.iterations for job in jobs], dtype=np.float64),
            arrival=np.ceil(arrival - 1e-9) if self.model.slot_s is not None else arrival,
            priority=np.array([job.priority for job in jobs]),
            ring_bytes=2.0 * size * share,
            net_bytes=size,
            in_network=np.array([job.exchange == "in-network" for job in jobs]),
            reduce=size * share * 8 / self.model.reduce_bps / unit,
            compute=np.array([job.compute_s for job in jobs]) / unit,
            kind=np.array([self._kind(job) for job in jobs], dtype=np.int64),
            forward=np.array([job.forward_s * job.batch for job in jobs]) / unit,
            released=np.array([job.parts[0] for job in jobs]) / unit,
            left=np.array([job.parts[1] for job in jobs]),
            jitter=np.array([job.jitter for job in jobs]),
            inside=np.array([_overhead_inside_s(job) for job in jobs]) / unit,
            helped=np.array([job.helped for job in jobs]),
        )

    @cached_property
    def cluster_t(self) -> ClusterT:
        cluster = self.cluster
        slow = np.array([self.slowness.get(server.name, 1.0) for server in cluster.servers])
        return ClusterT(
            cluster.first_gpu, cluster.server_of, cluster.rack_of, slow, bool((slow != 1.0).any())
        )

    @cached_property
    def price_t(self) -> PriceT:
        model, cluster, unit = self.model, self.cluster, self.unit_s
        counts = range(max(cluster.gpus_max, 1) + 1)
        spread = [cluster.inter_bps / 8 * unit / model.f(model.alpha, model.contention_k(p)) for p in counts]
        memory = cluster.switch.bytes_per_s * unit if cluster.switch is not None else np.inf
        return PriceT(
            spread=np.array(spread),
            intra=cluster.intra_bps / 8 * unit,
            memory=memory,
            overhead=model.xi2_s / unit,
            slotted=model.slot_s is not None,
            network=self.network_t,
        )
