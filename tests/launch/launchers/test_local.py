import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.commands.run_view import summary
from paceline.dashboard.detail import job_detail
from paceline.dashboard.run_source import RunSource
from paceline.dashboard.views import as_json
from paceline.launch import run as launch
from paceline.launch.launchers import supervisor
from paceline.launch.store import Store, read_run
from tests.launch.scenes import (
    PLANNERS,
    Quiet,
    Scene,
    assert_nothing_left,
    assert_slots_held_once,
    assert_ten_went_well,
    finish,
    kill,
    ten_jobs,
    until,
    wait_for,
)  # fmt: skip

SERVERS = {"s0": 2, "s1": 2, "s2": 2}


def test_ten_jobs_one_of_which_fails(tmp_path: Path) -> None:
    scene = ten_jobs(Scene(tmp_path, SERVERS))
    assert_ten_went_well(scene, scene.run())


WILD = (
    'PACELINE_STATUS {"iteration": 1, "rate": 2, "loss": NaN, "path": "switch"}',
    'PACELINE_STATUS {"iteration": 1e308, "rate": 1e-320, "loss": Infinity, "straggler": "\\ud800"}',
    'PACELINE_STATUS {"iteration": 3, "\\ud800": "\\ud800", "x": ' + "[" * 900 + "]" * 900 + "}",
    'PACELINE_STATUS {"iteration": 4, "trains_since": "soon", "x": ' + "9" * 4200 + "}",
    'PACELINE_BACKEND {"used": "\\ud800", "asked": "\\u001b[2J", "reason": "\\n"}',
    "loss 1e999",
)


def test_whatever_a_job_tells_the_run_goes_on_and_can_be_shown(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{line}\n" for line in WILD))
    loop = f"while read -r line; do printf '%s\\n' \"$line\"; sleep 0.3; done < {lines}; exit 3"
    scene = Scene(tmp_path, SERVERS).job("wild", 1, loop).job("tame", 1, "sleep 2.5")
    told = []

    class Shown(Quiet):
        def tick(self, store: Store, now: float) -> None:
            shown = {"view": as_json(source.view()), "detail": job_detail(source, "wild")}
            told.append(json.dumps(shown, allow_nan=False, ensure_ascii=False).encode())
            told.append(json.dumps(summary(store), allow_nan=False, ensure_ascii=False).encode())

    scene.create()
    source = RunSource(scene.run_dir)
    try:
        assert launch.go_on(scene.run_dir, Shown()) == 1
    finally:
        source.close()
    assert told
    assert scene.states() == {"wild": "failed", "tame": "done"}
    assert [event["text"] for event in scene.rows("events") if event["kind"] == "backend"] == [
        "wild uses the backend ?"
    ]


CLOCK = """
import os, time
real, step_s, flag = time.time, float(os.environ["STEP_S"]), os.environ["FLAG"]
time.time = lambda: real() + (step_s if os.path.exists(flag) else 0.0)
from paceline.cli import main
main()
"""


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_a_clock_that_is_set_moves_no_job(tmp_path: Path, step_s: float) -> None:
    flag = tmp_path / "set"
    scene = Scene(tmp_path, SERVERS).job("a", 1, f"sleep 1; touch {flag}; sleep 1")
    scene.job("late", 1, "true", arrival="3 s").job("later", 1, "true", arrival="5 s")
    planner = subprocess.Popen(
        [sys.executable, "-c", CLOCK, "run", str(scene.jobs_file), "--cluster", str(scene.cluster_file), "--out",
         str(scene.run_dir)],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
        env={**os.environ, "STEP_S": str(step_s), "FLAG": str(flag)},
    )  # fmt: skip
    PLANNERS.append(planner)
    code, _, err = finish(planner)
    assert code == 0, err
    began_at = read_run(scene.run_dir).meta["began"]
    rows = {row["name"]: row for row in scene.rows("jobs")}
    assert 3.0 <= rows["late"]["started"] - began_at < 60.0
    assert 5.0 <= rows["later"]["started"] - began_at <= rows["later"]["ended"] - began_at < 60.0
    assert 0.0 <= rows["a"]["ended"] - rows["a"]["started"] < 60.0


def test_the_environment_is_that_of_torchrun_and_ours(tmp_path: Path) -> None:
    scene = Scene(tmp_path, SERVERS).job(
        "a", 3, f"env > {tmp_path}/env-$RANK; sleep 0.1", env={"MINE": "x y", "RANK": "99"}, iterations=5
    )
    assert scene.run() == 0
    ranks = [
        dict(
            line.split("=", 1) for line in (tmp_path / f"env-{rank}").read_text().splitlines() if "=" in line
        )
        for rank in range(3)
    ]
    for rank, variables in enumerate(ranks):
        assert variables["RANK"] == str(rank)
        assert variables["WORLD_SIZE"] == "3"
        assert variables["MINE"] == "x y"
        assert variables["PACELINE_JOB"] == "a"
        assert variables["PACELINE_SERVERS"] == "s0:2,s1:1"
        assert variables["MASTER_ADDR"] == "127.0.0.1"
        assert float(variables["PACELINE_REMAINING_S"]) == pytest.approx(0.5, rel=0.2)
        assert float(Path(variables["PACELINE_REMAINING_FILE"]).read_text()) > 0
        assert "PACELINE_SWITCH" not in variables
        assert "PACELINE_BACKEND" not in variables
    assert len({variables["MASTER_PORT"] for variables in ranks}) == 1
    assert [v["LOCAL_RANK"] for v in ranks] == ["0", "1", "0"]
    assert [v["LOCAL_WORLD_SIZE"] for v in ranks] == ["2", "2", "1"]
    assert [v["GROUP_RANK"] for v in ranks] == ["0", "0", "1"]
    assert [v["PACELINE_SERVER"] for v in ranks] == ["s0", "s0", "s1"]


def test_a_switchs_token_is_in_no_file_that_others_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, SERVERS).job("a", 1, "true", env={"PACELINE_TOKEN": "very-secret-token"})
    assert scene.run() == 0
    holders = [
        path
        for path in scene.run_dir.rglob("*")
        if path.is_file() and b"very-secret-token" in path.read_bytes()
    ]
    assert {"run.sqlite", "task.json"} <= {path.name for path in holders}
    assert [path for path in holders if path.stat().st_mode & 0o077] == []


