"""What the planner and a launcher say to each other: `Task` in, `Observation` out, through `Launcher`.

An attempt of a job goes through two calls, so that a planner may die at any moment and nothing runs twice:

    write the intent to disk -> handle = prepare(task) -> write the handle -> release(task, handle) -> write that

`prepare` makes the attempt known to the engine without running it; `release` lets it run. Both are
idempotent for one token: after a crash they are simply called again, find what is already there by the token,
and go on from it. `poll` then tells how each released attempt does, until it says `ended` or `lost`.

A job finds the variables of `torchrun` in its environment, and Paceline's own (`MEANINGS`). One process is started
for each GPU (slot), so `init_process_group(init_method="env://")` works unchanged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

EngineHandle = dict[str, Any]
"""What an engine knows an attempt by: plain data, kept on disk."""
MARK = "PACELINE_ATTEMPT"
"""Carries the attempt's token: whatever process has it belongs to that attempt."""
HANDED_ON = ("PACELINE_SWITCH_CA", "PACELINE_SWITCH_FINGERPRINT", "PACELINE_PASSPORT")
"""What jobs get from the environment of `paceline run`, unless the job file says otherwise."""

MEANINGS: dict[str, str] = {
    "RANK": "number of this process in the job, from 0",
    "WORLD_SIZE": "processes of the job, one for each slot",
    "LOCAL_RANK": "number of this process on its server",
    "LOCAL_WORLD_SIZE": "processes of the job on this server",
    "GROUP_RANK": "number of this server in the job (also NODE_RANK)",
    "GROUP_WORLD_SIZE": "servers of the job",
    "MASTER_ADDR": "address of rank 0's server",
    "MASTER_PORT": "a port there for the job's processes to meet",
    "PACELINE_JOB": "the job's name",
    "PACELINE_RUN": "the run's id",
    "PACELINE_SERVER": "the plan's name of this server",
    "PACELINE_SERVERS": "the job's servers and their slots, `s0:2,s1:1`",
    "PACELINE_SLOTS": "the slots of this process's server that the job has, `0,1`",
    "PACELINE_REMAINING_S": "seconds that the job is expected to take from its start",
    "PACELINE_REMAINING_FILE": "a file with the expected remaining seconds, renewed at every plan and by its progress",
    "PACELINE_ITERATIONS": "iterations, as the job file has them",
    "PACELINE_STATUS": "a file to write progress to, as JSON",
    "PACELINE_PROGRESS": "a file where torch counts steps by itself (rank 0), and tells how long a rank computes",
    "PACELINE_SWITCH": "the switch's control address, HOST:PORT, or several with commas; absent without",
    "PACELINE_BACKEND": "`auto` with a switch: a script that asks for Gloo, or nothing, gets the backend `paceline`",
    "PACELINE_TOKEN": "what the switch asks for at admission; absent without a switch",
    "PACELINE_SWITCH_CA": "certificates by which the switch is known; where `paceline run` has it",
    "PACELINE_SWITCH_FINGERPRINT": "the SHA-256 of the switch's certificate; where `paceline run` has it",
    "PACELINE_PASSPORT": "keep a hash of every result, for `paceline verify`; where `paceline run` has it",
    "PACELINE_RACK": "the rack of this server, where racks have switches of their own; on an emulated network",
    "PACELINE_SLOW": "how many times as long a device of this server takes; on an emulated network",
    MARK: "the token of this attempt",
}


class UnreachableError(Exception):
    """The engine does not answer now; nothing is known about its jobs. Ask again later."""


class GoneError(Exception):
    """A server of the attempt is no longer there: it has to be placed anew."""


class RefusedError(Exception):
    """The engine answered that it will not run this; asking again would not help."""


@dataclass(frozen=True)
class Share:
    """The slots that one server gives to a job."""

    server: str
    gpus: tuple[int, ...]
    """Numbers in the whole cluster."""
    local: tuple[int, ...]
    """Numbers on this server."""

    @property
    def slots(self) -> int:
        return len(self.gpus)


