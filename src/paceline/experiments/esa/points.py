"""The points of the ESA experiment, and how each policy is tuned at each of them.

A point is a workload on a network: 100 Gb/s links, jobs of equal workers on hosts of their own, so that they
meet in the switch's memory and nowhere else. At every point every policy first runs over its own grid of
windows and timers with a seed of its own; the best setting then runs with the measured seeds. Nobody is
measured on the seed that it was tuned on, and every grid has room on both sides of its best values.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any

from paceline.sim.run import simulate
from paceline.sim.scenario import POLICIES, Network, Scenario

RATE_BPS = 100e9
DELAY_NS = 1_000
ELEMENTS = 256
TUNING_SEED = 1000
MIXES = ("communication-heavy", "computation-heavy", "mixed")

Settings = dict[str, dict[str, Any]]


NETWORK = Network.model_validate({"rate": RATE_BPS, "delay": DELAY_NS * 1e-9, "elements": ELEMENTS})


def bdp_slots() -> int:
    """Aggregators that one job needs to run at full rate, in a bandwidth-delay product."""
    return NETWORK.bdp_packets()


@dataclass(frozen=True)
class EsaPoint:
    """One workload and one policy; carries all that a process needs to run it."""

    sweep: str
    mix: str
    jobs: int
    slots: int
    workers: int
    loss: float
    policy: str
    quick: bool
    seeds: tuple[int, ...]
    x: float = field(compare=False)
    """Where the point stands on its sweep's axis."""

    def setting(self) -> str:
        """In words, for tables."""
        memory = self.slots / (self.jobs * bdp_slots())
        loss = f", loss {self.loss:g}" if self.loss else ""
        return f"{self.jobs} {self.mix} jobs of {self.workers} workers, memory {memory:.2g} x BDP{loss}"

    def scenario(self, settings: Settings) -> Scenario:
        """The workload; jobs arrive one after the other, at times that are no multiples of an iteration."""
        size = 1_000_000 if self.quick else 4_000_000
        common = {
            "workers": self.workers,
            "iterations": 2 if self.quick else 4,
            "size": size,
            "layers": 8,
            "jitter": 0.1,
            "stagger": "37 us",
        }
        models = {
            "communication-heavy": [("communication-heavy", self.jobs)],
            "computation-heavy": [("computation-heavy", self.jobs)],
            "mixed": [("communication-heavy", (self.jobs + 1) // 2), ("computation-heavy", self.jobs // 2)],
        }[self.mix]
        return Scenario.model_validate(
            {
                "horizon": "2",
                "network": NETWORK,
                "switch": {"slots": self.slots, **settings.get("switch", {})},
                "transport": settings.get("transport", {}),
                "custodians": settings.get("custodians", {}),
                "faults": {"loss": self.loss},
                "job": [
                    {"name": model, "model": model, "copies": count, **common}
                    for model, count in models
                    if count
                ],
            }
        )


def grid(point: EsaPoint) -> list[Settings]:
    """The settings that a policy may choose from at a point."""
    bdp = bdp_slots()
    quick = point.quick
    timers = ("50 us", "200 us", "1 ms") if point.loss else ("200 us",)
    if quick:
        timers = timers[:1]
    if point.policy == "switchml":
        return [{"transport": {"window": 8192, "rto_min": timer}} for timer in ("50 us", "200 us", "1 ms")]
    if point.policy == "ring":
        buckets = ("250 kB", "1 MB") if quick else ("250 kB", "1 MB", "4 MB")
        widths = (512,) if quick else (256, 512, 1024)
        return [
            {"transport": {"bucket": bucket, "window": window, "rto_min": timer, **patience}}
            for bucket, window, timer, patience in itertools.product(buckets, widths, timers, _PATIENCE)
        ]
    windows = [
        max(8, round(share * bdp)) for share in ((0.5, 1, 2) if quick else (0.25, 0.5, 0.75, 1, 1.5, 2, 4))
    ]
    patience = _PATIENCE[:1] if quick else _PATIENCE
    if point.policy == "ps":
        servers: tuple[dict[str, Any], ...] = ({"placement": "workers"}, {"placement": "dedicated"})
        patience = ({"reorder_chunks": 64, "reorder_rtts": 2.0},)
        windows = [bdp, 4 * bdp]
    else:
        servers = ({"placement": "dedicated", "patience": "20 us"},)
    return [
        {"transport": {"window": window, "rto_min": timer, **wait}, "custodians": server}
        for window, timer, wait, server in itertools.product(windows, timers, patience, servers)
    ]


_PATIENCE: tuple[dict[str, Any], ...] = (
    {"reorder_chunks": 3, "reorder_rtts": 0.0},
    {"reorder_chunks": 16, "reorder_rtts": 1.0},
)


def run_point(point: EsaPoint) -> dict[str, Any]:
    """Tune, then measure: one row of the result."""
    best: Settings = {}
    best_s = float("inf")
    for settings in grid(point):
        tried = simulate(point.scenario(settings), point.policy, seed=TUNING_SEED)
        if tried.avg_jct_s is not None and tried.avg_jct_s < best_s:
            best_s, best = tried.avg_jct_s, settings
    runs = [simulate(point.scenario(best), point.policy, seed=seed) for seed in point.seeds]
    times = [run.avg_jct_s for run in runs if run.avg_jct_s is not None]
    count = len(runs)
    return {
        "sweep": point.sweep,
        "x": point.x,
        "mix": point.mix,
        "jobs": point.jobs,
        "workers": point.workers,
        "slots": point.slots,
        "loss": point.loss,
        "policy": point.policy,
        "avg_jct_ms": 1e3 * sum(times) / len(times) if len(times) == count else None,
        "utilisation": sum(run.switch["utilisation_mean"] for run in runs) / count,
        "preemptions": sum(run.switch["preemptions"] for run in runs) / count,
        "fallbacks": sum(run.switch["fallbacks"] for run in runs) / count,
        "resent": sum(run.transport["resent"] for run in runs) / count,
        "packets": sum(run.packets for run in runs),
        "settings": "; ".join(f"{key} {value}" for part in best.values() for key, value in part.items()),
        "setting": point.setting(),
        "seeds": count,
    }


def all_points(quick: bool) -> list[EsaPoint]:
    """Jobs, memory, workers and loss; each workload under every policy."""
    bdp = bdp_slots()
    seeds = (1,) if quick else (1, 2, 3)
    mixes = ("communication-heavy", "mixed") if quick else MIXES
    workloads: list[tuple[str, str, int, int, int, float, float]] = []
    for mix, jobs in itertools.product(mixes, (1, 4, 8) if quick else (1, 2, 4, 8, 12, 16)):
        workloads.append(("jobs", mix, jobs, 4 * bdp, 8, 0.0, jobs))
    for mix, share in itertools.product(mixes, (0.25, 1, 4) if quick else (0.25, 0.5, 1, 2, 4)):
        workloads.append(("memory", mix, 8, round(share * 8 * bdp), 8, 0.0, share))
    for workers in (4, 16) if quick else (2, 4, 8, 16, 32):
        workloads.append(("workers", "communication-heavy", 4, 4 * bdp, workers, 0.0, workers))
    for loss in (0.001,) if quick else (0.0001, 0.001, 0.01):
        workloads.append(("loss", "communication-heavy", 4, 4 * bdp, 8, loss, loss))
    return [
        EsaPoint(sweep, mix, jobs, slots, workers, loss, policy, quick, seeds, x)
        for sweep, mix, jobs, slots, workers, loss, x in workloads
        for policy in POLICIES
    ]
