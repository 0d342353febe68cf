from pathlib import Path

import pytest

from paceline.launch import run as launch
from paceline.launch.jobs import RunJob
from paceline.launch.learning import Learning, Placed
from paceline.launch.planner_loop import tell_event
from paceline.launch.store import Store
from paceline.schedule.inputs.cluster import Cluster
from paceline.schedule.inputs.jobs import Job
from paceline.schedule.model import Model
from tests.launch.scenes import Quiet, Scene, until

CLUSTER = Cluster.uniform(2, 2)
LOOK_S = 0.1


def _learning(folder: Path, *jobs: Job) -> tuple[Store, Learning]:
    fresh = not (folder / "run").exists()
    store = Store.create(folder / "run") if fresh else Store.open(folder / "run")
    known = {job.name: RunJob(job, ("python", "train.py")) for job in jobs}

    def tell(now: float, kind: str, text: str, **more: object) -> None:
        tell_event(store, Quiet(), now, kind, text, **more)  # type: ignore[arg-type]

    return store, Learning(store, CLUSTER, Model(links=True), known, tell)


def _job(name: str, gpus: int = 1, **more: float) -> Job:
    return Job(name, gpus, 100, backward_s=0.1, **more)  # type: ignore[arg-type]


def test_a_job_that_computes_longer_than_its_file_says_is_expected_to(tmp_path: Path) -> None:
    store, learning = _learning(tmp_path, _job("a"), _job("b", 2))
    learning.predict(0.0, [Placed("a", 1, (0,))])
    for second in range(1, 11):
        learning.note("a", 1, 4.0 * second, float(second), LOOK_S)
    learning.conclude(10.0)
    (row,) = store.predictions()
    assert (row["predicted_s"], row["measured_s"]) == pytest.approx((0.1, 0.25))
    assert (row["iterations"], row["learned"]) == pytest.approx((36.0, 2.5))
    assert learning.corrected("a").compute_s == pytest.approx(0.25)
    # Another job has nothing to do with it.
    assert learning.corrected("b").compute_s == pytest.approx(0.1)
    learning.predict(10.0, [Placed("a", 1, (0,))])
    assert store.predictions()[-1]["predicted_s"] == pytest.approx(0.25)
    assert [event["kind"] for event in store.events()] == ["learn"]
    # Who goes on with the run knows it too.
    assert _learning(tmp_path, _job("a"), _job("b", 2))[1].corrected("a").compute_s == pytest.approx(0.25)


def test_a_waiting_twin_goes_by_those_that_ran(tmp_path: Path) -> None:
    _, learning = _learning(tmp_path, _job("a-0"), _job("a-1", arrival_s=3.0), _job("other", 1, jitter=0.5))
    learning.predict(0.0, [Placed("a-0", 1, (0,))])
    learning.note("a-0", 1, 0.0, 1.0, LOOK_S)
    learning.note("a-0", 1, 10.0, 6.0, LOOK_S)
    learning.conclude(6.0)
    assert learning.corrected("a-1").compute_s == pytest.approx(0.5)
    assert learning.corrected("other").compute_s == pytest.approx(0.1)


def test_too_little_progress_says_nothing(tmp_path: Path) -> None:
    store, learning = _learning(tmp_path, _job("a"))
    learning.predict(0.0, [Placed("a", 1, (0,))])
    learning.note("a", 1, 1.0, 1.0, LOOK_S)
    learning.note("a", 1, 2.0, 9.0, LOOK_S)
    learning.note("a", 1, 50.0, 1.5, LOOK_S)
    learning.note("b", 1, 50.0, 1.5, LOOK_S)
    learning.conclude(10.0)
    assert store.predictions()[0]["measured_s"] is None
    assert learning.factors == {}


def test_a_neighbour_that_begins_to_train_begins_the_measurement_anew(tmp_path: Path) -> None:
    """Starting takes a while, in which it sends nothing; and an earlier attempt's progress is not this one's."""
    store, learning = _learning(tmp_path, _job("a"), _job("b", 2))
    learning.predict(0.0, [Placed("a", 2, (0,)), Placed("b", 1, (2, 3))])
    learning.note("a", 1, 90.0, 0.1, LOOK_S)
    learning.note("a", 2, 0.0, 1.0, LOOK_S)
    learning.note("a", 2, 10.0, 2.0, LOOK_S)
    assert store.predictions()[0]["measured_s"] == pytest.approx(0.1)
    learning.note("b", 1, 0.0, 2.0, LOOK_S)
    assert store.predictions()[0]["measured_s"] is None
    learning.note("a", 2, 11.0, 3.0, LOOK_S)
    learning.note("a", 2, 21.0, 6.0, LOOK_S)
    assert store.predictions()[0]["measured_s"] == pytest.approx(0.3)


def test_a_run_learns_from_the_progress_of_its_jobs(tmp_path: Path) -> None:
    """The job sleeps 50 ms an iteration where its file says 10 ms; when another ends, the next plan knows."""
    enough, over = tmp_path / "enough", tmp_path / "over"
    status = """echo "PACELINE_STATUS {\\"iteration\\": $i}";"""
    tells = (
        f"i=0; while [ $i -lt 1500 ] && [ ! -e {over} ]; do i=$((i + 1)); sleep 0.05; {status}"
        f" [ $i -eq 60 ] && touch {enough}; done; true"
    )
    scene = Scene(tmp_path, {"s0": 2})
    scene.job("slow", 1, tells, iterations=1500, backward="10 ms")
    scene.job("other", 1, until(enough), iterations=1)
    scene.job("last", 1, f"touch {over}", iterations=1, arrival="0.5 s")
    assert scene.run() == 0
    rows = [row for row in scene.rows("predictions") if row["job"] == "slow"]
    assert rows[0]["predicted_s"] == pytest.approx(0.01)
    learned = next(i for i, row in enumerate(rows) if row["learned"] is not None)
    assert rows[learned]["measured_s"] >= 0.05
    assert rows[learned]["learned"] == pytest.approx(rows[learned]["measured_s"] / 0.01)
    assert rows[learned + 1]["predicted_s"] == pytest.approx(rows[learned]["measured_s"])


