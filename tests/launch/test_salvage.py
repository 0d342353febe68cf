"""A damaged run.sqlite: what can be read is saved, what ended stays ended, and nothing may run twice by that."""

import os
from pathlib import Path

import pytest

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
