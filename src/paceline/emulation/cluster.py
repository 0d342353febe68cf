"""An emulated cluster: servers are network namespaces with limited links, racks are bridges behind limited uplinks.

                     core bridge (the enclosure's own namespace: planner, hub or upper switch)
                    /                      \\
        uplink, limited both ways      uplink, limited both ways
              |                              |
        rack bridge (rack switch)      rack bridge (rack switch)
         |         |                    |         |
       server    server               server    server        each link limited both ways

With one rack there is no uplink: servers are at the core. All of it exists inside an enclosure (`enclosure.py`) and
ends with it, so nothing here is removed by hand.
"""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from paceline.emulation import processors, traffic
from paceline.emulation.namespaces import BRIDGE, DEVICE, inside, ip, limit_device
from paceline.emulation.processors import ProcessorGroup
from paceline.errors import UserError
from paceline.schedule.inputs.cluster import Cluster

SERVERS_MAX = 200
SWITCH_PORT = 7070
"""Of every switch: each has an address of its own, and nobody else is there."""
_MTU = 1500
_HERE = ""


@dataclass(frozen=True)
class EmulatedServer:
    """One server."""

    name: str
    namespace: str
    address: str
    rack: int
    slow: float
    """How many times as long its devices take."""
    background_bps: float = 0.0
    """Traffic of others on its link, both ways."""
    cpus: float | None = None
    """Processors that its ranks share; None: all."""


@dataclass(frozen=True)
class EmulatedRack:
    """The servers of one bridge; `namespace` is empty where that is the core itself."""

    name: str
    namespace: str
    address: str
    """Of a switch beside the bridge."""
    uplink_bps: float


@dataclass(frozen=True)
class EmulatedCluster:
    """What is to be built, or was built."""

    servers: dict[str, EmulatedServer]
    racks: tuple[EmulatedRack, ...]
    rate_bps: float
    """Of each server's link."""
    core_address: str = "10.77.0.1"
    """Of a switch beside the core bridge."""
    groups: dict[str, ProcessorGroup] = field(default_factory=dict)
    """Of servers whose processors are limited, once that is done."""

    @classmethod
    def of(cls, cluster: Cluster) -> "EmulatedCluster":
        """The network of a cluster file."""
        if len(cluster.servers) > SERVERS_MAX:
            raise UserError(
                f"{len(cluster.servers)} servers; an emulated cluster has at most {SERVERS_MAX}",
                place="--network",
            )
        names = list(dict.fromkeys(server.rack for server in cluster.servers))
        racks = []
        for r, name in enumerate(names):
            together_bps = cluster.inter_bps * sum(server.rack == name for server in cluster.servers)
            namespace = f"rack{r}" if len(names) > 1 else _HERE
            address = f"10.77.0.{10 + r}" if namespace else cls.core_address
            racks.append(EmulatedRack(name, namespace, address, cluster.uplink_bps or together_bps))
        servers = {
            server.name: EmulatedServer(
                server.name,
                f"server{i}",
                f"10.77.1.{1 + i}",
                names.index(server.rack),
                server.slow,
                server.background_bps,
                server.cpus,
            )
            for i, server in enumerate(cluster.servers)
        }
        return cls(servers, tuple(racks), cluster.inter_bps)

    @property
    def has_uplinks(self) -> bool:
        """Whether racks are apart from the core, and have switches of their own."""
        return len(self.racks) > 1

    def build(self) -> None:
        """Make it all, in the namespace that we are in."""
        _bridge(_HERE, self.core_address)
        for r, rack in enumerate(self.racks):
            if rack.namespace:
                ip("netns", "add", rack.namespace)
                _bridge(rack.namespace, rack.address)
                _link(_HERE, f"rack{r}", rack.namespace, DEVICE, rack.uplink_bps)
                ip("-n", rack.namespace, "link", "set", DEVICE, "master", BRIDGE)
        for i, server in enumerate(self.servers.values()):
            ip("netns", "add", server.namespace)
            ip("-n", server.namespace, "link", "set", "lo", "up")
            _link(self.racks[server.rack].namespace, f"server{i}", server.namespace, DEVICE, self.rate_bps)
            ip("-n", server.namespace, "address", "add", f"{server.address}/16", "dev", DEVICE)

    def limit_processors(self) -> list[str]:
        """Groups for servers that have limited processors, where they can be had; what came of it, in words."""
        told = []
        for server in self.servers.values():
            if server.cpus is None:
                continue
            try:
                self.groups[server.name] = processors.limit(server.namespace, server.cpus)
                told.append(f"the ranks of {server.name} share {server.cpus:g} processors")
            except OSError as error:
                told.append(
                    f"{server.name} has all processors: no control group can be made here ({error.strerror})"
                )
        return told

    @contextlib.contextmanager
    def background(self) -> Iterator[None]:
        """Traffic of others, where servers have some, for as long as this lasts."""
        busy = [
            (server.namespace, server.address, server.background_bps)
            for server in self.servers.values()
            if server.background_bps
        ]
        if not busy:
            yield
            return
        process = traffic.start(self.core_address, busy)
        try:
            yield
        finally:
            process.kill()
            process.communicate()

    def uplink_bytes(self) -> dict[str, tuple[int, int]]:
        """What each rack has sent up and got from above so far, by the rack's name."""
        if not self.has_uplinks:
            return {}
        links = {entry["ifname"]: entry["stats64"] for entry in json.loads(ip("-s", "-j", "link", "show"))}
        return {
            rack.name: (links[f"rack{r}"]["rx"]["bytes"], links[f"rack{r}"]["tx"]["bytes"])
            for r, rack in enumerate(self.racks)
        }

    def within(self, server: str) -> list[str]:
        """What goes before a command to run it on a server."""
        group = self.groups.get(server)
        return [*(group.command() if group else []), *inside(self.servers[server].namespace, [])]

    def environment(self, server: str, switched: bool) -> dict[str, str]:
        """What the ranks on a server find beside the variables of every launcher; `switched`: the run has a switch."""
        here = self.servers[server]
        found = {"GLOO_SOCKET_IFNAME": DEVICE, "PACELINE_SLOW": f"{here.slow:g}"}
        if server in self.groups:
            found[processors.GROUP] = str(self.groups[server].door)
        if switched and self.has_uplinks:
            rack = self.racks[here.rack]
            found |= {"PACELINE_RACK": rack.name, "PACELINE_SWITCH": f"{rack.address}:{SWITCH_PORT}"}
        return found


def _bridge(namespace: str, address: str) -> None:
    _at(namespace, "link", "set", "lo", "up")
    _at(namespace, "link", "add", BRIDGE, "mtu", str(_MTU), "type", "bridge", "stp_state", "0")
    _at(namespace, "address", "add", f"{address}/16", "dev", BRIDGE)
    _at(namespace, "link", "set", BRIDGE, "up")


def _link(upper: str, port: str, lower: str, device: str, rate_bps: float) -> None:
    """A link from a port of the upper bridge to a device in the lower namespace, limited both ways."""
    mtu = ("mtu", str(_MTU))
    _at(upper, "link", "add", port, *mtu, "type", "veth", "peer", "name", device, *mtu, "netns", lower)
    _at(upper, "link", "set", port, "master", BRIDGE, "up")
    _at(lower, "link", "set", device, "up")
    limit_device(upper, port, rate_bps)
    limit_device(lower, device, rate_bps)


def _at(namespace: str, *arguments: str) -> None:
    ip(*(("-n", namespace) if namespace else ()), *arguments)
