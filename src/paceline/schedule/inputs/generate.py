"""Seeded workloads: the paper's job mix on its random servers, and Philly-like arrivals.

The paper (section 7) publishes the mix of job sizes, the servers' sizes, F_j in [1000, 6000], tau in
[0.01, 0.05] slot, and that contention and overhead stay within 15 % of the execution time. It does not
publish bandwidths, gradient sizes, alpha or xi; `PaperSetting` names our choice for each of them.
"""

from dataclasses import dataclass

import numpy as np

from paceline.schedule.inputs.cluster import Cluster, Server
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model, Problem

PAPER_MIX: dict[int, int] = {1: 80, 2: 14, 4: 26, 8: 30, 16: 8, 32: 2}
"""GPUs a job: how many of the 160 jobs."""
PAPER_SERVER_GPUS = (4, 8, 16, 32)
PAPER_HORIZON = 1200.0


@dataclass(frozen=True)
class PaperSetting:
    """What the paper left open, and our choice; a slot is one second here."""

    servers: int = 20
    tau: tuple[float, float] = (0.01, 0.05)
    iterations: tuple[int, int] = (1000, 6000)
    share: float = 0.15
    """Contention and overhead of a spread job, as a share of its iteration, at `reference_p`."""
    reference_p: int = 3
    overhead_part: float = 0.2
    """How much of that share is overhead, at `reference_p` servers."""
    alpha: float = 0.2
    slotted: bool = True


def paper_cluster(seed: int, setting: PaperSetting) -> Cluster:
    """Servers of 4, 8, 16 or 32 GPUs at random; drawn again if the largest job would not fit."""
    rng = np.random.default_rng((seed, 1))
    while True:
        sizes = rng.choice(PAPER_SERVER_GPUS, setting.servers)
        if sizes.sum() >= max(PAPER_MIX):
            break
    servers = tuple(Server(f"s{i:02d}", int(gpus)) for i, gpus in enumerate(sizes))
    return Cluster(servers, intra_bps=8e15, inter_bps=8e9)


def paper_jobs(seed: int, setting: PaperSetting) -> tuple[Job, ...]:
    """The 160 jobs of the paper's mix, in random order."""
    rng = np.random.default_rng((seed, 2))
    sizes = np.repeat(list(PAPER_MIX), list(PAPER_MIX.values()))
    rng.shuffle(sizes)
    jobs = []
    for i, gpus in enumerate(sizes):
        compute_s = float(rng.uniform(*setting.tau))
        iterations = int(rng.integers(setting.iterations[0], setting.iterations[1] + 1))
        jobs.append(Job(f"job{i:03d}", int(gpus), iterations, _gradient(setting, compute_s, int(gpus)),
                        backward_s=compute_s))  # fmt: skip
    return tuple(jobs)


def _slowdown(setting: PaperSetting) -> float:
    return setting.share / (1.0 - setting.share)


def _gradient(setting: PaperSetting, compute_s: float, gpus: int) -> int:
    # Bytes whose exchange at the reference contention is the wanted share; the links carry 1 GB/s.
    if gpus == 1:
        return 0
    p = setting.reference_p
    exchange_s = compute_s * _slowdown(setting) * (1 - setting.overhead_part)
    alone_s = exchange_s / (p + setting.alpha * (p - 1))
    return round(alone_s * 1e9 / (2.0 * (gpus - 1) / gpus))


def paper_model(setting: PaperSetting) -> Model:
    """The model's constants for the paper's experiment; reduction and server-internal rings cost nothing."""
    mean_tau = sum(setting.tau) / 2
    overhead_s = mean_tau * _slowdown(setting) * setting.overhead_part / setting.reference_p
    slot_s = 1.0 if setting.slotted else None
    return Model(alpha=setting.alpha, xi2_s=overhead_s, reduce_bps=8e15, slot_s=slot_s)


def paper_problem(seed: int, setting: PaperSetting = PaperSetting()) -> Problem:
    """Cluster, jobs and model of the paper's experiment for one seed."""
    return Problem(paper_cluster(seed, setting), paper_jobs(seed, setting), paper_model(setting))


