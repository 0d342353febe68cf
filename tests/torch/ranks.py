"""Ranks for the tests of the backend: processes that run a function of a test module, each with its own result.

    results = run_ranks(4, "tests.torch.test_process_group:deed", env={"PACELINE_HOST_REDUCE": "0"})

The function gets the rank and what `more` says; what it returns comes back as JSON. A rank that ends badly
gives its last lines as an error. Everything is bounded by a time limit, and every process that is still there
then is killed.

Loading torch and compiled code takes a processor several seconds a rank, so ranks are forked from a process that has
both (`launch/launchers/pool.py`): one for each way to run the core. `fresh=True` starts an interpreter
of its own: for tests of how a program begins or ends."""

import atexit
import faulthandler
import functools
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from paceline.launch.launchers.local import WarmPool
from paceline.ports import free_port

ROOT = Path(__file__).parents[2]
LOADED = ("torch.distributed", "paceline.torch", "paceline.torch.warm", "paceline.live.agent.setup")
READ_WHILE_LOADING = ("NUMBA_", "TORCH_", "OMP_")
"""Variables that a forked rank would not see in time."""


@functools.cache
def _warm(numba_disable_jit: str) -> WarmPool:
    """The process that this process's ranks are forked from."""
    made = WarmPool(LOADED, {"NUMBA_DISABLE_JIT": numba_disable_jit, "PYTHONPATH": os.pathsep.join(sys.path)})
    atexit.register(made.close)
    return made


def rank_command(script: list[str], env: dict[str, str], fresh: bool = False) -> list[str]:
    """The command of a rank that runs a script: forked where that makes no difference."""
    own = [key for key in env if key.startswith(READ_WHILE_LOADING) and key != "NUMBA_DISABLE_JIT"]
    command = [sys.executable, *script]
    if fresh or own:
        return command
    return [*_warm(env.get("NUMBA_DISABLE_JIT", "0")).before(command), *command]


class Ranks:
    """Started ranks; use as a context manager, so that none outlives its test."""

    def __init__(
        self,
        ranks: int,
        function: str,
        folder: Path,
        env: dict[str, str] | None = None,
        fresh: bool = False,
        **more: Any,
    ) -> None:
        self.folder = folder
        clean = {
            k: v for k, v in os.environ.items() if not k.startswith("PACELINE_") or k == "PACELINE_CACHE"
        }
        shared = {
            **clean,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(ranks),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **(env or {}),
        }
        self.processes = []
        command = rank_command([__file__, function, str(folder), json.dumps(more)], env or {}, fresh)
        for rank in range(ranks):
            log = (folder / f"log-{rank}").open("wb")
            self.processes.append(
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=log,
                    stderr=log,
                )
            )
            log.close()

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def log(self, rank: int) -> str:
        return (self.folder / f"log-{rank}").read_text(errors="replace")

    def results(self, timeout_s: float = 120.0) -> list[Any]:
        """What every rank returned."""
        end = time.monotonic() + timeout_s
        for rank, process in enumerate(self.processes):
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                logs = "\n".join(
                    f"rank {other}:\n{self.log(other)[-2500:]}" for other in range(len(self.processes))
                )
                raise AssertionError(f"rank {rank} hangs\n{logs}") from None
        for rank, process in enumerate(self.processes):
            assert process.returncode == 0, (
                f"rank {rank} ended with {process.returncode}:\n{self.log(rank)[-3000:]}"
            )
        return [
            json.loads((self.folder / f"result-{rank}").read_text()) for rank in range(len(self.processes))
        ]


def run_ranks(
    ranks: int,
    function: str,
    folder: Path,
    env: dict[str, str] | None = None,
    fresh: bool = False,
    **more: Any,
) -> list[Any]:
    """Start, wait, and give the results."""
    with Ranks(ranks, function, folder, env, fresh, **more) as started:
        return started.results()


def main() -> None:
    sys.path[0] = str(ROOT)
    module, _, name = sys.argv[1].partition(":")
    rank = int(os.environ["RANK"])
    faulthandler.dump_traceback_later(float(os.environ.get("PACELINE_TEST_STACKS_S", "100")))
    result = getattr(importlib.import_module(module), name)(rank, **json.loads(sys.argv[3]))
    Path(sys.argv[2], f"result-{rank}").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
