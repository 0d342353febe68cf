"""Network namespaces and limited links; a star of them, for measurements and tests, which needs root and iproute2.

Each worker has a namespace with one link to the hub, where a bridge joins the links and a switch can run. Both
directions of every link are limited by tbf: `uplink` on the worker's end, `downlink` on the hub's. What a
worker sends to another crosses two links, as in a real star.

**Nothing stays behind.** All interfaces live inside the namespaces, so that removing these removes everything. The
names carry the pid and start time of their maker: `remove_leftovers` takes away those whose maker is gone, and
`star` calls it first, so that even a killed run is cleaned up by the next.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UserError

PREFIX = "pl"
WORKERS_MAX = 64
SWITCHES_MAX = 8
DEVICE = "uplink"
"""A worker's end of its link."""
BRIDGE = "hub"
BURST_BYTES = 128 * 1024
"""Of the token buckets: a segmented send comes as one packet of 64 kB, and must fit."""
QUEUE_BYTES = 1_000_000
"""In front of each limited link, the simulator's default for a switch port."""
_COMMAND_TIMEOUT_S = 30.0
_CLONE_NEWNET = 0x40000000
_FOLDER = Path("/run/netns")


@dataclass(frozen=True)
class Star:
    """Namespaces that exist: one a worker, one for the hub, where a switch can be, one a server that is a switch."""

    hub: str
    workers: tuple[str, ...]
    rate_bps: float
    mtu: int
    switches: tuple[str, ...] = ()
    switch_rate_bps: float = 0.0

    @property
    def hub_address(self) -> str:
        """Where the switch is reached."""
        return "10.77.0.1"

    def address(self, worker: int) -> str:
        """Where a worker is reached."""
        return f"10.77.0.{10 + worker}"

    def switch_address(self, switch: int) -> str:
        """Where a server that is a switch is reached."""
        return f"10.77.0.{200 + switch}"

    @property
    def hub_address_ipv6(self) -> str:
        """Where the switch is reached over IPv6, in a star that has it."""
        return "fd77::1"

    def address_ipv6(self, worker: int) -> str:
        """Where a worker is reached over IPv6, in a star that has it."""
        return f"fd77::{0x10 + worker:x}"


def inside(namespace: str, command: list[str]) -> list[str]:
    """The command that runs `command` in a namespace; it keeps its process id."""
    return ["nsenter", f"--net={_FOLDER / namespace}", *command]


def check_possible() -> None:
    """Raise the user's error where namespaces cannot be made."""
    if os.geteuid() != 0:
        raise UserError(
            "limited links are made of network namespaces, which needs root; leave it out to measure on loopback",
            place="--rate",
        )
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise UserError(f"limited links need the command {tool!r} (package iproute2)", place="--rate")


@contextlib.contextmanager
def star(
    workers: int,
    rate_bps: float,
    *,
    mtu: int = 1500,
    ipv6: bool = False,
    switches: int = 0,
    switch_rate_bps: float = 0.0,
) -> Iterator[Star]:
    """Namespaces for `workers` and a switch, joined by links of `rate_bps`; removed at the end, whatever happens.

    `ipv6` gives all of them addresses of both families. `switches`: so many servers more, with links of a rate of
    their own.
    """
    if not 1 <= workers <= WORKERS_MAX:
        raise UserError(f"a star has 1 to {WORKERS_MAX} workers, not {workers}", place="workers")
    if not 0 <= switches <= SWITCHES_MAX:
        raise UserError(f"a star has up to {SWITCHES_MAX} switches, not {switches}", place="switches")
    check_possible()
    remove_leftovers()
    names = Star(
        own_name("hub"),
        tuple(own_name(f"w{i}") for i in range(workers)),
        rate_bps,
        mtu,
        tuple(own_name(f"s{k}") for k in range(switches)),
        switch_rate_bps or rate_bps,
    )
    try:
        _build(names)
        if ipv6:
            _add_ipv6(names)
        yield names
    finally:
        with _undisturbed():
            for name in (*names.workers, *names.switches, names.hub):
                _remove(name)


def remove_leftovers() -> list[str]:
    """Remove the namespaces of makers that are gone; their names."""
    gone = [name for name in _existing() if not maker_lives(name)]
    for name in gone:
        _remove(name)
    return gone


def own() -> list[str]:
    """The namespaces that this process has made and not removed."""
    return [name for name in _existing() if name.startswith(own_name(""))]


