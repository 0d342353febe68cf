"""Thousands of runs of a job that helps its stragglers, on a network at its worst: does each end, is each sum exact?

    python -m tests.properties.custody [--runs 5000] [--first 0] [--processes 2]

25 % loss, 15 % duplication, any order; custodians that lose their state, roles that change, deaths of helpers,
stragglers, leaders and switches at random times; every policy that has custodians, one rack and two; custody, takeover
and both. A run ends well if every living worker holds every result, bit for bit, or if nobody is left who could carry
the part of the dead, and the error says who is missing. Exit code 1 if a run ended otherwise, with its seed.
"""

import argparse
import multiprocessing
import sys
import time
from collections import Counter

from tests.properties.wild import Wild

POLICIES = ("atp", "esa", "esa-plus", "never", "always-preempt", "coin-flip")
MODES = ("both", "custody", "takeover")


def wild(seed: int, rules: str = "") -> Wild:
    """The run of a seed: everything follows from it."""
    return Wild(seed, POLICIES[seed % 6], 1 + seed // 6 % 2, MODES[seed // 12 % 3], rules)


def outcome(seed: int, check_every: int = 0) -> tuple[int, str, dict[str, int]]:
    """How the run of a seed ended, and what had befallen it."""
    run = wild(seed)
    verdict = run.run(check_every)
    return seed, verdict, {**run.tally, "steps": run.steps, "results": sum(len(held) for held in run.results)}


def is_good(verdict: str) -> bool:
    """Exact everywhere, or an error that says who is missing."""
    return verdict == "ok" or verdict.startswith("missing: ")


def main() -> None:
    parser = argparse.ArgumentParser(description="Is every sum exact, whoever straggles, dies or forgets?")
    parser.add_argument("--runs", type=int, default=5_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    began = time.monotonic()
    ends: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    bad = []
    outcome(options.first)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        seeds = range(options.first, options.first + options.runs)
        for done, (seed, verdict, tally) in enumerate(pool.imap_unordered(outcome, seeds, chunksize=20), 1):
            ends[verdict.split(":")[0]] += 1
            sums.update(tally)
            if not is_good(verdict):
                bad.append(f"seed {seed}: {verdict}")
                print(bad[-1], file=sys.stderr, flush=True)
            if done % 500 == 0:
                print(f"{done} runs, {len(bad)} bad, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{options.runs} runs in {time.monotonic() - began:.0f} s: {dict(ends)}; {dict(sums)}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
