"""Runs on emulated clusters, killed at random moments: is anything left on this machine?

    python -m tests.launch.killed --runs 20
    python -m tests.launch.killed --runs 20 --training

Each run is killed by SIGKILL, SIGTERM or SIGINT, in one of its processes, between its first file and two seconds later.
With `--training` it is a workload of the live experiment, with switch, takeover and a pool of warm processes, and up
to 20 seconds later.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from paceline.emulation.namespaces import maker_lives
from paceline.experiments.live.cells import COMPILED, LOADED
from paceline.experiments.live.workloads import SENDS, LivePoint, cluster_text, jobs_text
from paceline.launch.launchers.supervisor import marked_processes
from tests.launch.scenes import Scene

MARK = "PACELINE_TEST_EMULATED"
CALL = "from paceline.cli import main; main()"
SERVERS = {"s0": 1, "s1": 1}
LIMIT_S = 60.0
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def command_of(scene: Scene) -> list[str]:
    """`paceline run` of the scene, on an emulated network."""
    options = ["--cluster", str(scene.cluster_file), "--out", str(scene.run_dir), "--network", "emulated"]
    return [sys.executable, "-c", CALL, "run", str(scene.jobs_file), *options, "--policy", "ff"]


def training_of(folder: Path, seed: int) -> tuple[Path, list[str]]:
    """The folder of a run of the live experiment's workload, and its command."""
    jobs = LivePoint("sends", "bco-plus", "esa-plus", "help", seed).jobs()
    (folder / "jobs.toml").write_text(jobs_text(SENDS, jobs, "help", seed))
    (folder / "cluster.toml").write_text(cluster_text(SENDS))
    options = ["--cluster", str(folder / "cluster.toml"), "--out", str(folder / "run"), "--objective", "jct"]
    switch = ["--switch", "auto", "--switch-memory", "256KiB", "--warm", ",".join(LOADED + COMPILED)]
    return folder / "run", [
        *(sys.executable, "-c", CALL, "run", str(folder / "jobs.toml"), *options, *switch)
    ]


def on_this_machine() -> dict[str, set[str]]:
    """What a run could leave: named namespaces, links, shared memory, control groups."""
    folders = ("/run/netns", "/sys/class/net", "/dev/shm", "/sys/fs/cgroup", "/sys/fs/cgroup/cpu")
    return {
        # Semaphores of Python's own pools are somebody else's: a run has no pool. So is what a living process keeps.
        folder: {
            path.name
            for path in Path(folder).glob("*")
            if not path.name.startswith("sem.mp-") and not maker_lives(path.name)
        }
        for folder in folders
    }


def kill_one(folder: Path, chance: random.Random) -> tuple[Scene, str]:
    """Start a run, kill it some time later, wait for its processes to go; the run, and what is left of it."""
    scene = Scene(folder, SERVERS).job("a", 2, f"[ -e {folder}/over ] || sleep 600")
    return scene, what_is_left(command_of(scene), scene.run_dir, 2.0, chance)


def what_is_left(command: list[str], run_dir: Path, latest_s: float, chance: random.Random) -> str:
    """Of a run that is killed at most so long after its first file."""
    before, folder = on_this_machine(), run_dir.parent
    environment = {
        **os.environ,
        MARK: str(folder),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    run = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until = time.monotonic() + LIMIT_S
    while not (run_dir / "run.sqlite").exists() and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(chance.uniform(0.0, latest_s))
    number = chance.choice(SIGNALS)
    victims = marked_processes(MARK, str(folder)) if number == signal.SIGKILL else [run.pid]
    victim = chance.choice(victims or [run.pid])
    os.kill(victim, number)
    if number == signal.SIGKILL and victim != run.pid:
        time.sleep(0.2)
        run.kill()  # a rank or a supervisor was hit first; now the whole
    run.wait(LIMIT_S)
    while marked_processes(MARK, str(folder)) and time.monotonic() < until + LIMIT_S:
        time.sleep(0.05)
    left = [f"process {pid}" for pid in marked_processes(MARK, str(folder))]
    new = on_this_machine()
    while any(new[place] - before[place] for place in new) and time.monotonic() < until + LIMIT_S:
        time.sleep(0.2)  # others have namespaces and memory too, and give them back
        new = {place: names & new[place] for place, names in on_this_machine().items()}
    for place, names in new.items():
        left += [
            f"{place}/{name}" for name in sorted(names - before[place]) if not _is_used(f"{place}/{name}")
        ]
    return ", ".join(left)


def _is_used(path: str) -> bool:
    """Whether a process was started with this path: the run's own are gone by now, so it is somebody else's."""
    lines = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            lines.append((process / "cmdline").read_bytes())
    return any(path.encode() in line for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--training", action="store_true", help="a workload of the live experiment")
    options = parser.parse_args()
    chance, bad = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(options.runs):
            place = Path(folder, str(i))
            place.mkdir()
            if options.training:
                run_dir, command = training_of(place, 1 + i)
                left = what_is_left(command, run_dir, 20.0, chance)
            else:
                _, left = kill_one(place, chance)
            bad += bool(left)
            print(f"run {i + 1}: {left or 'nothing left'}", flush=True)
    print(f"{options.runs} runs killed, {bad} left something behind")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