def test_a_run_of_an_older_release_has_no_predictions(tmp_path: Path) -> None:
    store, _ = _learning(tmp_path, _job("a"))
    store._execute("DROP TABLE predictions")
    store.close()
    read = Store.open_to_read(tmp_path / "run")
    assert read.tables()["predictions"] == []
    read.close()
    _learning(tmp_path, _job("a"))[1].predict(0.0, [Placed("a", 1, (0,))])


def test_a_slow_server_is_told_apart_from_its_job(tmp_path: Path) -> None:
    """A job on it takes longer there, and is not expected to elsewhere; who goes on with the run knows it too."""
    jobs = (_job("a"), _job("b", jitter=0.5))
    store, learning = _learning(tmp_path, *jobs)
    learning.predict(0.0, [Placed("a", 1, (0,), ("s0",)), Placed("b", 1, (2,), ("s1",))])
    for done in (0.0, 0.0, 40.0):
        learning.note("a", 1, done, 1.0 + 0.25 * done, LOOK_S)
        learning.note("b", 1, done, 1.0 + 0.125 * done, LOOK_S)
    learning.conclude(11.0)
    assert learning.slowness == pytest.approx({"s0": 2.5}, rel=0.01)
    assert learning.corrected("a").compute_s == pytest.approx(0.1, rel=0.01)
    learning.predict(11.0, [Placed("a", 1, (0,), ("s0",)), Placed("b", 1, (2,), ("s1",))])
    assert [row["predicted_s"] for row in store.predictions()[2:]] == pytest.approx([0.25, 0.125], rel=0.01)
    (event,) = [event for event in store.events() if event["kind"] == "slow"]
    assert event["figures"]["server"] == "s0"
    assert "b 1 elsewhere" in event["reason"]
    assert _learning(tmp_path, *jobs)[1].slowness == learning.slowness


def test_ranks_tell_of_their_servers_at_once(tmp_path: Path) -> None:
    store, learning = _learning(tmp_path, _job("wide", 4))
    wide = Placed("wide", 1, (0, 1, 2, 3), ("s0", "s1"))
    learning.predict(0.0, [wide])
    assert not learning.note_ranks(wide, {"s0": 0.1}, False, 1.0)
    assert learning.note_ranks(wide, {"s0": 0.1, "s1": 0.3}, False, 2.0)
    assert not learning.note_ranks(wide, {"s0": 0.1, "s1": 0.31}, False, 3.0), "no news"
    assert learning.slowness == pytest.approx({"s1": 3.0})
    learning.predict(3.0, [wide])
    alone_s, slow_s = (row["predicted_s"] for row in store.predictions())
    assert slow_s > alone_s + 0.19
    # With help its ranks take as long as all of them together: 4 devices do the work of 2 + 2 / 3.
    learning.note_ranks(wide, {"s0": 0.1, "s1": 0.3}, True, 4.0)
    learning.predict(4.0, [wide])
    assert store.predictions()[-1]["predicted_s"] == pytest.approx(alone_s + 0.05, rel=0.02)


def test_a_server_that_recovers_is_not_slow_any_more(tmp_path: Path) -> None:
    store, learning = _learning(tmp_path, _job("a", 4), _job("b", 4))
    for name, pace_s in (("a", 0.3), ("b", 0.1)):
        learning.note_ranks(
            Placed(name, 1, (0, 1, 2, 3), ("s0", "s1")), {"s0": 0.1, "s1": pace_s}, False, 1.0
        )
    assert learning.slowness == {}
    assert [row["factor"] for row in store.slowness()] == pytest.approx([3.0, 1.0])
    assert store.slow_servers() == []


def test_a_run_learns_of_a_slow_server_from_the_files_of_its_ranks(tmp_path: Path) -> None:
    """Ranks on s0 say that they compute three times as long; the job that comes later goes to the other server."""
    wide_over = tmp_path / "wide-over"
    tells = (
        "case $PACELINE_SERVER in s0) p=0.3;; *) p=0.1;; esac;"
        ' echo "{\\"iteration\\": 1, \\"pace_s\\": $p}" > $PACELINE_STATUS;'
        f' i=1; while [ $i -lt 20 ]; do i=$((i + 1)); sleep 0.1; [ "$RANK" = 0 ] && echo "PACELINE_STATUS'
        f' {{\\"iteration\\": $i, \\"pace_s\\": $p}}"; done; touch {wide_over}'
    )
    scene = Scene(tmp_path, {"s0": 1, "s1": 1})
    scene.job("wide", 2, tells, iterations=20, backward="100 ms")
    scene.job("late", 1, until(wide_over), iterations=20, backward="100 ms", arrival="0.5 s")
    launch.create(
        scene.jobs_file, str(scene.cluster_file), launch.RunRequest(policy="bco-plus"), scene.run_dir
    )
    assert launch.go_on(scene.run_dir, Quiet()) == 0
    (row,) = scene.rows("slowness")
    assert (row["server"], row["factor"]) == ("s0", pytest.approx(3.0))
    late = [row for row in scene.rows("placements") if row["job"] == "late"]
    assert [row["server"] for row in late] == ["s1"]
