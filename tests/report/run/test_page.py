"""`paceline report`: a run's page, the comparison of two, the trace; of runs done, going on and broken."""

import itertools
import json
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli import app
from paceline.errors import UserError
from paceline.launch.store import read_run
from paceline.report.page import Page
from paceline.report.perfetto import FIRST_SERVER, SWITCH, trace_events
from paceline.report.run.compare import summary
from paceline.report.run.page import _rates
from paceline.report.run.predictions import add_predictions
from tests.report.run_scenes import baseline_run, going_run, paceline_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return baseline_run(folder), paceline_run(folder)


def test_times_are_counted_from_arrival(runs: tuple[Path, Path]) -> None:
    run = read_run(runs[1])
    assert [run.jct_s(job) for job in run.jobs] == [10.0, 16.0, 15.0]
    assert run.avg_jct_s == pytest.approx(41 / 3)
    assert run.makespan_s == 20.0
    assert run.slots == 5


def test_queue_start_up_and_training_add_up_to_the_completion_time(runs: tuple[Path, Path]) -> None:
    run = read_run(runs[1])
    alpha = next(job for job in run.jobs if job["name"] == "alpha")
    assert run.parts_s(alpha) == pytest.approx((0.5, 0.0, run.jct_s(alpha) - 0.5))
    alpha["progress"]["trains_since"] = run.meta["began"] + 2.0
    queue_s, start_s, training_s = run.parts_s(alpha)
    assert (queue_s, start_s) == pytest.approx((0.5, 1.5))
    assert queue_s + start_s + training_s == pytest.approx(run.jct_s(alpha))


def test_spans_of_paths_and_stragglers(runs: tuple[Path, Path]) -> None:
    run = read_run(runs[1])
    alpha = [(span.what, span.start_s, span.end_s) for span in run.paths if span.job == "alpha"]
    assert alpha == [("switch", 0.5, 6.0), ("custodian", 6.0, 9.0), ("switch", 9.0, 10.0)]
    assert run.lags_s == {"alpha": {0: 0.001, 1: 0.001, 2: 0.001, 3: 0.02}}
    assert [run.worker_name("alpha", worker) for worker in (0, 3, 4)] == [
        "rank 0 on s0",
        "rank 3 on s1",
        "worker 4",
    ]
    (slow,) = run.stragglers
    assert (slow.job, slow.what, slow.start_s, slow.end_s) == ("alpha", "rank 3", 3.0, 7.0)
    assert slow.reason == "rank 1 is done and helps rank 3"


