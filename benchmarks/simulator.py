"""How fast the packet simulator is: forwarded packets a second, beside ns-3's on the same star, in one run.

A star of 64 hosts at 100 Gbit/s with packets of 1000 bytes (header and payload), one job over all hosts,
memory enough: the full protocol runs, with windows, timers, aggregation and congestion control. Warm, on one
core, the best of three. ns-3 forwards packets of the same size through its UDP/IP stack (`benchmarks.ns3`);
where it is not installed its figures are null.

    python -m benchmarks.simulator [--json FILE|-] [--hosts 64] [--startup] [--leaf-spine 64,256,1024,2048]

`--leaf-spine` measures networks of so many hosts instead: jobs of 64 workers, two racks each, under `esa`.

`--startup` also measures, in processes of their own, the first run of `paceline simulate` with nothing
compiled yet and the second run after it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import ns3
from paceline.compile.sources import SourceTree
from paceline.core.wire import HEADER_BYTES
from paceline.sim.engine import loop as engine
from paceline.sim.results import RunResult
from paceline.sim.run import simulate
from paceline.sim.scenario import Scenario

PACKET_BYTES = 1000
POLICIES = ("esa", "atp", "switchml")
ROUNDS = 3
NS3_PACKETS = 200_000
SIZE_BYTES = 16_000_000
RACK_HOSTS = 32
LEAF_SPINE_BYTES = 800_000_000
_EXAMPLE = Path(__file__).resolve().parent.parent / "examples/simulate/quick.toml"


def star(hosts: int, size_bytes: int) -> Scenario:
    """One job over all hosts of a star, two iterations, memory for every window."""
    return Scenario.model_validate(
        {
            "name": f"star of {hosts}",
            "network": {
                "rate": "100 Gbit/s",
                "hosts": hosts,
                "elements": (PACKET_BYTES - HEADER_BYTES) // 4,
            },
            "switch": {"slots": 4096},
            "job": [{"workers": hosts, "iterations": 2, "size": size_bytes, "layers": 4}],
        }
    )


def leaf_spine(hosts: int) -> Scenario:
    """Racks of 32 hosts under four upper switches, a job of 64 workers for every two of them."""
    return Scenario.model_validate(
        {
            "name": f"leaf-spine of {hosts}",
            "network": {
                "topology": "leaf-spine",
                "rate": "100 Gbit/s",
                "hosts": hosts,
                "leaves": hosts // RACK_HOSTS,
                "uppers": 4,
                "elements": (PACKET_BYTES - HEADER_BYTES) // 4,
            },
            "switch": {"slots": 4096},
            "job": [
                {
                    "workers": 2 * RACK_HOSTS,
                    "copies": hosts // (2 * RACK_HOSTS),
                    "iterations": 2,
                    "size": LEAF_SPINE_BYTES // hosts,
                    "layers": 4,
                }
            ],
        }
    )


def measure_leaf_spines(sizes: list[int]) -> dict[str, Any]:
    """Our figures by the number of hosts."""
    return {str(hosts): _best_of(leaf_spine(hosts), "esa") for hosts in sizes}


def measure(hosts: int) -> dict[str, Any]:
    """Our figures by policy, ns-3's, and the ratio."""
    rows = {policy: _best(hosts, policy) for policy in POLICIES}
    peer = ns3.measure(hosts=hosts, packets=NS3_PACKETS)
    ours = rows["esa"]["packets_per_s"]
    udp = peer["udp"]["packets_per_s"] if peer else None
    bare = peer["bare"]["packets_per_s"] if peer else None
    return {
        "hosts": hosts,
        "packet_bytes": PACKET_BYTES,
        "packets_per_s": ours,
        "events_per_s": rows["esa"]["events_per_s"],
        "ns3_packets_per_s": udp,
        "ratio_to_ns3": ours / udp if udp else None,
        "ns3_bare_packets_per_s": bare,
        "ratio_to_ns3_bare": ours / bare if bare else None,
        "policies": rows,
    }


def _best(hosts: int, policy: str) -> dict[str, Any]:
    _finished(simulate(star(hosts, 100_000), policy))
    return _best_of(star(hosts, SIZE_BYTES), policy)


