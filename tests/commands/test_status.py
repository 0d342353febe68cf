"""`status`, `logs`, `cancel`, `add`, `priority`, `pause`, `top`: against a real run of this machine."""

import asyncio
import contextlib
import io
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from paceline.commands.run_view import (
    COLUMNS,
    SCREEN_COLUMNS,
    columns_in_view,
    headline,
    job_table,
    ranked_by,
)
from paceline.commands.status import written
from paceline.commands.top_screen import RunScreen
from paceline.launch.store import read_run
from paceline.report.run import page as run_page
from tests.commands.command_line import paceline
from tests.dashboard.scenes import WrittenRun
from tests.launch.scenes import Scene, finish, until, wait_for


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A run with a job that is done, one that failed for want of a program, and one whose rank 1 failed."""
    scene = Scene(tmp_path_factory.mktemp("ended"), {"s0": 4})
    scene.job("good", 2, "echo hello from $RANK").job("missing", 1, "no-such-program --train")
    scene.job(
        "second", 2, 'echo fine; if [ $RANK = 1 ]; then echo "ValueError: bad data" >&2; exit 3; fi; sleep 60'
    )
    assert scene.run(grace_s=0.5) == 1
    return scene


class Going:
    """A run whose planner is alive in a thread, with a job that waits for a gate and one that waits for room."""

    def __init__(self, folder: Path) -> None:
        self.gate = folder / "gate"
        self.scene = Scene(folder, {"s0": 1})
        self.scene.job("first", 1, f"echo begins; {until(self.gate)}; echo ends").job(
            "next", 1, "true", arrival="0.1 s"
        )
        self.planner = self.scene.new_planner()
        wait_for(lambda: (self.scene.run_dir / "run.sqlite").exists(), "the run's folder")
        wait_for(lambda: self.scene.states() == {"first": "running", "next": "waiting"}, "a running job")


@pytest.fixture
def going(tmp_path: Path) -> Iterator[Going]:
    found = Going(tmp_path)
    yield found
    found.gate.touch()
    finish(found.planner)


def test_the_line_that_explains_a_failure_is_shown(
    ended: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ended.folder)
    assert paceline(monkeypatch, "status") == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith("missing failed: ")]
    assert "ended with 127" in line
    assert "no-such-program: not found" in line
    assert "run/attempts/missing.1/rank-0.log" in line
    (line,) = [line for line in out.splitlines() if line.startswith("second failed: ")]
    assert "ValueError: bad data" in line, "of the rank that failed, not of rank 0"
    assert "rank-1.log" in line
    assert paceline(monkeypatch, "status", "run", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert next(job["last_line"] for job in found["jobs"]) is None
    assert "not found" in found["jobs"][1]["last_line"]
    assert (found["paused"], found["planner_alive"]) == (False, False)
    (event,) = [row for row in ended.rows("events") if row["kind"] == "end" and row["job"] == "second"]
    assert event["figures"]["last_line"] == "ValueError: bad data"


def test_a_run_says_what_it_was_planned_for_and_how_it_did_by_that(ended: Scene) -> None:
    with contextlib.closing(ended.store()) as store:
        text = ranked_by(store)
    assert text.startswith("planned for the last end (makespan): the last end (makespan) ")
    assert "the mean completion time (jct) " in text


@pytest.mark.parametrize("width", [50, 80, 100, 200])
def test_on_a_narrow_screen_columns_are_left_out_whole(width: int) -> None:
    rows = [
        [
            "resnet-a",
            "running",
            "a-0:2 a-1:2",
            "120/500",
            "14.3/s",
            "60.57 ms",
            "61.61 ms",
            "-2%",
            "switch",
            "",
        ],
        ["bert", "waiting", "asks for 16", "", "", "", "", "", "", ""],
    ]
    shown = [COLUMNS[i] for i in columns_in_view(rows, width)]
    assert shown[:4] == ["job", "state", "servers", "iteration"]
    need = sum(max(len(c), *(len(r[COLUMNS.index(c)]) for r in rows)) for c in shown) + 2 * (len(shown) - 1)
    assert need <= width
    assert ("expected end" in shown) == (width >= 100), "what is empty goes first"
    assert (len(shown) == len(COLUMNS)) == (width >= 100)


def test_a_table_on_a_terminal_of_eighty_columns_cuts_nothing_off(ended: Scene) -> None:
    console = Console(width=80, file=io.StringIO(), force_terminal=True)
    with contextlib.closing(ended.store()) as store:
        console.print(job_table(store, store.jobs(), time.time(), console.width))
        narrow = job_table(store, store.jobs(), time.time(), 40)
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\N{HORIZONTAL ELLIPSIS}" not in out
    assert "no room for" not in out, "what is empty is not missed"
    assert narrow.caption is None or "expected end" not in narrow.caption


def test_a_run_that_waits_for_its_switch_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = WrittenRun(tmp_path / "run")
    run.store.set_meta(state="new")
    assert "not begun after 10 s" in headline(run.store, run.began + 10.0)[0]
    monkeypatch.setattr("paceline.launch.control.planner_alive", lambda folder: True)
    assert (
        "getting ready (its switch starts, code is compiled) after 10 s"
        in headline(run.store, run.began + 10.0)[0]
    )


def test_logs_as_json_and_why_there_is_none(
    ended: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ("--run", str(ended.run_dir))
    assert paceline(monkeypatch, "logs", "good", "--rank", "1", "--json", *run) == 0
    (log,) = json.loads(capsys.readouterr().out)["logs"]
    assert (log["rank"], log["lines"]) == (1, ["hello from 1"])
    assert paceline(monkeypatch, "logs", "good", "-f", "--json", *run) == 2
    assert "leave out -f or --json" in capsys.readouterr().err
    for path in (ended.run_dir / "attempts" / "good.1").glob("rank-*.log"):
        path.rename(path.with_suffix(".hidden"))
    assert paceline(monkeypatch, "logs", "good", *run) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "no log in " in shown.err
    for path in (ended.run_dir / "attempts" / "good.1").glob("rank-*.hidden"):
        path.rename(path.with_suffix(".log"))


def test_the_report_page_shows_it_too(ended: Scene) -> None:
    page = ended.folder / "page.html"
    run_page.write_page(page, read_run(ended.run_dir))
    text = page.read_text()
    assert "no-such-program: not found" in text
    assert "missing.1/rank-0.log" in text


def test_logs_of_all_ranks_of_one_and_of_none(
    ended: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ("--run", str(ended.run_dir))
    assert paceline(monkeypatch, "logs", "good", *run) == 0
    assert capsys.readouterr().out == "[0] hello from 0\n[1] hello from 1\n"
    assert paceline(monkeypatch, "logs", "good", "--rank", "1", *run) == 0
    assert capsys.readouterr().out == "hello from 1\n"
    assert paceline(monkeypatch, "logs", "second", "--rank", "1", "-n", "1", *run) == 0
    assert capsys.readouterr().out == "ValueError: bad data\n"
    assert paceline(monkeypatch, "logs", "good", "--rank", "7", *run) == 2
    assert "no log of rank 7; there are: 0, 1" in capsys.readouterr().err
    assert paceline(monkeypatch, "logs", "bad", *run) == 2
    assert "no job 'bad'; it has: good, missing, second" in capsys.readouterr().err


def test_a_log_is_followed_to_the_jobs_end(going: Going) -> None:
    lines: list[str] = []
    begun = threading.Event()

    def follow() -> None:
        for line in written(going.scene.run_dir, "first", None, 0, 50, follow=True, look_s=0.05):
            lines.append(line)
            begun.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert begun.wait(60)
    assert lines == ["begins"]
    going.gate.touch()
    thread.join(60)
    assert lines == ["begins", "ends"]


def test_a_run_is_steered_from_the_command_line(
    going: Going, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(going.scene.folder)
    assert paceline(monkeypatch, "pause") == 0
    assert "the queue is paused" in capsys.readouterr().out
    assert paceline(monkeypatch, "status") == 0
    out = capsys.readouterr().out
    assert "the queue is paused by " in out
    assert "1 running, 1 waiting" in out
    assert paceline(monkeypatch, "pause") == 1
    assert "refused: the queue is paused already" in capsys.readouterr().out
    assert paceline(monkeypatch, "priority", "next", "4", "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["state"], found["job"]) == ("priority", "done", "next")
    more = Scene(going.scene.folder / "more", {}).job("added", 1, "true")
    assert paceline(monkeypatch, "add", "run", str(more.jobs_file)) == 0
    assert "added added" in capsys.readouterr().out
    assert paceline(monkeypatch, "add", "run", str(more.jobs_file)) == 2
    assert paceline(monkeypatch, "cancel", "first", "--why", "a try") == 0
    wait_for(lambda: going.scene.states()["first"] == "cancelled", "the end of the cancelled job")
    assert paceline(monkeypatch, "unpause") == 0
    code, _, err = finish(going.planner)
    assert code == 0, err
    assert going.scene.states() == {"first": "cancelled", "next": "done", "added": "done"}
    capsys.readouterr()
    assert paceline(monkeypatch, "cancel", "next") == 0
    assert "no planner is alive" in capsys.readouterr().out


def test_no_run_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ("status",),
        ("logs", "a"),
        ("cancel", "a"),
        ("top",),
        ("pause",),
        ("status", "nowhere"),
    ):
        assert paceline(monkeypatch, *arguments) == 2, arguments
        assert "run" in capsys.readouterr().err


def test_top_shows_a_run_and_steers_it(going: Going) -> None:
    async def look() -> None:
        screen = RunScreen(going.scene.run_dir, 0.1)
        async with screen.run_test(size=(110, 40)) as pilot:
            await pilot.pause(0.3)
            assert [screen.jobs.get_row_at(i)[0].plain for i in range(2)] == ["first", "next"]  # type: ignore[attr-defined]
            assert screen.selected == "first"
            assert "begins" in str(screen.query_one("#job").render())
            await pilot.press("down")
            await pilot.pause(0.3)
            assert screen.selected == "next", "a look leaves the cursor where it was"
            await pilot.press("plus")
            await _until(pilot, lambda: _priority(going.scene, "next") == 2.0)
            await pilot.press("p")
            await _until(pilot, lambda: bool(_meta(going.scene).get("paused")))
            await pilot.press("p")
            await _until(pilot, lambda: not _meta(going.scene).get("paused"))
            await pilot.press("c")
            await pilot.pause(0.2)
            await pilot.press("n")
            await pilot.pause(0.5)
            assert going.scene.states()["next"] == "waiting"
            await pilot.press("c")
            await pilot.pause(0.2)
            await pilot.press("y")
            await _until(pilot, lambda: going.scene.states()["next"] == "cancelled")
            await pilot.press("q")

    asyncio.run(look())


def test_a_look_leaves_the_screen_scrolled_as_it_is(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run", servers=8, slots=8)
    for i in range(60):
        run.job(f"job{i:02d}", [i])

    async def look() -> None:
        screen = RunScreen(run.folder, 0.1)
        async with screen.run_test(size=(110, 30)) as pilot:
            await pilot.pause(0.3)
            screen.jobs.scroll_to(y=40, animate=False)
            run.progress("job50", 57)
            run.job("job60")
            await _until(pilot, lambda: screen.jobs.row_count == 61)
            assert "57/100" in str(screen.jobs.get_row_at(50)[3])
            assert screen.selected == "job00"
            assert screen.jobs.scroll_y == 40

    asyncio.run(look())


def test_top_on_a_narrow_screen_leaves_columns_out_and_brings_them_back(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    for name in ("resnet-a", "resnet-b"):
        run.job(name, [0, 2], expected_end=time.time() + 1e6)
        run.progress(name, 57)

    async def look() -> None:
        screen = RunScreen(run.folder, 0.1)

        def columns() -> list[str]:
            return [str(column.label) for column in screen.jobs.ordered_columns]

        async with screen.run_test(size=(80, 30)) as pilot:
            await pilot.press("down")
            await _until(pilot, lambda: "priority" in columns())
            assert "error" not in columns()
            await pilot.resize_terminal(140, 30)
            await _until(pilot, lambda: columns() == list(SCREEN_COLUMNS))
            await _until(pilot, lambda: screen.selected == "resnet-b")
            await pilot.resize_terminal(80, 30)
            await _until(pilot, lambda: "error" not in columns())
            await _until(pilot, lambda: screen.selected == "resnet-b")

    asyncio.run(look())


def test_top_without_textual_or_terminal_says_so(
    ended: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paceline(monkeypatch, "top", str(ended.run_dir)) == 2
    assert "needs a terminal; for a pipe: paceline status" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "textual", None)
    assert paceline(monkeypatch, "top", str(ended.run_dir)) == 2
    assert "pip install 'paceline[top]'" in capsys.readouterr().err


async def _until(pilot, ready) -> None:  # type: ignore[no-untyped-def]
    for _ in range(600):
        if ready():
            return
        await pilot.pause(0.1)
    raise AssertionError("it did not happen within a minute")


def _priority(scene: Scene, job: str) -> float:
    return next(float(row["priority"]) for row in scene.rows("jobs") if row["name"] == job)


def _meta(scene: Scene) -> dict[str, object]:
    with contextlib.closing(scene.store()) as store:
        return store.meta()