def test_predictions_stand_beside_measurements(runs: tuple[Path, Path], tmp_path: Path) -> None:
    page = Page("a run", "")
    add_predictions(page, read_run(runs[1]))
    page.write(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "Iterations, predicted and measured" in text
    assert "All 2 stretches" in text
    # The last stretch of the job, then both; what was not measured is not shown.
    assert text.count("+0.0%") == 2
    assert text.count("-20.0%") == 1
    assert "1 &gt; 1.25" in text
    assert "gamma" not in text


def test_the_switch_knows_process_groups_and_the_report_knows_jobs(runs: tuple[Path, Path]) -> None:
    run = read_run(runs[1])
    assert set(run.switch_use) == {"alpha", "gamma"}
    alpha = run.switch_use["alpha"]
    assert (alpha[0].time_s, alpha[0].sums, alpha[-1].fallbacks) == (1.0, 200.0, 27.0)
    assert run.switch_slots == 64
    rates = _rates(alpha)
    assert set(rates.values()) == {200.0}
    assert len(rates) == len(alpha) - 1
    assert run.job_of("alpha/0") == "alpha"
    assert run.job_of("stranger/0") == "stranger/0"


def test_the_page_stands_alone_and_says_why(runs: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(runs[1]), "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "makespan 20 s" in done.output
    text = page.read_text(encoding="utf-8")
    assert "<script src=" not in text
    for wanted in (
        "needs two servers", "gamma arrived", "no answer for 3 round trips", "rank 1 is done and helps rank 3",
        "switch &gt; custodian &gt; switch", "preemptions", "waits for s0", "alpha 42", "<td>rank 3 on s1</td>",
        "aggregators held, of 64",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert "&lt;s2&gt; &amp; gone" in text, "what others wrote is text, not markup"


def test_two_runs_give_the_difference(runs: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "difference.html"
    done = CliRunner().invoke(app, ["report", str(runs[0]), str(runs[1]), "--out", str(page), "--json", "-"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["change"]["makespan_s"] == pytest.approx(20 / 30 - 1)
    assert found["runs"][0]["jobs"]["gamma"]["jct_s"] == 25.0
    text = page.read_text(encoding="utf-8")
    assert "the makespan is 33.3 % shorter" in text
    assert "-33.3 %" in text
    assert "last loss: baseline" in text
    for wanted in (
        "Switch memory and preemptions: paceline",
        "Stragglers: baseline",
        "no answer for 3 round trips",
    ):
        assert wanted in text, wanted


def test_a_trace_has_a_track_a_gpu_and_one_a_switch(runs: tuple[Path, Path], tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    done = CliRunner().invoke(
        app, ["report", str(runs[1]), "--out", str(tmp_path / "p.html"), "--perfetto", str(trace)]
    )
    assert done.exit_code == 0, done.output
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [name for (pid, _), name in threads.items() if pid >= FIRST_SERVER] == [
        "GPU 0", "GPU 1", "GPU 0", "GPU 1", "GPU 0",
    ]  # fmt: skip
    assert threads[SWITCH, 1] == "switch"
    slices = [e for e in events if e["ph"] == "X" and e["cat"] == "job"]
    assert len(slices) == 4 + 1 + 1 + 2
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= set(threads)
    by_track: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in slices:
        by_track.setdefault((event["pid"], event["tid"]), []).append(
            (event["ts"], event["ts"] + event["dur"])
        )
    for track in by_track.values():
        ordered = sorted(track)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ordered))
    held = [e for e in events if e["ph"] == "C" and e["name"] == "aggregators held"]
    assert held
    assert set(held[0]["args"]) == {"alpha", "gamma"}
    opened = {e["id"] for e in events if e["ph"] == "b"}
    assert opened == {e["id"] for e in events if e["ph"] == "e"}
    timed = [e["ts"] for e in events if "ts" in e]
    assert timed == sorted(timed)
    assert min(timed) >= 0


def test_a_run_that_goes_on_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    folder = going_run(tmp_path)
    run = read_run(folder)
    assert run.makespan_s is None
    assert run.tries[0].end_s == 3.0
    done = CliRunner().invoke(app, ["report", str(folder), "--perfetto", str(tmp_path / "t.json")])
    assert done.exit_code == 0, done.output
    assert "1 running, 1 pending" in done.output
    assert (folder / "report.html").exists()
    assert trace_events(run)
    assert summary([run, run])["change"] == {"avg_jct_s": None, "makespan_s": None}


def test_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        read_run(tmp_path)
    (tmp_path / "run.sqlite").write_text(
        "not a database, but long enough to look like something", encoding="utf-8"
    )
    with pytest.raises(UserError, match="cannot be read"):
        read_run(tmp_path)
    (tmp_path / "run.sqlite").unlink()
    with sqlite3.connect(tmp_path / "run.sqlite") as db:
        db.execute("CREATE TABLE meta (key TEXT, value TEXT)")
        db.execute("INSERT INTO meta VALUES ('version', '99')")
    db.close()
    with pytest.raises(UserError, match="version 99"):
        read_run(tmp_path)


def test_too_many_runs_or_a_trace_of_two(runs: tuple[Path, Path], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", *[str(runs[0])] * 3])
    assert isinstance(done.exception, UserError)
    done = CliRunner().invoke(app, ["report", *map(str, runs), "--perfetto", str(tmp_path / "t.json")])
    assert isinstance(done.exception, UserError)
