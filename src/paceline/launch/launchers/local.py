"""The embedded launcher: processes on this machine; the plan's servers are names for groups of slots.

Each attempt runs under a supervisor of its own (`supervisor.py`) in its own session, so that it goes on when
the planner dies. `prepare` writes what is to be run; `release` starts the supervisor, whose claim file makes a
second start harmless. A file `RUN_DIR/down/SERVER` marks a server as down: its jobs are killed, and lost.

On an emulated network each server is a network namespace (`emulation/cluster.py`), and ranks run in their server's.
There a rank may be forked from a process that has loaded its modules (`pool.py`).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.emulation.cluster import EmulatedCluster
from paceline.errors import UserError
from paceline.launch.launchers import pool, supervisor
from paceline.launch.launchers.protocol import (
    MARK,
    EngineHandle,
    FoundServer,
    Observation,
    OpenAttempt,
    RefusedError,
    ServerState,
    Task,
)
from paceline.ports import free_port
from paceline.secret_files import write_private

START_LIMIT_S = 60.0
LOAD_LIMIT_S = 600.0
"""Of the modules of warm processes: the first time, their code is compiled."""
_INTERPRETERS = ("python", "python3", sys.executable)


def visible_gpus() -> int:
    """NVIDIA devices of this machine."""
    return sum(1 for entry in Path("/dev").glob("nvidia[0-9]*") if entry.name[6:].isdigit())


class Local:
    """Runs jobs here."""

    name = "local"
    poll_s = 0.2

    def __init__(
        self, run_dir: Path, network: EmulatedCluster | None = None, warm: Sequence[str] = ()
    ) -> None:
        """`warm`: modules to be loaded before any rank starts."""
        self.run_dir, self.network = run_dir, network
        self._pool = WarmPool(warm) if warm else None

    def discover(self) -> list[FoundServer]:
        return [FoundServer("local", visible_gpus() or len(os.sched_getaffinity(0)))]

    def check(self, slots: Mapping[str, int]) -> None:
        """Slots are only names here: any cluster will do."""

    def servers(self, names: Sequence[str]) -> dict[str, ServerState]:
        return {name: self._state(name) for name in names}

    def _state(self, name: str) -> ServerState:
        down = (self.run_dir / "down" / name).exists()
        return ServerState(not down, f"marked by down/{name}" if down else "")

    def prepare(self, task: Task) -> EngineHandle:
        folder = Path(task.folder)
        folder.mkdir(parents=True, exist_ok=True)
        first = self.network.servers[task.shares[0].server].address if self.network else "127.0.0.1"
        master = {"MASTER_ADDR": first, "MASTER_PORT": str(free_port())}
        write_task(folder, task, master, self.network, self._pool)
        return {"folder": task.folder}

    def release(self, task: Task, handle: EngineHandle) -> None:
        start_supervised(Path(handle["folder"]), {MARK: task.token})

    def poll(self, attempts: Sequence[OpenAttempt]) -> dict[str, Observation]:
        return {each.task.token: self._observe(each.task) for each in attempts}

    def _observe(self, task: Task) -> Observation:
        folder = Path(task.folder)
        down = [server for server in task.servers if not self._state(server).up]
        if down and supervisor.read_outcome(folder, task.token) is None:
            self._kill(task)
            return Observation("lost", reason=f"server {down[0]} is down")
        return observe(folder, task.token)

    def _kill(self, task: Task) -> None:
        # As a crash would: no grace. The supervisor goes first, so that it starts and reports nothing more.
        claim = supervisor.read_json(Path(task.folder) / "claim.json")
        if claim is not None:
            supervisor.signal_process(claim, signal.SIGKILL)
        supervisor.kill_marked(MARK, task.token)

    def stop(self, task: Task, handle: EngineHandle) -> None:
        stop_supervised(Path(handle["folder"]))

    def forget(self, task: Task, handle: EngineHandle) -> None:
        """Its files stay."""

    def close(self) -> None:
        """Attempts that run go on, but for those that were forked from our own process."""
        if self._pool is not None:
            self._pool.close()


class WarmPool:
    """The process that ranks are forked from; ready once it is made. Modules read `environment` while they load."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-pool-", dir="/dev/shm")
        self._path = f"{self._folder.name}/socket"
        self._process = subprocess.Popen(
            [sys.executable, "-m", pool.__name__, self._path, *modules],
            # A library with a thread of its own could not be forked from.
            env={**os.environ, **(environment or {}), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
        )
        until = time.monotonic() + LOAD_LIMIT_S
        while not Path(self._path).exists():
            if self._process.poll() is not None or time.monotonic() > until:
                self.close()
                raise UserError(f"{', '.join(modules)} could not be loaded", place="--warm")
            time.sleep(0.05)

    def before(self, command: Sequence[str]) -> list[str]:
        """What goes before a rank's command; nothing for what is not `python SCRIPT`."""
        if len(command) < 2 or command[0] not in _INTERPRETERS or command[1].startswith("-"):
            return []
        return [sys.executable, "-I", "-S", str(pool.__file__), "--start", self._path]

    def close(self) -> None:
        """End the process; what was forked from it ends too."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._folder.cleanup()


def write_task(
    folder: Path, task: Task, master: Mapping[str, str], network: EmulatedCluster | None = None,
    warm: "WarmPool | None" = None,
) -> None:  # fmt: skip
    """task.json as the supervisor reads it, unless it is there from before a crash."""
    if (folder / "task.json").exists():
        return
    gpus = visible_gpus()
    ranks: list[dict[str, Any]] = []
    numbers = [number for share in task.shares for number in [share.gpus] * share.slots]
    for rank, own in enumerate(task.rank_environments()):
        env = {**task.env, **master, **own}
        if gpus and max(numbers[rank]) < gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in numbers[rank])
        entry: dict[str, Any] = {"rank": rank, "env": env}
        if network is not None:
            env |= network.environment(own["PACELINE_SERVER"], "PACELINE_SWITCH" in env)
            entry["within"] = network.within(own["PACELINE_SERVER"])
            entry["within"] += warm.before(task.command) if warm is not None else []
        ranks.append(entry)
    data = {
        "token": task.token,
        "command": list(task.command),
        "workdir": task.workdir,
        "grace_s": task.grace_s,
        "ranks": ranks,
    }
    temporary = folder / ".task.json"
    write_private(temporary, json.dumps(data))
    temporary.replace(folder / "task.json")


def start_supervised(folder: Path, mark: Mapping[str, str]) -> None:
    """Start the folder's task under a supervisor that outlives us; harmless if it was started before."""
    if (folder / "claim.json").exists():
        return
    with (folder / "supervisor.log").open("ab") as log:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "paceline.launch.launchers.supervisor", str(folder)],
                env={**os.environ, **mark}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, timeout=START_LIMIT_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RefusedError(f"the supervisor did not start: {error}") from None
    if done.returncode != 0 and not (folder / "claim.json").exists():
        raise RefusedError(f"the supervisor did not start; see {folder}/supervisor.log")


