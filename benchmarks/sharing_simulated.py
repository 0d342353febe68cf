"""What the packet simulator says of a row of `benchmarks.sharing`: same jobs, links, memory, rules and constants.

Programs are woken as measured on live hosts (`perf sched` on two busy cores: 20 us in the median, 0.2 ms in one of
ten, several ms in one of a hundred), and cost what agent and switch need for a packet.
"""

import functools
import statistics
from typing import Any

from benchmarks.sharing_run import MTU, Setting
from paceline.core.priority import MIDDLE
from paceline.emulation.namespaces import BURST_BYTES, QUEUE_BYTES
from paceline.experiments.live.predict import agent_tables
from paceline.live.net.sockets import elements_for
from paceline.sim.run import simulate
from paceline.sim.scenario import Scenario

_SEEDS = (1, 2, 3)


def scenario_of(setting: Setting) -> Scenario:
    """The row as a scenario."""
    job: dict[str, Any] = {
        "workers": 4,
        "iterations": setting.steps,
        "size": setting.gradient_bytes,
        "layers": 1,
        "ratio": setting.gradient_bytes * 8 / setting.rate_bps / setting.compute_s,
        "jitter": 0.02,
        "hosts": [0, 1, 2, 3],
    }
    racks: dict[str, Any] = {}
    if setting.racks > 1:
        # All switches are at the hub, and reach each other without a limited link.
        racks = {"topology": "leaf-spine", "leaves": setting.racks, "uppers": 1, "upper_rate": "10 Gbit/s"}
    document = {
        "name": setting.name,
        "policies": [setting.policy],
        "horizon": f"{setting.timeout_s} s",
        "network": {
            "hosts": 4,
            "rate": setting.rate_bps,
            "delay": "20 us",
            "queue": QUEUE_BYTES,
            "burst": BURST_BYTES,
            "ecn": "100 MB",
            "elements": elements_for(MTU),
            **racks,
        },
        **agent_tables(MTU, setting.slots),
        "faults": {"loss": setting.loss},
        "job": [{**job, "name": f"job{number}"} for number in range(setting.jobs)],
    }
    return Scenario.model_validate(document)


def one_priority(remaining_s: float, comm_over_comp: float, layer: int, layers: int) -> int:
    """That of live agents which were told nothing of their jobs: the same for all."""
    return MIDDLE


@functools.cache
def simulated_step_s(setting: Setting) -> float | None:
    """Seconds a step, mean over jobs and seeds; nothing for what the simulator does not have."""
    if setting.backend != "paceline":
        return None
    scenario = scenario_of(setting)
    seconds = []
    for seed in _SEEDS:
        result = simulate(scenario, setting.policy, seed=seed, rule=one_priority)
        if result.avg_jct_s is None:
            return None
        seconds.append(result.avg_jct_s / setting.steps)
    return statistics.mean(seconds)
