"""The live data plane gives the same bytes in every run: `python -m benchmarks.exactness_live [--runs 100]`.

Each run is a new switch with its own seed, which loses, doubles and delays packets, few aggregators, and a new job.
Every policy's result is compared, byte for byte, with that of custodians alone on a network without faults. With
`--wire 16` the tensors are of bfloat16, and travel in the 16-bit form.
"""

import argparse
import hashlib
import sys
import time
from typing import Any

import numpy as np

from paceline.core.numbers.layout import WIRES
from paceline.live.switch.daemon import LIVE_POLICIES
from tests.core.numbers.reduction import to_bfloat16
from tests.live.agents import job_of, running_switch

WORKERS = 4
NUMBERS = 60_000


def _tensors(wire: int) -> list[Any]:
    rng = np.random.default_rng(2026)
    tensors = [rng.standard_normal(NUMBERS).astype(np.float32) for _ in range(WORKERS)]
    return [to_bfloat16(tensor) for tensor in tensors] if wire == 16 else tensors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="runs of each policy")
    parser.add_argument("--faults", type=float, default=0.02, help="probability of each fault")
    parser.add_argument("--wire", type=int, default=32, choices=WIRES, help="bits of a number on the wire")
    options = parser.parse_args()
    dtype = "bfloat16" if options.wire == 16 else "float32"
    form = {"dtype": dtype, "wire": options.wire}
    with job_of(WORKERS, None) as job:
        expected = hashlib.sha256(job.reduce(_tensors(options.wire), **form)[0].tobytes()).hexdigest()
    print(f"expected {expected[:16]}, {WORKERS} workers, {NUMBERS} {dtype}, faults {options.faults}")
    wrong = 0
    for policy in LIVE_POLICIES:
        began = time.perf_counter()
        seen: dict[str, int] = {}
        resent = on_switch = 0
        for run in range(options.runs):
            faults = dict.fromkeys(("drop", "duplicate", "reorder"), options.faults)
            with (
                running_switch(policy=policy, memory_bytes=200_000, seed=run, **faults) as switch,
                job_of(WORKERS, switch, silence_s=10.0, linger_s=2.0) as job,
            ):
                for result in job.reduce(_tensors(options.wire), **form):
                    digest = hashlib.sha256(result.tobytes()).hexdigest()
                    seen[digest] = seen.get(digest, 0) + 1
                shown = [agent.status() for agent in job.agents]
                resent += sum(agent["counters"]["resent"] for agent in shown)
                on_switch += all(agent["path"] == "switch" for agent in shown)
        # Runs without a loss to mend, or that left the switch, would prove nothing.
        right = seen == {expected: WORKERS * options.runs} and resent > 0 and on_switch > 0
        wrong += not right
        verdict = "all the same" if right else f"WRONG: {seen}"
        took_s = time.perf_counter() - began
        print(
            f"{policy:15} {options.runs} runs: {verdict}; {resent} packets sent again, "
            f"{on_switch} runs on the switch to the end ({took_s:.0f} s)",
            flush=True,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
