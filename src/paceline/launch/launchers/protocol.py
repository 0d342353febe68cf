"""What the planner and a launcher say to each other: `Task` in, `Observation` out, through `Launcher`.

An attempt of a job goes through two calls, so that a planner may die at any moment and nothing runs twice:

    write the intent to disk -> handle = prepare(task) -> write the handle -> release(task, handle) -> write that

`prepare` makes the attempt known to the engine and runs not a line of the job; `release` lets it run. Both are
idempotent for one token: after a crash they are simply called again, find what is already there by the token,
and go on from it. `poll` then tells how each released attempt does, until it says `ended` or `lost`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

Handle = dict[str, Any]
"""What an engine knows an attempt by: plain data, kept on disk."""


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
    token: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    shares: tuple[Share, ...]
    folder: str
    """The attempt's own folder, absolute."""
    grace_s: float = 5.0

    @property
    def world_size(self) -> int:
        return sum(share.slots for share in self.shares)

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(share.server for share in self.shares)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Task":
        shares = tuple(
            Share(share["server"], tuple(share["gpus"]), tuple(share["local"])) for share in data["shares"]
        )
        return cls(**{**data, "command": tuple(data["command"]), "shares": shares})


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
    address: str = "127.0.0.1"


@dataclass
class Open:
    """An attempt that the planner watches."""

    task: Task
    handle: Handle
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

    def prepare(self, task: Task) -> Handle:
        """Make the attempt known, without running a line of it. May raise `RefusedError`."""

    def release(self, task: Task, handle: Handle) -> None:
        """Let it run."""

    def poll(self, attempts: Sequence[Open]) -> dict[str, Observation]:
        """How these attempts do, by token; log and status files of the task's folder are brought up to date."""

    def stop(self, task: Task, handle: Handle) -> None:
        """Ask it to end: SIGTERM, a time of grace, SIGKILL. Returns at once; `poll` tells when it has ended."""

    def forget(self, task: Task, handle: Handle) -> None:
        """Clear away what the engine holds of an attempt whose end is on disk; harmless when repeated."""

    def close(self) -> None:
        """Leave the engine; attempts that run go on."""
