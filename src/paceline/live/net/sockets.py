"""UDP sockets as the data plane wants them: large kernel buffers, GRO, no fragments; interfaces; path MTU.

A socket is of the family of the address it is bound to; one on `::` takes IPv4 packets too.
"""

import ctypes
import errno
import fcntl
import functools
import os
import socket
import struct
from dataclasses import dataclass, field

from paceline.core.wire import HEADER_BYTES, MAX_ELEMENTS
from paceline.errors import UserError
from paceline.live.net.addresses import family_of, is_everywhere, is_loopback, show_address
from paceline.live.net.addresses import pack_address as pack_address
from paceline.live.net.addresses import resolve as resolve
from paceline.live.net.addresses import unpack_address as unpack_address

BUFFER_BYTES = 16 * 1024 * 1024
IP_AND_UDP_BYTES = 28
IPV6_MORE_BYTES = 20
"""What an IPv6 header is longer than one of IPv4."""
MTU_ETHERNET = 1500
ELEMENT_STEP = 32
_ANYWHERE = "192.0.2.1"
"""Of the addresses that belong to nobody."""

_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_SOL_UDP = 17
_UDP_GRO = 104
_IP_MTU_DISCOVER = 10
_IP_PMTUDISC_DO = 2
_IP_MTU = 14
_IPV6_MTU_DISCOVER = 23
_IPV6_MTU = 24
_SIOCGIFMTU = 0x8921


@dataclass
class DataSocket:
    """An open socket of the data plane; `warnings` are for the user, one line each."""

    socket: socket.socket
    host: str
    port: int
    receive_bytes: int
    send_bytes: int
    gro: bool
    warnings: list[str] = field(default_factory=list)

    @property
    def fd(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        self.socket.close()


def open_socket(host: str, port: int = 0, buffer_bytes: int = BUFFER_BYTES) -> DataSocket:
    """A non-blocking UDP socket bound to `host:port` (0: any port), set up as well as the kernel lets us."""
    made = socket.socket(family_of(host), socket.SOCK_DGRAM)
    try:
        made.setblocking(False)
        if made.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not is_everywhere(host)))
        made.bind((host, port))
    except OSError as error:
        made.close()
        place = show_address(host, port)
        raise UserError(f"cannot listen there: {error.strerror or error}", place=place) from None
    warnings: list[str] = []
    receive_bytes = _grow(made, _SO_RCVBUFFORCE, socket.SO_RCVBUF, buffer_bytes)
    send_bytes = _grow(made, _SO_SNDBUFFORCE, socket.SO_SNDBUF, buffer_bytes)
    for name, got, sysctl in (("receive", receive_bytes, "rmem_max"), ("send", send_bytes, "wmem_max")):
        if got < buffer_bytes:
            warnings.append(
                f"the kernel gives {got // 1024} KiB of UDP {name} buffer instead of {buffer_bytes // 1024}; "
                f"bursts will be lost: sudo sysctl -w net.core.{sysctl}={buffer_bytes}"
            )
    gro = True
    try:
        made.setsockopt(_SOL_UDP, _UDP_GRO, 1)
    except OSError:
        gro = False
        warnings.append("this kernel has no UDP_GRO (Linux 5.0): one system call for each packet received")
    # An oversized packet is an error here, not a train of fragments that the path loses.
    made.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
    if made.family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _IP_PMTUDISC_DO)
    bound_host, bound_port = made.getsockname()[:2]
    return DataSocket(made, bound_host, bound_port, receive_bytes, send_bytes, gro, warnings)


def _grow(made: socket.socket, force: int, plain: int, wanted: int) -> int:
    """Ask for a buffer, by right of root if there is one; what the kernel gave, without its own doubling."""
    try:
        made.setsockopt(socket.SOL_SOCKET, force, wanted)
    except OSError:
        made.setsockopt(socket.SOL_SOCKET, plain, wanted)
    return made.getsockopt(socket.SOL_SOCKET, plain) // 2


@functools.cache
def takes_service() -> bool:
    """Does the kernel let each datagram say how urgent it is (DSCP, and with it the band of its queue)?

    `PACELINE_DSCP=off` says no, for networks that mean something else by these bits.
    """
    if os.environ.get("PACELINE_DSCP", "on") == "off":
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("127.0.0.1", 0))
            told = [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack("i", 0x28))]
            probe.sendmsg([b""], told, 0, probe.getsockname())
        except OSError:
            return False
    return True