def _build(names: Star) -> None:
    ip("netns", "add", names.hub)
    ip("-n", names.hub, "link", "set", "lo", "up")
    ip("-n", names.hub, "link", "add", BRIDGE, "mtu", str(names.mtu), "type", "bridge", "stp_state", "0")
    ip("-n", names.hub, "address", "add", f"{names.hub_address}/24", "dev", BRIDGE)
    ip("-n", names.hub, "link", "set", BRIDGE, "up")
    for i, worker in enumerate(names.workers):
        _join(names, worker, f"w{i}", names.address(i), names.rate_bps)
    for k, switch in enumerate(names.switches):
        _join(names, switch, f"s{k}", names.switch_address(k), names.switch_rate_bps)


def _join(names: Star, namespace: str, port: str, address: str, rate_bps: float) -> None:
    """Make a namespace, with one link to a port of the hub."""
    ip("netns", "add", namespace)
    ip("-n", namespace, "link", "set", "lo", "up")
    ip(
        *("-n", names.hub, "link", "add", port, "mtu", str(names.mtu), "type", "veth"),
        *("peer", "name", DEVICE, "mtu", str(names.mtu), "netns", namespace),
    )
    ip("-n", names.hub, "link", "set", port, "master", BRIDGE, "up")
    ip("-n", namespace, "address", "add", f"{address}/24", "dev", DEVICE)
    ip("-n", namespace, "link", "set", DEVICE, "up")
    limit_device(namespace, DEVICE, rate_bps)
    limit_device(names.hub, port, rate_bps)


def _add_ipv6(names: Star) -> None:
    hub = (names.hub, BRIDGE, names.hub_address_ipv6)
    rest = [(name, DEVICE, names.address_ipv6(i)) for i, name in enumerate(names.workers)]
    for namespace, device, address in (hub, *rest):
        # Without looking for another that has it: for a second nobody could use it.
        ip("-n", namespace, "-6", "address", "add", f"{address}/64", "dev", device, "nodad")


def limit_worker(names: Star, worker: int, rate_bps: float) -> None:
    """Give one worker's link another rate, both ways."""
    limit_device(names.workers[worker], DEVICE, rate_bps)
    limit_device(names.hub, f"w{worker}", rate_bps)


@contextlib.contextmanager
def entered(namespace: str) -> Iterator[None]:
    """This thread is in a namespace: sockets made here belong to it, and so do threads started here."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open("rb") as outside, (_FOLDER / namespace).open("rb") as there:
        if libc.setns(there.fileno(), _CLONE_NEWNET) != 0:
            raise UserError(f"cannot enter: {os.strerror(ctypes.get_errno())}", place=namespace)
        try:
            yield
        finally:
            libc.setns(outside.fileno(), _CLONE_NEWNET)


def limit_device(namespace: str, device: str, rate_bps: float) -> None:
    """Limit what leaves by a device; no namespace: the one that we are in."""
    rate = f"{max(1, round(rate_bps))}bit"
    bucket = ("rate", rate, "burst", str(BURST_BYTES), "limit", str(QUEUE_BYTES))
    where = ["-n", namespace] if namespace else []
    _run(["tc", *where, "qdisc", "replace", "dev", device, "root", "tbf", *bucket])


def own_name(role: str) -> str:
    """A name that carries this process."""
    pid = os.getpid()
    return f"{PREFIX}-{pid}-{_started(pid)}-{role}"


def _existing() -> list[str]:
    if not _FOLDER.is_dir():
        return []
    return sorted(path.name for path in _FOLDER.iterdir() if is_ours(path.name))


def is_ours(name: str) -> bool:
    """Whether a name is one of `own_name`, of this process or another."""
    return _maker(name) is not None


def _maker(name: str) -> tuple[int, int] | None:
    """Process id and start time in a namespace's name; None for a name that is not ours."""
    parts = name.split("-", 3)
    if len(parts) != 4 or parts[0] != PREFIX or not (parts[1].isdecimal() and parts[2].isdecimal()):
        return None
    return int(parts[1]), int(parts[2])


def maker_lives(name: str) -> bool:
    """Whether the process in the name of a namespace or group of ours still runs."""
    maker = _maker(name)
    return maker is not None and _started(maker[0]) == maker[1]


def _started(pid: int) -> int | None:
    """When a process started, in the kernel's ticks: a process id alone may be used again."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    fields = status.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] == "Z" else int(fields[19])


def _remove(name: str) -> None:
    # A namespace that is not there yet, or no more, is as good as removed.
    if (_FOLDER / name).exists():
        _run(["ip", "netns", "delete", name])


def ip(*arguments: str) -> str:
    """Run `ip`, and give what it prints; a failure is the user's error with its reason."""
    return _run(["ip", *arguments])


def _run(command: list[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, start_new_session=True
    )
    if done.returncode != 0:
        raise UserError(f"{' '.join(command)!r} failed: {(done.stderr.strip() or 'no reason given')}")
    return done.stdout


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM: a second Ctrl-C must not stop the removal half-way."""
    held = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
