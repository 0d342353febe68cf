"""Small jobs with stragglers, deaths and help, that tests share: an iteration computes for 32 us."""

from typing import Any

from paceline.sim.results import RunResult
from paceline.sim.run import simulate
from paceline.sim.scenario import Scenario
from tests.sim.scenes import scene

COMPUTE_S = 32e-6
SIZE_BYTES = 20_000
QUICK_HELP = {
    "dead_after": "20 us",
    "latency": "50 ns",
    "stall": "60 ms",
    "window": 0.25,
    "budget": "64 kB",
    "patience": "20 us",
    "timeout": "1 us",
}


def helped(
    mode: str, workers: int = 4, iterations: int = 3, micro_batches: int = 4, **sections: Any
) -> Scenario:
    """One job that computes twenty times as long as it sends."""
    job = {
        "name": "a",
        "model": "computation-heavy",
        "workers": workers,
        "iterations": iterations,
        "size": SIZE_BYTES,
        "layers": 4,
        "ratio": SIZE_BYTES * 8 / 100e9 / COMPUTE_S,
        "straggler": mode,
        "micro_batches": micro_batches,
    }
    job |= sections.pop("job", {})
    help_keys = QUICK_HELP | sections.pop("help", {})
    return scene(job, **{"straggler": help_keys, "switch": {"slots": 64}, "horizon": "1", **sections})


def slow(*ranks: int, factor: float = 2.5) -> dict[str, Any]:
    return {"slow": [{"job": "a", "worker": rank, "factor": factor} for rank in ranks]}


def dying(*deaths: tuple[int, float]) -> dict[str, Any]:
    """Hosts that die: (host, microseconds)."""
    return {"host_dies": [{"host": host, "time": time_us * 1e-6} for host, time_us in deaths]}


def run(scenario: Scenario, policy: str = "esa", seed: int = 1) -> RunResult:
    return simulate(scenario, policy, seed=seed, check=True)


def iterations_of(result: RunResult) -> float:
    """The mean iteration, in iterations of pure computation."""
    assert result.jobs[0].mean_iteration_s is not None, result.failed
    return result.jobs[0].mean_iteration_s / COMPUTE_S


def kinds(result: RunResult) -> set[str]:
    return {decision.kind for decision in result.decisions}
