"""What the planner's loop is given: how patient it is, who looks on, and the switch of the run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from paceline.launch.store import Row, Store
from paceline.schedule.plan import Objective


class Watcher(Protocol):
    """Whoever looks on: a table, lines on stderr, a test."""

    def event(self, row: Row) -> None: ...

    def tick(self, store: Store, now: float) -> None: ...


class SwitchLink(Protocol):
    """The switch of a run, as the loop needs it."""

    address: str
    token: str

    def poll(self, now: float, tell: Callable[..., None]) -> None: ...


@dataclass(frozen=True)
class Settings:
    """How patient the loop is."""

    objective: Objective = "makespan"
    grace_s: float = 5.0
    servers_every_s: float = 2.0
    patience_s: float = 60.0
    """How long jobs that no longer fit wait for servers to come back, once nothing else is left to do."""
    unreachable_limit_s: float = 600.0
    losses_max: int = 5
    """So many servers may be lost under one job before it counts as failed."""


DEFAULTS = Settings()
