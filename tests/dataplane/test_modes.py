"""Compiled, interpreted and bounds-checked runs of one scenario end in the same state, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.replay import digest, replay, scenario

ROOT = Path(__file__).parents[2]
MODES = {
    "interpreted": {"NUMBA_DISABLE_JIT": "1"},
    "bounds_checked": {"NUMBA_BOUNDSCHECK": "1"},
}


@pytest.fixture(scope="module")
def others() -> dict[str, Any]:
    """What the scenario gives in the other modes, in processes of their own."""
    command = [sys.executable, "-W", "error", "-m", "tests.dataplane.replay"]
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
    return replay()


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_ends_in_the_same_state(mode: str, others: dict[str, Any], here: dict[str, Any]) -> None:
    assert [name for name in MODES if others[mode][name]] == [mode], "the mode was not the one asked for"
    assert others[mode]["digests"] == here


def test_a_digest_notices_one_bit() -> None:
    star = scenario("esa")
    for _ in range(50):
        star.step()
    before = digest(star)
    star.custodians.values[0, 0, 0] ^= 1
    assert digest(star)["hash"] != before["hash"]