def test_a_run_says_which_backend_a_job_uses(tmp_path: Path) -> None:
    line = """echo 'PACELINE_BACKEND {"used": "paceline", "asked": "gloo", "reason": "so it is"}' >&2"""
    scene = Scene(tmp_path, SERVERS).job("a", 1, f"{line}; sleep 0.3").job("b", 1, "echo PACELINE_BACKEND {}")
    assert scene.run() == 0
    told = [
        (row["job"], row["text"], row["reason"]) for row in scene.rows("events") if row["kind"] == "backend"
    ]
    assert told == [("a", "a uses the backend paceline", "asked for gloo: so it is")]


def test_progress_is_kept_from_lines_and_from_the_file(tmp_path: Path) -> None:
    line = """echo 'PACELINE_STATUS {"iteration": 1, "rate": 2.5, "path": "switch"}'"""
    file = """echo '{"iteration": 2, "path": "ring", "reason": "the switch is gone"}' > "$PACELINE_STATUS\""""
    first, second = tmp_path / "seen-1", tmp_path / "seen-2"
    scene = Scene(tmp_path, SERVERS).job("a", 1, f"{line}; {until(first)}; {file}; {until(second)}")
    scene.create()

    class Look(Quiet):
        def tick(self, store: Store, now: float) -> None:
            for _, seen in zip(store.samples(), (first, second), strict=False):
                seen.touch()

    assert launch.go_on(scene.run_dir, Look()) == 0
    row = scene.rows("jobs")[0]
    assert (row["iteration"], row["path"]) == (2, "ring")
    assert [(s["iteration"], s["rate"], s["path"]) for s in scene.rows("samples")] == [
        (1, 2.5, "switch"),
        (2, None, "ring"),
    ]
    (change,) = [event for event in scene.rows("events") if event["kind"] == "path"]
    assert change["text"] == "a goes from switch to ring"
    assert change["reason"] == "the switch is gone"


def test_a_failing_rank_takes_its_gang_along_and_retries_are_counted(tmp_path: Path) -> None:
    started = f"{tmp_path}/started-$PACELINE_ATTEMPT"
    fail = f'while test ! -e "{started}"; do sleep 0.05; done; exit 3'
    scene = Scene(tmp_path, SERVERS).job(
        "a", 2, f'if test "$RANK" = 0; then touch "{started}"; sleep 300; else {fail}; fi', retries=1
    )
    scene.create(grace_s=1.0)
    began = time.monotonic()
    assert launch.go_on(scene.run_dir, Quiet()) == 1
    assert time.monotonic() - began < 150
    assert scene.starts() == {"a": 2}
    assert [attempt["exit_code"] for attempt in scene.rows("attempts")] == [3, 3]
    assert "rank 1 ended with 3" in scene.rows("jobs")[0]["reason"]


