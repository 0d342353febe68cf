"""What the page shows, as plain records: a snapshot holds every run and every switch that is watched.

The page gets a snapshot once, and then what has changed (`patch`). So whatever grows or changes by parts is a
dictionary, by a name that stays; a field without a value is left out. Times end in `_s`: seconds since the run began,
or since the switch was first seen.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any


@dataclass(frozen=True)
class JobView:
    """A job: what it asked for, where it is, how far it got."""

    name: str
    position: int
    """In the run's list; the page takes its colour from it."""
    state: str
    gpus: int
    servers: Mapping[str, int]
    """Slots by server, of its last attempt."""
    iterations: float
    priority: float
    exchange: str
    arrival_s: float
    attempt: int
    reason: str
    iteration: float | None = None
    rate: float | None = None
    """Iterations a second."""
    path: str | None = None
    start_s: float | None = None
    end_s: float | None = None
    expected_end_s: float | None = None
    exit_code: int | None = None
    predicted_s: float | None = None
    """How long the plan that started its last attempt expected that to take."""
    measured_s: float | None = None
    """How long that attempt took; of one that runs, how long it has taken and is now expected to take still."""
    iteration_predicted_s: float | None = None
    iteration_measured_s: float | None = None
    preemptions: float | None = None
    """Aggregators that it took from other chunks."""
    fallbacks: float | None = None
    """Packets that found no aggregator."""
    sums: float | None = None
    """Chunks summed up in the switch."""
    loss: float | None = None


@dataclass(frozen=True)
class ServerView:
    """A server: its slots, who is on them, how busy its link is."""

    name: str
    rack: str
    state: str
    slots: int
    first_gpu: int
    """Number of its first slot in the whole cluster."""
    held: Mapping[str, str]
    """Jobs by slot, counted from 0 on this server."""
    reason: str = ""
    load_bps: float | None = None
    """Of its link: the busier direction."""
    capacity_bps: float | None = None
    load_from: str = ""
    """`switch`: counted there. `model`: what jobs without a switch are expected to send at their rate."""


@dataclass(frozen=True)
class BarView:
    """Slots of one server that an attempt of a job held, or by the last plan will hold, and when."""

    job: str
    attempt: int
    server: str
    gpus: tuple[int, ...]
    start_s: float
    end_s: float | None
    """None: it still holds them."""
    outcome: str
    """done, failed, lost, stopped, cancelled; empty: it runs; `planned`: it does not yet."""


@dataclass(frozen=True)
class StragglerView:
    """A worker of a job beside the others; scores are 1 for the best and go to 0."""

    job: str
    worker: int
    name: str
    """Its server, or its rank and server."""
    lag_s: float
    """How long after the first contribution to a chunk its own came, on average of late."""
    score_median: float | None
    """The median worker's busy time of an iteration over its own, at most 1; None: the job's rate is not known."""
    score_best: float | None
    """Its own best busy time over that of now, at most 1."""
    lost_gpu_s: float
    """GPU time that the job's other workers have waited for it since the switch first saw it."""
    slow: bool
    """Whether a score is under its threshold."""


@dataclass(frozen=True)
class MemoryView:
    """The aggregators of a switch, by job, at the last look."""

    time_s: float
    slots: int | None
    held: Mapping[str, float]


@dataclass(frozen=True)
class SwitchView:
    """A switch: does it answer, and what does it do?"""

    address: str
    state: str
    """ok, draining, failed, silent, unseen (not reachable from here)."""
    since_s: float
    """In this state."""
    reason: str = ""
    memory: MemoryView | None = None
    jobs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By name: held, completions, preemptions, fallbacks, bytes in and out a second."""
    stragglers: Mapping[str, StragglerView] = field(default_factory=dict)
    time_s: float = 0.0


@dataclass(frozen=True)
class EventView:
    """Something that happened, in plain words."""

    time_s: float
    kind: str
    text: str
    reason: str = ""
    job: str | None = None


@dataclass(frozen=True)
class RunView:
    """One run."""

    name: str
    folder: str
    state: str
    launcher: str
    policy: str
    objective: str
    began: float
    """Seconds since 1970."""
    time_s: float
    planner: bool
    """Whether its planner is alive."""
    paused: bool
    """Whether nothing new is started."""
    jobs: Mapping[str, JobView]
    servers: Mapping[str, ServerView]
    bars: Mapping[str, BarView]
    events: Mapping[str, EventView]
    """The latest, by number."""
    stragglers: Mapping[str, StragglerView]
    switches: Mapping[str, SwitchView]
    memory: MemoryView | None = None
    ended_s: float | None = None
    avg_jct_s: float | None = None
    makespan_s: float | None = None
    lost_gpu_s: float = 0.0
    """GPU time lost to stragglers, of all jobs."""


@dataclass(frozen=True)
class Snapshot:
    """Everything."""

    time: float
    """Seconds since 1970."""
    runs: Mapping[str, RunView]
    switches: Mapping[str, SwitchView]
    steering: bool
    """Whether this dashboard takes commands from who has its token."""


def as_json(value: Any) -> Any:
    """A record as JSON's types; fields without a value are left out, floats are cut to what can be seen.

    JSON has no infinity and no NaN: such a number is left out too.
    """
    if is_dataclass(value) and not isinstance(value, type):
        pairs = ((each.name, getattr(value, each.name)) for each in fields(value))
        return {key: as_json(part) for key, part in pairs if _has_value(part)}
    if isinstance(value, Mapping):
        return {str(key): as_json(part) for key, part in value.items() if _has_value(part)}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value if _has_value(part)]
    if isinstance(value, bytes):  # in a damaged file
        return value.decode(errors="replace")
    if isinstance(value, float):
        return round(value, 6) if abs(value) < 1e15 else value
    return value


def _has_value(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))
