"""Groups that are made, used and ended, again and again, in order, by abort, and by the death of a rank.

    python -m tests.torch.lives [--groups 1000] [--path host,network] [--ranks 3]

Half of the groups end by `abort`; in every tenth a rank is killed. Nothing hangs or crashes, and no thread, file or
memory is left: the ranks live on from group to group, but for the one that is killed, which is a process of its own.
"""

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from paceline.ports import free_port
from tests.torch.ranks import Ranks

HERE = "tests.torch.lives"
PATHS: dict[str, dict[str, str]] = {"host": {}, "network": {"PACELINE_HOST_REDUCE": "0"}}
MEMORY_MB = 16
"""What a rank may have more at the end than in the middle: heaps are never quite as they were."""


def _kept() -> dict[str, int]:
    """What this process holds now; what is free and only kept by the allocator is given back before."""
    import ctypes
    import gc

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    # Rank 0 serves the Store: connections of others, killed ones among them, end a moment after their processes.
    files = []
    for _ in range(20):
        files.append(sum(1 for _ in Path("/proc/self/fd").iterdir()))
        time.sleep(0.1)
    return {
        "threads": threading.active_count(),
        "kernel_threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
        "files": min(files),
        "memory_mb": int(resident.split()[1]) // 1024,
    }


def live(rank: int, lives: int, seed: int, port: int) -> dict[str, Any]:
    """Use so many groups; in a tenth of them the last rank is another process, which is killed."""
    import torch
    import torch.distributed as dist

    import paceline.torch  # noqa: F401

    size = int(os.environ["WORLD_SIZE"])
    choose = random.Random(seed)  # the same on all ranks
    meeting = dist.TCPStore("127.0.0.1", port, size, rank == 0, timedelta(seconds=60))
    held = []
    for number in range(lives):
        store = dist.PrefixStore(f"life {number}", meeting)
        how = ("abort", "order")[(number + number // 10) % 2]
        dies, own_seed = number % 10 == 7, choose.randrange(1 << 30)
        if dies and rank == size - 1:
            _die_in(f"life {number}", port, rank, size)
        else:
            dist.init_process_group(
                "paceline", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60)
            )
            _use(dist, torch, rank, size, dies, own_seed)
            if how == "abort":
                dist.group.WORLD.abort()  # type: ignore[union-attr]
            dist.destroy_process_group()
        meeting.add(f"over {number}", 1)
        while int(meeting.add(f"over {number}", 0)) < size:
            time.sleep(0.002)
        if number >= lives // 2 and (number - lives // 2) % max(1, lives // 4) == 0:
            held.append(_kept())
    held.append(_kept())
    return {"held": held}


def _use(dist: Any, torch: Any, rank: int, size: int, dies: bool, seed: int) -> None:
    generator = random.Random(seed)
    if dies:
        with pytest.raises(dist.DistBackendError, match=f"rank {size - 1}"):
            _reduce_for_ever(dist, torch)
        return
    for _ in range(5):
        tensor = torch.full((generator.choice([1, 100, 50_000]),), float(rank))
        work = dist.all_reduce(tensor, async_op=True)
        assert work.get_future().wait()[0] is tensor
        assert (tensor == size * (size - 1) / 2).all()
    dist.barrier()
    dist.all_reduce(torch.ones(10), async_op=True)  # whatever becomes of it


def _reduce_for_ever(dist: Any, torch: Any) -> None:
    while True:
        dist.all_reduce(torch.ones(100))


def _die_in(prefix: str, port: int, rank: int, size: int) -> None:
    """Be the rank in a process of its own, and be killed in the middle."""
    import subprocess
    import sys

    script = (
        "import os, sys, torch, torch.distributed as dist, paceline.torch\n"
        "from datetime import timedelta\n"
        "prefix, port, rank, size = sys.argv[1], *map(int, sys.argv[2:5])\n"
        "meeting = dist.TCPStore('127.0.0.1', port, None, False, timedelta(seconds=60))\n"
        "dist.init_process_group('paceline', store=dist.PrefixStore(prefix, meeting), rank=rank, world_size=size)\n"
        "for _ in range(3): dist.all_reduce(torch.ones(100))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", script, prefix, str(port), str(rank), str(size)]
    assert subprocess.run(command, timeout=100).returncode == -9


def live_through(path: str, groups: int, ranks: int, folder: Path, timeout_s: float) -> list[dict[str, Any]]:
    """What each rank held in the second half of its lives, from first to last."""
    env = {**PATHS[path], "PACELINE_TEST_STACKS_S": str(timeout_s)}
    more = {"lives": groups, "seed": 5, "port": free_port()}
    with Ranks(ranks, f"{HERE}:live", folder, env, **more) as started:
        return started.results(timeout_s)


def left_over(results: list[dict[str, Any]]) -> list[str]:
    """What ranks hold at the end that they did not hold in the middle."""
    found = []
    for rank, result in enumerate(results):
        first, last = result["held"][0], result["held"][-1]
        if last["threads"] != 1:
            found.append(f"rank {rank}: {last['threads']} threads")
        for what, more in (("kernel_threads", 0), ("files", 0), ("memory_mb", MEMORY_MB)):
            if last[what] > first[what] + more:
                found.append(f"rank {rank}: {what} {first[what]}, at the end {last[what]}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--path", default="host,network")
    parser.add_argument("--ranks", type=int, default=3)
    given = parser.parse_args()
    wrong = 0
    for path in given.path.split(","):
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="paceline-lives-") as folder:
            results = live_through(path, given.groups, given.ranks, Path(folder), 60.0 + 6.0 * given.groups)
        left = left_over(results)
        seconds = time.monotonic() - begin
        print(f"{path:8} {given.groups} groups of {given.ranks} ranks in {seconds:.0f} s", flush=True)
        print(f"         rank 0 in the middle {results[0]['held'][0]}")
        print(f"         rank 0 at the end    {results[0]['held'][-1]}")
        print("         " + ("; ".join(left) or "nothing is left"), flush=True)
        wrong += len(left)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
