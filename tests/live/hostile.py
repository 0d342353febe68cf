"""Hostile datagrams at a live switch while a job runs: nothing they do may show in the job's sums.

    python -m tests.live.hostile --datagrams 1000000

starts a switch, runs a job through it, and sends random, truncated, replayed, forged, misdirected and foreign packets
beside it, from other sockets and (replays) from a worker's own. It says what was dropped and why, and how memory grew.
"""

import argparse
import json
import threading
import time
from typing import Any

import numpy as np

from paceline.core import auth, wire
from paceline.live.net import sockets, udp
from tests.live.processes import metrics, process, resident_kib
from tests.live.workers import Workers, ask

COUNT = 64
KINDS = ("random", "truncated", "forged", "foreign", "wrong source", "bent", "replayed")


class Attacker:
    """Makes datagrams of every kind from a genuine packet of the victim's, and of a job of its own."""

    def __init__(self, victim: Workers, own: dict[str, Any], seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.victim, self.own = victim, own
        packet = wire.new_packets(1)[0]
        packet.kind, packet.job, packet.mask = wire.GRADIENT, victim.job, 1
        packet.fan_in, packet.fan_in_upper, packet.level = len(victim.racks), 1, 1
        packet.count, packet.priority = COUNT, 255
        self.packet = packet

    def _fill(self) -> None:
        packet, random = self.packet, self.random
        packet.kind = int(random.integers(wire.GRADIENT, wire.KIND_LAST + 1))
        packet.flag = int(random.integers(0, 64))
        packet.priority = int(random.integers(0, 256))
        packet.chunk = int(random.integers(0, 2000))
        packet.index = int(random.integers(0, 400))
        packet.mask = int(random.integers(1, 1 << 62))
        packet.worker = int(random.integers(0, len(self.victim.racks)))
        packet.custodian = int(random.integers(0, len(self.victim.racks)))
        packet.epoch = int(random.integers(0, 4))

    def _sealed(self, key: str) -> Any:
        values = self.random.integers(-(1 << 31), 1 << 31, COUNT)
        data = np.frombuffer(wire.encode(self.packet, values), dtype=np.uint8).copy()
        auth.seal(*auth.key_words(bytes.fromhex(key)), data, 0, len(data), self.victim.full)
        return data

    def make(self, kind: str) -> bytes:
        """One datagram; what a thief of another job's key, a spoofer or a fool might send."""
        self._fill()
        self.packet.job = self.victim.job
        if kind == "random":
            return self.random.bytes(int(self.random.integers(0, 1500)))
        if kind == "truncated":
            return bytes(self._sealed(self.victim.key)[: int(self.random.integers(0, 64 + 4 * COUNT))])
        if kind == "forged":
            return bytes(self._sealed(self.own["key"]))
        if kind == "foreign":
            self.packet.job = int(self.random.integers(0, 65_536))
            if self.packet.job == self.victim.job:
                self.packet.job += 1
            return bytes(self._sealed(self.own["key"]))
        if kind == "bent":
            data = self._sealed(self.victim.key)
            data[int(self.random.integers(0, 64))] ^= 1 << int(self.random.integers(0, 8))
            return bytes(data)
        # A genuine packet by its bytes, but from an address that is not its sender's.
        return bytes(self._sealed(self.victim.key))


class Flood:
    """A thread that sends datagrams until it is told to end, or has sent so many."""

    def __init__(self, port: int, victim: Workers, datagrams: int, seed: int) -> None:
        own = ask(port, "POST", "/v1/jobs", {"name": "attacker", "workers": 1, "priority_max": 9})[1]
        self.socket = sockets.open_socket("127.0.0.1")
        address = {"address": f"127.0.0.1:{self.socket.port}"}
        ask(port, "PUT", f"/v1/jobs/{own['job']}/workers/0", address, key=own["key"])
        self.attacker = Attacker(victim, own, seed)
        self.victim, self.datagrams, self.sent = victim, datagrams, 0
        self.targets = victim.switches[0]
        self.outbox = udp.new_outbox(1 << 20)
        self.own = own
        self._made = self._prepare()
        self._thread = threading.Thread(target=self._run)

    def _prepare(self) -> list[bytes]:
        """A stock of datagrams; making each anew would leave the switch idle."""
        kinds = [kind for kind in KINDS if kind != "replayed"]
        return [self.attacker.make(kinds[i % len(kinds)]) for i in range(min(self.datagrams, 30_000))]

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(600)
        self.socket.close()

    def _run(self) -> None:
        random = np.random.default_rng(5)
        while self.sent < self.datagrams:
            for at in random.integers(0, len(self._made), 200):
                self._post(self._made[at], self.socket.fd)
            udp.flush(self.socket.fd, self.outbox)
            self._replay()
            time.sleep(0.0005)

    def _post(self, data: bytes, fd: int) -> None:
        start = udp.room_for(self.outbox, len(data))
        target = self.targets[self.sent % len(self.targets)]
        if start < 0:
            udp.flush(fd, self.outbox)
            start = 0
        self.outbox.data[start : start + len(data)] = np.frombuffer(data, dtype=np.uint8)
        if not udp.post(self.outbox, start, len(data), target):
            udp.flush(fd, self.outbox)
            udp.post(self.outbox, start, len(data), target)
        self.sent += 1

    def _replay(self) -> None:
        """Genuine packets of the victim again, old and new, from their true sender's own socket."""
        recorded = self.victim.recorded
        for _ in range(10):
            if recorded:
                worker, data = recorded[int(np.random.default_rng(self.sent).integers(0, len(recorded)))]
                self._post(data, self.victim.sockets[worker].fd)
                udp.flush(self.victim.sockets[worker].fd, self.outbox)


def attack(datagrams: int, seed: int = 3, policy: str = "esa") -> dict[str, Any]:
    """Run a job under attack; what happened, or an AssertionError if a sum was wrong."""
    words = ("--memory", "640kB", "--mtu", "576", "--shards", "2", "--lease", "600")
    with process("--policy", policy, *words) as (switch, port):
        victim = Workers([port], [0, 0, 0], name="victim", count=COUNT, record=2000)
        try:
            victim.run(64)  # compiles, and gives something to replay
            flood = Flood(port, victim, datagrams, seed)
            flood.start()
            chunks, before_kib = 64, 0
            while flood.sent < datagrams:
                chunks += 64
                victim.run(chunks)
                if not before_kib and flood.sent > datagrams // 10:
                    before_kib = resident_kib(switch.pid)
            victim.run(chunks + 64)
            victim.check(chunks + 64)
            flood.join()
            time.sleep(0.5)
            grown_kib = resident_kib(switch.pid) - before_kib
            counted = metrics(port)
        finally:
            victim.close()
    drops: dict[str, int] = {}
    for (name, labels), value in counted.items():
        if name == "paceline_drops_total" and value:
            reason = labels.split('reason="')[1].rstrip('"}')
            drops[reason] = drops.get(reason, 0) + int(value)
    used = sum(
        value
        for (name, labels), value in counted.items()
        if name == "paceline_slots_used" and "attacker" in labels
    )
    return {
        "sent": flood.sent,
        "chunks": chunks + 64,
        "drops": drops,
        "grown_kib": grown_kib,
        "attacker_slots": used,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datagrams", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=3)
    arguments = parser.parse_args()
    print(json.dumps(attack(arguments.datagrams, arguments.seed), indent=1))


if __name__ == "__main__":
    main()
