"""Drill files: what they say, and a mistake in one line that names the place."""

from pathlib import Path

import pytest

from paceline.drill.outcome import DrillOutcome
from paceline.drill.plan import SWITCH, load_drill
from paceline.errors import UserError
from tests.docs.pages import ROOT

DRILLS = sorted((ROOT / "examples/drills").glob("*.toml"))


def test_there_are_fifty_and_all_are_sound() -> None:
    drills = [load_drill(path) for path in DRILLS]
    assert len(drills) == 50
    assert len({drill.name for drill in drills}) == 50
    assert {fault.action for drill in drills for fault in drill.fault} == {
        "kill", "stop", "cut", "narrow", "lose", "slow",
    }  # fmt: skip
    assert sum(drill.attack == 5 for drill in drills) == 3


def _drill(tmp_path: Path, fault: str, more: str = "") -> Path:
    path = tmp_path / "x.toml"
    path.write_text(f'name = "x"\n{more}\n[[fault]]\n{fault}\n')
    return path


def test_defaults_and_units(tmp_path: Path) -> None:
    drill = load_drill(_drill(tmp_path, 'at = "1 s"\naction = "kill"\nfor = "250 ms"'))
    (fault,) = drill.fault
    assert (fault.target, fault.at, fault.duration) == (SWITCH, 10**9, 250_000_000)
    assert (drill.bound, drill.standstill_ns()) == (2 * 10**9, 0)
    stopped = load_drill(_drill(tmp_path, 'step = 5\naction = "stop"\nwhat = "worker 2"\nfor = "1 s"'))
    assert (stopped.fault[0].target, stopped.standstill_ns()) == (2, 10**9)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ('action = "kill"', "either 'at' (a time) or 'step' (a number)"),
        ('at = "1 s"\nstep = 3\naction = "kill"', "either 'at' (a time) or 'step' (a number)"),
        ('at = "1 s"\naction = "kill"\nwhat = "worker 1"', "kill strikes the switch"),
        ('at = "1 s"\naction = "cut"', "cut strikes a worker"),
        ('at = "1 s"\naction = "stop"\nwhat = "worker 7"', "there is no worker 7: there are 3 workers"),
        ('step = 999\naction = "stop"', "there is no step 999: there are 300 steps"),
        ('at = "1 s"\naction = "burn"', "action"),
        ('at = "1 s"\naction = "stop"\nwhat = "everything"', "what"),
        ('at = "1 s"\naction = "stop"\nfro = "1 s"', "unknown key 'fault.0.fro'"),
        ('at = "soon"\naction = "stop"', "soon"),
        ('at = "1 s"\naction = "lose"\nprobability = 2', "probability"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, fault: str, told: str) -> None:
    with pytest.raises(UserError) as refused:
        load_drill(_drill(tmp_path, fault))
    assert told in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "x.toml"))
    assert "\n" not in str(refused.value)


def test_a_verdict_says_what_is_wrong() -> None:
    good = DrillOutcome("x", "sim", 10, 10, 30, 0, 0.5, 2.0)
    assert good.passed
    assert good.why() == "ok"
    bad = DrillOutcome("x", "sim", 9, 10, 30, 1, 2.5, 2.0)
    assert not bad.passed
    assert bad.why() == "1 of 30 sums wrong; 9 of 10 steps; stood still for 2.50 s, allowed 2.00 s"
    assert not DrillOutcome("x", "sim", 10, 10, 0, 0, 0.0, 2.0).passed, "nothing was compared"
    elsewhere = DrillOutcome("x", "loopback", 10, 10, 30, 0, 0.5, 2.0, notes=["began without the switch"])
    assert (elsewhere.passed, elsewhere.why()) == (False, "began without the switch")
    assert not DrillOutcome("x", "sim", 0, 10, 0, 0, 0.0, 2.0, skipped="no root").passed
