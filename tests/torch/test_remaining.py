"""The time a job has left, by the planner's latest word, and the priority that follows from it."""

import os
from pathlib import Path

from paceline.core.priority import priority
from paceline.torch.ddp import PriorityHook
from paceline.torch.remaining import LEAST_S, LOOK_S, Expected
from paceline.torch.settings import Settings, read_settings


def _tell(file: Path, remaining_s: float, at: float) -> None:
    file.write_text(f"{remaining_s:.3f}\n")
    os.utime(file, (at, at))


def test_nobody_has_told() -> None:
    assert Expected(Settings()).remaining_s() is None


def test_without_a_file_the_time_runs_down_from_the_start() -> None:
    now = [1000.0]
    expected = Expected(Settings(remaining_s=60), lambda: now[0])
    now[0] += 20
    assert expected.remaining_s() == 40
    now[0] += 1000
    assert expected.remaining_s() == LEAST_S, "a late job is not infinitely urgent"


def test_the_planners_word_counts_from_when_it_was_given_and_is_read_again(tmp_path: Path) -> None:
    now, file = [1000.0], tmp_path / "remaining_s"
    _tell(file, 100, at=990)
    expected = Expected(Settings(remaining_s=60, remaining_file=str(file)), lambda: now[0])
    assert expected.remaining_s() == 90, "written ten seconds ago"
    _tell(file, 30, at=1000)
    now[0] += LOOK_S
    assert expected.remaining_s() == 30 - LOOK_S
    file.unlink()
    now[0] += 9
    assert expected.remaining_s() == 30 - LOOK_S - 9, "what was known stays"
    file.write_text("nonsense")
    now[0] += 5
    assert expected.remaining_s() == 30 - LOOK_S - 14


def test_the_hook_follows_the_planner_until_it_is_told_otherwise(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "remaining_s"
    file.write_text("50\n")
    monkeypatch.setenv("PACELINE_REMAINING_S", "1000")
    monkeypatch.setenv("PACELINE_REMAINING_FILE", str(file))
    assert read_settings().remaining_file == str(file)
    hook = PriorityHook()
    assert 40 < hook.remaining_s() <= 50
    assert hook.priority_of(0, True) in {priority(s, 1.0, 0, 1) for s in range(40, 51)}
    hook.set_remaining(500)
    assert 490 < hook.remaining_s() <= 500
