"""The cluster: servers with GPUs, in racks, their bandwidths and the memory of the rack switches.

A cluster file is TOML: `[network]` (rates), `[[servers]]` (groups), optionally `[device]` (a GPU's speed),
`[switch]` (memory for in-network aggregation) and `[model]` (the constants of the contention model). GPUs are
numbered server after server, so the GPUs of one server are contiguous; everything in this package relies on that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from paceline.errors import UserError
from paceline.models.catalogue import DEFAULT_FLOP_PER_S
from paceline.toml import Name, Section
from paceline.units import Rate, Seconds, Size


class ServerGroup(Section):
    """`count` equal servers of one rack."""

    gpus: Annotated[int, Field(gt=0, le=4096)]
    count: Annotated[int, Field(gt=0, le=100_000)] = 1
    name: Name = ""
    rack: Name = "rack0"
    slow: Annotated[float, Field(gt=0)] = 1.0
    """So many times as long its devices take; for emulated clusters, and no planner knows it."""
    background: Rate = 0.0
    """Traffic of others on its link, both ways; for emulated clusters, and no planner knows it."""
    cpus: Annotated[float, Field(gt=0)] | None = None
    """Processors that its ranks share; for emulated clusters, and no planner knows it."""


class ClusterNetwork(Section):
    """Bandwidth of one GPU's ring inside a server (b_i), of a server's link to the others (b_e), of a rack's uplink."""

    intra_server: Rate = 2.4e12
    inter_server: Rate = 25e9
    inter_rack: Rate | None = None
    """Of a rack's uplink; by default as much as the rack's servers can send."""
    delay: Seconds = 1e-6
    """Of each link, one way."""
    emulated: bool = False
    """Whether `paceline run` makes this network out of namespaces on one machine."""


class SwitchMemory(Section):
    """What a rack switch can hold: `slots` chunks of `payload`, each held for one round trip."""

    slots: Annotated[int, Field(gt=0)]
    payload: Annotated[Size, Field(gt=0)] = 256
    round_trip: Annotated[Seconds, Field(gt=0)] = 20e-6
    policy: Literal["esa", "atp", "switchml"] = "esa"
    """How the switch gives its aggregators to jobs: a policy."""

    @property
    def bytes_per_s(self) -> float:
        """Bytes a second that the whole memory can turn over: slots x payload / round trip."""
        return self.slots * self.payload / self.round_trip


class ModelSection(Section):
    """Constants of the contention model; `schedule/model.py` says what they mean."""

    alpha: Annotated[float, Field(ge=0)] = 0.2
    xi1: Annotated[float, Field(gt=0, le=1)] = 1.0
    overhead_per_server: Seconds = 1e-3
    reduce_speed: Rate = 8e11
    contention: Literal["links", "paper", "linear", "fair", "quadratic"] = "links"
    """By shared links and memory; or as the paper has it, whose function is `linear`."""
    time: Literal["continuous", "slotted"] = "continuous"
    slot: Annotated[Seconds, Field(gt=0)] = 60.0


class DeviceSection(Section):
    """The devices (GPUs), for jobs that name a model instead of times."""

    flop_rate: Annotated[float, Field(gt=0)] = DEFAULT_FLOP_PER_S
    """FLOP a second that one sustains."""


class ClusterFile(Section):
    """The whole TOML file."""

    servers: Annotated[list[ServerGroup], Field(min_length=1)]
    network: ClusterNetwork = ClusterNetwork()
    device: DeviceSection = DeviceSection()
    switch: SwitchMemory | None = None
    switches: list[Name] = []
    """Control addresses (HOST:PORT) of switches that run there: `paceline run` uses them, shared by weight, where it is
    given no `--switch`. No planner looks at them."""
    model: ModelSection = ModelSection()

    @model_validator(mode="after")
    def _names_differ(self) -> "ClusterFile":
        names = [server.name for server in self.cluster().servers]
        if len(set(names)) != len(names):
            double = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two servers are named {double!r}")
        return self

    def cluster(self) -> "Cluster":
        servers = []
        for index, group in enumerate(self.servers):
            stem = group.name or f"s{index}"
            for i in range(group.count):
                name = stem if group.count == 1 and group.name else f"{stem}-{i}"
                servers.append(Server(name, group.gpus, group.rack, group.slow, group.background, group.cpus))
        return Cluster(
            tuple(servers),
            intra_bps=self.network.intra_server,
            inter_bps=self.network.inter_server,
            switch=self.switch,
            uplink_bps=self.network.inter_rack,
            delay_s=self.network.delay,
        )


@dataclass(frozen=True)
class Server:
    """One machine."""

    name: str
    gpus: int
    rack: str = "rack0"
    slow: float = 1.0
    """How many times as long its devices take, in an emulated cluster."""
    background_bps: float = 0.0
    """Traffic of others on its link, both ways, in an emulated cluster."""
    cpus: float | None = None
    """Processors that its ranks share, in an emulated cluster; None: all."""


@dataclass(frozen=True)
class Cluster:
    """The servers in their order, and the network between them."""

    servers: tuple[Server, ...]
    """Name, GPUs and rack of each."""
    intra_bps: float = 2.4e12
    """Bandwidth inside a server, in bit/s."""
    inter_bps: float = 25e9
    """Bandwidth of a server's link, in bit/s."""
    switch: SwitchMemory | None = None
    """Memory of the rack switches, for jobs that sum there."""
    uplink_bps: float | None = None
    """Bandwidth of a rack's uplink, in bit/s; None: it limits nobody."""
    delay_s: float = 1e-6
    """Of each link, one way."""

    @classmethod
    def uniform(cls, servers: int, gpus: int, *, racks: int = 1, inter_bps: float = 25e9) -> "Cluster":
        """So many equal servers, dealt out over racks in blocks."""
        if servers < 1 or gpus < 1 or not 1 <= racks <= servers:
            raise UserError(
                f"{servers} servers with {gpus} GPUs in {racks} racks are no cluster", place="cluster"
            )
        made = (Server(f"s{i}", gpus, f"rack{i * racks // servers}") for i in range(servers))
        return cls(tuple(made), inter_bps=inter_bps)

    @cached_property
    def gpus_total(self) -> int:
        """GPUs of all servers together."""
        return sum(server.gpus for server in self.servers)

    @cached_property
    def gpus_max(self) -> int:
        """GPUs of the largest server."""
        return max(server.gpus for server in self.servers)

    @cached_property
    def first_gpu(self) -> NDArray[np.int64]:
        """Server s has the GPUs `first_gpu[s] .. first_gpu[s + 1] - 1`."""
        return np.concatenate(([0], np.cumsum([server.gpus for server in self.servers]))).astype(np.int64)

    @cached_property
    def server_of(self) -> NDArray[np.int64]:
        """The server of each GPU."""
        counts = [server.gpus for server in self.servers]
        return np.repeat(np.arange(len(self.servers), dtype=np.int64), counts)

    @cached_property
    def rack_of(self) -> NDArray[np.int64]:
        """The rack of each server, numbered in order of appearance."""
        numbers: dict[str, int] = {}
        return np.array([numbers.setdefault(s.rack, len(numbers)) for s in self.servers], dtype=np.int64)

    def by_server(self, gpus: Sequence[int] | NDArray[np.int64]) -> dict[str, int]:
        """How many of these GPUs each server gives, by the server's name, in the servers' order."""
        counts: dict[str, int] = {}
        for gpu in sorted(int(g) for g in gpus):
            name = self.servers[int(self.server_of[gpu])].name
            counts[name] = counts.get(name, 0) + 1
        return counts
