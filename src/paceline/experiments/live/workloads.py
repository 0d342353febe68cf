"""The workloads of the live experiment, and its points: small enough for two cores, with the network as the bottleneck.

Four servers with four slots, links of 50 Mbit/s, one of them slow, which no planner knows. A workload has six jobs of
2 to 8 ranks, which want twice the slots that there are; a seed draws their order and how many steps each takes.

- `sends`: 3 MB of gradient, 0.24 s of computing an iteration. Sending through a switch takes twice as long.
- `computes`: 1 MB, 0.4 s. Sending takes half as long; and traffic of others takes 15 Mbit/s of one server's link.

Links are slower and gradients smaller than the demonstration's: 16 ranks that compute and sum gradients of 6 MB keep
two cores half busy, and then it is the cores that are measured.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.units import parse_rate_bps

PLANNERS = ("ff", "bco-plus")
EXCHANGES = ("gloo", "atp", "esa-plus")
STRAGGLERS = ("wait", "help")
BASELINE = ("ff", "gloo", "wait")
TOGETHER = ("bco-plus", "esa-plus", "help")

RATE = "50 Mbit/s"
SERVERS = ("s-0", "s-1", "s-2", "slow")
SLOTS_PER_SERVER = 4
SLOWDOWN = 2.5
SWITCH_MEMORY = "256KiB"
MICRO_BATCHES = 4
GPUS = (8, 8, 8, 4, 4, 2)
STEPS = (8, 16)
QUICK_STEPS = (6, 10)


@dataclass(frozen=True)
class LiveWorkload:
    """What jobs are like; a seed draws the rest."""

    name: str
    width: int
    """Of the network; its gradient has about 4 * width * width bytes."""
    micro_batch_ms: float
    """What a micro-batch takes a healthy rank."""
    background: str = ""
    """Other traffic on the first server's link, both ways."""

    @property
    def background_bps(self) -> float:
        return parse_rate_bps(self.background) if self.background else 0.0

    @property
    def compute_s(self) -> float:
        """Of an iteration, as it is asked for."""
        return MICRO_BATCHES * self.micro_batch_ms / 1e3

    @property
    def gradient_bytes(self) -> int:
        """As `training.py` builds its network: 64 features in, one figure out."""
        return 4 * (64 * self.width + self.width + self.width**2 + self.width + self.width + 1)


SENDS = LiveWorkload("sends", 850, 60.0)
COMPUTES = LiveWorkload("computes", 490, 100.0, "15 Mbit/s")
WORKLOADS = {workload.name: workload for workload in (SENDS, COMPUTES)}


@dataclass(frozen=True)
class LiveJob:
    """One job of a drawn workload."""

    name: str
    gpus: int
    steps: int


@dataclass(frozen=True)
class LivePoint:
    """One cell: a workload, as somebody would run it."""

    workload: str
    planner: str
    exchange: str
    """`gloo`: its ring, no switch; else the policy of the switch."""
    stragglers: str
    """`wait`: everybody waits for the slow; `help`: takeover."""
    seed: int
    quick: bool = False

    @property
    def label(self) -> str:
        return f"{self.workload}-{self.seed}-{self.planner}-{self.exchange}-{self.stragglers}"

    @property
    def combination(self) -> tuple[str, str, str]:
        return self.planner, self.exchange, self.stragglers

    @property
    def load(self) -> LiveWorkload:
        return WORKLOADS[self.workload]

    def jobs(self) -> list[LiveJob]:
        """The same for every cell of a workload and seed."""
        draw = random.Random(f"live {self.workload} {self.seed}")
        gpus = list(GPUS)
        draw.shuffle(gpus)
        low, high = QUICK_STEPS if self.quick else STEPS
        names = ("oak", "elm", "fir", "ash", "yew", "bay")
        return [
            LiveJob(name, count, draw.randint(low, high)) for name, count in zip(names, gpus, strict=True)
        ]


def cluster_text(load: LiveWorkload, servers: Sequence[str] = SERVERS) -> str:
    """The cluster file; plans know of neither slowness nor other traffic."""
    lines = ["[network]", f'inter_server = "{RATE}"', 'intra_server = "20 Gbit/s"', "emulated = true"]
    for number, name in enumerate(servers):
        lines += ["", "[[servers]]", f'name = "{name}"', f"gpus = {SLOTS_PER_SERVER}"]
        lines += [f"slow = {SLOWDOWN:g}"] if name == "slow" else []
        lines += [f'background = "{load.background}"'] if load.background and number == 0 else []
    return "\n".join(lines) + "\n"


def jobs_text(load: LiveWorkload, jobs: Sequence[LiveJob], stragglers: str, seed: int) -> str:
    """The job file: what planners expect, and what is run."""
    script = str(Path(__file__).with_name("training.py"))
    parts = []
    for number, job in enumerate(jobs):
        command = [
            *("python", script, "--steps", str(job.steps), "--stragglers", stragglers),
            *("--width", str(load.width), "--micro-batch-ms", f"{load.micro_batch_ms:g}"),
            *("--micro-batches", str(MICRO_BATCHES), "--seed", str(100 * seed + number)),
        ]
        parts.append(
            f'[[jobs]]\nname = "{job.name}"\ngpus = {job.gpus}\niterations = {job.steps}\n'
            f"gradient = {load.gradient_bytes}\nlayers = 1\nforward = 0\nbackward = {load.compute_s:g}\n"
            f"command = {json.dumps(command)}\n"
        )
    return "\n".join(parts)


def all_points(quick: bool, seeds: int | None = None) -> list[LivePoint]:
    """Every cell of every workload and seed, in the order in which they run. Quick: no ATP.

    First those that carry the claim: the baseline and all three ideas, of all workloads and seeds. Then, seed by seed,
    those with one or two of the ideas, and a seed behind them ATP.
    """
    count = seeds or (1 if quick else 3)
    loads = ("sends",) if quick else tuple(WORKLOADS)
    exchanges = tuple(name for name in EXCHANGES if not quick or name != "atp")
    points = [
        LivePoint(load, planner, exchange, stragglers, seed, quick)
        for seed in range(1, count + 1)
        for load in loads
        for planner in PLANNERS
        for exchange in exchanges
        for stragglers in STRAGGLERS
    ]

    def wave(point: LivePoint) -> int:
        if point.combination in (BASELINE, TOGETHER):
            return 0
        return point.seed + (1 if point.exchange == "atp" else 0)

    return sorted(points, key=wave)