def path_mtu(host: str) -> int:
    """The MTU on the way to a host, as the kernel knows it now: the interface's, or what the path has told."""
    try:
        return route_to(host)[1]
    except OSError as error:
        raise UserError(f"no way there: {error.strerror or error}", place=host) from None


def route_to(host: str) -> tuple[str, int]:
    """This machine's address on the way to a host (a name, or an IP address), and the MTU there; nothing is sent.

    Raises what the kernel says where there is no way.
    """
    found = socket.getaddrinfo(host, 9, socket.AF_UNSPEC, socket.SOCK_DGRAM)
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    family, *_, address = found[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        level, option = (
            (socket.IPPROTO_IPV6, _IPV6_MTU) if family == socket.AF_INET6 else (socket.IPPROTO_IP, _IP_MTU)
        )
        return str(probe.getsockname()[0]), int(probe.getsockopt(level, option))


class _Address(ctypes.Structure):
    _fields_ = (
        ("family", ctypes.c_ushort),
        ("port", ctypes.c_ushort),
        ("host", ctypes.c_ubyte * 4),
        ("ipv6", ctypes.c_ubyte * 16),
    )


class _Interface(ctypes.Structure):
    pass


_Interface._fields_ = (
    ("next", ctypes.POINTER(_Interface)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_Address)),
)
"""The beginning of `struct ifaddrs`; nothing is read beyond it."""


def interfaces() -> dict[str, str]:
    """The IP addresses of this network namespace, each with the name of its interface."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Interface)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise UserError(f"cannot list interfaces: {os.strerror(ctypes.get_errno())}")
    found = {}
    try:
        at = first
        while at:
            entry = at.contents
            if entry.address and entry.address.contents.family == socket.AF_INET:
                host = socket.inet_ntop(socket.AF_INET, bytes(entry.address.contents.host))
                found[host] = entry.name.decode()
            elif entry.address and entry.address.contents.family == socket.AF_INET6:
                host = socket.inet_ntop(socket.AF_INET6, bytes(entry.address.contents.ipv6))
                found[host] = entry.name.decode()
            at = entry.next
    finally:
        libc.freeifaddrs(first)
    return found


def interface_mtu(host: str) -> int:
    """The MTU of the interface that has this address; of all addresses (0.0.0.0, ::), the least beyond loopback."""
    by_address = interfaces()
    if is_everywhere(host):
        names = set(by_address.values()) - {"lo"} or {"lo"}
        return min(_mtu(name) for name in names)
    if host not in by_address and not is_loopback(host):
        raise UserError("is not an address of this host", place=host)
    return _mtu(by_address.get(host, "lo"))


def _mtu(interface: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked.fileno(), _SIOCGIFMTU, struct.pack("16si12x", interface.encode(), 0))
    return int(struct.unpack("16si12x", answer)[1])


def elements_for(mtu: int, ipv6: bool = False) -> int:
    """How many 32-bit integers a packet carries on a path of this MTU, in steps of 32: 1500 gives 352."""
    around = IP_AND_UDP_BYTES + (IPV6_MORE_BYTES if ipv6 else 0)
    room = (mtu - around - HEADER_BYTES) // 4 // ELEMENT_STEP * ELEMENT_STEP
    if room < ELEMENT_STEP:
        raise UserError(f"an MTU of {mtu} leaves no room for a packet", place="MTU")
    return min(MAX_ELEMENTS, room)


def is_own_address(host: str) -> bool:
    """Does this machine have the address? Only then a socket can be bound to it."""
    with socket.socket(family_of(host), socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
        return True


def is_everyones(host: str) -> bool:
    """Does the address mean all hosts of a network of this machine's? The kernel lets no plain socket send there."""
    with socket.socket(family_of(host), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError as error:
            return error.errno == errno.EACCES
        return False


def own_address(peer: str = _ANYWHERE) -> str:
    """The address by which this machine reaches a peer, or whatever is outside; nothing is sent."""
    with socket.socket(family_of(peer), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
        except OSError:
            if peer != _ANYWHERE:
                raise
            return socket.gethostbyname(socket.gethostname())
        return str(probe.getsockname()[0])
