"""Policies from outside: of the scheduler, and of the simulator's switch memory."""

import json
import sys
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.launch.replan import check_policy
from paceline.plugins import SCHEDULING, known
from paceline.schedule.policies import by_name
from tests.commands.command_line import paceline
from tests.launch.scenes import Scene

OWN = """
from paceline.schedule.policies.list_scheduling import ListScheduling

class Mine:
    name, online = "mine", False
    def __init__(self, seed=0):
        self.seed = seed
    def plan(self, problem, objective):
        return ListScheduling().plan(problem, objective)

class Nothing:
    name = "nothing"

class FewLayersFirst:
    base = "esa"
    def priority(self, remaining_s, comm_over_comp, layer, layers):
        return max(1, 255 - layer)

class TooMuch:
    base = "esa"
    def priority(self, remaining_s, comm_over_comp, layer, layers):
        return 256
"""
SCENARIO = (
    "[network]\nhosts = 2\n[switch]\nslots = 32\n[[job]]\nworkers = 2\niterations = 2\n"
    'size = "64 kB"\nratio = 1\n'
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_policies.py").write_text(OWN)
    (tmp_path / "s.toml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_policies", raising=False)
    return tmp_path


def test_a_scheduling_policy_of_ones_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = "ls,own_policies:Mine"
    arguments = ("plan", "--cluster", "paper:1:5", "--jobs", "paper:1", "--policy", policies, "--limit", "20")
    assert paceline(monkeypatch, *arguments, "--json") == 0
    ls, mine = json.loads(capsys.readouterr().out)["policies"]
    assert (ls["policy"], mine["policy"]) == ("ls", "mine")
    assert ls["makespan"] == mine["makespan"]


def test_a_run_by_a_policy_of_ones_own(folder: Path) -> None:
    from paceline.launch import run as launch
    from tests.launch.scenes import Quiet

    scene = Scene(folder / "scene", {"s0": 2}).job("a", 1, "true").job("b", 2, "true")
    launch.create(
        scene.jobs_file, str(scene.cluster_file), launch.RunRequest(policy="own_policies:Mine"), scene.run_dir
    )
    assert launch.go_on(scene.run_dir, Quiet()) == 0
    assert {row["policy"] for row in scene.rows("plans")} == {"mine"}


def test_an_entry_point_is_a_policy_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / "own_policies-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: own-policies\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[paceline.policies]\nbest = own_policies:Mine\n")
    monkeypatch.syspath_prepend(str(folder))
    assert known(SCHEDULING) == ["best"]
    assert by_name("best", seed=7).seed == 7  # type: ignore[attr-defined]
    check_policy("best")


def test_a_memory_policy_of_ones_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        paceline(monkeypatch, "simulate", "s.toml", "--policy", "esa,own_policies:FewLayersFirst", "--json")
        == 0
    )
    found = json.loads(capsys.readouterr().out)["policies"]
    assert list(found) == ["esa", "own_policies:FewLayersFirst"]
    assert paceline(monkeypatch, "simulate", "s.toml", "--policy", "own_policies:TooMuch") == 2
    assert "a priority of 256 is no integer from 0 to 255" in capsys.readouterr().err


def test_what_is_no_policy_is_said(folder: Path) -> None:
    for name, message in (
        ("own_policies:Nothing", "is no policy: it has no online, plan"),
        ("own_policies:Absent", "has no class 'Absent'"),
        ("absent_module:X", "absent_module cannot be loaded"),
        ("absent", "your own: module:Class"),
    ):
        with pytest.raises(UserError, match=message):
            by_name(name)