def observe(folder: Path, token: str) -> Observation:
    """How a supervised task does."""
    claim = supervisor.read_json(folder / "claim.json")
    if claim is None:
        return Observation("queued")
    running = supervisor.is_alive(claim)
    # Looked at after the process: a supervisor writes its verdict before it ends.
    verdict = supervisor.read_outcome(folder, token)
    if verdict is not None:
        return Observation("ended", int(verdict["exit_code"]), str(verdict["reason"]), verdict["ended"])
    if running:
        return Observation("running")
    left = supervisor.kill_marked(MARK, token)
    return Observation("lost", reason=f"its supervisor was killed; {left} processes left behind were ended")


def stop_supervised(folder: Path) -> None:
    """Ask the folder's supervisor to stop its ranks; one that has not begun never will."""
    claim = supervisor.read_json(folder / "claim.json")
    if claim is None:
        with contextlib.suppress(FileNotFoundError):
            taken = supervisor.write_once(folder / "claim.json", supervisor.process_identity(os.getpid()))
            if taken:
                verdict = {"exit_code": 143, "reason": "stopped", "ranks": {}, "ended": time.time()}
                supervisor.write_once(folder / "exit.json", verdict)
                return
        claim = supervisor.read_json(folder / "claim.json")
    if claim is not None:
        supervisor.signal_process(claim, signal.SIGTERM)
