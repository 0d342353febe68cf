"""A measurement of all-reduce: what is asked for, the rows that come of it, and what the line allows.

Ranks get the `Measurement` and send `MeasuredRow`s back, both as JSON; `Outcome` has all rows and their ratios.

In a sum inside the network every worker sends its tensor once and receives it once, both at the same time. So the
ideal time is `size / goodput`, where the goodput is the link's rate times the share of each frame that is tensor:
the rest is Ethernet's, IP's, UDP's and our own header. Preamble and gap are not in it, since the limiter does not
count them. Numbers travel as 32-bit integers; those of larger tensors of 16-bit types as 16-bit ones, unless 32 are
asked for. What is sent to agree on exponents and steps is not counted either: it is ours to keep small.

A ring needs `2 (n - 1) / n` times the size over every link, nearly twice as much. nccl-tests' *busbw* multiplies by
that factor, so that a perfect ring shows the link's rate. **The busbw of an in-network sum can therefore exceed the
link's rate**: it says how fast a ring's links would have to be.
"""

import json
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.bench.reference import ITEM_BYTES
from paceline.core.numbers.layout import BLOCK_ELEMENTS
from paceline.core.wire import HEADER_BYTES
from paceline.errors import UserError
from paceline.live.net.sockets import elements_for
from paceline.units import parse_size_bytes

OURS = "paceline"
ONE = "paceline/1"
"""Our backend over the first switch alone, where a run has several."""
PEER = "gloo"
REDOP = "sum"
HOST = "host"
FLOAT_PATHS = (HOST, "gloo")
"""Where sums of floats are made; on the other paths they are of fixed-point numbers."""
SPINNING = "+spin"
"""After a backend's name: measured while every rank's main thread is busy in Python."""
ETHERNET_BYTES = 14
IP_UDP_BYTES = 28
ELEMENT_BYTES = 4
"""Of an integer of the payload."""
SIZE_MAX_BYTES = 2**31
SIZE_STEP = 8
"""Between the sizes of a range: 4 B to 100 MB are then ten sizes."""


