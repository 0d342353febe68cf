"""Traffic of others on the links of an emulated cluster: a constant rate that heeds nobody.

    python -m paceline.emulation.traffic CORE_ADDRESS '[["server0", "10.77.1.1", 30e6], ...]'

One process has a socket at each end of every flow: what a server sends to the core crosses its uplink, what the core
sends to it its downlink. Receivers never read; the kernel drops what comes. Ends when its standard input does, and
with the enclosure around it.
"""

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.emulation.namespaces import entered

PORT = 9
"""Where nobody listens but us."""
PAYLOAD_BYTES = 1472
FRAME_BYTES = PAYLOAD_BYTES + 8 + 20 + 14
"""As a token bucket counts it: with the headers of UDP, IP and Ethernet."""
TICK_S = 0.004


@dataclass
class Flow:
    """One direction of one link."""

    socket: socket.socket
    to: tuple[str, int]
    rate_bps: float
    owed_bytes: float = 0.0
    """What the rate allows and has not been sent."""

    def send(self, passed_s: float) -> None:
        """What the time that has passed is worth; a process that was held up does not catch up for long."""
        self.owed_bytes = min(self.owed_bytes + self.rate_bps * passed_s / 8, self.rate_bps * 0.05 / 8)
        while self.owed_bytes >= FRAME_BYTES:
            self.owed_bytes -= FRAME_BYTES
            try:
                self.socket.sendto(bytes(PAYLOAD_BYTES), self.to)
            except OSError:
                return  # a full queue, as for anybody


def start(core_address: str, servers: Sequence[tuple[str, str, float]]) -> subprocess.Popen[bytes]:
    """Begin; `servers` are (namespace, address, rate in bit/s)."""
    command = [sys.executable, "-m", __name__, core_address, json.dumps(servers)]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


def flows_of(core_address: str, servers: Sequence[tuple[str, str, float]]) -> list[Flow]:
    """Both directions of every server's link."""
    core = _bound(core_address)
    flows = []
    for namespace, address, rate_bps in servers:
        with entered(namespace):
            there = _bound(address)
        flows += [Flow(core, (address, PORT), rate_bps), Flow(there, (core_address, PORT), rate_bps)]
    return flows


def _bound(address: str) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found.setblocking(False)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.bind((address, PORT))
    return found


def main() -> None:
    flows = flows_of(sys.argv[1], json.loads(sys.argv[2]))
    before = time.monotonic()
    while not select.select([sys.stdin], [], [], TICK_S)[0]:
        now = time.monotonic()
        for flow in flows:
            flow.send(now - before)
        before = now


if __name__ == "__main__":
    main()
