"""Groups that are made, used and ended, again and again, in order, by abort, and by the death of a rank.

Nothing hangs or crashes, and no thread, file or memory is left: the ranks live on from group to group.
"""

import os
import random
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.torch.ranks import Ranks

HERE = "tests.torch.test_lives"


def _kept() -> dict[str, int]:
    """What this process holds now."""
    import gc

    gc.collect()
    status = Path("/proc/self/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return {
        "threads": threading.active_count(),
        "kernel_threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
        "files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
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
        how = choose.choice(["abort", "order"])
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


def _live(folder: Path, lives: int, timeout_s: float, **env: str) -> None:
    from paceline.ports import free_port

    with Ranks(3, f"{HERE}:live", folder, env, lives=lives, seed=5, port=free_port()) as ranks:
        results = ranks.results(timeout_s)
    for result in results:
        first, last = result["held"][0], result["held"][-1]
        assert last["threads"] == 1
        assert last["kernel_threads"] <= first["kernel_threads"], result
        assert last["files"] <= first["files"], result
        assert last["memory_mb"] <= first["memory_mb"] + 16, result


def test_lives_of_groups_leave_nothing(tmp_path: Path) -> None:
    _live(tmp_path, 12, 110)


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True])
def test_a_thousand_lives(apart: bool, tmp_path: Path) -> None:
    env = {"PACELINE_HOST_REDUCE": "0"} if apart else {}
    _live(tmp_path, 1000, 3600, PACELINE_TEST_STACKS_S="3500", **env)
