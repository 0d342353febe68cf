"""Compiled, interpreted and bounds-checked runs report the same, to the last bit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sim.modes import outcomes

ROOT = Path(__file__).parents[2]
MODES = {"interpreted": "NUMBA_DISABLE_JIT", "bounds_checked": "NUMBA_BOUNDSCHECK"}


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    return outcomes()


@pytest.fixture(scope="module")
def others() -> dict[str, Any]:
    """What each other way reports, in processes of their own, side by side."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    started = {
        mode: subprocess.Popen(
            [sys.executable, "-m", "tests.sim.modes"],
            cwd=ROOT,
            env={**clean, variable: "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for mode, variable in MODES.items()
    }
    return {mode: json.loads(process.communicate(timeout=600)[0]) for mode, process in started.items()}


@pytest.mark.parametrize("mode", MODES)
def test_every_way_to_run_the_core_reports_the_same(
    mode: str, others: dict[str, Any], compiled: dict[str, Any]
) -> None:
    assert [name for name, on in others[mode]["modes"].items() if on] == [mode]
    assert others[mode]["outcomes"] == compiled


def test_the_scenario_is_worth_comparing(compiled: dict[str, Any]) -> None:
    """Every kind of event happens in it."""
    assert compiled["esa"]["exact"] is True
    assert compiled["esa"]["switch"]["preemptions"] > 0
    assert compiled["atp"]["switch"]["fallbacks"] > 0
    assert compiled["ring"]["transport"]["resent"] > 0
    assert compiled["ps"]["transport"]["lost"] > 0
    assert "switch 1 died" in compiled["switchml"]["failed"]
    assert compiled["helped"]["exact"] is True
    assert compiled["helped"]["jobs"][0]["deaths"] == 1