@pytest.mark.parametrize("away", ["setsid", "env -i setsid", "setsid sh -c '\"$@\" &' sh env -i setsid"])
def test_a_child_in_a_session_of_its_own_ends_with_its_job(away: str, tmp_path: Path) -> None:
    """Also one without the job's variables, and one whose parent has ended."""
    child = tmp_path / "child"
    start = f"{away} /bin/sh -c 'echo $$ > {child}; exec /bin/sleep 300'"
    scene = Scene(tmp_path, SERVERS).job("a", 2, f"{start} & {until(child)}")
    assert scene.run() == 0
    found = supervisor._stat(int(child.read_text()))
    assert found is None or found[0] in "ZX"


def test_a_command_that_is_not_there_fails_and_says_so(tmp_path: Path) -> None:
    scene = Scene(tmp_path, SERVERS)
    scene.jobs_file.write_text(
        '[[jobs]]\nname = "a"\ngpus = 1\niterations = 1\nbackward = "1 s"\ncommand = ["no-such-program"]\n'
    )
    assert scene.run() == 1
    row = scene.rows("jobs")[0]
    assert row["exit_code"] == 127
    assert "no-such-program" in row["reason"]


def test_a_server_that_goes_down_loses_its_job_and_the_rest_goes_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"s0": 1, "s1": 1})
    go = tmp_path / "go"
    scene.job("a", 1, until(go)).job("b", 1, until(go)).job("wide", 2)
    planner = scene.new_planner("--patience", "1", "--policy", "ls")
    wait_for(lambda: scene.starts().keys() >= {"a", "b"}, "two starts")
    (scene.run_dir / "down" / "s1").touch()
    wait_for(lambda: "lost" in [a["outcome"] for a in scene.rows("attempts")], "the loss")
    go.touch()
    code, _, err = finish(planner)
    assert code == 1, err
    assert scene.states() == {"a": "done", "b": "done", "wide": "failed"}
    assert "asks for 2, the servers that are up have 1" in scene.rows("jobs")[2]["reason"]
    outcomes = {(a["job"], a["attempt"]): a["outcome"] for a in scene.rows("attempts")}
    assert sorted(outcomes.values()) == ["done", "done", "lost"]
    (loser,) = [job for (job, _), outcome in outcomes.items() if outcome == "lost"]
    assert scene.starts() == {"a": 1, "b": 1, loser: 2}
    assert scene.places()[loser] == ["s0"]
    assert_slots_held_once(scene)


def test_a_planner_killed_in_the_middle_is_resumed_and_nothing_runs_twice(tmp_path: Path) -> None:
    scene = ten_jobs(Scene(tmp_path, SERVERS), "sleep 0.8")
    planner = scene.new_planner()
    wait_for(lambda: len(scene.starts()) >= 2, "two starts")
    kill(planner)
    assert "running" in scene.states().values() or "starting" in scene.states().values()
    time.sleep(1.0)  # the jobs go on, and some end, while nobody looks
    code, _, err = finish(scene.planner("--resume", str(scene.run_dir)))
    assert_ten_went_well(scene, code)
    assert "resume: " in err