@dataclass(frozen=True)
class Measurement:
    """One run of `paceline bench allreduce`."""

    workers: int
    """Ranks, one process each."""
    sizes: tuple[int, ...]
    """Of the tensor, in bytes."""
    backends: tuple[str, ...]
    dtype: str = "float32"
    rate_bps: float | None = None
    """Of each link; None: the ranks share this machine's loopback. With switches of their own: of a switch's link."""
    switches: int = 0
    """Servers that are switches, with a link each, and workers' links as wide as all of these; 0: the hub is one."""
    mtu: int = 1500
    loss: float = 0.0
    """Share of packets that the switch drops on purpose."""
    host_reduce: bool = True
    """Whether ranks of one host sum in shared memory first."""
    policy: str = "esa"
    shards: int = 1
    memory: str | None = None
    """Of the switch; None: its default."""
    wire: int | None = None
    """Bits of a number on the wire that are asked for (`PACELINE_WIRE`); None: those of its type."""
    spin: bool = False
    """Measure also with every rank's main thread busy in Python."""
    repeat: int = 0
    """Repetitions of each size and backend; 0: as many as `budget_s` allows."""
    budget_s: float = 10.0
    timeout_s: float = 600.0

    def variants(self) -> tuple[str, ...]:
        """What is timed in turn: the backends, and with `spin` each again under a busy main thread."""
        one = (ONE,) if self.switches > 1 and OURS in self.backends else ()
        names = (*self.backends[:1], *one, *self.backends[1:])
        return (*names, *(name + SPINNING for name in names if self.spin))

    @property
    def worker_rate_bps(self) -> float | None:
        """Of a worker's link."""
        return None if self.rate_bps is None else self.rate_bps * max(1, self.switches)

    @property
    def sum_rate_bps(self) -> float | None:
        """At which a tensor can at most be sent and received by each worker: a switch sends it to all of them."""
        if self.rate_bps is None or not self.switches:
            return self.rate_bps
        return self.rate_bps * self.switches / self.workers

    def wire_bits(self, size_bytes: int) -> int:
        """Bits of a number on the wire, of a tensor of this size."""
        item_bytes = ITEM_BYTES[self.dtype]
        halves = self.wire != 32 and item_bytes == 2 and size_bytes // item_bytes > BLOCK_ELEMENTS
        return 16 if halves else 32

    def expected_path(self) -> str:
        """How our backend's sums should go."""
        if self.rate_bps is None and self.host_reduce:
            return HOST
        from paceline.live.spread import path_name

        return path_name(max(1, self.switches), 0)

    def to_json(self) -> str:
        """For a rank's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Measurement":
        """What `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        return cls(**{**values, "sizes": tuple(values["sizes"]), "backends": tuple(values["backends"])})


@dataclass(frozen=True)
class MeasuredRow:
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
    """Processor time of one all-reduce: of all ranks and, for ours, of the switch."""

    @property
    def time_us(self) -> float:
        """The median."""
        return statistics.median(self.times_us)

    @property
    def cpu_s_per_gbyte(self) -> float:
        """Processor seconds for each GB of the tensor."""
        return self.cpu_s / self.size_bytes * 1e9

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
            "cpu_s_per_GB": self.cpu_s_per_gbyte,
        }


@dataclass
class Outcome:
    """All rows of a run, and the ratios between them."""

    measurement: Measurement
    rows: list[MeasuredRow] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)
    """What the backend of rank 0 said of itself at the end: its path, counters, changes."""

    def trouble(self) -> str:
        """Why the figures are not what was asked for; empty if they are."""
        path = self.status.get("path", self.measurement.expected_path())
        if OURS not in self.measurement.backends or path == self.measurement.expected_path():
            return ""
        return f"the sums ended on the path {path!r}, not {self.measurement.expected_path()!r}"

    def time_us(self, backend: str, size_bytes: int) -> float | None:
        """The median time of one row, if it was measured."""
        for row in self.rows:
            if (row.backend, row.size_bytes) == (backend, size_bytes):
                return row.time_us
        return None

    def ratio_to_peer(self) -> dict[int, float]:
        """How many times the peer's algbw ours is, by size."""
        return self._ratios(PEER, OURS)

    def ratio_to_one(self) -> dict[int, float]:
        """How many times the algbw over one switch that over all of them is, by size."""
        return self._ratios(ONE, OURS)

    def ratio_spinning(self) -> dict[int, float]:
        """Speed under a busy main thread over speed without, by size."""
        return self._ratios(OURS, OURS + SPINNING)

    def ratio_to_line(self) -> dict[int, float]:
        """The ideal time of an in-network sum over ours, by size; nothing where the rate is not limited."""
        rate_bps = self.measurement.sum_rate_bps
        if rate_bps is None:
            return {}
        item_bytes = ITEM_BYTES[self.measurement.dtype]
        ratios = {}
        for size in self.measurement.sizes:
            ours = self.time_us(OURS, size)
            if ours is not None:
                wire = self.measurement.wire_bits(size)
                ideal = ideal_s(size, rate_bps, self.measurement.mtu, item_bytes, wire)
                ratios[size] = ideal * 1e6 / ours
        return ratios

    def _ratios(self, slower: str, faster: str) -> dict[int, float]:
        ratios = {}
        for size in self.measurement.sizes:
            above, below = self.time_us(slower, size), self.time_us(faster, size)
            if above is not None and below is not None:
                ratios[size] = above / below
        return ratios

    def to_json(self) -> dict[str, Any]:
        """As a script reads it; sizes are keys in bytes."""
        settings = asdict(self.measurement)
        if self.measurement.rate_bps is not None:
            wire = self.measurement.wire_bits(max(self.measurement.sizes))
            item_bytes = ITEM_BYTES[self.measurement.dtype]
            settings["payload_share"] = payload_share(self.measurement.mtu, item_bytes, wire)
        return {
            "rows": [row.to_json() for row in self.rows],
            "ratio_to_peer": {str(size): ratio for size, ratio in self.ratio_to_peer().items()},
            "ratio_to_line": {str(size): ratio for size, ratio in self.ratio_to_line().items()},
            "ratio_to_one": {str(size): ratio for size, ratio in self.ratio_to_one().items()},
            "ratio_spinning": {str(size): ratio for size, ratio in self.ratio_spinning().items()},
            "status": self.status,
            "settings": settings,
        }


def payload_share(mtu: int, item_bytes: int = ELEMENT_BYTES, wire: int = 32) -> float:
    """Tensor bytes over frame bytes, of a full packet whose numbers have `wire` bits."""
    elements = elements_for(mtu)
    frame = ETHERNET_BYTES + IP_UDP_BYTES + HEADER_BYTES + elements * ELEMENT_BYTES
    return elements * ELEMENT_BYTES / frame * item_bytes * 8 / wire


def ideal_s(
    size_bytes: int, rate_bps: float, mtu: int, item_bytes: int = ELEMENT_BYTES, wire: int = 32
) -> float:
    """Seconds that an in-network sum takes at least."""
    return size_bytes * 8 / (rate_bps * payload_share(mtu, item_bytes, wire))


def algbw_gbytes(size_bytes: int, seconds: float) -> float:
    """Tensor bytes a second, in GB/s."""
    return size_bytes / seconds / 1e9


def busbw_gbytes(size_bytes: int, seconds: float, workers: int) -> float:
    """What a ring's busiest link would carry in this time, in GB/s."""
    return algbw_gbytes(size_bytes, seconds) * 2 * (workers - 1) / workers


def parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes in bytes, in the order given, each once; a range goes up by `SIZE_STEP` and ends with its end."""
    sizes: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        sizes.extend(_range(_size(first), _size(last)) if dots else [_size(first)])
    return tuple(dict.fromkeys(sizes))


def _size(text: str) -> int:
    try:
        size = parse_size_bytes(text.strip())
    except ValueError as error:
        raise UserError(str(error), place="--sizes") from None
    if not 1 <= size <= SIZE_MAX_BYTES:
        raise UserError(f"{text.strip()!r} is not between 1 B and 2 GiB", place="--sizes")
    return size


def _range(first: int, last: int) -> list[int]:
    if last < first:
        raise UserError(f"the range ends at {last} B, before it begins at {first} B", place="--sizes")
    sizes = []
    size = first
    while size < last:
        sizes.append(size)
        size *= SIZE_STEP
    return [*sizes, last]
