"""A full disk: the outcome of what ran is kept, and nothing that ended runs again."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.launch.launchers import supervisor

OUTCOME = {"exit_code": 0, "reason": "", "ranks": {"0": 0}, "ended": 1.0}


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system of its own needs root")
def test_what_ended_on_a_full_disk_is_not_run_again(tmp_path: Path) -> None:
    disk, notes = tmp_path / "disk", tmp_path / "notes"
    disk.mkdir()
    notes.mkdir()
    call = shlex.join([sys.executable, "-m", "tests.launch.full_disk", str(disk), str(notes)])
    script = f"mount -t tmpfs -o size=1m,mode=700 none {shlex.quote(str(disk))} && exec {call}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        capture_output=True, text=True, timeout=300, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    if "mount:" in done.stderr and not list(notes.iterdir()):
        pytest.skip(f"no file system of its own here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


def test_the_room_of_an_outcome_is_taken_before_it_is_needed(tmp_path: Path) -> None:
    supervisor.reserve_room(tmp_path)
    assert (tmp_path / supervisor.ROOM).stat().st_size == supervisor.ROOM_BYTES
    assert supervisor.read_outcome(tmp_path, "token") is None, "room is no outcome"
    supervisor.keep_outcome(tmp_path, "token", OUTCOME)
    assert json.loads((tmp_path / "exit.json").read_text()) == OUTCOME
    supervisor.keep_outcome(tmp_path, "token", {**OUTCOME, "exit_code": 1})
    assert supervisor.read_outcome(tmp_path, "token") == OUTCOME, "the first word stands"


def test_an_outcome_that_is_too_long_for_its_room_leaves_the_ranks_out(tmp_path: Path) -> None:
    supervisor.reserve_room(tmp_path)
    many = {**OUTCOME, "exit_code": 9, "ranks": {str(rank): 9 for rank in range(5000)}, "reason": "x" * 9000}
    supervisor.keep_outcome(tmp_path, "token", many)
    assert supervisor.read_outcome(tmp_path, "token")["exit_code"] == 9


def test_where_the_folder_takes_nothing_the_second_place_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = tmp_path / "second"
    monkeypatch.setattr(supervisor, "second_places", lambda token: [second / f"{token}.json"])
    gone = tmp_path / "gone"  # a folder that nothing can be written to
    supervisor.reserve_room(gone)
    supervisor.keep_outcome(gone, "token", OUTCOME)
    assert supervisor.read_outcome(gone, "token") == OUTCOME
    assert supervisor.read_outcome(gone, "another") is None


def test_a_second_place_that_others_may_write_to_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    assert supervisor._is_ours(place)
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    assert not supervisor._is_ours(place)
    place.chmod(0o700)
    assert supervisor._is_ours(place)
