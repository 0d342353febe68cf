"""What a bit passport costs: all-reduces with and without one, in turns, in the same processes.

    python -m benchmarks.passport

Two ranks on this machine, once in host memory and once over a switch on loopback, each with four groups: two without a
passport, made first and last, and two with one, since no two groups are equally fast. A turn is a batch of all-reduces
with one group of each kind; a row has the medians of the slower rank, and the ratio of their means over both pairs. The
rows named DDP are training steps over the same two ranks, with computing of their own. With `--null` nobody keeps a
passport: what is found then is the benchmark's own error.
"""

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from paceline.bench.processes import die_with_parent
from paceline.live.switch_client import ControlError, ControlPlane
from paceline.ports import free_port

SIZES = (4_096, 262_144, 4_194_304, 26_214_400)
BATCH_BYTES = 26_214_400
BATCH_MAX = 50
TURNS = 11
WIDTH = 1_024
"""Of the trained layers: two of them have 8 MiB of gradients."""


def main(arguments: list[str]) -> int:
    """Start a switch and the ranks; rank 0 prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.passport", description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--null", action="store_true", help="without any passport")
    parser.add_argument("--ddp", action="store_true", help="only training steps")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given: Any = parser.parse_args(arguments)
    if given.rank is not None:
        measure(given.turns, given.json, () if given.ddp else SIZES, given.null)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder, "token")
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(16), encoding="utf-8")
        port = free_port(after=1)
        command = [sys.executable, "-c", "from paceline.cli import main; main()", "switch"]
        command += ["--listen", f"127.0.0.1:{port}", "--token-file", str(token)]
        switch = subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)
        try:
            _await(ControlPlane("127.0.0.1", port, token.read_text(encoding="utf-8"), 2.0))
            env = {
                **os.environ,
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port()),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "PACELINE_SWITCH": f"127.0.0.1:{port}",
                "PACELINE_TOKEN_FILE": str(token),
                "PASSPORTS": folder,
            }
            ranks = [
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.passport", *arguments, "--rank", str(rank)],
                    env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    preexec_fn=die_with_parent,
                )
                for rank in range(2)
            ]
            return max(rank.wait(1200) for rank in ranks)
        finally:
            switch.kill()
            switch.wait(30)


def _await(control: ControlPlane) -> None:
    until = time.monotonic() + 400
    while True:
        try:
            control.text("/healthz")
            return
        except ControlError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def measure(turns: int, file: Path | None, sizes: tuple[int, ...], null: bool) -> None:
    """One rank: all rows."""
    import dataclasses

    import torch
    import torch.distributed as dist

    import paceline.torch  # noqa: F401 (the backend)
    from paceline.torch.settings import read_settings

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    settings = read_settings()
    rows = []
    for path, host_reduce in (("host memory", True), ("switch", False)):
        kept = "" if null else f"{os.environ['PASSPORTS']}/{path.split()[0]}"
        groups = [
            dist.new_group(
                backend="paceline",
                pg_options=dataclasses.replace(settings, host_reduce=host_reduce, passport=passport),
            )
            for passport in ("", kept, kept, "")
        ]
        pairs = [(groups[0], groups[1]), (groups[3], groups[2])]
        for size in sizes:
            rows.append({"path": path, "bytes": size, **_turns(dist, torch, pairs, size, turns)})
        rows.append({"path": path, "bytes": "DDP", **_training(dist, torch, pairs, turns)})
    if dist.get_rank() == 0:
        for row in rows:
            print(
                f"{row['path']:12} {row['bytes']:>10} {row['plain_us']:10.0f} {row['kept_us']:10.0f} us "
                f"ratio {row['ratio']:.3f}",
                flush=True,
            )
        if file is not None:
            file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _compared(dist: Any, torch: Any, one: Any, turns: int) -> dict[str, float]:
    """`one(pair, kept)` gives seconds; medians of the slower rank, without and with a passport, over both pairs."""
    medians = {}
    for pair in (0, 1):
        times: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(turns + 2):
            for kept in (turn % 2 == 0, turn % 2 == 1):
                seconds = torch.tensor([one(pair, kept)], dtype=torch.float64)
                dist.all_reduce(seconds, dist.ReduceOp.MAX)
                if turn >= 2:  # the first ones warm up
                    times[kept].append(float(seconds))
        for kept, each in times.items():
            medians[pair, kept] = statistics.median(each)
    plain_s, kept_s = ((medians[0, kept] + medians[1, kept]) / 2 for kept in (False, True))
    return {"plain_us": plain_s * 1e6, "kept_us": kept_s * 1e6, "ratio": kept_s / plain_s}


def _turns(dist: Any, torch: Any, pairs: list[Any], size: int, turns: int) -> dict[str, float]:
    batch = max(1, min(BATCH_MAX, BATCH_BYTES // size))
    tensor = torch.ones(size // 4)

    def one(pair: int, with_passport: bool) -> float:
        group = pairs[pair][with_passport]
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(batch):
            dist.all_reduce(tensor, group=group)
            tensor.fill_(1.0)
        return (time.perf_counter() - begun) / batch

    return _compared(dist, torch, one, turns)


def _training(dist: Any, torch: Any, pairs: list[Any], turns: int) -> dict[str, float]:
    from torch.nn.parallel import DistributedDataParallel

    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)]
    models = [
        [DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group) for group in pair]
        for pair in pairs
    ]
    inputs = torch.randn(64, WIDTH)

    def one(pair: int, with_passport: bool) -> float:
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(3):
            models[pair][with_passport](inputs).square().mean().backward()
        return (time.perf_counter() - begun) / 3

    return _compared(dist, torch, one, turns)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