def _best_of(scenario: Scenario, policy: str) -> dict[str, Any]:
    runs = [_finished(simulate(scenario, policy)) for _ in range(ROUNDS)]
    best = min(runs, key=lambda run: run.wall_s)
    return {
        "packets_per_s": best.packets / best.wall_s,
        "events_per_s": best.events / best.wall_s,
        "packets": best.packets,
        "events": best.events,
        "wall_s": best.wall_s,
        "simulated_s": best.makespan_s,
    }


def _finished(result: RunResult) -> RunResult:
    if result.failed:
        raise RuntimeError(f"{result.policy} did not finish: {result.failed}")
    return result


def measure_startup() -> dict[str, float]:
    """Seconds of a whole `paceline simulate` process: with nothing compiled, and with everything."""
    code = "from paceline.cli import main; main()"
    command = [sys.executable, "-c", code, "simulate", str(_EXAMPLE), "--policy", "esa", "--json", os.devnull]
    loop = Path(engine.__file__).resolve()
    sources = SourceTree().key(loop)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PACELINE_CACHE": folder}
        seconds = []
        for _ in range(2):
            started = time.perf_counter()
            subprocess.run(command, env=environment, check=True, capture_output=True, timeout=600)
            seconds.append(time.perf_counter() - started)
    if SourceTree().key(loop) != sources:
        raise RuntimeError("the sources were edited meanwhile, so that both starts were cold; measure again")
    return {"cold_start_s": seconds[0], "warm_start_s": seconds[1]}


def show(figures: dict[str, Any]) -> None:
    """The figures as lines for people."""
    print(
        f"star of {figures['hosts']}, packets of {figures['packet_bytes']} bytes, one core, best of {ROUNDS}"
    )
    for policy, row in figures["policies"].items():
        packets, events = row["packets_per_s"] / 1e6, row["events_per_s"] / 1e6
        print(f"  {policy:<10} {packets:6.2f} M forwarded packets/s {events:6.2f} M events/s")
    if figures["ns3_packets_per_s"] is None:
        print("  ns-3       not measured here")
    else:
        for name, key, ratio in (
            ("ns-3 udp", "ns3_packets_per_s", "ratio_to_ns3"),
            ("ns-3 bare", "ns3_bare_packets_per_s", "ratio_to_ns3_bare"),
        ):
            rate = figures[key] / 1e6
            print(
                f"  {name:<10} {rate:6.3f} M forwarded packets/s; esa is {figures[ratio]:.0f} times as fast"
            )
    if "cold_start_s" in figures:
        cold, warm = figures["cold_start_s"], figures["warm_start_s"]
        print(f"  paceline simulate: {cold:.1f} s with nothing compiled, {warm:.1f} s after that")


def main() -> None:
    parser = argparse.ArgumentParser(description="Forwarded packets a second of the simulator, and of ns-3.")
    parser.add_argument("--json", metavar="FILE|-", help="write the figures as JSON; - is stdout, alone")
    parser.add_argument("--hosts", type=int, default=64, help="of the star, 2 to 64")
    parser.add_argument(
        "--startup", action="store_true", help="measure the command's cold and warm start too"
    )
    parser.add_argument(
        "--leaf-spine",
        metavar="HOSTS,...",
        default="",
        help="measure leaf-spines of so many hosts instead, multiples of 64 up to 2048",
    )
    options = parser.parse_args()
    if options.leaf_spine:
        sizes = [int(hosts) for hosts in options.leaf_spine.split(",")]
        if any(hosts % (2 * RACK_HOSTS) or not 0 < hosts <= 64 * RACK_HOSTS for hosts in sizes):
            parser.error("a leaf-spine has 64, 128, ... 2048 hosts")
        for hosts, row in measure_leaf_spines(sizes).items():
            rate, events = row["packets_per_s"] / 1e6, row["events_per_s"] / 1e6
            print(f"{hosts:>6} hosts {rate:6.2f} M forwarded packets/s {events:6.2f} M events/s")
        return
    if not 2 <= options.hosts <= 64:
        parser.error("a star has 2 to 64 hosts")
    figures = measure(options.hosts)
    if options.startup:
        figures |= measure_startup()
    if options.json == "-":
        print(json.dumps(figures, indent=1))
        return
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    show(figures)


if __name__ == "__main__":
    main()
