"""Hostile packets through the interpreted core: decode, switch, custodian, sender.

    python -m tests.core.fuzz --packets 1000000 --seed 1

One job sends whatever it likes: random bytes; valid packets with flipped bits, cut short, made longer; jobs
that do not exist; indices, chunks, epochs, levels, racks, fan-ins and masks from anywhere. Two other jobs
hold sums in the same switches and custodians. For every packet:

- it gives one named error, or a verdict; a drop is counted under exactly one reason; nothing raises or warns;
- the others' aggregators and chunks stay as they are, byte for byte. One thing may change: under ESA a packet
  that fails to take an aggregator halves the holder's priority. That is checked to be all, and set back, so
  that the hostile job, whose priority is capped, never has a right to preempt.

In the live data plane a tag binds a packet to its job. Here a check of the job stands in for it: a packet
that claims to be another job's is refused before the switch. At the end the others complete their sums.

It runs interpreted, where an index out of range raises, and with warnings as errors. The counts by reason are
printed as JSON.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from typing import Any

import numpy as np

from paceline.compile.decorators import interpreted
from paceline.core import wire
from paceline.core.bits import bit
from paceline.core.custodian import program as custody
from paceline.core.invariants import check_accounts
from paceline.core.sender import program as sending
from paceline.core.sender.congestion import TOGETHER
from paceline.core.switch import program as sw
from paceline.core.switch.memory import POLICIES

POLICY_NAMES = ("esa", "atp", "switchml", "none")
HOSTILE = 0
OTHERS = (1, 2)
GONE = 3
JOBS = 4
WIDTH = 4
SLOTS = 16
OTHERS_FIRST, OTHERS_LAST = 6, 14
"""The aggregators of each switch that the other jobs hold."""
ROW_BYTES = wire.HEADER_BYTES + 4 * WIDTH + 16
NEVER_STALE_NS = 1 << 60
EXPECTED_SUM = 1_000 + 1_000_000
VERDICT_NAMES = {
    sw.CONSUMED: "consumed",
    sw.TO_CUSTODIAN: "to custodian",
    sw.UP: "up",
    sw.DOWN: "down",
    sw.TO_WORKER: "to worker",
    sw.DOWN_ONE: "down to one rack",
    sw.DROPPED: "dropped",
}
ANSWER_NAMES = {
    custody.NOTHING: "nothing",
    custody.MULTICAST: "result to all",
    custody.UNICAST: "to one",
    custody.ACKNOWLEDGE: "acknowledgement",
    custody.PULL_REST: "pull for the rest",
}


def hostile_packets(random: np.random.Generator, count: int) -> tuple[Any, Any]:
    """Rows of bytes and their lengths: valid packets of the hostile job, most of them spoilt in some way."""
    fields = np.zeros(count, dtype=wire.WIRE)
    fields["magic"], fields["version"] = wire.MAGIC, wire.VERSION
    fields["kind"] = random.choice(
        [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 4, *range(wire.GRADIENT, wire.KIND_LAST + 1)], count
    )
    fields["flag"] = random.choice([0, 0, 0, wire.FLUSH, wire.FLUSH, wire.ECN, wire.CUSTODY, 63], count)
    fields["priority"] = random.integers(0, 256, count)
    fields["job"] = HOSTILE
    fields["chunk"] = random.integers(0, 8, count)
    fields["count"] = WIDTH
    own = fields["chunk"] % 3
    fields["index"] = np.where(random.random(count) < 0.6, own, random.integers(0, SLOTS, count))
    fields["mask"] = 1 << random.integers(0, 3, count)
    fields["fan_in"] = random.choice([1, 2, 3, 3], count)
    fields["fan_in_upper"] = random.choice([1, 2, 2], count)
    fields["rack"] = random.integers(0, 3, count)
    fields["level"] = random.choice([1, 1, 2], count)
    fields["worker"] = random.integers(0, 4, count)
    fields["custodian"] = random.choice([0, 0, 0, 1, 2, 65_535], count)
    fields["share"] = random.choice(np.array([0] * 24 + [1, 0xFF, 2**64 - 1], dtype=np.uint64), count)
    fields["owner"] = random.choice([0, 1, 2, 3, 64, 65, 130, 4_095, 4_096], count)
    fields["mask"][random.random(count) < 0.02] = 0
    spoilt = random.choice(
        ["valid", "odd", "flip", "cut", "job", "noise"], count, p=[0.4, 0.25, 0.1, 0.1, 0.05, 0.1]
    )
    _make_odd(random, fields, spoilt == "odd")
    strangers = np.array([GONE, JOBS, JOBS + 1, 40_000, 65_535])
    fields["job"][spoilt == "job"] = random.choice(strangers, int(np.count_nonzero(spoilt == "job")))
    rows = np.zeros((count, ROW_BYTES), dtype=np.uint8)
    rows[:, : wire.HEADER_BYTES] = fields.view(np.uint8).reshape(count, wire.HEADER_BYTES)
    lengths = np.full(count, wire.HEADER_BYTES + 4 * WIDTH)
    cut = np.flatnonzero(spoilt == "cut")
    lengths[cut] = random.integers(0, ROW_BYTES + 1, len(cut))
    for at in np.flatnonzero(spoilt == "flip"):
        for place in random.integers(0, 8 * wire.HEADER_BYTES, random.integers(1, 4)):
            rows[at, place // 8] ^= 1 << (place % 8)
    noise = np.flatnonzero(spoilt == "noise")
    kept = random.choice([0, 3, 4, 6, 8], len(noise))
    for at, bytes_kept in zip(noise, kept, strict=True):
        rows[at, bytes_kept:] = random.integers(0, 256, ROW_BYTES - bytes_kept)
    return rows, lengths


def _make_odd(random: np.random.Generator, fields: Any, chosen: Any) -> None:
    """One to three fields of each chosen packet get a value from anywhere in their range."""
    names = [name for name in wire.FIELD_NAMES if name not in ("magic", "version", "job")]
    for at in np.flatnonzero(chosen):
        for which in random.integers(0, len(names), random.integers(1, 4)):
            limits = np.iinfo(fields.dtype[names[which]])
            anything = limits.min + int.from_bytes(random.bytes(8), "big") % (limits.max - limits.min + 1)
            fields[names[which]][at] = (limits.min, limits.max, 1, 64, anything)[random.integers(0, 5)]


def _raw(records: Any) -> Any:
    """The bytes of records, as a view: a copy of a record need not copy its padding."""
    return np.ndarray((*records.shape, records.itemsize), dtype=np.uint8, buffer=records)


class World:
    """Two switches, three custodians and a sender under one policy; the other jobs hold half of each sum."""

    def __init__(self, policy: str, seed: int) -> None:
        self.policy = policy
        self.steps_begun = 0
        self.switch = sw.new_switches([1, 2], SLOTS, JOBS, WIDTH, POLICIES[policy], NEVER_STALE_NS, seed)
        self.custodians = custody.new_custodians(3, 8, 3, WIDTH)
        self.senders = sending.new_senders(1, 4)
        self.packet = wire.new_packets(1)[0]
        self.buffer = np.zeros((1, WIDTH), dtype=np.int32)
        self.counts: Counter[str] = Counter()
        self.now_ns = 0
        for k in range(3):
            self._hire(k)
        self.begin()
        for s in (0, 1):
            sw.admit_job(self.switch, s, OTHERS[0], 255, 3, 2)
            sw.admit_job(self.switch, s, OTHERS[1], 255, 5, 2)
        for packet in self.others_packets(0):
            assert self._others_turn(packet, 1_000) is None
        slots = self.switch.memory.slots.reshape(2, SLOTS)
        self.foreign = slots[:, OTHERS_FIRST:OTHERS_LAST]
        keepers = self.custodians
        self.foreign_parts = [
            _raw(slots)[:, OTHERS_FIRST:OTHERS_LAST],
            self.switch.memory.values.reshape(2, SLOTS, WIDTH)[:, OTHERS_FIRST:OTHERS_LAST],
            *(_raw(part)[1:] for part in (keepers.chunks, keepers.masks, keepers.values, keepers.state)),
            *(_raw(part)[1:] for part in (keepers.owners, keepers.shares)),
        ]
        held = (
            np.isin(self.foreign.job, OTHERS).all() and not np.isin(slots[:, :OTHERS_FIRST].job, OTHERS).any()
        )
        assert held or policy == "none"
        self.snapshot = self.foreign_bytes()
        self.drops = self.switch.counters[:, :, sw.DROP_JOB :]

    def _hire(self, k: int) -> None:
        keeper = self.custodians.state[k]
        keeper.job, keeper.endpoint, keeper.ring, keeper.reminders, keeper.pulls = k, k, 8, 1, 1
        keeper.fan_in_upper, keeper.count, keeper.slots = 2, WIDTH, SLOTS
        keeper.patience_ns, keeper.patience_max_ns = 100, 10_000
        self.custodians.fan_in[k] = 2

    def begin(self) -> None:
        """The hostile job leaves and comes back: without it, one far epoch would end the run's depth."""
        for s in (0, 1):
            sw.release_job(self.switch, s, HOSTILE)
            sw.admit_job(self.switch, s, HOSTILE, 60, 0, 3)
        self.custodians.chunks[0].state = custody.ABSENT
        self.custodians.state[0].high = 0
        state = self.senders.state[0]
        state.span, state.slots, state.window_min, state.window_max = 4, SLOTS, 1.0, 8.0
        state.rto_min_ns, state.rto_max_ns, state.resends_max = 100, 10_000, 10**6
        state.congestion, state.inquires, state.in_order = TOGETHER, 1, 1
        state.mask, state.fan_in, state.fan_in_upper, state.count = 1, 3, 2, WIDTH
        state.custody, state.budget = self.steps_begun % 2, 3
        self.steps_begun += 1
        sending.start(self.senders, 0, 4.0, 1_000)
        sending.release(self.senders, 0, 6)

    # --- the others -----------------------------------------------------------------------------------------

    def others_packets(self, worker: int) -> list[Any]:
        """One contribution to each sum of the other jobs: (where, header)."""
        packets = []
        for job in OTHERS:
            for place in range(4):
                index = place // 2 if self.policy == "switchml" else OTHERS_FIRST + 4 * (job - 1) + place
                chunk = place // 2 + 2 * (place % 2) if self.policy == "switchml" else place
                for s in (0, 1):
                    packet = self._others_header(wire.GRADIENT, job, chunk, worker, s + 1)
                    packet.index, packet.priority = index, 255
                    packets.append(("switch", s, packet))
            for chunk in range(4):
                packets.append(("custodian", job, self._others_header(wire.PARTIAL, job, chunk, worker, 2)))
        return packets

    def _others_header(self, kind: int, job: int, chunk: int, worker: int, level: int) -> Any:
        packet = wire.new_packets(1)[0]
        packet.kind, packet.job, packet.chunk, packet.count, packet.level = kind, job, chunk, WIDTH, level
        packet.mask, packet.rack, packet.worker, packet.custodian = bit(worker), worker, worker, job
        packet.fan_in, packet.fan_in_upper = 2, 2
        return packet

    def _others_turn(self, turn: Any, value: int) -> int | None:
        """The sum that one packet of another job completes, or None."""
        what, where, packet = turn
        self.buffer[0] = value
        if what == "switch":
            verdict = sw.handle_packet(self.switch, where, packet, self.buffer, 0, self.now_ns)
            if verdict == sw.CONSUMED or self.policy == "none":
                return None
        elif (
            custody.handle_packet(self.custodians, where, packet, self.buffer, 0, self.now_ns)
            == custody.NOTHING
        ):
            return None
        return int(self.buffer[0, WIDTH - 1])

    def finish_others(self) -> None:
        sums = [self._others_turn(packet, 1_000_000) for packet in self.others_packets(1)]
        sums = [total for total in sums if total is not None]
        wanted = 8 if self.policy == "none" else 24
        assert sums == [EXPECTED_SUM] * wanted, f"{self.policy}: other jobs' sums came out as {sums}"

    def foreign_bytes(self) -> list[bytes]:
        return [part.tobytes() for part in self.foreign_parts]

    def _allow_trace(self) -> None:
        """ESA halves a priority, esa-plus leaves a loser's mark: both are in order, and are set back."""
        if self.policy == "esa-plus":
            assert (self.foreign.mark != 0).sum() == 1
            self.foreign.mark[:] = 0
            self.counts["esa-plus: a mark beside another job's sum"] += 1
            return
        priorities = self.foreign.priority
        assert self.policy == "esa"
        assert sorted(priorities[priorities != 255].tolist()) == [127]
        self.foreign.priority[:] = 255
        self.counts["esa: another job's priority halved"] += 1

    # --- one packet -----------------------------------------------------------------------------------------

    def take(self, data: Any, where: int, keeper: int) -> None:
        """A packet arrives: decode, switch, custodian, sender; then look at what belongs to others."""
        self.now_ns += 10
        code = wire.decode_into(data, len(data), self.packet)
        if code != wire.OK:
            self.counts[f"error: {wire.ERROR_NAMES[code]}"] += 1
            return
        if self.packet.job in OTHERS:
            self.counts["refused: another job's packet"] += 1
            return
        payload = data[wire.HEADER_BYTES : wire.HEADER_BYTES + 4 * WIDTH].tobytes().ljust(4 * WIDTH, b"\0")
        self.buffer[0] = np.frombuffer(payload, dtype="<i4")
        self.run(where, keeper)

    def run(self, where: int, keeper: int) -> None:
        packet = self.packet
        job = int(packet.job)
        drops = int(self.drops.sum())
        verdict = int(sw.handle_packet(self.switch, where, packet, self.buffer, 0, self.now_ns))
        reasons = int(self.drops.sum()) - drops
        assert reasons == (verdict == sw.DROPPED), (
            f"{reasons} reasons counted for verdict {VERDICT_NAMES[verdict]}"
        )
        assert packet.job == job, "another job's sum left in a hostile packet"
        self.counts[f"switch: {VERDICT_NAMES[verdict]}"] += 1
        if verdict == sw.TO_CUSTODIAN:
            answer = int(custody.handle_packet(self.custodians, keeper, packet, self.buffer, 0, self.now_ns))
            self.counts[f"custodian: {ANSWER_NAMES[answer]}"] += 1
        elif verdict in (sw.DOWN, sw.TO_WORKER, sw.DOWN_ONE):
            if packet.kind == wire.RESULT:
                sending.handle_result(self.senders, 0, packet, self.now_ns)
            elif packet.kind == wire.ACK:
                sending.handle_ack(self.senders, 0, packet, self.now_ns)
            elif packet.kind == wire.NACK:
                sending.handle_nack(self.senders, 0, packet, self.now_ns)
            else:
                sending.handle_pull(self.senders, 0, packet)
        if self.foreign_bytes() != self.snapshot:
            self._allow_trace()
            assert self.foreign_bytes() == self.snapshot, "another job's sums were touched"

    def let_time_pass(self) -> None:
        """The hostile job's own timers; what its custodian asks goes through the switch."""
        sending.handle_timeout(self.senders, 0, self.now_ns)
        while sending.poll_transmit(self.senders, 0, self.packet, self.now_ns):
            self.run(0, 0)
        custody.handle_timeout(self.custodians, 0, self.now_ns)
        while custody.poll_transmit(self.custodians, 0, self.packet):
            self.run(0, 0)

    def report(self) -> Counter[str]:
        counts = Counter(self.counts)
        for name, total in zip(sw.COUNTER_NAMES, self.switch.counters.sum(axis=(0, 1)), strict=True):
            counts[f"switch counter: {name}"] += int(total)
        for name, total in zip(custody.COUNTER_NAMES, self.custodians.counters.sum(axis=0), strict=True):
            counts[f"custodian counter: {name}"] += int(total)
        return counts


