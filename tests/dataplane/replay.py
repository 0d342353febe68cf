"""One fixed scenario for each policy, and a digest of all that it leaves behind.

    python -m tests.dataplane.replay

prints the digests as JSON, with the mode that the core ran in.
"""

import hashlib
import json
from typing import Any

import numpy as np

from paceline.dataplane.compiled import bounds_checked, interpreted
from paceline.dataplane.memory import POLICIES
from tests.dataplane.star import Faults, Job, Star


def scenario(policy: str) -> Star:
    """Three racks, three jobs, few aggregators, and every fault."""
    jobs = [Job((0, 1, 1, 2), 14, 120), Job((2, 2, 2), 14, 60), Job((0, 1), 10, 200, dedicated=1)]
    return Star(policy, jobs, slots=6, racks=3, seed=11, faults=Faults(0.06, 0.06, 0.2))


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


def replay() -> dict[str, Any]:
    """Run the scenario under every policy."""
    digests: dict[str, Any] = {}
    for policy in POLICIES:
        star = scenario(policy)
        violations = star.run()
        assert violations == [], violations
        digests[policy] = digest(star)
    return digests


if __name__ == "__main__":
    mode = {"interpreted": interpreted(), "bounds_checked": bounds_checked()}
    print(json.dumps({**mode, "digests": replay()}))
