"""Scenarios drawn by a seed, one for each policy, and a digest of all that they leave behind, values included.

    python -m tests.core.replay SEED ...

prints the digests as JSON, with the mode that the core ran in.
"""

import hashlib
import json
import random
import sys
from typing import Any

import numpy as np

from paceline.compile.decorators import bounds_checked, interpreted
from paceline.core.switch.memory import POLICIES
from tests.core.star import Faults, Job, Star


def scenario(policy: str, seed: int) -> Star:
    """Up to three racks and four jobs, few aggregators, and every fault."""
    draw = random.Random(seed)
    racks = draw.randint(1, 3)
    jobs = [
        Job(
            tuple(draw.randrange(racks) for _ in range(draw.randint(2, 5))),
            draw.randint(6, 16),
            draw.choice((20, 60, 120, 200)),
            dedicated=draw.randint(0, 1),
        )
        for _ in range(draw.randint(2, 4))
    ]
    faults = Faults(0.08 * draw.random(), 0.08 * draw.random(), 0.3 * draw.random())
    # SwitchML needs two aggregators a job.
    inquires = draw.random() < 0.8
    slots = draw.randint(8, 12)
    return Star(policy, jobs, slots=slots, racks=racks, seed=seed, faults=faults, inquires=inquires)


def _fields(records: Any) -> list[Any]:
    """The columns of records: a record's padding says nothing."""
    return [records[name] for name in records.dtype.names] if records.dtype.names else [records]


def digest(star: Star) -> dict[str, Any]:
    """What a run has come to: its time, its steps, a hash of every array of the core and of all results."""
    hashed = hashlib.sha256()
    for group in (star.switch, star.switch.memory, star.senders, star.custodians):
        for part in group:
            if isinstance(part, np.ndarray):
                for column in _fields(part):
                    hashed.update(np.ascontiguousarray(column).tobytes())
    for results in star.results:
        for chunk in sorted(results):
            hashed.update(np.int64(chunk).tobytes() + results[chunk].tobytes())
    return {"now_ns": star.now_ns, "steps": star.steps, "counts": star.counts, "hash": hashed.hexdigest()}


def replay(seeds: list[int]) -> dict[str, Any]:
    """Run the scenarios of these seeds under every policy."""
    digests: dict[str, Any] = {}
    for seed in seeds:
        for policy in POLICIES:
            star = scenario(policy, seed)
            violations = star.run()
            assert violations == [], (seed, policy, violations)
            digests[f"{policy}, seed {seed}"] = digest(star)
    return digests


if __name__ == "__main__":
    mode = {"interpreted": interpreted(), "bounds_checked": bounds_checked()}
    print(json.dumps({**mode, "digests": replay([int(seed) for seed in sys.argv[1:]])}))
