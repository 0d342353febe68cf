import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.launch import run as launch
from paceline.launch.store import Store
from tests.commands.command_line import paceline
from tests.launch.scenes import Scene, until

ROOT = Path(__file__).parents[2]
CLUSTER = str(ROOT / "examples/run/cluster.toml")
JOBS = str(ROOT / "examples/run/jobs.toml")


def test_the_example_runs_and_the_same_files_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    assert paceline(monkeypatch, "plan", "--cluster", CLUSTER, "--jobs", JOBS, "--policy", "ls") == 0
    capsys.readouterr()
    out = tmp_path / "run"
    assert paceline(monkeypatch, "run", JOBS, "--cluster", CLUSTER, "--out", str(out)) == 0
    said = capsys.readouterr()
    assert "wide    done" in said.out
    assert "\x1b" not in said.out + said.err
    for text in ("arrival: late arrives", "plan: bco-plus: starts", "end: wide done", "the run ends: 4 done"):
        assert text in said.err
    store = Store.open_to_read(out)
    assert {row["name"]: row["iteration"] for row in store.jobs()} == {
        "wide": 5,
        "pair-0": 4,
        "pair-1": 4,
        "late": 3,
    }
    assert len(store.plans()) >= 2
    assert all(plan["decisions"][0]["reason"] for plan in store.plans())
    store.close()
    # A run that is over can be asked again, and does nothing more.
    assert paceline(monkeypatch, "run", "--resume", str(out), "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["state"] == "done"
    assert document["makespan_s"] > document["avg_jct_s"] > 0
    late = document["jobs"][3]
    assert late["progress"] == {"iteration": 3, "rate": 10, "path": "ring"}
    assert late["prediction"]["predicted_s"] > 0
    assert set(late["prediction"]) == {
        "predicted_s",
        "measured_s",
        "iterations",
        "factor",
        "learned",
        "error",
    }
    assert Path(late["logs"][0]).read_text().endswith("done\n")


def test_a_failure_is_exit_code_1_and_in_the_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scene = Scene(tmp_path, {"s0": 1}).job("a", 1, "exit 4").job("b")
    assert paceline(monkeypatch, "run", str(scene.jobs_file), "--cluster", str(scene.cluster_file), "--out",
               str(scene.run_dir), "--json", str(tmp_path / "out.json")) == 1  # fmt: skip
    jobs = json.loads((tmp_path / "out.json").read_text())["jobs"]
    assert [(job["state"], job["exit_code"]) for job in jobs] == [("failed", 4), ("done", 0)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--launcher", "moon"], "--launcher: there is no launcher 'moon'; known: local, slurm, ray"),
        (["--policy", "tiresias"], "--policy: a run cannot use policy 'tiresias'"),
        (["--objective", "joy"], "--objective: 'joy' is neither makespan nor jct"),
        (["--cluster", "nowhere.toml"], "nowhere.toml: no such file"),
        (["--launcher", "ray", "--address", "127.0.0.1:1"], "--launcher: ray cannot be reached"),
        (["--switch", "sometimes"], "--switch: 'sometimes' is neither auto, none nor HOST:PORT"),
        (["--switch", "127.0.0.1:1"], "--switch: no switch answers at 127.0.0.1:1"),
        (["--resume", "x"], "run: give either a job file or --resume DIR"),
    ],
)
def test_mistakes_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    arguments: list[str], told: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    scene = Scene(tmp_path, {"s0": 1}).job("a")
    code = paceline(monkeypatch, "run", str(scene.jobs_file), "--out", "run", *arguments)
    err = capsys.readouterr().err
    assert code == 2
    assert f"paceline: {told}" in err
    assert len(err.splitlines()) == 1
    assert scene.starts() == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "job 'a' has no command"),
        ('command = ""', "job 'a' has no command"),
        ("command = []", "job 'a' has no command"),
        ('command = "true"\nworkdir = "no/such"', "workdir 'no/such' is no folder"),
        ('command = "true"\nenv = { "a=b" = "c" }', "'a=b' cannot be the name of a variable"),
        ('command = "true"\ncomand = "false"', "comand"),
        ('command = "true"\ngpus = 99', "gpus"),
    ],
)
def test_mistakes_in_the_job_file_name_the_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, told: str
) -> None:
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(f'[[jobs]]\nname = "a"\niterations = 1\nbackward = "1 s"\ngpus = 1\n{text}\n')
    if "99" in text:
        jobs.write_text(jobs.read_text().replace("gpus = 1\n", ""))
        told = "job 'a' asks for 99 GPUs, the cluster has 5"
    code = paceline(monkeypatch, "run", str(jobs), "--cluster", CLUSTER, "--out", str(tmp_path / "run"))
    err = capsys.readouterr().err
    assert code == 2
    assert told in err
    assert "jobs.toml:" in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_folders_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scene = Scene(tmp_path, {"s0": 1}).job("a")
    scene.create()
    again = ["run", str(scene.jobs_file), "--cluster", str(scene.cluster_file), "--out", str(scene.run_dir)]
    assert paceline(monkeypatch, *again) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert paceline(monkeypatch, "run", "--resume", str(tmp_path / "empty")) == 2
    assert "holds no run" in capsys.readouterr().err
    with launch.held_lock(scene.run_dir):
        assert paceline(monkeypatch, "run", "--resume", str(scene.run_dir)) == 2
    assert f"in use by a planner that is alive (process {os.getpid()})" in capsys.readouterr().err
    assert scene.starts() == {}