@dataclass(frozen=True)
class CatalogueModel:
    """A network to train: gradient size, and one iteration's compute on one GPU. Our nominal figures."""

    name: str
    gradient_bytes: int
    batch: int
    forward_s: float
    backward_s: float

    @property
    def compute_s(self) -> float:
        return self.forward_s * self.batch + self.backward_s


CATALOGUE = (
    CatalogueModel("resnet50", 102_000_000, 64, 0.9e-3, 0.115),
    CatalogueModel("vgg16", 553_000_000, 32, 2.2e-3, 0.140),
    CatalogueModel("inception3", 95_000_000, 64, 1.1e-3, 0.141),
    CatalogueModel("bert-base", 440_000_000, 32, 2.5e-3, 0.160),
    CatalogueModel("gpt2-small", 498_000_000, 16, 6.0e-3, 0.192),
)
"""Sizes are four bytes a published parameter; the times are ours, of the order of one recent GPU."""


def job_of(name: str, gpus: int, arrival_s: float, run_s: float, profile: CatalogueModel) -> Job:
    """A job that computes for `run_s` with this profile; communication comes on top, by the model."""
    return Job(
        name,
        gpus,
        max(1, round(run_s / profile.compute_s)),
        profile.gradient_bytes if gpus > 1 else 0,
        profile.batch,
        profile.forward_s,
        profile.backward_s,
        arrival_s,
    )


PHILLY_SIZES = {1: 0.76, 2: 0.07, 4: 0.06, 8: 0.08, 16: 0.02, 32: 0.01}
"""Mostly single-GPU jobs, a tail of large ones: the shape reported for Philly, in round numbers of ours."""


def philly_like(seed: int, jobs: int = 200, hours: float = 24.0) -> tuple[Job, ...]:
    """Jobs that arrive over `hours` with a daily rhythm, log-normal run times and Philly's mix of sizes."""
    rng = np.random.default_rng((seed, 3))
    times: list[float] = []
    while len(times) < jobs:
        at = float(rng.uniform(0.0, hours))
        if rng.uniform(0.0, 1.0) < 0.6 + 0.4 * np.sin(2 * np.pi * (at - 9.0) / 24.0):
            times.append(at * 3600.0)
    sizes = rng.choice(list(PHILLY_SIZES), jobs, p=list(PHILLY_SIZES.values()))
    # Median 20 minutes, a tenth above five hours; nothing shorter than a minute.
    runs = np.clip(rng.lognormal(np.log(1200.0), 2.1, jobs), 60.0, 48 * 3600.0)
    models = rng.integers(len(CATALOGUE), size=jobs)
    return tuple(
        job_of(f"job{i:04d}-{CATALOGUE[m].name}", int(gpus), at, float(run), CATALOGUE[m])
        for i, (at, gpus, run, m) in enumerate(zip(sorted(times), sizes, runs, models, strict=True))
    )


def small_problem(seed: int) -> Problem:
    """A case small enough for the exact optimum: 2-3 servers, 5-8 jobs, contention that matters."""
    rng = np.random.default_rng((seed, 5))
    count = int(rng.integers(2, 4))
    servers = tuple(Server(f"s{i}", int(rng.integers(2, 5))) for i in range(count))
    cluster = Cluster(servers, intra_bps=8e15, inter_bps=8e9)
    jobs = []
    for i in range(int(rng.integers(5, 9))):
        gpus = min(int(rng.choice([1, 1, 2, 2, 3, 4, 5])), cluster.gpus_total)
        compute_s = float(rng.uniform(0.04, 0.12))
        exchange_s = compute_s * float(rng.uniform(0.05, 0.4))
        gradient = round(exchange_s * 1e9 * gpus / (2 * (gpus - 1))) if gpus > 1 else 0
        jobs.append(Job(f"j{i}", gpus, int(rng.integers(10, 90)), gradient, backward_s=compute_s))
    return Problem(cluster, tuple(jobs), Model(alpha=0.3, xi2_s=0.002, reduce_bps=8e15, slot_s=1.0))
