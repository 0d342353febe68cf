import contextlib
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.launch import control
from paceline.launch import run as launch
from paceline.launch.store import Store
from tests.launch.scenes import (
    Quiet,
    Scene,
    assert_nothing_left,
    assert_steered,
    finish,
    kill,
    until,
    wait_for,
)  # fmt: skip


def test_a_local_run_is_steered(tmp_path: Path) -> None:
    assert_steered(Scene(tmp_path, {"s0": 2, "s1": 2}), "local")


def test_commands_outlive_a_planner_that_is_killed(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    scene = Scene(tmp_path, {"s0": 2}).job("a", 1, until(gate)).job("b", 1, until(gate))
    planner = scene.new_planner()
    wait_for(lambda: (scene.run_dir / "run.sqlite").exists(), "the run's folder")
    wait_for(lambda: set(scene.states().values()) == {"running"}, "two running jobs")
    assert control.planner_alive(scene.run_dir)
    kill(planner)
    assert not control.planner_alive(scene.run_dir)
    number = control.ask(scene.run_dir, "cancel", job="a", by="me", argument={"why": "a mistake"})
    assert control.wait(scene.run_dir, number, 60.0)["state"] == "asked", "no planner, no waiting"
    again = scene.planner("--resume", str(scene.run_dir))
    wait_for(lambda: scene.states()["a"] == "cancelled", "the end of the cancelled job")
    gate.touch()
    code, _, err = finish(again)
    assert code == 0, err
    assert scene.states() == {"a": "cancelled", "b": "done"}
    assert scene.starts() == {"a": 1, "b": 1}
    (row,) = [row for row in scene.rows("jobs") if row["name"] == "a"]
    assert row["reason"] == "cancelled by me: a mistake"
    for attempt in scene.rows("attempts"):
        assert_nothing_left(attempt["token"])


def test_a_planner_killed_between_taking_and_stopping_leaves_a_job_that_the_next_one_stops(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path, {"s0": 1}).job("a", 1, until(tmp_path / "never"))
    planner = scene.new_planner()
    wait_for(lambda: (scene.run_dir / "run.sqlite").exists(), "the run's folder")
    wait_for(lambda: scene.states() == {"a": "running"}, "a running job")
    kill(planner)
    with contextlib.closing(Store.open(scene.run_dir)) as store:
        # As the first planner would have left it: the command is taken, the launcher has heard nothing.
        store.insert(
            "commands", time=time.time(), kind="cancel", job="a", argument={}, by="", state="done", outcome="",
            taken=time.time(),
        )  # fmt: skip
    assert launch.go_on(scene.run_dir, Quiet()) == 0
    assert scene.states() == {"a": "cancelled"}
    assert scene.starts() == {"a": 1}


def test_a_cancelled_job_does_not_come_back_with_the_run(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    scene = Scene(tmp_path, {"s0": 1}).job("a", 1, until(gate)).job("b", 1, "true")
    planner = scene.new_planner()
    wait_for(lambda: (scene.run_dir / "run.sqlite").exists(), "the run's folder")
    wait_for(lambda: "running" in scene.states().values(), "a running job")
    first = next(name for name, state in scene.states().items() if state == "running")
    if first == "b":  # The other waits for the gate.
        wait_for(lambda: scene.states()["a"] == "running", "the second job")
    control.wait(scene.run_dir, control.ask(scene.run_dir, "cancel", job="a"))
    wait_for(lambda: scene.states()["a"] == "cancelled", "the end of the cancelled job")
    kill(planner, signal.SIGTERM)
    assert launch.go_on(scene.run_dir, Quiet()) == 0
    assert scene.states() == {"a": "cancelled", "b": "done"}
    assert scene.starts()["a"] == 1


def test_jobs_are_added_to_a_run_that_has_ended(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"s0": 2}).job("a", 1, "true")
    assert scene.run() == 0
    more = Scene(tmp_path / "more", {})
    more.notes = scene.notes
    more.job("b", 2, "true", arrival="0 s")
    number = control.ask_to_add(scene.run_dir, more.jobs_file)
    assert launch.go_on(scene.run_dir, Quiet()) == 0
    assert scene.states() == {"a": "done", "b": "done"}
    assert control.outcome(scene.run_dir, number)["outcome"] == "b added"
    with pytest.raises(UserError, match="has a job 'b' already"):
        control.ask_to_add(scene.run_dir, more.jobs_file)


def test_what_cannot_be_done_is_refused_in_a_line(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"s0": 1}).job("a", 1, "true")
    scene.create()
    with pytest.raises(UserError, match="no job 'x'; it has: a"):
        control.ask(scene.run_dir, "cancel", job="x")
    with pytest.raises(UserError, match="no priority: a number above 0"):
        control.ask(scene.run_dir, "priority", job="a", argument={"priority": 0})
    with pytest.raises(UserError, match="no command 'destroy'"):
        control.ask(scene.run_dir, "destroy")
    asked = [
        control.ask(scene.run_dir, "unpause"),
        control.ask(scene.run_dir, "add", argument={"jobs": [{"nonsense": 1}]}),
        control.ask(scene.run_dir, "add", argument={}),
        control.ask(scene.run_dir, "cancel", job="a"),
        control.ask(scene.run_dir, "cancel", job="a"),
    ]
    assert launch.go_on(scene.run_dir, Quiet()) == 0
    rows = [control.outcome(scene.run_dir, number) for number in asked]
    assert [row["state"] for row in rows] == ["refused", "refused", "refused", "done", "refused"]
    assert rows[0]["outcome"] == "the queue is not paused"
    assert rows[1]["outcome"].startswith("not understood")
    assert rows[4]["outcome"] == "a has ended already: cancelled"
    assert scene.starts() == {}


def test_a_run_from_before_there_were_commands_can_be_read_and_steered(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"s0": 1}).job("a", 1, "true")
    scene.create()
    with contextlib.closing(sqlite3.connect(scene.run_dir / "run.sqlite")) as db:
        db.execute("DROP TABLE commands")
    with contextlib.closing(scene.store()) as store:
        assert store.commands() == []
    control.ask(scene.run_dir, "cancel", job="a")
    assert launch.go_on(scene.run_dir, Quiet()) == 0
    assert scene.states() == {"a": "cancelled"}


def test_the_newest_run_is_found(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run below"):
        control.find_run(below=tmp_path)
    for i, name in enumerate(("runs/old", "runs/new", "out/deep/er", ".hidden/run")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.sqlite").touch()
        when = 1e9 + (10 if name == "runs/new" else 0) + (99 if "hidden" in name else 0) + i
        os.utime(tmp_path / name / "run.sqlite", (when, when))
    assert control.find_run(below=tmp_path) == tmp_path / "runs/new"
    assert control.find_run("old", tmp_path) == tmp_path / "runs/old"
    assert control.find_run(str(tmp_path / "out/deep/er")) == tmp_path / "out/deep/er"
    with pytest.raises(UserError, match="holds no run"):
        control.find_run("nowhere", tmp_path)
