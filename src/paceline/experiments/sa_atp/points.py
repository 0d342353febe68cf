"""The points of the SA-ATP experiment: who is slow and how, which model on how many workers, and what is done about it.

Sizes and times: a worker is a GPU that sustains 50 TFLOP/s in mixed precision (about what one A100 gives on these
models: 2,000 images a second on ResNet-50) with a port of its own at 200 Gbit/s, as in a DGX A100. 256 samples a
worker and iteration, computed in micro-batches of 16: a global batch of 2,048 with 8 workers. So computing takes 15 to
30 times as long as sending once (`compute_s_of`, `send_s_of`).

Baselines choose their window at every model and number of workers, with one slow worker and another seed than the
measured one; help runs with the window that the same policy chose without help. Baselines do not cut iterations into
micro-batches: their gradients leave during the whole backward pass, which suits them best.
"""

import itertools
from dataclasses import dataclass
from functools import cache
from typing import Any

from paceline.core.bits import mix, seed_word
from paceline.core.wire import ENVELOPE_BYTES, HEADER_BYTES
from paceline.models.catalogue import DEFAULT_FLOP_PER_S, profile
from paceline.sim.run import simulate
from paceline.sim.scenario import Network, Scenario

RATE_BPS = 200e9
ELEMENTS = 2048
NETWORK = Network.model_validate({"rate": RATE_BPS, "elements": ELEMENTS})
MODELS = ("vgg16", "resnet50", "bert-base")
SAMPLES = 256
MICRO_BATCHES = 16
SLOTS = 1024
TUNING_SEED = 1000
TUNED_AT = 2.5
SLOW = 2
"""The rank of the slow worker."""
CONTENTION = 0.8
"""Share of a link that other traffic takes."""

Settings = dict[str, Any]

VARIANTS = (
    ("atp", "off"),
    ("esa", "off"),
    ("ring", "off"),
    ("atp", "custody"),
    ("atp", "takeover"),
    ("atp", "both"),
    ("esa", "both"),
    ("atp", "backup"),
    ("atp", "timeout"),
)


