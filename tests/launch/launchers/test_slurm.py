import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.launch import run as launch
from paceline.launch.doctor import Wanted, examine
from paceline.launch.launchers import slurm as launcher_module
from tests.launch.scenes import (
    Quiet,
    Scene,
    assert_slots_held_once,
    assert_steered,
    assert_ten_went_well,
    finish,
    kill,
    run_guide_command,
    ten_jobs,
    until,
    wait_for,
)  # fmt: skip
from tests.launch.slurm_rig import Slurm, why_not

needs_slurm = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
SERVERS = {"n0": 2, "n1": 2, "n2": 2}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    slurm = Slurm(tmp_path_factory.mktemp("slurm"), nodes=3, cpus=4).start()
    try:
        yield slurm
    finally:
        slurm.stop()


@pytest.fixture
def slurm(rig: Slurm, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("SLURM_CONF", str(rig.conf))
    monkeypatch.setenv("PATH", rig.environment["PATH"])
    return rig


@needs_slurm
def test_ten_jobs_beside_one_that_is_not_ours(slurm: Slurm, tmp_path: Path) -> None:
    other = slurm.command("sbatch", "--parsable", "--hold", "--job-name=pl-j0", "--wrap=true").stdout.strip()
    scene = ten_jobs(Scene(tmp_path, SERVERS))
    assert_ten_went_well(scene, scene.run(launcher="slurm"))
    (left,) = [job for job in launcher_module.queue() if job.number == int(other)]
    assert (left.state, left.reason) == ("PENDING", "JobHeldUser")
    slurm.command("scancel", other)


@needs_slurm
def test_the_guides_command(slurm: Slurm, tmp_path: Path) -> None:
    scene = Scene(tmp_path, SERVERS).job("a", 3).job("b", 1)
    run_guide_command(scene, "slurm")
    assert scene.states() == {"a": "done", "b": "done"}
    assert scene.starts() == {"a": 1, "b": 1}


@needs_slurm
def test_the_environment_of_a_rank(slurm: Slurm, tmp_path: Path) -> None:
    scene = Scene(tmp_path, SERVERS).job("a", 3, f"env > {tmp_path}/env-$RANK", env={"MINE": "it's x"})
    assert scene.run(launcher="slurm") == 0
    ranks = [
        dict(
            line.split("=", 1) for line in (tmp_path / f"env-{rank}").read_text().splitlines() if "=" in line
        )
        for rank in range(3)
    ]
    assert [v["LOCAL_RANK"] for v in ranks] == ["0", "1", "0"]
    assert (
        [v["PACELINE_SERVER"] for v in ranks] == ["n0", "n0", "n1"] == [v["SLURMD_NODENAME"] for v in ranks]
    )
    assert {v["MINE"] for v in ranks} == {"it's x"}
    assert {v["MASTER_ADDR"] for v in ranks} == {"127.0.0.1"}
    assert len({v["MASTER_PORT"] for v in ranks}) == 1


@needs_slurm
def test_a_node_that_goes_down_and_comes_back(slurm: Slurm, tmp_path: Path) -> None:
    go = tmp_path / "go"
    scene = Scene(tmp_path, {"n0": 2, "n1": 2}).job("a", 2, until(go)).job("b", 2, until(go)).job("wide", 4)
    planner = scene.new_planner("--launcher", "slurm", "--policy", "ls")
    try:
        wait_for(lambda: scene.starts().keys() >= {"a", "b"}, "two starts")
        slurm.command("scontrol", "update", "nodename=n1", "state=down", "reason=unplugged")
        wait_for(lambda: any(a["outcome"] == "lost" for a in scene.rows("attempts")), "the loss")
    finally:
        go.touch()
        time.sleep(1.0)
        slurm.command("scontrol", "update", "nodename=n1", "state=resume")
    code, _, err = finish(planner)
    assert code == 0, err
    assert scene.states() == {"a": "done", "b": "done", "wide": "done"}
    (loser,) = [a["job"] for a in scene.rows("attempts") if a["outcome"] == "lost"]
    assert scene.starts() == {"a": 1, "b": 1, "wide": 1, loser: 2}
    told = [event["text"] for event in scene.rows("events") if event["kind"] == "server"]
    assert told == ["server n1 is down", "server n1 is up"]
    assert "unplugged" in next(e["reason"] for e in scene.rows("events") if e["kind"] == "server")
    assert_slots_held_once(scene)


@needs_slurm
def test_a_planner_killed_in_the_middle_is_resumed_and_nothing_runs_twice(
    slurm: Slurm, tmp_path: Path
) -> None:
    scene = ten_jobs(Scene(tmp_path, SERVERS), "sleep 0.8")
    planner = scene.new_planner("--launcher", "slurm")
    wait_for(lambda: len(scene.starts()) >= 2, "two starts")
    kill(planner)
    time.sleep(1.0)
    code, _, err = finish(scene.planner("--resume", str(scene.run_dir)))
    assert "resume: " in err
    assert_ten_went_well(scene, code)


@needs_slurm
@pytest.mark.parametrize("where", ["after sbatch", "after release", "before sbatch has answered"])
def test_a_planner_that_dies_between_two_steps(
    slurm: Slurm, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is in Slurm and the planner has not written so; or a dying sbatch submits it late, a second time."""

    class DeathError(Exception):
        pass

    scene = Scene(tmp_path, SERVERS).job("a", 3)
    scene.create(launcher="slurm")
    name = "release" if where == "after release" else "prepare"
    real = getattr(launcher_module.Slurm, name)

    def dies(*arguments: object) -> None:
        real(*arguments)
        raise DeathError

    with monkeypatch.context() as patch:
        patch.setattr(launcher_module.Slurm, name, dies)
        with pytest.raises(DeathError):
            launch.go_on(scene.run_dir, Quiet())
    token = scene.rows("attempts")[0]["token"]
    if where == "before sbatch has answered":
        folder = scene.run_dir / "attempts/a.1"
        slurm.command(
            "sbatch",
            "--hold",
            f"--comment={token}",
            "--ntasks=1",
            f"--output={tmp_path}/late",
            str(folder / "batch.sh"),
        )
        assert len({job.root for job in launcher_module.queue() if job.comment == token}) == 2
    assert launch.go_on(scene.run_dir, Quiet()) == 0
    assert scene.starts() == {"a": 1}
    # Three slots on nodes of two: a job in two parts, under one root.
    states = sorted({job.root: job.state for job in launcher_module.queue() if job.comment == token}.values())
    assert states == (["CANCELLED", "COMPLETED"] if where == "before sbatch has answered" else ["COMPLETED"])


@needs_slurm
@pytest.mark.slow
def test_a_controller_that_is_away_for_a_while(slurm: Slurm, tmp_path: Path) -> None:
    scene = Scene(tmp_path, SERVERS).job("a", 2, "sleep 1").job("b", 6)
    planner = scene.new_planner("--launcher", "slurm")
    wait_for(lambda: scene.starts() == {"a": 1}, "the start")
    slurm.stop_controller()
    try:
        wait_for(lambda: any(e["kind"] == "launcher" for e in scene.rows("events")), "its absence")
    finally:
        slurm.start_controller()
    code, _, err = finish(planner)
    assert code == 0, err
    assert scene.starts() == {"a": 1, "b": 1}
    told = [event["text"] for event in scene.rows("events") if event["kind"] == "launcher"]
    assert told == ["slurm does not answer", "slurm answers again"]


@needs_slurm
def test_ctrl_c_cancels_our_jobs(slurm: Slurm, tmp_path: Path) -> None:
    import signal

    scene = Scene(tmp_path, {"n0": 2}).job("a", 2, "sleep 60").job("b", 2)
    planner = scene.new_planner("--launcher", "slurm")
    wait_for(lambda: scene.starts() == {"a": 1}, "the start")
    code, _, err = kill(planner, signal.SIGINT)
    assert code == 130, err
    assert scene.states() == {"a": "stopped", "b": "waiting"}
    token = scene.rows("attempts")[0]["token"]
    assert [job.state for job in launcher_module.queue() if job.comment == token] == ["CANCELLED"]


@needs_slurm
def test_gpus_are_asked_for_node_by_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain files stand for GPUs: what Slurm gives is counted, nothing computes."""
    rig = Slurm(tmp_path / "slurm", nodes=2, cpus=4, gpus=2).start()
    try:
        monkeypatch.setenv("SLURM_CONF", str(rig.conf))
        monkeypatch.setenv("PATH", rig.environment["PATH"])
        scene = Scene(tmp_path, {"n0": 2, "n1": 2})
        show = f"scontrol show job -d $SLURM_JOB_ID > {tmp_path}/shown"
        scene.job("a", 3, f'test "$RANK" != 0 || {show}').job("b", 1)
        assert [(found.name, found.slots) for found in launcher_module.Slurm().discover()] == [
            ("n0", 2),
            ("n1", 2),
        ]
        assert scene.run(launcher="slurm") == 0
        shown = (tmp_path / "shown").read_text()
        given = {place["server"]: place["slots"] for place in scene.rows("placements") if place["job"] == "a"}
        for node, slots in given.items():
            assert re.search(rf"Nodes={node} .*GRES=gpu:{slots}\(", shown), shown
    finally:
        rig.stop()


@needs_slurm
def test_clusters_that_slurm_does_not_have(slurm: Slurm, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no node 'moon'"):
        Scene(tmp_path, {"moon": 2}).job("a").create(launcher="slurm")
    with pytest.raises(UserError, match="has 64 slots in the file, its node 4 processors"):
        Scene(tmp_path, {"n0": 64}).job("a").create(launcher="slurm")
    found = launcher_module.Slurm().discover()
    assert [(server.name, server.slots) for server in found] == [("n0", 4), ("n1", 4), ("n2", 4)]


@needs_slurm
def test_options_that_sbatch_refuses_fail_the_job_with_its_words(slurm: Slurm, tmp_path: Path) -> None:
    scene = Scene(tmp_path, SERVERS).job("a")
    assert scene.run(launcher="slurm", sbatch=("--partition=moon",)) == 1
    assert "invalid partition" in scene.rows("jobs")[0]["reason"].lower()


@needs_slurm
def test_a_slurm_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rig: Slurm) -> None:
    conf = tmp_path / "slurm.conf"
    text = rig.conf.read_text().replace("SlurmctldPort=", "SlurmctldPort=1\n#")
    conf.write_text(f"{text}\nMessageTimeout=2\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    with pytest.raises(UserError, match="slurm cannot be reached"):
        Scene(tmp_path, SERVERS).job("a").create(launcher="slurm")


def test_gpus_are_counted() -> None:
    assert launcher_module.gpus_of("gpu:4") == 4
    assert launcher_module.gpus_of("gpu:a100:4(S:0-1),nic:2,gpu:h100:1") == 5
    assert launcher_module.gpus_of("(null)") == 0


@pytest.mark.parametrize(
    ("state", "up"),
    [
        ("IDLE", True),
        ("MIXED+PLANNED", True),
        ("ALLOCATED+COMPLETING", True),
        ("IDLE*", False),
        ("IDLE+DRAIN", False),
        ("DOWN+COMPLETING", False),
        ("IDLE+NOT_RESPONDING", False),
        ("UNKNOWN", False),
    ],
)
def test_nodes_that_can_be_used(state: str, up: bool) -> None:
    assert launcher_module.SlurmNode("n", state, 1, 0, "", "a").up is up


def test_newer_versions_of_the_queue_are_read() -> None:
    entry = {
        "job_id": 5, "job_state": ["FAILED"], "state_reason": "NonZeroExitCode", "comment": "t", "nodes": "n0",
        "exit_code": {"return_code": {"set": True, "number": 7}, "signal": {"id": {"set": False, "number": 0}}},
        "end_time": {"set": True, "number": 17},
    }  # fmt: skip
    job = launcher_module._job(entry)
    assert (job.state, job.exit_code, job.ended) == ("FAILED", 7, 17.0)


@needs_slurm
def test_a_run_is_steered(slurm: Slurm, tmp_path: Path) -> None:
    assert_steered(Scene(tmp_path, SERVERS), "slurm")


@needs_slurm
def test_the_doctor_reaches_it(slurm: Slurm) -> None:
    (found,) = [each for each in examine(Wanted(launcher="slurm")) if each.what == "Slurm"]
    assert found.state == "ok", found.text
