"""What the packet simulator says of a cell: the same placements, starts, links, memory, rules and constants.

Nothing is fitted to a cell. Links are the token buckets of `emulation`, protocol constants those of the agent,
computing times those of one job alone (`cells.calibrate`), and `[hosts]` what was measured of programs on two cores
(docs/simulating.md). A job begins when its ranks began to train.

- A server is one worker: its ranks sum in memory, and send one flow.
- A ring of n ranks crosses the link of each of its k servers once, with 2 (n - 1) / n of the gradient; a ring of k
  workers sends 2 (k - 1) / k of its own, so it is given that much more.
- What a job alone takes to sum inside a server is added to computing; a ring over servers has it on its way.
- With help, computing is that of the keeper in virtual time (`helped.py`), rank by rank; no worker is slow then.
"""

import json
from dataclasses import dataclass
from typing import Any

from paceline.core.priority import priority
from paceline.core.sender.congestion import QUEUE_NS
from paceline.core.switch.memory import AGGREGATOR
from paceline.core.wire import ENVELOPE_BYTES, HEADER_BYTES
from paceline.emulation.namespaces import BURST_BYTES, QUEUE_BYTES
from paceline.errors import UserError
from paceline.experiments.live.helped import helped_compute_s
from paceline.experiments.live.workloads import MICRO_BATCHES, RATE, SERVERS, SWITCH_MEMORY, WORKLOADS
from paceline.live.agent import setup
from paceline.live.agent.config import AgentConfig
from paceline.live.net.sockets import elements_for
from paceline.sim import run as sim_run
from paceline.sim.build.arrays import build
from paceline.sim.help.coordinator import Coordinators
from paceline.sim.results import RunResult, collect
from paceline.sim.scenario import Scenario
from paceline.units import parse_rate_bps, parse_size_bytes

MTU = 1500
ETHERNET_BYTES = 14
"""That a token bucket counts beside the IP packet; the simulator also counts preamble, gap and checksum."""
IP_UDP_BYTES = 28
IP_TCP_BYTES = 52
DELAY = "20 us"
JITTER = 0.02
HOSTS = {"wake": "12 us", "wake_spread": 1.0, "turn": "15 us", "packet": "2 us", "train": "64 kB", "cores": 2}
"""Programs on two cores, as measured (docs/simulating.md)."""
LINUX_TIMERS = {"rto_min": "200 ms", "rto_start": "1 s", "rto_max": "120 s"}
"""Of a ring's connections. The simulator's own are for links a thousand times as fast: here they would go off while
packets wait in a queue."""
LAYERS = 5
"""Of the network of `training.py`."""
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Calibration:
    """Seconds of one job alone."""

    healthy_s: float
    """A micro-batch on a healthy server."""
    slow_s: float
    """The same on the slow one."""
    rest_s: float
    """Of an iteration, what is neither computing nor sending."""
    inside_gloo_s: float
    """Of an iteration of a job inside one server: the sum by Gloo."""
    inside_switch_s: float
    """The same by Paceline, in shared memory."""

    def compute_s(self, server: str) -> float:
        """Of an iteration on a server."""
        return MICRO_BATCHES * self.pace_s(server) + self.rest_s

    def pace_s(self, server: str) -> float:
        """Of a micro-batch there."""
        return self.slow_s if server == "slow" else self.healthy_s

    def helped_s(self, servers: dict[str, int]) -> float:
        """Of an iteration with help, by ranks on each server."""
        paces_s = tuple(self.pace_s(server) for server, ranks in servers.items() for _ in range(ranks))
        return helped_compute_s(paces_s, MICRO_BATCHES, LAYERS) + self.rest_s

    def inside_s(self, ring: bool, servers: int) -> float:
        """Of an iteration, the sum of a server's ranks: a ring that crosses links passes through them on its way."""
        if ring:
            return self.inside_gloo_s if servers == 1 else 0.0
        return self.inside_switch_s


@dataclass(frozen=True)
class PredictionTask:
    """A finished cell, as text so that it shows all that it is made of, and the computing times of its workload."""

    cell: str
    calibration: Calibration


def predict(task: PredictionTask) -> list[dict[str, Any]]:
    """Iteration and completion time of each job, mean over the simulator's seeds."""
    cell = json.loads(task.cell)
    policy = "ring" if cell["exchange"] == "gloo" else cell["exchange"]
    scenario = scenario_of(cell, task.calibration)
    iteration_s = {job["name"]: 0.0 for job in cell["jobs"]}
    for seed in SEEDS:
        result = simulate_pulling(scenario, policy, seed)
        if result.failed is not None:
            raise UserError(f"the simulation of a cell did not end: {result.failed}", place=str(cell["seed"]))
        for job in result.jobs:
            assert job.jct_s is not None
            iteration_s[job.name] += (job.jct_s - job.waited_s) / job.iterations / len(SEEDS)
    return [
        {
            "name": job["name"],
            "iteration_s": iteration_s[job["name"]],
            "jct_s": job["trains_at_s"] + iteration_s[job["name"]] * job["steps"],
        }
        for job in cell["jobs"]
    ]