@dataclass(frozen=True)
class SaAtpPoint:
    """One workload under one policy and one way to deal with stragglers."""

    pattern: str
    """`one slow`, `spells`, `traffic to`, `traffic from`, `nobody`, or `four jobs`."""
    model: str
    workers: int
    factor: float
    chance: float
    policy: str
    mode: str
    iterations: int
    scale: int
    """Samples and gradients divided by this, for quick runs: latencies then weigh more."""
    seed: int = 1

    def setting(self) -> str:
        """In words, for tables."""
        slow = {
            "one slow": f"one of {self.workers} {self.factor:g} times slower",
            "spells": f"{self.chance:.0%} of {self.workers} {self.factor:g} times slower, for 0.5 to 2 iterations",
            "traffic to": f"other traffic takes {CONTENTION:.0%} of one downlink of {self.workers}",
            "traffic from": f"other traffic takes {CONTENTION:.0%} of one uplink of {self.workers}",
            "nobody": f"{self.workers} equal workers",
            "four jobs": f"one of four jobs has a worker {self.factor:g} times slower",
        }[self.pattern]
        return f"{self.model}, {slow}"

    @property
    def micro_batches(self) -> int:
        return MICRO_BATCHES if self.mode in ("takeover", "both") else 1

    def faults(self) -> dict[str, Any]:
        if self.pattern in ("one slow", "four jobs"):
            return {"slow": [{"job": "train", "worker": SLOW, "factor": self.factor}]}
        if self.pattern == "spells":
            return {"slow_spells": [{"job": "train", "probability": self.chance, "factor": self.factor}]}
        if self.pattern.startswith("traffic"):
            flow = {"host": SLOW, "rate": CONTENTION * RATE_BPS, "direction": self.pattern.split()[1]}
            return {"other_traffic": [flow]}
        return {}

    def scenario(self, settings: Settings) -> Scenario:
        """The workload; a wait for a slow worker must not look like a loss without end."""
        if self.pattern == "four jobs":
            return self._four_jobs(settings)
        model = profile(self.model)
        job = {
            "name": "train",
            "model": self.model,
            "workers": self.workers,
            "iterations": self.iterations,
            "batch": max(1, SAMPLES // self.scale),
            "straggler": self.mode,
            "micro_batches": self.micro_batches,
        }
        if self.scale > 1:
            compute_s = compute_s_of(self.model) / self.scale
            size = model.gradient_bytes // self.scale
            job |= {
                "model": "computation-heavy",
                "size": size,
                "layers": 16,
                "batch": 1,
                "ratio": size * 8 / RATE_BPS / compute_s,
            }
        return Scenario.model_validate(
            {
                "horizon": "200",
                "network": NETWORK,
                "switch": {"slots": SLOTS},
                "transport": {"resends_max": 100_000, "rto_max": "100 ms", **settings},
                "straggler": {"timeout": 0.02 * compute_s_of(self.model) / self.scale},
                "job": [job],
                "faults": self.faults(),
            }
        )

    def _four_jobs(self, settings: Settings) -> Scenario:
        """Jobs that mostly send share a switch whose memory is half of what they would like."""
        common = {
            "model": "communication-heavy",
            "workers": self.workers,
            "size": 8_000_000 // self.scale,
            "layers": 8,
            "ratio": 1.0,
            "jitter": 0.1,
        }
        network = Network.model_validate({"rate": 100e9, "elements": 256})
        return Scenario.model_validate(
            {
                "horizon": "20",
                "network": network,
                "switch": {"slots": 2 * network.bdp_packets()},
                "transport": {"resends_max": 100_000, **settings},
                "straggler": {"budget": "64 kB"},
                "job": [
                    {"name": "train", "straggler": self.mode, "iterations": self.iterations, **common},
                    {
                        "name": "other",
                        "copies": 3,
                        "stagger": "37 us",
                        "iterations": 2 * self.iterations,
                        **common,
                    },
                ],
                "faults": self.faults(),
            }
        )


def compute_s_of(model: str) -> float:
    """C: an iteration's computation on a worker that is not slow."""
    return profile(model).compute_ns(DEFAULT_FLOP_PER_S, SAMPLES) * 1e-9


def send_s_of(model: str) -> float:
    """G/B: the gradient once over a link of its own, headers included."""
    overhead = (HEADER_BYTES + ENVELOPE_BYTES + 4 * ELEMENTS) / (4 * ELEMENTS)
    return profile(model).gradient_bytes * overhead * 8 / RATE_BPS


def bounds_s(point: SaAtpPoint) -> tuple[float, float]:
    """The least that custody alone, and takeover, can reach for an iteration: C_s + G/B_s and N C / (N - 1 + 1/f).

    The first lets the slow worker's upload begin when its computation ends, as the paper's formula does; gradients that
    leave during the backward pass can be quicker. With spells, both follow the drawn spells.
    """
    compute_s, send_s = compute_s_of(point.model) / point.scale, send_s_of(point.model) / point.scale
    workers, factor = point.workers, point.factor
    if point.pattern == "spells":
        return _bounds_with_spells(point, compute_s, send_s)
    if point.pattern.startswith("traffic"):
        return compute_s + send_s / (1 - CONTENTION), compute_s
    return factor * compute_s + send_s, workers * compute_s / (workers - 1 + 1 / factor)


def _bounds_with_spells(point: SaAtpPoint, compute_s: float, send_s: float) -> tuple[float, float]:
    """Follow the iterations of an ideal run: all work is shared at every moment, or everyone waits for the slowest."""
    seed = int(seed_word(point.seed, 3)) & 0x7FFFFFFF
    totals = []
    for shared in (False, True):
        now = 0.0
        until = [0.0] * point.workers
        for iteration in range(point.iterations):
            for worker in range(point.workers):
                noise = int(mix(seed + 1, worker * 1_000_003 + iteration))
                if until[worker] <= now and noise & 0xFFFF < round(point.chance * 0x10000):
                    until[worker] = now + (0.5 + 1.5 * (noise >> 16) / 0x7FFF) * compute_s
            if shared:
                now += _shared_s(now, until, point.factor, compute_s)
            else:
                now += max(_alone_s(now, end, point.factor, compute_s) for end in until) + send_s
        totals.append(now / point.iterations)
    return totals[0], totals[1]


def _alone_s(now: float, until: float, factor: float, work_s: float) -> float:
    slow_s = max(0.0, until - now)
    return factor * work_s if factor * work_s <= slow_s else slow_s + work_s - slow_s / factor


def _shared_s(now: float, until: list[float], factor: float, compute_s: float) -> float:
    """How long everyone together takes for everyone's work."""
    left, at = len(until) * compute_s, now
    while True:
        pace = sum(1 / factor if end > at else 1.0 for end in until)
        change = min((end for end in until if end > at), default=float("inf"))
        if left <= pace * (change - at):
            return at + left / pace - now
        left -= pace * (change - at)
        at = change


@cache
def tuned(pattern: str, model: str, workers: int, policy: str, scale: int) -> Settings:
    """The window that suits a policy without help: with one slow worker, and a seed that is not measured."""
    four = pattern == "four jobs"
    bdp = (Network.model_validate({"rate": 100e9, "elements": 256}) if four else NETWORK).bdp_packets()
    best: Settings = {}
    best_s = float("inf")
    shares = (4, 12, 24) if policy == "ring" else (0.5, 1, 2, 4) if four else (1, 2, 4)
    for share in shares:
        settings = {"window": max(8, round(share * bdp))}
        probe = SaAtpPoint(
            "four jobs" if four else "one slow",
            model, workers, TUNED_AT, 0.0, policy, "off", 2 if four else 1, scale, TUNING_SEED,
        )  # fmt: skip
        tried = simulate(probe.scenario(settings), policy, seed=TUNING_SEED)
        if tried.avg_jct_s is not None and tried.avg_jct_s < best_s:
            best_s, best = tried.avg_jct_s, settings
    return best


def run_point(point: SaAtpPoint) -> dict[str, Any]:
    """One row of the result."""
    settings = tuned(point.pattern, point.model, point.workers, point.policy, point.scale)
    run = simulate(point.scenario(settings), point.policy, seed=point.seed)
    job = run.jobs[0]
    four = point.pattern == "four jobs"
    custody_s, takeover_s = (None, None) if four else bounds_s(point)
    others = [other.jct_s for other in run.jobs[1:] if other.jct_s is not None]
    return {
        "pattern": point.pattern,
        "model": "communication-heavy" if four else point.model,
        "workers": point.workers,
        "factor": point.factor,
        "chance": point.chance,
        "policy": point.policy,
        "straggler": point.mode,
        "iteration_ms": None if job.mean_iteration_s is None else 1e3 * job.mean_iteration_s,
        "bound_custody_ms": None if custody_s is None else 1e3 * custody_s,
        "bound_takeover_ms": None if takeover_s is None else 1e3 * takeover_s,
        "bound_ratio": takeover_s / job.mean_iteration_s if takeover_s and job.mean_iteration_s else None,
        "sums": f"INEXACT: {job.left_out} left out" if job.left_out else "exact",
        "claims": sum(job.claims.get(kind, 0) for kind in ("first", "second")),
        "second_claims": job.claims.get("second", 0),
        "others_jct_ms": 1e3 * sum(others) / len(others) if len(others) == 3 else None,
        "resent": run.transport["resent"],
        "window": settings["window"],
        "setting": point.setting(),
        "failed": run.failed,
    }


def all_points(quick: bool) -> list[SaAtpPoint]:
    """One persistent straggler, slow spells, contended links, nobody slow, and four jobs on one switch."""
    points: list[SaAtpPoint] = []
    scale = 16 if quick else 1
    iterations = 3
    sizes = ((8, 2.5), (8, 4.0)) if quick else tuple(itertools.product((4, 8, 16), (1.5, 2.0, 2.5, 4.0)))
    models = MODELS[:2] if quick else MODELS
    for model, (workers, factor), (policy, mode) in itertools.product(models, sizes, VARIANTS):
        points.append(SaAtpPoint("one slow", model, workers, factor, 0.0, policy, mode, iterations, scale))
    spelled = ("resnet50",)
    for model, chance, (policy, mode) in itertools.product(
        spelled, (0.08,) if quick else (0.02, 0.04, 0.08, 0.16), VARIANTS
    ):
        points.append(SaAtpPoint("spells", model, 8, 2.5, chance, policy, mode, 8 if quick else 24, scale))
    contended = [variant for variant in VARIANTS if variant[1] not in ("backup", "timeout")]
    for direction, model, (policy, mode) in itertools.product(
        ("to", "from"), ("resnet50",) if quick else MODELS, contended
    ):
        points.append(SaAtpPoint(f"traffic {direction}", model, 8, 1.0, 0.0, policy, mode, 8, scale))
    for model, (policy, mode) in itertools.product(models, (("atp", "off"), ("atp", "both"))):
        points.append(SaAtpPoint("nobody", model, 8, 1.0, 0.0, policy, mode, iterations, scale))
    for policy, mode, seed in itertools.product(
        ("atp", "esa"), ("off", "custody", "both"), (1,) if quick else (1, 2, 3)
    ):
        points.append(
            SaAtpPoint("four jobs", "resnet50", 8, 4.0, 0.0, policy, mode, 4, 4 if quick else 1, seed)
        )
    return points