@dataclass(frozen=True)
class Task:
    """One attempt of a job: what to run, where, and under which mark."""

    run_id: str
    job: str
    attempt: int
    """From 1 on."""
    token: str
    """Names this attempt alone; every process of it has it as `MARK`."""
    command: tuple[str, ...]
    env: Mapping[str, str]
    """The variables that all its processes share."""
    workdir: str
    shares: tuple[Share, ...]
    folder: str
    """The attempt's own folder, absolute."""
    grace_s: float = 5.0
    """Between SIGTERM and SIGKILL."""

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(share.server for share in self.shares)

    def rank_environments(self) -> list[dict[str, str]]:
        """What each rank has besides `env`, in rank order."""
        found: list[dict[str, str]] = []
        for group, share in enumerate(self.shares):
            for local in range(share.slots):
                rank = len(found)
                found.append(
                    {
                        "RANK": str(rank),
                        "LOCAL_RANK": str(local),
                        "LOCAL_WORLD_SIZE": str(share.slots),
                        "GROUP_RANK": str(group),
                        "NODE_RANK": str(group),
                        "PACELINE_SERVER": share.server,
                        "PACELINE_SLOTS": ",".join(str(slot) for slot in share.local),
                        "PACELINE_STATUS": str(Path(self.folder) / f"status-{rank}"),
                        "PACELINE_PROGRESS": str(Path(self.folder) / f"progress-{rank}"),
                    }
                )
        return found

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Task":
        shares = tuple(
            Share(share["server"], tuple(share["gpus"]), tuple(share["local"])) for share in data["shares"]
        )
        return cls(**{**data, "command": tuple(data["command"]), "shares": shares})


def job_environment(
    task_env: Mapping[str, str], *, run_id: str, job: str, token: str, shares: tuple[Share, ...],
    remaining_s: float, iterations: float, folder: str, switch: str = "", switch_token: str = "",
    backend: str = "auto",
) -> dict[str, str]:  # fmt: skip
    """The variables that all processes of a job share; the job's own `env` comes first and cannot hide ours.

    Except for the backend, which is the job's own business.
    """
    ours = {
        "WORLD_SIZE": str(sum(share.slots for share in shares)),
        "GROUP_WORLD_SIZE": str(len(shares)),
        "PACELINE_JOB": job,
        "PACELINE_RUN": run_id,
        "PACELINE_SERVERS": ",".join(f"{share.server}:{share.slots}" for share in shares),
        "PACELINE_REMAINING_S": f"{max(remaining_s, 0.001):.3f}",
        "PACELINE_REMAINING_FILE": str(Path(folder) / "remaining_s"),
        "PACELINE_ITERATIONS": f"{iterations:.0f}",
        "PYTHONUNBUFFERED": "1",
        MARK: token,
    }
    if switch:
        ours["PACELINE_SWITCH"] = switch
        ours["PACELINE_BACKEND"] = task_env.get("PACELINE_BACKEND", backend)
    if switch_token:
        ours["PACELINE_TOKEN"] = switch_token
    return {**task_env, **ours}


@dataclass(frozen=True)
class Observation:
    """How an attempt does. `lost`: it is gone without a verdict of its own, and may be started elsewhere."""

    state: Literal["queued", "running", "ended", "lost"]
    exit_code: int | None = None
    reason: str = ""
    at: float | None = None
    """When it ended, if the engine knows."""


@dataclass(frozen=True)
class ServerState:
    """A server as the engine sees it."""

    up: bool
    reason: str = ""


@dataclass(frozen=True)
class FoundServer:
    """A server that the engine offers, for a run without a cluster file."""

    name: str
    slots: int


@dataclass
class OpenAttempt:
    """An attempt that the planner watches."""

    task: Task
    handle: EngineHandle
    seen: Observation = field(default_factory=lambda: Observation("queued"))


class Launcher(Protocol):
    """One engine. Calls return within seconds, or raise `UnreachableError`."""

    name: str
    poll_s: float
    """How often it is worth asking."""

    def discover(self) -> list[FoundServer]:
        """The servers there are, in a steady order."""

    def check(self, slots: Mapping[str, int]) -> None:
        """Raise `UserError` if these servers, with so many slots each, are not there."""

    def servers(self, names: Sequence[str]) -> dict[str, ServerState]:
        """Which of them can be used now."""

    def prepare(self, task: Task) -> EngineHandle:
        """Make the attempt known, without running it. May raise `RefusedError`."""

    def release(self, task: Task, handle: EngineHandle) -> None:
        """Let it run."""

    def poll(self, attempts: Sequence[OpenAttempt]) -> dict[str, Observation]:
        """How these attempts do, by token; log and status files of the task's folder are brought up to date."""

    def stop(self, task: Task, handle: EngineHandle) -> None:
        """Ask it to end: SIGTERM, a time of grace, SIGKILL. Returns at once; `poll` tells when it has ended."""

    def forget(self, task: Task, handle: EngineHandle) -> None:
        """Clear away what the engine holds of an attempt whose end is on disk; harmless when repeated."""

    def close(self) -> None:
        """Leave the engine; attempts that run go on."""
