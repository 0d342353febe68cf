"""A DDP job over two racks of an emulated cluster: bitwise the sums of one switch, one flow a rack, kills lose no step.

    python -m tests.launch.two_racks              (root; about three minutes)
    python -m tests.launch.two_racks --only racks

Each way is a `paceline run` of the same job of four ranks on four servers: under one switch, in two racks with a switch
each under an upper one, and the same while a rack's switch or the upper one is killed. The ranks' digest is over the
gradients of every step, as DistributedDataParallel leaves them.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from paceline.launch.store import read_run

CALL = "from paceline.cli import main; main()"
STEPS = 30
KILL_AT = 8
LIMIT_S = 240.0
PATHS_MAX = 3
"""A job that loses a switch leaves it once, and may come back once."""
WAYS = {
    "one": "one switch",
    "racks": "two racks",
    "rack-killed": "a rack's switch is killed",
    "upper-killed": "the upper switch is killed",
}
TRAIN = """
import hashlib, json, os, sys, time
import torch, torch.distributed as dist
import paceline.torch
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("paceline")
rank = dist.get_rank()
torch.manual_seed(1)
layers = torch.nn.Linear(64, 500), torch.nn.Tanh(), torch.nn.Linear(500, 500), torch.nn.Linear(500, 1)
model = torch.nn.Sequential(*layers)
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
digest = hashlib.sha256()
draw = torch.Generator().manual_seed(10 + rank)
for step in range(1, int(sys.argv[1]) + 1):
    optimizer.zero_grad()
    x = torch.randn(8, 64, generator=draw)
    (parallel(x) - x[:, :1]).pow(2).mean().backward()
    for parameter in model.parameters():
        digest.update(parameter.grad.numpy().tobytes())
    optimizer.step()
    time.sleep(0.1)
    status = {"iteration": step, "path": paceline.torch.status()[0]["path"], "digest": digest.hexdigest()}
    if rank == 0:
        print("PACELINE_STATUS", json.dumps(status), flush=True)
found = [None] * dist.get_world_size()
dist.all_gather_object(found, digest.hexdigest())
if rank == 0:
    print("PACELINE_STATUS", json.dumps({**status, "ranks_alike": len(set(found)) == 1}), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Seen:
    """What one way gave."""

    digest: str
    ranks_alike: bool
    steps: int
    paths: tuple[str, ...]
    """In their order."""
    uplinks: dict[str, tuple[int, int]]
    """Bytes that each rack sent up, and got from above."""
    killed: bool


def run_way(way: str, folder: Path, steps: int = STEPS) -> Seen:
    """One run, with its kill."""
    folder.mkdir(parents=True, exist_ok=True)
    racks = 1 if way == "one" else 2
    servers = "".join(f'[[servers]]\nname = "s{i}"\ngpus = 1\nrack = "r{i * racks // 4}"\n' for i in range(4))
    (folder / "c.toml").write_text(f'[network]\ninter_server = "200 Mbit/s"\nemulated = true\n{servers}')
    (folder / "train.py").write_text(TRAIN)
    command = json.dumps(["python", str(folder / "train.py"), str(steps)])
    known = f'gpus = 4\niterations = {steps}\ngradient = "1.1 MB"\nbackward = "100 ms"'
    (folder / "j.toml").write_text(f'[[jobs]]\nname = "job"\n{known}\ncommand = {command}\n')
    options = ["--cluster", str(folder / "c.toml"), "--out", str(folder / "run"), "--policy", "ff"]
    run = subprocess.Popen(
        [sys.executable, "-c", CALL, "run", str(folder / "j.toml"), *options, "--switch", "auto"],
        stdout=subprocess.DEVNULL, stderr=(folder / "log").open("w"),
    )  # fmt: skip
    try:
        killed = way.endswith("-killed") and _kill_switch(
            folder / "run", "switch-rack1" if way == "rack-killed" else "switch"
        )
        code = run.wait(LIMIT_S)
    finally:
        run.kill()
        run.wait()
    if code != 0:
        raise RuntimeError((folder / "log").read_text()[-2000:])
    return _seen(folder / "run", bool(killed))


def _seen(folder: Path, killed: bool) -> Seen:
    found = read_run(folder)
    (job,) = found.jobs
    uplinks = {
        row["figures"]["rack"]: (row["figures"]["sent_bytes"], row["figures"]["got_bytes"])
        for row in found.events
        if row["kind"] == "network" and "rack" in (row["figures"] or {})
    }
    paths = [row["path"] for row in found.samples if row["path"]]
    changes = tuple(path for i, path in enumerate(paths) if i == 0 or path != paths[i - 1])
    return Seen(
        found.figure_of(job, "digest"),
        bool(found.figure_of(job, "ranks_alike")),
        round(job["iteration"]),
        changes,
        uplinks,
        killed,
    )


def _kill_switch(run_dir: Path, name: str) -> bool:
    """SIGKILL to a switch of the run, once its job has done some steps; found by its token file, from outside."""
    until = time.monotonic() + LIMIT_S
    log = run_dir / "attempts" / "job.1" / "rank-0.log"
    while time.monotonic() < until:
        if log.exists() and f'"iteration": {KILL_AT},' in log.read_text(errors="replace"):
            break
        time.sleep(0.02)
    token = f"/{name}/1/token"
    killed = False
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if "switch" in words and any(word.endswith(token) and str(run_dir) in word for word in words):
                os.kill(int(entry.name), signal.SIGKILL)
                killed = True
    return killed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=tuple(WAYS), action="append")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    digests = set()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for way in options.only or WAYS:
            seen = run_way(way, Path(folder, way), options.steps)
            digests.add(seen.digest)
            bad += (
                not seen.ranks_alike or seen.steps != options.steps or (way.endswith("killed") != seen.killed)
            )
            bad += len(seen.paths) > PATHS_MAX
            up = ", ".join(
                f"{rack} {a / 1e6:.1f} MB up {b / 1e6:.1f} MB down" for rack, (a, b) in seen.uplinks.items()
            )
            print(
                f"{WAYS[way]}: {seen.steps} steps, sums {seen.digest[:12]}, ranks alike: {seen.ranks_alike}, "
                f"path {' -> '.join(seen.paths)}{'; ' + up if up else ''}",
                flush=True,
            )
    print("bitwise the same" if len(digests) == 1 else "THE SUMS DIFFER")
    return 1 if bad or len(digests) != 1 else 0


if __name__ == "__main__":
    sys.exit(main())
