"""Ten drills in both worlds: sums keep their bits and no step is lost. How long it took is told, not asserted here."""

import os
import shutil
from collections.abc import Iterator

import pytest

from paceline.drill.in_live import run_live
from paceline.drill.in_simulator import run_in_simulator
from paceline.drill.live_bed import LiveBed, live_bed
from paceline.drill.plan import Drill, load_drill
from tests.drill.test_plan import DRILLS

TEN = [load_drill(path) for path in DRILLS if not path.name.startswith("family")]
NAMES = [drill.name for drill in TEN]
IN_NAMESPACES = os.geteuid() == 0 and shutil.which("ip") is not None and shutil.which("tc") is not None


@pytest.mark.parametrize("drill", TEN, ids=NAMES)
def test_in_the_simulator(drill: Drill) -> None:
    short = drill.model_copy(update={"elements": 2000, "pace": 20_000_000, "steps": 100})
    outcome = run_in_simulator(short)
    assert outcome.passed, outcome.why()


@pytest.fixture(scope="module")
def bed() -> Iterator[LiveBed]:
    with live_bed(3, loopback=not IN_NAMESPACES) as made:
        yield made


def test_a_training_goes_on_too() -> None:
    pytest.importorskip("torch")
    drill = next(drill for drill in TEN if drill.name == "switch killed")
    with live_bed(2, loopback=not IN_NAMESPACES, ddp=True) as trained:
        outcome = run_live(drill, trained)
    assert outcome.sums_are_right, outcome.why()
    assert outcome.is_complete, outcome.why()


@pytest.mark.parametrize("drill", TEN, ids=NAMES)
def test_live(drill: Drill, bed: LiveBed) -> None:
    outcome = run_live(drill, bed)
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    assert outcome.sums_are_right, outcome.why()
    assert outcome.is_complete, outcome.why()