def simulate_pulling(scenario: Scenario, policy: str, seed: int) -> RunResult:
    """As `simulate`, with custodians that ask workers for what is missing under every policy, as the live agent's do.

    The simulator's ATP leaves that to the workers' own timers, as the paper has it: at 50 Mbit/s and with little memory
    a job then stood still for seconds, which no live run did.
    """
    setup = build(scenario.model_copy(update={"seed": seed}), policy, seed, False, priority)
    setup.world.custodians.state.pulls[:] = 1
    coordinators = Coordinators(setup)
    reason = sim_run._run_to_end(setup, coordinators, None)
    return collect(setup, coordinators, reason, False, 0.0)


def scenario_of(cell: dict[str, Any], calibration: Calibration) -> Scenario:
    """The cell as a scenario."""
    load = WORKLOADS[cell["workload"]]
    ring = cell["exchange"] == "gloo"
    network = _network(ring)
    jobs: list[dict[str, Any]] = []
    slow: list[dict[str, Any]] = []
    for job in cell["jobs"]:
        servers = list(job["servers"])
        by_server_s = [calibration.compute_s(server) for server in servers]
        if cell["stragglers"] == "help":
            by_server_s = [calibration.helped_s(job["servers"])] * len(servers)
        inside_s = calibration.inside_s(ring, len(servers))
        by_server_s = [each_s + inside_s for each_s in by_server_s]
        compute_s = min(by_server_s)
        size = load.gradient_bytes
        if ring and len(servers) > 1:
            ranks, flows = job["gpus"], len(servers)
            size = round(size * (1 - 1 / ranks) / (1 - 1 / flows))
        jobs.append(
            {
                "name": job["name"],
                "workers": len(servers),
                "hosts": [SERVERS.index(server) for server in servers],
                "iterations": job["steps"],
                "arrival": job["trains_at_s"],
                "size": size,
                "layers": 1,
                "ratio": size * 8 / network["rate"] / compute_s,
                "overlap": "ddp",
                "jitter": JITTER,
            }
        )
        slow += [
            {"job": job["name"], "worker": worker, "factor": each_s / compute_s}
            for worker, each_s in enumerate(by_server_s)
            if each_s > compute_s
        ]
    faults: dict[str, Any] = {"slow": slow}
    if load.background:
        rate = load.background_bps * network["rate"] / parse_rate_bps(RATE)
        faults["other_traffic"] = [
            {"host": 0, "rate": rate, "direction": direction} for direction in ("to", "from")
        ]
    return Scenario.model_validate(
        {
            "name": "live",
            "horizon": "9000 s",
            "network": network,
            **({"transport": LINUX_TIMERS} if ring else agent_tables(MTU, _slots())),
            "faults": faults,
            "job": jobs,
        }
    )


def _network(ring: bool) -> dict[str, Any]:
    """Links that carry as much gradient a second as the emulated ones do."""
    elements = (MTU - IP_TCP_BYTES) // 4 if ring else elements_for(MTU)
    frame = MTU + ETHERNET_BYTES if ring else HEADER_BYTES + 4 * elements + IP_UDP_BYTES + ETHERNET_BYTES
    counted = (HEADER_BYTES + ENVELOPE_BYTES + 4 * elements) / frame
    found = {
        "hosts": len(SERVERS),
        "rate": parse_rate_bps(RATE) * counted,
        "delay": DELAY,
        "queue": QUEUE_BYTES,
        "elements": elements,
    }
    # Token buckets mark nothing.
    return {**found, "burst": BURST_BYTES, "ecn": "100 MB"}


def _slots() -> int:
    """Aggregators of the switch of every cell."""
    return parse_size_bytes(SWITCH_MEMORY) // (4 * elements_for(MTU) + AGGREGATOR.itemsize)


def agent_tables(mtu: int, slots: int) -> dict[str, Any]:
    """What a scenario says of hosts, switch, transport and custodians where live agents and switches run."""
    window = AgentConfig.window_bytes // (4 * elements_for(mtu) + HEADER_BYTES)
    return {
        "hosts": HOSTS,
        "switch": {"slots": slots, "stale": "100 ms"},
        "transport": {
            "queue_target": f"{QUEUE_NS} ns",
            "window": window,
            "window_start": AgentConfig.window_start,
            "rto_min": f"{setup.RTO_MIN_NS} ns",
            "rto_max": f"{setup.RTO_MAX_NS} ns",
            "rto_start": f"{setup.RTO_START_NS} ns",
            "reorder_chunks": setup.REORDER_CHUNKS,
            "reorder_rtts": 2.0,
            "resends_max": 1_000_000,
            "increase": max(1.0, window / 64),
            # Agents ask, whatever the switch does.
            "recovery": "ask",
        },
        "custodians": {
            "placement": "workers",
            "patience": f"{setup.PATIENCE_MIN_NS} ns",
            "patience_max": f"{setup.PATIENCE_MAX_NS} ns",
            "patience_rtts": setup.PATIENCE_RTTS,
            "eager": True,
        },
    }
