"""Every policy, star and leaf-spine, under 2 % loss, 2 % duplication and 2 % reordering: is every sum exact?

Seeds vary what makes such runs hard: hardly any memory, windows above and below it, few or more workers,
custodians on hosts of their own, on one for all jobs or on the workers, with copies of results or without, links with
classes of priority or without, senders that mind queues and memory or not, one or two upper switches.

    python -m tests.properties.exactness [--seeds 200] [--first 0] [--policy NAME ...]

prints a table with a row for each policy and topology; exit code 1 if any run was not exact, with the seeds.
"""

import argparse
import sys
import time
from collections.abc import Iterable

from paceline.sim.results import RunResult
from paceline.sim.run import simulate
from paceline.sim.scenario import POLICIES, Scenario

TOPOLOGIES = ("star", "leaf-spine")


def scenario_of(seed: int, topology: str) -> Scenario:
    """Two jobs on a bad network; everything follows from the seed."""
    return Scenario.model_validate(
        {
            "name": f"exactness {seed}",
            "seed": seed,
            "horizon": "100 s",
            "network": {
                "topology": topology,
                "elements": 64,
                "leaves": 3,
                "uppers": 1 + seed % 2,
                "placement": "spread",
            },
            "switch": {
                "slots": 4 + seed * 7 % 41,
                "relay": seed % 5 == 4,
                "copies": seed % 3 != 2,
                "classes": (8, 1)[seed // 5 % 2],
            },
            "transport": {
                "window": 32 * (1 + seed % 3),
                "queue_target": ("0 us", "20 us")[seed // 6 % 2],
            },
            "custodians": {
                "placement": "shared"
                if topology == "star" and seed % 8 == 5
                else ("dedicated", "workers")[seed // 2 % 2],
                "per_job": 1 + seed // 4 % 2,
            },
            "job": [
                {"name": "a", "workers": 3 + seed % 4, "size": 20_000, "layers": 3, "jitter": 0.1},
                {"name": "b", "workers": 3 + seed // 3 % 4, "size": 20_000, "layers": 3, "jitter": 0.1},
            ],
            "faults": {"loss": 0.02, "duplicate": 0.02, "reorder": 0.02},
        }
    )


def run_one(policy: str, topology: str, seed: int) -> RunResult:
    """One checked run."""
    return simulate(scenario_of(seed, topology), policy, check=True)


def what_is_wrong(result: RunResult) -> str:
    """Empty for an exact run under faults that did strike."""
    if result.failed:
        return result.failed
    if not result.exact:
        return f"{result.wrong} of {result.checked} sums were wrong"
    if not result.transport["lost"] + result.transport["duplicated"] + result.transport["reordered"]:
        return "no fault struck"
    return ""


def _row(policy: str, topology: str, seeds: Iterable[int]) -> tuple[str, list[str]]:
    started = time.perf_counter()
    runs = checked = lost = duplicated = reordered = preempted = resent = 0
    wrong = []
    for seed in seeds:
        result = run_one(policy, topology, seed)
        runs += 1
        checked += result.checked
        lost += result.transport["lost"]
        duplicated += result.transport["duplicated"]
        reordered += result.transport["reordered"]
        preempted += int(result.switch["preemptions"])
        resent += result.transport["resent"]
        if reason := what_is_wrong(result):
            wrong.append(f"{policy}, {topology}, seed {seed}: {reason}")
    seconds = time.perf_counter() - started
    text = (
        f"{policy:<15} {topology:<10} {runs:>5} {runs - len(wrong):>6} {checked:>11,} {lost:>8,} "
        f"{duplicated:>10,} {reordered:>9,} {preempted:>11,} {resent:>9,} {seconds:>6.1f} s"
    )
    return text, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description="Is every sum exact, under every policy, on a bad network?")
    parser.add_argument("--seeds", type=int, default=200, help="seeds for each policy and topology")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="by default all; repeat")
    options = parser.parse_args()
    print(
        f"{'policy':<15} {'topology':<10} {'runs':>5} {'exact':>6} {'sums':>11} {'lost':>8} "
        f"{'duplicated':>10} {'reordered':>9} {'preemptions':>11} {'resent':>9} {'time':>8}"
    )
    wrong: list[str] = []
    for policy in options.policy or POLICIES:
        for topology in TOPOLOGIES:
            text, failures = _row(policy, topology, range(options.first, options.first + options.seeds))
            print(text, flush=True)
            wrong += failures
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
