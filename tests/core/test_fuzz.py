"""A part of the fuzzing run, and proof that the fuzzer notices what it is there to notice."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.core import wire
from paceline.core.switch import program as sw
from paceline.core.switch.memory import POLICIES
from tests.core import fuzz
from tests.core.headers import header

ROOT = Path(__file__).parents[2]


def run(packets: int, seed: int) -> dict[str, Any]:
    command = [sys.executable, "-W", "error", "-m", "tests.core.fuzz"]
    done = subprocess.run(
        [*command, "--packets", str(packets), "--seed", str(seed)],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_five_thousand_hostile_packets_harm_nobody() -> None:
    counts = run(5_000, 5)["counts"]
    outcomes = [name for name in counts if name.startswith(("error", "refused", "switch: "))]
    assert {f"error: {name}" for name in wire.ERROR_NAMES[1:]} <= set(outcomes)
    assert counts["esa: another job's priority halved"] > 0
    reached = {"completions", "preemptions", "fallbacks", "downgrades", "flushes", "reminders", "duplicates"}
    assert {f"switch counter: {name}" for name in reached} <= set(counts)


def test_a_seed_repeats_its_run() -> None:
    assert run(500, 3)["counts"] == run(500, 3)["counts"]


@pytest.fixture
def world() -> fuzz.World:
    return fuzz.World("atp", 1)


def hostile(**fields: Any) -> bytes:
    return wire.encode(header(job=fuzz.HOSTILE, count=fuzz.WIDTH, index=fuzz.OTHERS_FIRST, **fields))


def arrive(world: fuzz.World, data: bytes) -> None:
    world.take(np.frombuffer(data, dtype=np.uint8), 0, 0)


def test_the_fuzzer_notices_a_foreign_sum_that_changes(world: fuzz.World) -> None:
    arrive(world, hostile())
    world.switch.memory.values[fuzz.OTHERS_FIRST, 0] += 1
    with pytest.raises(AssertionError):
        arrive(world, hostile())


def test_the_fuzzer_notices_a_preempted_job(world: fuzz.World) -> None:
    world.switch.config.policy = POLICIES["always-preempt"]
    with pytest.raises(AssertionError, match="another job's sum left"):
        arrive(world, hostile())


def test_the_fuzzer_notices_a_drop_without_a_reason(
    world: fuzz.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sw, "handle_packet", lambda *_: sw.DROPPED)
    with pytest.raises(AssertionError, match="0 reasons counted"):
        arrive(world, hostile())