def test_a_terminal_shows_a_table_that_lives(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"s0": 2})
    seen = tmp_path / "seen"
    told = """echo 'PACELINE_STATUS {"iteration": 2, "rate": 7, "path": "switch"}'"""
    scene.job("slow", 2, f"{told}; {until(seen)}")
    scene.create()
    master, slave = pty.openpty()
    call = "from paceline.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", call, "run", "--resume", str(scene.run_dir)],
        stdout=subprocess.DEVNULL, stderr=slave, env={**os.environ, "COLUMNS": "100", "LINES": "30", "TERM": "xterm"},
    ) as planner:  # fmt: skip
        os.close(slave)
        shown = _read_all(master, planner, "7/s", seen)
    os.close(master)
    assert planner.returncode == 0
    for text in ("servers", "s0:2", "running", "2/3", "7/s", "switch"):
        assert text in shown


def _read_all(master: int, planner: "subprocess.Popen[bytes]", text: str, seen: Path) -> str:
    """All that is shown; when the text is, the file `seen` is made."""
    data = b""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.2)[0]:
            try:
                data += os.read(master, 65536)
                if text.encode() in data:
                    seen.touch()
            except OSError:
                break
        elif planner.poll() is not None:
            break
    planner.wait(30)
    return data.decode(errors="replace")


def test_a_script_with_env_init_works_unchanged(tmp_path: Path) -> None:
    """The variables are torchrun's: two ranks of PyTorch meet by env:// and sum."""
    pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'paceline[torch]')")
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.full((4,), float(dist.get_rank() + 1))\n"
        "dist.all_reduce(x)\n"
        "print(x.tolist(), flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    scene = Scene(tmp_path, {"s0": 1, "s1": 1}).job("a", 2, f"{sys.executable} {script}")
    assert scene.run() == 0
    for rank in range(2):
        log = (scene.run_dir / f"attempts/a.1/rank-{rank}.log").read_text()
        assert "[3.0, 3.0, 3.0, 3.0]" in log


def test_nothing_is_found_without_a_cluster_file_but_this_machine(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"s0": 1}).job("a")
    launch.create(scene.jobs_file, "", launch.RunRequest(), scene.run_dir)
    (server,) = scene.rows("servers")
    assert server["name"] == "local"
    assert server["slots"] >= 1