@pytest.mark.parametrize("where", ["after the intent", "after prepare", "after release"])
def test_a_planner_that_dies_between_two_steps(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every window of a launch: the step is cut off, and the next planner takes it again."""
    from paceline.launch import run as launch
    from paceline.launch.launchers import local
    from tests.launch.scenes import Quiet

    class DeathError(Exception):
        pass

    scene = Scene(tmp_path, SERVERS).job("a", 2).job("b", 2)
    scene.create()
    real = {name: getattr(local.Local, name) for name in ("prepare", "release")}

    def dies(*arguments: object) -> None:
        if where == "after prepare":
            real["prepare"](*arguments)
        if where == "after release":
            real["release"](*arguments)
        raise DeathError

    with monkeypatch.context() as patch:
        patch.setattr(local.Local, "release" if where == "after release" else "prepare", dies)
        with pytest.raises(DeathError):
            launch.go_on(scene.run_dir, Quiet())
    assert next(a["state"] for a in scene.rows("attempts")) == (
        "prepared" if where == "after release" else "intent"
    )
    assert launch.go_on(scene.run_dir, Quiet()) == 0
    assert scene.starts() == {"a": 1, "b": 1}
    assert [a["attempt"] for a in scene.rows("attempts")] == [1, 1]


def test_a_second_supervisor_for_one_attempt_does_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path, SERVERS).job("a")
    assert scene.run() == 0
    folder = scene.run_dir / "attempts" / "a.1"
    (folder / "exit.json").unlink()
    import subprocess
    import sys

    subprocess.run(
        [sys.executable, "-m", "paceline.launch.launchers.supervisor", str(folder)], check=False, timeout=60
    )
    time.sleep(0.3)
    assert scene.starts() == {"a": 1}


def test_a_supervisor_that_is_killed_loses_the_job_and_leaves_no_orphan(tmp_path: Path) -> None:
    # The second attempt finds the first one's note and ends at once.
    scene = Scene(tmp_path, SERVERS).job(
        "a", 2, f"test -e {tmp_path}/first-$RANK && exit; touch {tmp_path}/first-$RANK; sleep 100 & sleep 100"
    )
    planner = scene.new_planner()
    wait_for(lambda: len(list(tmp_path.glob("first-*"))) == 2, "the start")
    claim = supervisor.read_json(scene.run_dir / "attempts/a.1/claim.json")
    token = scene.rows("attempts")[0]["token"]
    assert supervisor.signal_process(claim, signal.SIGKILL)
    wait_for(lambda: len(scene.rows("attempts")) == 2, "a second attempt")
    assert_nothing_left(token)
    code, _, err = finish(planner)
    assert code == 0, err
    assert [a["outcome"] for a in scene.rows("attempts")] == ["lost", "done"]
    assert "supervisor was killed" in scene.rows("attempts")[0]["reason"]


def test_ctrl_c_stops_the_jobs_and_a_resumed_run_starts_them_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"s0": 2})
    # The second ignores SIGTERM, and so do its children: it takes a SIGKILL.
    scene.job("polite", 1, "sleep 20").job("deaf", 1, "trap '' TERM; sleep 20").job("later", 2)
    planner = scene.new_planner("--grace", "1")
    wait_for(lambda: scene.starts() == {"polite": 1, "deaf": 1}, "two starts")
    time.sleep(0.3)
    code, out, err = kill(planner, signal.SIGINT)
    assert code == 130, err
    assert "Traceback" not in err
    assert "stopped" in out
    assert scene.states() == {"polite": "stopped", "deaf": "stopped", "later": "waiting"}
    for attempt in scene.rows("attempts"):
        assert_nothing_left(attempt["token"])
    planner = scene.planner("--resume", str(scene.run_dir))
    wait_for(lambda: scene.starts() == {"polite": 2, "deaf": 2}, "their second starts")
    assert kill(planner, signal.SIGTERM)[0] == 130


def test_a_process_is_known_by_its_start_and_not_by_its_number() -> None:
    me = supervisor.process_identity(os.getpid())
    assert me is not None
    assert supervisor.is_alive(me)
    assert not supervisor.is_alive({**me, "start": me["start"] - 1})
    assert not supervisor.is_alive({**me, "boot": "another"})
    assert not supervisor.signal_process({**me, "start": 0}, 0)
    assert supervisor.process_identity(2**22 + 1) is None


def test_a_running_job_is_told_its_remaining_time_at_its_own_pace_and_when_another_ends(
    tmp_path: Path,
) -> None:
    line = """echo 'PACELINE_STATUS {"iteration": 4, "rate": 0.5}'"""
    paced, planned = tmp_path / "paced", tmp_path / "planned"
    scene = Scene(tmp_path, SERVERS)
    scene.job("a", 2, f"{line}; {until(planned)}", iterations=100).job("b", 2, until(paced))
    told: list[float] = []
    scene.create()
    file = scene.run_dir / "attempts" / "a.1" / "remaining_s"

    class Look(Quiet):
        def tick(self, store: Store, now: float) -> None:
            if file.exists() and (not told or told[-1] != float(file.read_text())):
                told.append(float(file.read_text()))
            for seen, mark in zip(told[1:], (paced, planned), strict=False):
                assert seen > 0
                mark.touch()

    assert launch.go_on(scene.run_dir, Look()) == 0
    assert told[0] == pytest.approx(10, rel=0.3), "the plan: 100 iterations of 100 ms"
    assert told[1] == pytest.approx(96 / 0.5), "by its own pace"
    assert told[2] == pytest.approx(9.6, rel=0.3), "planned anew when b ended, though nothing waited"
    assert [plan["trigger"] for plan in scene.rows("plans")][-1] == "b done"
