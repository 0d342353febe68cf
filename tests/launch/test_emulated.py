"""Runs on an emulated network: what ranks find, and that a killed run leaves nothing behind."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.launch import run as launch
from tests.emulation.test_namespaces import needs_root
from tests.launch.killed import CALL, SERVERS, command_of, kill_one, on_this_machine
from tests.launch.scenes import Scene


@needs_root
def test_ranks_run_on_servers_of_their_own_address(tmp_path: Path) -> None:
    scene = Scene(tmp_path, SERVERS).job(
        "a", 2, f"(hostname -I; echo $MASTER_ADDR $PACELINE_SLOW) > {tmp_path}/$RANK"
    )
    before = on_this_machine()
    done = subprocess.run(command_of(scene), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "2 servers in 1 racks are network namespaces" in done.stderr
    seen = [(tmp_path / str(rank)).read_text().split() for rank in range(2)]
    assert seen == [["10.77.1.1", "10.77.1.1", "1"], ["10.77.1.2", "10.77.1.1", "1"]]
    assert on_this_machine() == before


@needs_root
def test_killed_at_any_moment_it_leaves_nothing_and_can_go_on(tmp_path: Path) -> None:
    chance = random.Random(4)
    for i in range(3):
        folder = tmp_path / str(i)
        folder.mkdir()
        scene, left = kill_one(folder, chance)
        assert left == ""
    (folder / "over").touch()
    again = subprocess.run([sys.executable, "-c", CALL, "run", "--resume", str(scene.run_dir)], timeout=120)
    assert again.returncode == 0


@needs_root
def test_a_stop_is_handed_on_to_the_planner(tmp_path: Path) -> None:
    scene = Scene(tmp_path, SERVERS).job("a", 2, f"touch {tmp_path}/on-$RANK; sleep 600")
    run = subprocess.Popen(command_of(scene), stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (tmp_path / "on-1").exists() and time.monotonic() < until:
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 130


def test_an_emulated_network_is_for_this_machine(tmp_path: Path) -> None:
    scene = Scene(tmp_path, SERVERS).job("a")
    with pytest.raises(UserError, match=r"--network: .*--launcher local"):
        scene.create(network="emulated", launcher="slurm")
    with pytest.raises(UserError, match=r"--switch: .*cannot be reached"):
        scene.create(network="emulated", switch="10.0.0.1:7070")
    with pytest.raises(UserError, match=r"--warm: .*emulated network only"):
        scene.create(warm=("json",))


def test_the_cluster_file_may_ask_for_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, SERVERS).job("a")
    text = scene.cluster_file.read_text()
    scene.cluster_file.write_text(f"[network]\nemulated = true\n{text}")
    scene.create()
    assert launch.asks_for_emulation(scene.run_dir)
