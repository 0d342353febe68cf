import json
from pathlib import Path

import pytest

from paceline.launch.store import read_run
from paceline.launch.why import of_run
from tests.commands.command_line import paceline
from tests.launch.scenes import Scene


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Two jobs over the same two servers, and one that waits for room; one fails once, and is tried again."""
    made = Scene(tmp_path_factory.mktemp("why"), {"s0": 2, "s1": 2})
    keys = {"gradient": "200 MB", "iterations": 10, "backward": "20 ms"}
    told = """echo "PACELINE_STATUS {\\"trains_since\\": $(date +%s.%N)}" """
    fails = f"if [ ! -e {made.folder}/once ]; then touch {made.folder}/once; sleep 0.3; exit 1; fi"
    made.job("first", 3, f"sleep 0.3; {told}; sleep 1", **keys)
    made.job("second", 3, "sleep 0.5", **keys).job("again", 1, f"{fails}; sleep 0.3", retries=1, **keys)
    made.job("broken", 1, "no-such-program", **keys)
    assert made.run() == 1
    return made


@pytest.mark.parametrize("name", ["first", "second", "again"])
def test_the_parts_of_a_run_add_up_to_what_was_measured(scene: Scene, name: str) -> None:
    run = read_run(scene.run_dir)
    found = of_run(run, name)
    (row,) = [row for row in run.jobs if row["name"] == name]
    assert found.total_s == run.jct_s(row)
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.total_s, rel=1e-9, abs=1e-9)
    causes = [part.cause for part in found.parts]
    assert causes[:2] == ["queue", "start-up"]
    assert causes[-1] == "not explained"
    assert ("lost attempts" in causes) == (name == "again")
    if name == "first":
        assert found.parts[1].seconds > 0.25, "it told when its training began"


def test_a_job_that_failed_before_its_first_iteration_has_not_computed_all_of_them(scene: Scene) -> None:
    run = read_run(scene.run_dir)
    found = of_run(run, "broken")
    assert [part.cause for part in found.parts] == ["queue", "start-up", "training"]
    assert all(part.seconds >= 0 for part in found.parts)
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.total_s, abs=1e-9)
    assert found.parts[-1].note == "not split: it told no iterations, and is failed"


def test_why_as_a_command(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(scene.folder)
    assert paceline(monkeypatch, "why", "second") == 0
    out = capsys.readouterr().out
    assert out.startswith("second took ")
    assert "computing" in out
    assert paceline(monkeypatch, "why", "second", "--packets", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(part["seconds"] for part in found["parts"]) == pytest.approx(found["total_s"])
    assert paceline(monkeypatch, "why", "nobody") == 2
    assert "no job 'nobody'; it has: first, second, again, broken" in capsys.readouterr().err
    root = Path(__file__).parents[2]
    files = (
        "--cluster",
        str(root / "examples/plan/cluster.toml"),
        "--jobs",
        str(root / "examples/plan/jobs.toml"),
    )
    assert paceline(monkeypatch, "why", "bert", *files, "--policy", "ls", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(part["seconds"] for part in found["parts"]) == pytest.approx(found["total_s"])
    assert paceline(monkeypatch, "why", "bert", "--cluster", "x") == 2
