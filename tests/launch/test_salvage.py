"""A damaged run.sqlite: what can be read is saved, what ended stays ended, and nothing may run twice by that."""

import contextlib
import io
import json
import os
import random
import sqlite3
import sys
from pathlib import Path

import pytest

from paceline.commands import report, status, why
from paceline.dashboard.detail import job_detail
from paceline.dashboard.planner_metrics import metrics_text
from paceline.dashboard.run_source import open_run
from paceline.dashboard.views import as_json
from paceline.errors import UserError
from paceline.launch.salvage import mend
from paceline.launch.store import FILE, Store
from tests.launch.scenes import Quiet, Scene, launch

PAGE = 4096


def finished(folder: Path) -> Scene:
    """A run of two jobs that are done, with many events."""
    scene = Scene(folder, {"s0": 2}).job("a", 1, "true").job("b", 1, "true")
    assert scene.run() == 0
    store = Store.open(scene.run_dir)
    with store.transaction():
        for k in range(1500):
            store.event(float(k), "run", f"event {k} " + 60 * "x")
    store.close()
    return scene


def pages_of(file: Path, table: str) -> list[int]:
    """Where a table's leaves are: pages that hold this table's texts, found by looking."""
    needle = {"events": b"event 7", "attempts": b"-1-"}[table]
    data = file.read_bytes()
    return [at for at in range(PAGE, len(data), PAGE) if needle in data[at : at + PAGE]]


def spoil(file: Path, pages: list[int]) -> None:
    with file.open("r+b") as damaged:
        for at in pages:
            damaged.seek(at)
            damaged.write(os.urandom(PAGE))


def test_jobs_that_ended_stay_ended_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = finished(tmp_path / "scene")
    file = scene.run_dir / FILE
    spoil(file, pages_of(file, "events")[1:3])
    assert launch.go_on(scene.run_dir, Quiet()) == 0
    told = capsys.readouterr().err
    assert f"{FILE} was damaged" in told
    assert "Traceback" not in told
    assert scene.states() == {"a": "done", "b": "done"}
    assert scene.starts() == {"a": 1, "b": 1}
    kept = [row["text"] for row in scene.rows("events")]
    assert len(kept) > 1000
    assert (scene.run_dir / f"{FILE}.damaged").exists()
    assert mend(scene.run_dir) == "", "it is whole now"


def test_a_lost_attempt_is_taken_from_its_folder(tmp_path: Path) -> None:
    scene = finished(tmp_path / "scene")
    store = Store.open(scene.run_dir)
    store._execute("DELETE FROM attempts WHERE job = 'a'")
    store.update_job("a", state="running", exit_code=None, ended=None)
    store.close()
    file = scene.run_dir / FILE
    spoil(file, pages_of(file, "events")[1:2])
    assert "1 outcomes from folders" in mend(scene.run_dir)
    assert scene.states() == {"a": "done", "b": "done"}
    assert launch.go_on(scene.run_dir, Quiet()) == 0
    assert scene.starts() == {"a": 1, "b": 1}


def test_what_might_run_twice_is_refused_in_a_line(tmp_path: Path) -> None:
    scene = finished(tmp_path / "scene")
    store = Store.open(scene.run_dir)
    store._execute("DELETE FROM attempts WHERE job = 'a'")
    store.close()
    (scene.run_dir / "attempts/a.1/exit.json").unlink()
    file = scene.run_dir / FILE
    spoil(file, pages_of(file, "events")[1:2])
    with pytest.raises(UserError, match=r"damaged, and how attempt 1 of job a does is lost"):
        mend(scene.run_dir)
    assert not (scene.run_dir / f"{FILE}.anew").exists()
    file.write_bytes(b"no database at all, but long enough to be taken for one" * 200)
    with pytest.raises(UserError, match="some of its jobs or settings are lost"):
        mend(scene.run_dir)


