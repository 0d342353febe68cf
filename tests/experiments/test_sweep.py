"""Sweeps: in the points' order, the same values however they are run, and on from where they stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.experiments.sweep import FILE_NAME, DoneFile, Sweep, key_of, run_points
from tests.experiments.counted import Counted, runs, square

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


def points(marks: Path, count: int = 6, factor: float = 1.0) -> list[Counted]:
    return [Counted(number, str(marks), factor) for number in range(count)]


def test_processes_give_what_one_process_gives_in_the_points_order(marks: Path) -> None:
    alone = run_points(square, points(marks), "squares", Sweep(processes=1))
    several = run_points(square, points(marks), "squares", Sweep(processes=3))
    assert alone == several
    assert [row["number"] for row in alone] == list(range(6))
    assert alone[1] == {"number": 1, "square": 1 / 3, "odd": True, "list": [1, 2], "none": None}


def test_a_finished_point_does_not_run_again(marks: Path, tmp_path: Path) -> None:
    first = run_points(square, points(marks, 4), "squares", Sweep(1, folder=tmp_path))
    again = run_points(square, points(marks, 6), "squares", Sweep(1, folder=tmp_path, resume=True))
    assert again[:4] == first
    assert runs(marks) == {f"{number}-1.0": 1 for number in range(6)}


def test_without_resume_everything_runs(marks: Path, tmp_path: Path) -> None:
    for _ in range(2):
        run_points(square, points(marks, 3), "squares", Sweep(1, folder=tmp_path))
    assert set(runs(marks).values()) == {2}
    assert len((tmp_path / FILE_NAME).read_text().splitlines()) == 3


def test_a_point_of_other_settings_or_other_code_is_not_reused(
    marks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_points(square, points(marks, 2), "squares", Sweep(1, folder=tmp_path))
    run_points(square, points(marks, 2, factor=2.0), "squares", Sweep(1, folder=tmp_path, resume=True))
    assert runs(marks) == {"0-1.0": 1, "1-1.0": 1, "0-2.0": 1, "1-2.0": 1}
    monkeypatch.setattr("paceline.experiments.sweep.sources_hash", lambda _: "other code")
    run_points(square, points(marks, 2), "squares", Sweep(1, folder=tmp_path, resume=True))
    assert runs(marks)["0-1.0"] == 2


@pytest.mark.parametrize("torn", [b'{"key": "abc", "resu', b"\x00\xff", b'{"key": 3}\n[]\nnonsense\n{"ke'])
def test_a_torn_line_is_dropped_and_the_file_stays_whole(marks: Path, tmp_path: Path, torn: bytes) -> None:
    run_points(square, points(marks, 3), "squares", Sweep(1, folder=tmp_path))
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(torn)
    wanted = run_points(square, points(marks, 5), "squares", Sweep(1, folder=tmp_path, resume=True))
    last = run_points(square, points(marks, 5), "squares", Sweep(1, folder=tmp_path, resume=True))
    assert wanted == last
    assert set(runs(marks).values()) == {1}


def test_a_killed_process_is_told_and_its_neighbours_are_kept(marks: Path, tmp_path: Path) -> None:
    listed = [*points(marks, 4), Counted(9, str(marks), dies=True, waits_s=3.0)]
    with pytest.raises(UserError, match="--resume"):
        run_points(square, listed, "squares", Sweep(2, folder=tmp_path))
    assert runs(marks) == {f"{number}-1.0": 1 for number in range(4)}
    (marks / "healed").touch()
    results = run_points(square, listed, "squares", Sweep(2, folder=tmp_path, resume=True))
    assert [row["number"] for row in results] == [0, 1, 2, 3, 9]
    assert set(runs(marks).values()) == {1}


SWEEP = """
import sys
from pathlib import Path
from paceline.experiments.sweep import Sweep, run_points
from tests.experiments.counted import Counted, square
if __name__ == "__main__":
    listed = [Counted(n, sys.argv[1], waits_s=0.0 if n < 3 else 60.0) for n in range(5)]
    run_points(square, listed, "squares", Sweep(2, folder=Path(sys.argv[2]), resume=True))
"""


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_an_end_in_the_middle_keeps_what_is_done(marks: Path, tmp_path: Path, end: signal.Signals) -> None:
    script = tmp_path / "sweep.py"
    script.write_text(SWEEP, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    process = subprocess.Popen([sys.executable, str(script), str(marks), str(tmp_path)], env=environment)
    try:
        file = tmp_path / FILE_NAME
        until = time.monotonic() + 60
        while time.monotonic() < until and not (file.exists() and file.read_bytes().count(b"\n") == 3):
            time.sleep(0.05)
        children = _children(process.pid)
        assert len(children) >= 2
        process.send_signal(end)
        assert process.wait(timeout=30) != 0
        until = time.monotonic() + 30
        while time.monotonic() < until and any(map(_is_running, children)):
            time.sleep(0.05)
        assert not any(map(_is_running, children)), "nobody goes on alone"
    finally:
        process.kill()
    quick = [replace(point, waits_s=0.0) for point in points(marks, 3)]
    run_points(square, quick, "squares", Sweep(1, folder=tmp_path, resume=True))
    assert runs(marks) == {f"{number}-1.0": 1 for number in range(3)}


def test_two_sweeps_do_not_write_into_one_folder(tmp_path: Path, marks: Path) -> None:
    with DoneFile(tmp_path, resume=False), pytest.raises(UserError, match="another sweep"):
        run_points(square, points(marks, 1), "squares", Sweep(1, folder=tmp_path))


def test_a_point_that_hides_its_settings_is_refused() -> None:
    with pytest.raises(TypeError, match="show"):
        key_of(square, object())


def test_a_line_is_one_json_object(marks: Path, tmp_path: Path) -> None:
    run_points(square, points(marks, 2), "squares", Sweep(1, folder=tmp_path))
    for line in (tmp_path / FILE_NAME).read_text().splitlines():
        assert set(json.loads(line)) == {"key", "result"}
