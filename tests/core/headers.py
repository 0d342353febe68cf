"""Packets for tests: headers by field name, and one switch on a bench that takes them one by one."""

from typing import Any, NamedTuple

import numpy as np

from paceline.core import wire
from paceline.core.bits import bit
from paceline.core.switch import program as switch
from paceline.core.switch.memory import ALL_RULES, POLICIES

WIDTH = 2
STALE_NS = 1_000


def header(kind: int = wire.GRADIENT, **fields: Any) -> Any:
    """A header with sensible fields for a job of two workers in one rack."""
    packet = wire.new_packets(1)[0]
    packet.magic, packet.version, packet.kind = wire.MAGIC, wire.VERSION, kind
    packet.count, packet.mask, packet.level = WIDTH, np.uint64(1), 1
    packet.fan_in, packet.fan_in_upper, packet.priority, packet.custodian = 2, 1, 10, 7
    for name, value in fields.items():
        setattr(packet, name, value)
    return packet


def mask_of(*positions: int) -> np.uint64:
    word = np.uint64(0)
    for position in positions:
        word |= bit(position)
    return np.uint64(word)


class Out(NamedTuple):
    """What a switch did with a packet: verdict, header and payload as they leave."""

    verdict: int
    packet: Any
    values: tuple[int, ...]


class Bench:
    """Switches with admitted jobs and a clock; by default one switch of level 1, two jobs, four slots."""

    def __init__(
        self,
        policy: str,
        *,
        levels: tuple[int, ...] = (1,),
        slots: int = 4,
        jobs: int = 2,
        pool: int = 0,
        relay: bool = False,
        rules: int = ALL_RULES,
    ) -> None:
        self.switch = switch.new_switches(
            list(levels), slots, jobs, WIDTH, POLICIES[policy], STALE_NS, 1, relay, rules
        )
        self.now_ns = 0
        for s in range(len(levels)):
            for job in range(jobs):
                switch.admit_job(self.switch, s, job, 255, job * pool, pool)

    def put(self, packet: Any, value: int = 1, s: int = 0) -> Out:
        """Run one packet through switch `s`; its payload is `value`, then twice that."""
        buffer = np.array([[value, 2 * value]], dtype=np.int32)
        verdict = switch.handle_packet(self.switch, s, packet, buffer, 0, self.now_ns)
        return Out(int(verdict), packet, tuple(int(v) for v in buffer[0]))

    def gradient(self, worker: int, value: int = 1, s: int = 0, **fields: Any) -> Out:
        return self.put(header(worker=worker, mask=mask_of(worker), **fields), value, s)

    def slot(self, index: int, s: int = 0) -> Any:
        return self.switch.memory.slots[self.switch.config[s].first + index]

    def values(self, index: int, s: int = 0) -> tuple[int, ...]:
        return tuple(int(v) for v in self.switch.memory.values[self.switch.config[s].first + index])

    def used(self, job: int = 0, s: int = 0) -> int:
        return int(self.switch.jobs[s, job].used)

    def count(self, counter: int, job: int = 0, s: int = 0) -> int:
        return int(self.switch.counters[s, job, counter])
