"""The embedded launcher: processes on this machine; the plan's servers are names for groups of slots.

Each attempt runs under a supervisor of its own (`supervisor.py`) in its own session, so that it goes on when
the planner dies. `prepare` writes what is to be run; `release` starts the supervisor, whose claim file makes a
second start harmless. A file `RUN_DIR/down/SERVER` marks a server as down: its jobs are killed, and lost.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.launch.launchers import supervisor
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

START_LIMIT_S = 60.0


def visible_gpus() -> int:
    """NVIDIA devices of this machine."""
    return sum(1 for entry in Path("/dev").glob("nvidia[0-9]*") if entry.name[6:].isdigit())


class Local:
    """Runs jobs here."""

    name = "local"
    poll_s = 0.2

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

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
        write_task(folder, task, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})
        return {"folder": task.folder}

    def release(self, task: Task, handle: EngineHandle) -> None:
        start_supervised(Path(handle["folder"]), {MARK: task.token})

    def poll(self, attempts: Sequence[OpenAttempt]) -> dict[str, Observation]:
        return {each.task.token: self._observe(each.task) for each in attempts}

    def _observe(self, task: Task) -> Observation:
        folder = Path(task.folder)
        down = [server for server in task.servers if not self._state(server).up]
        if down and supervisor.read_json(folder / "exit.json") is None:
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
        """Nothing is held open."""


def write_task(folder: Path, task: Task, master: Mapping[str, str]) -> None:
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
        ranks.append({"rank": rank, "env": env})
    data = {
        "token": task.token,
        "command": list(task.command),
        "workdir": task.workdir,
        "grace_s": task.grace_s,
        "ranks": ranks,
    }
    temporary = folder / ".task.json"
    temporary.write_text(json.dumps(data), encoding="utf-8")
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
    verdict = supervisor.read_json(folder / "exit.json")
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
