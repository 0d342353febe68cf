"""One small scenario under every policy, and one with help, as data: to be compared between ways to run the core.

    python -m tests.sim.modes

prints everything the runs report, but for wall-clock time, as JSON.
"""

import json
from typing import Any

from paceline.compile.decorators import bounds_checked, interpreted
from paceline.sim.run import simulate
from paceline.sim.scenario import POLICIES
from tests.sim.help.scenes import dying, helped, slow
from tests.sim.scenes import facts, job, scene

SCENARIO = scene(
    job(workers=3, size=8_000, layers=2, jitter=0.5),
    job(name="b", workers=2, size=4_000, layers=2, arrival="3 us"),
    network={"topology": "leaf-spine", "leaves": 2, "placement": "spread", "elements": 64},
    switch={"slots": 6},
    transport={"window": 8},
    faults={
        "loss": 0.03,
        "duplicate": 0.03,
        "reorder": 0.03,
        "switch_dies": [{"time": "60 us", "switch": 1}],
    },
)


HELPED = helped("both", faults={**slow(2), **dying((1, 50))})


def outcomes() -> dict[str, Any]:
    """By policy; as JSON would give them back. SwitchML, which cannot go on, runs into its resends."""
    runs = {policy: facts(simulate(SCENARIO, policy, check=True)) for policy in POLICIES}
    runs["helped"] = facts(simulate(HELPED, "esa", check=True))
    plain: dict[str, Any] = json.loads(json.dumps(runs))
    return plain


if __name__ == "__main__":
    modes = {"interpreted": interpreted(), "bounds_checked": bounds_checked()}
    print(json.dumps({"modes": modes, "outcomes": outcomes()}))
