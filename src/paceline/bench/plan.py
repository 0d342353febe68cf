"""What a run measures, and what it gives: the plan that ranks receive and the rows that they send back, as JSON."""

import json
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.bench.bandwidth import algbw_gbytes, busbw_gbytes, ideal_s, payload_share
from paceline.bench.reference import ITEM_BYTES

OURS = "paceline"
PEER = "gloo"
REDOP = "sum"
HOST = "host"
SWITCH = "switch"
FLOAT_PATHS = (HOST, "gloo")
"""Where sums of floats are made; on the other paths they are of fixed-point numbers."""
SPINNING = "+spin"
"""After a backend's name: measured while every rank's main thread is busy in Python."""


@dataclass(frozen=True)
class Plan:
    """One run of `paceline bench allreduce`."""

    workers: int
    sizes: tuple[int, ...]
    backends: tuple[str, ...]
    dtype: str = "float32"
    rate_bps: float | None = None
    mtu: int = 1500
    loss: float = 0.0
    host_reduce: bool = True
    policy: str = "esa"
    shards: int = 1
    memory: str | None = None
    spin: bool = False
    repeat: int = 0
    """Repetitions of each size and backend; 0: as many as `budget_s` allows."""
    budget_s: float = 10.0
    timeout_s: float = 600.0

    def variants(self) -> tuple[str, ...]:
        """What is timed in turn: the backends, and with `spin` each again under a busy main thread."""
        busy = tuple(name + SPINNING for name in self.backends) if self.spin else ()
        return (*self.backends, *busy)

    def expected_path(self) -> str:
        """How our backend's sums should go."""
        return HOST if self.rate_bps is None and self.host_reduce else SWITCH

    def to_json(self) -> str:
        """For a rank's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """The plan that `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        return cls(**{**values, "sizes": tuple(values["sizes"]), "backends": tuple(values["backends"])})


@dataclass(frozen=True)
class Row:
    """One size with one backend."""

    backend: str
    size_bytes: int
    count: int
    dtype: str
    workers: int
    times_us: tuple[float, ...]
    """Of one all-reduce, in each repetition; the slowest rank's."""
    wrong: int
    cpu_s: float = 0.0
    """Processor time of all ranks, of one all-reduce."""

    @property
    def time_us(self) -> float:
        """The median."""
        return statistics.median(self.times_us)

    def to_json(self) -> dict[str, Any]:
        """As a script reads it."""
        seconds = self.time_us / 1e6
        return {
            "backend": self.backend,
            "size_bytes": self.size_bytes,
            "count": self.count,
            "type": self.dtype,
            "redop": REDOP,
            "time_us": self.time_us,
            "algbw_GBps": algbw_gbytes(self.size_bytes, seconds),
            "busbw_GBps": busbw_gbytes(self.size_bytes, seconds, self.workers),
            "wrong": self.wrong,
            "time_us_min": min(self.times_us),
            "time_us_max": max(self.times_us),
            "repetitions": len(self.times_us),
            "cpu_s": self.cpu_s,
        }


@dataclass
class Outcome:
    """All rows of a run, and the ratios between them."""

    plan: Plan
    rows: list[Row] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)
    """What the backend of rank 0 said of itself at the end: its path, counters, changes."""

    def trouble(self) -> str:
        """Why the figures are not what was asked for; empty if they are."""
        path = self.status.get("path", self.plan.expected_path())
        if OURS not in self.plan.backends or path == self.plan.expected_path():
            return ""
        return f"the sums ended on the path {path!r}, not {self.plan.expected_path()!r}"

    def time_us(self, backend: str, size_bytes: int) -> float | None:
        """The median time of one row, if it was measured."""
        for row in self.rows:
            if (row.backend, row.size_bytes) == (backend, size_bytes):
                return row.time_us
        return None

    def ratio_to_peer(self) -> dict[int, float]:
        """How many times the peer's algbw ours is, by size."""
        return self._ratios(PEER, OURS)

    def ratio_spinning(self) -> dict[int, float]:
        """Speed under a busy main thread over speed without, by size."""
        return self._ratios(OURS, OURS + SPINNING)

    def ratio_to_line(self) -> dict[int, float]:
        """The ideal time of an in-network sum over ours, by size; nothing where the rate is not limited."""
        if self.plan.rate_bps is None:
            return {}
        item_bytes = ITEM_BYTES[self.plan.dtype]
        ratios = {}
        for size in self.plan.sizes:
            ours = self.time_us(OURS, size)
            if ours is not None:
                ratios[size] = ideal_s(size, self.plan.rate_bps, self.plan.mtu, item_bytes) * 1e6 / ours
        return ratios

    def _ratios(self, slower: str, faster: str) -> dict[int, float]:
        ratios = {}
        for size in self.plan.sizes:
            above, below = self.time_us(slower, size), self.time_us(faster, size)
            if above is not None and below is not None:
                ratios[size] = above / below
        return ratios

    def to_json(self) -> dict[str, Any]:
        """As a script reads it; sizes are keys in bytes."""
        settings = asdict(self.plan)
        if self.plan.rate_bps is not None:
            settings["payload_share"] = payload_share(self.plan.mtu, ITEM_BYTES[self.plan.dtype])
        return {
            "rows": [row.to_json() for row in self.rows],
            "ratio_to_peer": {str(size): ratio for size, ratio in self.ratio_to_peer().items()},
            "ratio_to_line": {str(size): ratio for size, ratio in self.ratio_to_line().items()},
            "ratio_spinning": {str(size): ratio for size, ratio in self.ratio_spinning().items()},
            "status": self.status,
            "settings": settings,
        }
