"""Seeded workloads: the paper's job mix on its random servers, and Philly-like arrivals.

The paper (section 7) publishes the mix of job sizes, the servers' sizes, F_j in [1000, 6000], tau in
[0.01, 0.05] slot, and that contention and overhead stay within 15 % of the execution time. It does not
publish bandwidths, gradient sizes, alpha or xi; `PaperSetting` names our choice for each of them.
"""

from dataclasses import dataclass

import numpy as np

from paceline.schedule.cluster import Cluster, Server
from paceline.schedule.contention import Model, Problem
from paceline.schedule.jobs import Job

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
    reference_p: int = 4
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


def paper_problem(seed: int, setting: PaperSetting = PaperSetting()) -> Problem:  # noqa: B008
    """Cluster, jobs and model of the paper's experiment for one seed."""
    return Problem(paper_cluster(seed, setting), paper_jobs(seed, setting), paper_model(setting))