@pytest.mark.parametrize(
    ("column", "before", "after"),
    [
        ("spec", '"releases"', '"rel8ases"'),
        ("spec", '"name": "a"', '"name": "q"'),
        ("spec", '"command": [', '"command"; ['),
        ("state", "done", "dong"),
    ],
)
def test_a_byte_that_is_wrong_within_a_value_is_told_in_a_line(
    column: str, before: str, after: str, tmp_path: Path
) -> None:
    """SQLite finds nothing wrong with it."""
    scene = finished(tmp_path / "scene")
    store = Store.open(scene.run_dir)
    changed = store._execute(
        f"UPDATE jobs SET {column} = replace({column}, ?, ?) WHERE name = 'a'", (before, after)
    )
    assert changed.rowcount == 1
    store.close()
    assert mend(scene.run_dir) == ""
    with pytest.raises(UserError, match=r"damaged|cannot be read"):
        launch.go_on(scene.run_dir, Quiet())
    assert scene.starts() == {"a": 1, "b": 1}


def test_text_that_is_none_is_told_in_a_line(tmp_path: Path) -> None:
    """Of a value, and of a column's name, which SQLite keeps as text too."""
    scene = finished(tmp_path / "scene")
    file = scene.run_dir / FILE
    whole = file.read_bytes()
    for before, after in (
        (b'"objective"', b'"obj\xedctive"'),
        (b"value TEXT", b"valuf TEXT"),
        (b"launcher", b"lauccher"),
    ):
        assert before in whole
        file.write_bytes(whole.replace(before, after))
        with pytest.raises(UserError, match=r"run\.sqlite (is damaged|cannot be read)"):
            launch.go_on(scene.run_dir, Quiet())
    file.write_bytes(whole)
    assert launch.go_on(scene.run_dir, Quiet()) == 0
    assert scene.starts() == {"a": 1, "b": 1}


def test_a_whole_file_is_left_as_it_is(tmp_path: Path) -> None:
    Store.create(tmp_path).close()
    before = (tmp_path / FILE).read_bytes()
    assert mend(tmp_path) == ""
    assert (tmp_path / FILE).read_bytes() == before


VALUES = (
    None,
    -1,
    1e308,
    "",
    "x",
    "[]",
    "{}",
    "null",
    "NaN",
    "\x00",
    10**18,
    '{"a": 1}',
    "[1]",
    b"\xff\xfe",
    "9" * 400,
)


def spoil_values(file: Path, chance: random.Random) -> None:
    """One or two values of the tables are others, or some bytes of the file."""
    if chance.random() < 0.3:
        data = bytearray(file.read_bytes())
        for _ in range(chance.randint(1, 5)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        file.write_bytes(data)
        return
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in chance.choices(tables, k=chance.randint(1, 2)):
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            rows = [row[0] for row in db.execute(f"SELECT rowid FROM {table}")]
            if rows:
                with contextlib.suppress(sqlite3.IntegrityError, OverflowError):
                    change = f'UPDATE {table} SET "{chance.choice(columns)}" = ? WHERE rowid = ?'
                    db.execute(change, (chance.choice(VALUES), chance.choice(rows)))


def test_who_only_looks_sees_the_run_or_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = """echo 'PACELINE_STATUS {"iteration": 2, "rate": 5, "loss": 0.5}'; sleep 1.5"""
    scene = Scene(tmp_path / "scene", {"s0": 2, "s1": 2}).job("a", 3, told).job("b", 1, "exit 3")
    assert scene.run() == 1
    file = scene.run_dir / FILE
    whole = file.read_bytes()
    monkeypatch.setattr(sys, "stdout", io.StringIO())

    def dashboard() -> None:
        source = open_run(scene.run_dir)
        try:
            found = [as_json(source.view()), job_detail(source, "a"), metrics_text({"run": source}, False)]
            json.dumps(found, allow_nan=False, default=lambda text: text.decode())
        finally:
            source.close()

    shown, lines = 0, list[str]()
    for seed in range(60):
        file.write_bytes(whole)
        spoil_values(file, random.Random(seed))
        for look in (
            lambda: status.status(str(scene.run_dir)),
            lambda: status.status(str(scene.run_dir), json_file=str(tmp_path / "json")),
            lambda: status.logs("a", False, None, None, 50, str(scene.run_dir)),
            lambda: report.report([scene.run_dir], out=tmp_path / "page.html"),
            lambda: why._of_run("a", str(scene.run_dir), 0, packets=False),
            dashboard,
        ):
            try:
                look()
                shown += 1
            except UserError as error:
                lines.append(str(error))
    assert shown > 100
    assert len(lines) > 30
    assert not any("\n" in line for line in lines)
