"""Compiled, interpreted and bounds-checked runs of random scenarios end in the same state, bit for bit."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.core.switch.program import PREEMPTIONS
from tests.core.replay import digest, replay, scenario

SEEDS = [11, 12, 13, random.randrange(1 << 32)]
"""The last one is new each time; a failure tells it."""
ROOT = Path(__file__).parents[2]
MODES = {
    "interpreted": {"NUMBA_DISABLE_JIT": "1"},
    "bounds_checked": {"NUMBA_BOUNDSCHECK": "1"},
}


@pytest.fixture(scope="module")
def others() -> dict[str, Any]:
    """What the scenario gives in the other modes, in processes of their own."""
    command = [sys.executable, "-W", "error", "-m", "tests.core.replay", *map(str, SEEDS)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    started = {
        mode: subprocess.Popen(
            command, cwd=ROOT, env={**clean, **variables}, stdout=subprocess.PIPE, text=True
        )
        for mode, variables in MODES.items()
    }
    return {mode: json.loads(process.communicate(timeout=300)[0]) for mode, process in started.items()}


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    return replay(SEEDS)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_ends_in_the_same_state(mode: str, others: dict[str, Any], here: dict[str, Any]) -> None:
    assert [name for name in MODES if others[mode][name]] == [mode], "the mode was not the one asked for"
    assert others[mode]["digests"] == here


def test_the_scenarios_are_worth_comparing(here: dict[str, Any]) -> None:
    """Values are exchanged in them: aggregators are taken from others, and results are compared."""
    assert len({outcome["hash"] for outcome in here.values()}) == len(here)
    star = scenario("esa", SEEDS[0])
    star.run()
    assert star.switch.counters[:, :, PREEMPTIONS].sum() > 0
    assert star.switch.memory.values.shape[1] > 0


def test_a_digest_notices_one_bit() -> None:
    star = scenario("esa", 11)
    for _ in range(50):
        star.step()
    before = digest(star)
    star.custodians.values[0, 0, 0] ^= 1
    assert digest(star)["hash"] != before["hash"]
