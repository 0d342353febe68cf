import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.commands.run_view import headline
from paceline.errors import UserError
from paceline.launch.control import find_run
from paceline.launch.salvage import mend
from paceline.launch.store import FILE, VERSION, Store
from tests.launch.scenes import Scene


def test_what_is_written_is_read_by_another(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "run")
    with store.transaction():
        store.set_meta(began=12.5, policy="ls")
        store.insert(
            "placements", job="a", attempt=1, server="s0", slots=2, gpus=[0, 1], start=13.0, reason="r"
        )
        store.event(13.0, "start", "a starts on s0", job="a", reason="r", figures={"remaining_s": 4})
    store.end_placements("a", 1, 15.0)
    reader = Store.open_to_read(tmp_path / "run")
    assert reader.meta() == {"version": VERSION, "began": 12.5, "policy": "ls"}
    assert reader.placements() == [
        {"job": "a", "attempt": 1, "server": "s0", "slots": 2, "gpus": [0, 1], "start": 13.0, "end": 15.0,
         "reason": "r"}
    ]  # fmt: skip
    assert reader.events()[0]["figures"] == {"remaining_s": 4}
    with pytest.raises(UserError, match="readonly"):
        reader.set_meta(policy="ff")


_KILLED = """
import os, sys
from pathlib import Path
from paceline.launch.store import Store
store = Store.create(Path(sys.argv[1]))
store.event(1.0, "run", "begins")
store._db.execute("PRAGMA cache_size = 1")
store._db.execute("BEGIN IMMEDIATE")
for number in range(200):
    store.event(2.0, "run", "x" * 2000)
os._exit(9)
"""


def test_a_planner_killed_within_a_step_leaves_the_step_before(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], timeout=60, check=False)
    assert ended.returncode == 9
    assert (tmp_path / f"{FILE}-journal").exists(), "it must have died in the middle of writing"
    assert [event["text"] for event in Store.open_to_read(tmp_path).events()] == ["begins"]


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    with pytest.raises(ZeroDivisionError), store.transaction():  # noqa: PT012
        store.event(1.0, "run", "begins")
        with store.transaction():
            store.set_meta(policy="ls")
        _ = 1 / 0
    assert store.events() == []
    assert "policy" not in store.meta()


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        Store.open(tmp_path)
    Store.create(tmp_path).close()
    with pytest.raises(UserError, match="--resume"):
        Store.create(tmp_path)
    newer = Store.open(tmp_path)
    newer.set_meta(version=99)
    newer.close()
    with pytest.raises(UserError, match="version 99"):
        Store.open(tmp_path)
    (tmp_path / FILE).write_bytes(b"no database at all, but long enough to be taken for one" * 20)
    with pytest.raises(UserError, match="cannot be read"):
        Store.open_to_read(tmp_path)


def test_a_damaged_file_is_told_in_a_line_wherever_it_is_read(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    for k in range(2_000):
        store.event(float(k), "run", f"event {k} " + 60 * "x")
    store.close()
    file = tmp_path / FILE
    size = file.stat().st_size
    with file.open("r+b") as damaged:
        damaged.seek(size // 3)
        damaged.write(bytes(range(256)) * (size // 3 // 256))
    again = Store.open(tmp_path)
    try:
        with pytest.raises(UserError, match=rf"{tmp_path}: {FILE} cannot be read: "):
            again.events()
    finally:
        again.close()


def test_a_full_disk_is_told_in_a_line_and_what_was_there_stays(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    store.event(1.0, "run", "before")
    store._db.execute("PRAGMA max_page_count = 1")  # no more than there are already: the disk is full

    def write_much() -> None:
        with store.transaction():
            for k in range(2_000):
                store.event(float(k), "run", 100 * "x")

    with pytest.raises(UserError, match="cannot be written: the disk is full"):
        write_much()
    assert [row["text"] for row in store.events()] == ["before"]
    store.close()


def test_a_run_that_is_being_written_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def look(*_: object) -> None:
        seen.append((tmp_path / "run" / FILE).exists())
        raise KeyboardInterrupt

    scene = Scene(tmp_path, {"s0": 1}).job("a")
    with monkeypatch.context() as patch:
        patch.setattr("paceline.launch.run.insert_job", look)
        with pytest.raises(KeyboardInterrupt):
            scene.create()
    assert seen == [False]
    with pytest.raises(UserError, match="no run below this folder"):
        find_run(below=tmp_path)
    scene.create()
    assert scene.states() == {"a": "pending"}
    assert sorted(path.name for path in scene.run_dir.iterdir()) == ["attempts", "down", FILE]


def test_entries_that_a_damaged_file_has_lost_come_from_what_was_asked_for(tmp_path: Path) -> None:
    """One wrong bit in a key is enough: `launc|er`."""
    store = Store.create(tmp_path)
    store.set_meta(began=1.0, request={"launcher": "slurm", "policy": "ff"}, state="done")
    meta = store.meta()
    assert (meta["launcher"], meta["policy"], meta["objective"]) == ("slurm", "ff", "unknown")
    assert (meta["run_id"], meta["ended"]) == ("", None)
    assert headline(store, 2.0)[1] == "launcher slurm, policy ff, plans for nothing known"
    store.close()


def test_what_jobs_are_given_is_for_their_owner_alone(tmp_path: Path) -> None:
    """The switch's token is in it."""
    store = Store.create(tmp_path / "run")
    store.set_meta(switch={"address": "h:1", "token": "secret"})
    path = tmp_path / "run" / FILE
    assert path.stat().st_mode & 0o777 == 0o600
    store.close()
    with path.open("r+b") as file:
        file.seek(20)
        file.write(bytes(200))
    with contextlib.suppress(UserError):
        mend(tmp_path / "run")
    assert {file.stat().st_mode & 0o077 for file in path.parent.glob(f"{FILE}*")} == {0}