def fuzz(packets: int, seed: int, batch: int = 500) -> Counter[str]:
    """Send so many hostile packets, a batch to each policy in turn; gives the counts by reason."""
    random = np.random.default_rng(seed)
    worlds = [World(policy, seed) for policy in POLICY_NAMES]
    sent = 0
    while sent < packets:
        world = worlds[sent // batch % len(worlds)]
        rows, lengths = hostile_packets(random, min(batch, packets - sent))
        places = random.integers(0, 2, len(rows))
        keepers = random.choice([0, 0, 0, 1, 2], len(rows))
        for i in range(len(rows)):
            if i % 50 == 0:
                world.begin()
            world.take(rows[i, : lengths[i]], int(places[i]), int(keepers[i]))
            if i % 100 == 40:
                world.let_time_pass()
        wrong = check_accounts(world.switch)
        assert wrong == [], wrong
        sent += len(rows)
    total: Counter[str] = Counter()
    for world in worlds:
        total += world.report()
        world.finish_others()
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.core.fuzz", description="Hostile packets through the core."
    )
    parser.add_argument("--packets", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not interpreted():
        command = [sys.executable, "-W", "error", "-m", "tests.core.fuzz", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "NUMBA_DISABLE_JIT": "1"})
    began = time.monotonic()
    counts = fuzz(options.packets, options.seed)
    wall_s = round(time.monotonic() - began, 1)
    print(
        json.dumps(
            {
                "packets": options.packets,
                "seed": options.seed,
                "wall_s": wall_s,
                "counts": dict(sorted(counts.items())),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
