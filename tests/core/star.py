"""A tiny virtual network: real senders, switches and custodians, joined by queues that misbehave.

Virtual time, one seed, plain Python around the functions of the core. One rack is a star; with more racks an
upper switch joins them. Every hop may lose, duplicate or delay a packet. Packets carry real integers, large
enough for sums to wrap, and a worker notes each new result.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.core import invariants, wire
from paceline.core.bits import NO_BITS, bit
from paceline.core.custodian import program as custodian
from paceline.core.sender import program as sender
from paceline.core.sender.congestion import AIMD, FIXED, TOGETHER
from paceline.core.switch import program as switch
from paceline.core.switch.memory import ALL_RULES, POLICIES

HOP_NS = 1_000


@dataclass(frozen=True)
class Job:
    """A job: the rack of each worker, how many chunks, how important, where its custodians are."""

    racks: tuple[int, ...]
    chunks: int
    priority: int = 100
    dedicated: int = 0
    """Custodians on hosts of their own; with 0 every worker is one."""


@dataclass(frozen=True)
class Faults:
    """What may befall a packet on each hop, as probabilities."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0


NO_FAULTS = Faults()


@dataclass
class Message:
    """A packet on its way: its header and its payload, each an array of one row."""

    header: Any
    values: Any

    @property
    def packet(self) -> Any:
        return self.header[0]

    def copy(self) -> "Message":
        return Message(self.header.copy(), self.values.copy())


@dataclass(order=True)
class Event:
    time_ns: int
    order: int
    what: str = field(compare=False)
    where: int = field(compare=False)
    message: Any = field(compare=False, default=None)
    to: tuple[str, int] | None = field(compare=False, default=None)


def contribution(job: int, rank: int, chunk: int, width: int) -> Any:
    """What a worker puts into a chunk: any 32-bit integers that tell jobs, workers and chunks apart."""
    lanes = np.arange(width, dtype=np.int64)
    mixed = (job * 40_503 + rank * 69_069 + chunk * 1_566_083_941 + lanes * 362_437 + 12_345) % (1 << 32)
    return (mixed * 2_654_435_761 % (1 << 32)).astype(np.uint32).astype(np.int64) - (1 << 31)


class Star:
    """Senders, switches and custodians of several jobs over one memory."""

    def __init__(
        self,
        policy: str,
        jobs: Sequence[Job],
        *,
        slots: int,
        racks: int = 1,
        span: int = 6,
        window: float = 4.0,
        width: int = 3,
        faults: Faults = NO_FAULTS,
        seed: int = 0,
        relay: bool = False,
        inquires: bool = True,
        check_steps: bool = False,
        rules: int = ALL_RULES,
    ) -> None:
        self.policy, self.jobs, self.racks, self.width, self.faults = policy, list(jobs), racks, width, faults
        self.random = np.random.default_rng(seed)
        self.check_steps, self.inquires = check_steps, inquires
        self.events: list[Event] = []
        self.order = self.now_ns = self.steps = 0
        self.violations: list[str] = []
        self.counts = {"lost": 0, "duplicated": 0, "reordered": 0}
        self.upper = racks if racks > 1 else -1
        self.switch = switch.new_switches(
            [1] * racks + [2] * (racks > 1),
            slots,
            len(jobs),
            width,
            POLICIES[policy],
            60_000,
            seed,
            relay,
            rules,
        )
        pool = max(1, slots // 2 // len(jobs)) if policy == "switchml" else 0
        for s in range(self.switch.config.shape[0]):
            for j in range(len(jobs)):
                switch.admit_job(self.switch, s, j, 255, j * pool, pool)
        self._hire(slots, pool, span, window)

    def _hire(self, slots: int, pool: int, span: int, window: float) -> None:
        """Configure workers and custodians; workers get their chunks in three parts, at random times."""
        self.workers = [(j, rank) for j, job in enumerate(self.jobs) for rank in range(len(job.racks))]
        self.worker_at = {worker: i for i, worker in enumerate(self.workers)}
        self.keepers = [
            (j, len(job.racks) + c if job.dedicated else c)
            for j, job in enumerate(self.jobs)
            for c in range(job.dedicated or len(job.racks))
        ]
        self.keeper_at = {keeper: k for k, keeper in enumerate(self.keepers)}
        self.results: list[dict[int, Any]] = [{} for _ in self.workers]
        self.senders = sender.new_senders(len(self.workers), pool or span)
        self.custodians = custodian.new_custodians(len(self.keepers), 2 * span, self.racks, self.width)
        self.open = set(range(len(self.jobs)))
        for i, (j, rank) in enumerate(self.workers):
            job = self.jobs[j]
            state = self.senders.state[i]
            state.job, state.worker, state.rack = j, rank, job.racks[rank]
            state.mask = bit(job.racks[:rank].count(job.racks[rank]))
            state.fan_in, state.fan_in_upper = job.racks.count(job.racks[rank]), len(set(job.racks))
            state.count, state.span, state.slots = self.width, pool or span, pool or slots
            state.pool, state.flush = int(pool > 0), int(pool == 0)
            state.inquires = state.in_order = int(self.inquires and not pool)
            state.congestion = FIXED if pool else TOGETHER if self.inquires else AIMD
            state.increase = 1.0
            state.window_min, state.window_max = 1.0, float(pool or window)
            state.rto_min_ns, state.rto_max_ns = 12 * HOP_NS, 200 * HOP_NS
            state.reorder_chunks, state.reorder_rtts, state.resends_max = 3, 1.0, 200
            sender.start(self.senders, i, window, 20 * HOP_NS)
            for part in (1, 2, 3):
                self._at(
                    int(self.random.integers(0, part * 20 * HOP_NS)),
                    "release",
                    i,
                    to=("", job.chunks * part // 3),
                )
        for k, (j, number) in enumerate(self.keepers):
            keeper = self.custodians.state[k]
            keeper.job, keeper.endpoint, keeper.ring = j, number, 2 * span
            keeper.reminders = keeper.pulls = int(self.policy not in ("atp", "none"))
            keeper.fan_in_upper, keeper.count, keeper.slots = len(set(self.jobs[j].racks)), self.width, slots
            keeper.patience_ns, keeper.patience_max_ns = 10 * HOP_NS, 200 * HOP_NS
            keeper.reorder_chunks = 3
            for rack in set(self.jobs[j].racks):
                self.custodians.fan_in[k, rack] = self.jobs[j].racks.count(rack)

    # --- what is true ---------------------------------------------------------------------------------------

    def share_of(self, job: int, level: int, rack: int, position: int, chunk: int) -> Any:
        racks = self.jobs[job].racks
        if level == 2:
            ranks = [rank for rank, home in enumerate(racks) if home == position]
        else:
            ranks = [[rank for rank, home in enumerate(racks) if home == rack][position]]
        return sum(contribution(job, rank, chunk, self.width) for rank in ranks)

    def total_of(self, job: int, chunk: int) -> Any:
        return sum(contribution(job, rank, chunk, self.width) for rank in range(len(self.jobs[job].racks)))

    @property
    def truth(self) -> invariants.Truth:
        return invariants.Truth(self.share_of, self.total_of)

    def check_now(self) -> list[str]:
        return [
            *invariants.check_aggregators(self.switch, self.truth),
            *invariants.check_custody(self.custodians, self.truth),
            *invariants.check_accounts(self.switch),
        ]

    # --- the network ----------------------------------------------------------------------------------------

    def _at(self, time_ns: int, what: str, where: int, message: Any = None, to: Any = None) -> None:
        self.order += 1
        heapq.heappush(self.events, Event(time_ns, self.order, what, where, message, to))

    def _send(self, what: str, where: int, message: Message, to: tuple[str, int] | None = None) -> None:
        """Put a packet on the way to the next place; it becomes the network's own."""
        if self.check_steps:
            self.violations += invariants.check_packet(message.packet, message.values[0], self.truth)
        draws = self.random.random(3)
        if draws[0] < self.faults.loss:
            self.counts["lost"] += 1
            return
        copies = [message]
        if draws[1] < self.faults.duplicate:
            self.counts["duplicated"] += 1
            copies.append(message.copy())
        for copy in copies:
            delay_ns = HOP_NS
            if draws[2] < self.faults.reorder:
                self.counts["reordered"] += 1
                delay_ns += int(self.random.integers(0, 40 * HOP_NS))
            self._at(self.now_ns + delay_ns, what, where, copy, to)

    def _rack_of_keeper(self, k: int) -> int:
        j, number = self.keepers[k]
        racks = self.jobs[j].racks
        return racks[number] if number < len(racks) else racks[0]

    def _at_switch(self, s: int, message: Message, to: tuple[str, int] | None) -> None:
        packet = message.packet
        verdict = switch.handle_packet(self.switch, s, packet, message.values, 0, self.now_ns)
        if verdict in (switch.CONSUMED, switch.DROPPED):
            return
        if to is not None:
            self._send(*to, message)
        elif verdict == switch.TO_CUSTODIAN:
            self._send("custodian", self.keeper_at[int(packet.job), int(packet.custodian)], message)
        elif verdict == switch.UP:
            self._send("switch", self.upper, message)
        elif verdict == switch.DOWN_ONE:
            self._send("switch", int(packet.rack), message)
        elif verdict == switch.TO_WORKER:
            self._send("worker", self.worker_at[int(packet.job), int(packet.worker)], message)
        else:
            self._spread(s, message)

    def _spread(self, s: int, message: Message) -> None:
        j = int(message.packet.job)
        if s == self.upper:
            for rack in sorted(set(self.jobs[j].racks)):
                self._send("switch", rack, message.copy())
            return
        for rank, rack in enumerate(self.jobs[j].racks):
            if rack == s:
                self._send("worker", self.worker_at[j, rank], message.copy())

    # --- the hosts ------------------------------------------------------------------------------------------

    def _blank(self) -> Message:
        return Message(wire.new_packets(1), np.zeros((1, self.width), dtype=np.int32))

    def _pump(self, i: int) -> None:
        j, rank = self.workers[i]
        job = self.jobs[j]
        while True:
            message = self._blank()
            packet = message.packet
            if not sender.poll_transmit(self.senders, i, packet, self.now_ns):
                return
            chunk = int(packet.chunk)
            packet.priority = max(0, job.priority - chunk % 7)
            if job.dedicated:
                packet.custodian = len(job.racks) + chunk % job.dedicated
            else:
                packet.custodian = custodian.custodian_for(chunk, len(job.racks), NO_BITS, int(packet.epoch))
            message.values[0] = contribution(j, rank, chunk, self.width)
            self._send("switch", job.racks[rank], message)

    def _at_worker(self, i: int, message: Message) -> None:
        j = self.workers[i][0]
        packet = message.packet
        if j not in self.open or packet.job != j:
            return
        chunk = int(packet.chunk)
        if packet.kind == wire.RESULT:
            news = sender.handle_result(self.senders, i, packet, self.now_ns)
            if news == sender.NEW:
                self._keep(i, message)
                self._note(i, chunk, message)
                self._pump(i)
            elif chunk not in self.results[i]:
                self.violations.append(f"worker {i} took the first result of chunk {chunk} for {news}")
        elif packet.kind == wire.ACK:
            if sender.handle_ack(self.senders, i, packet, self.now_ns):
                self._pump(i)
        elif packet.kind == wire.NACK:
            if sender.handle_nack(self.senders, i, packet, self.now_ns):
                self._pump(i)
        else:
            wanted = sender.handle_pull(self.senders, i, packet)
            if wanted == sender.ANSWER_IT:
                self._answer(i, message)
            elif wanted == sender.POLL:
                self._pump(i)

    def _keep(self, i: int, message: Message) -> None:
        """A worker that is the chunk's custodian keeps the result for the others."""
        j, rank = self.workers[i]
        keeper = custodian.custodian_for(int(message.packet.chunk), len(self.jobs[j].racks), NO_BITS, 0)
        if self.jobs[j].dedicated == 0 and keeper == rank and self.policy != "switchml":
            k = self.keeper_at[j, rank]
            custodian.keep_result(self.custodians, k, message.packet, message.values, 0, self.now_ns)

    def _note(self, i: int, chunk: int, message: Message) -> None:
        j = self.workers[i][0]
        if chunk in self.results[i]:
            self.violations.append(f"worker {i} got the result of chunk {chunk} twice")
        self.results[i][chunk] = message.values[0].copy()
        if np.any(message.values[0] != self.total_of(j, chunk).astype(np.uint32).astype(np.int32)):
            self.violations.append(f"worker {i} got a wrong result of chunk {chunk}")
        members = [w for w, (owner, _) in enumerate(self.workers) if owner == j]
        if all(len(self.results[w]) == self.jobs[j].chunks for w in members):
            self.open.discard(j)
            for s in range(self.switch.config.shape[0]):
                switch.release_job(self.switch, s, j)

    def _answer(self, i: int, message: Message) -> None:
        packet = message.packet
        state = self.senders.state[i]
        sender.answer_pull(self.senders, i, packet, state.count)
        message.values[0] = self.results[i][int(packet.chunk)]
        to = ("custodian", self.keeper_at[int(packet.job), int(packet.custodian)])
        self._send("switch", int(state.rack), message, to)

    def _at_custodian(self, k: int, message: Message) -> None:
        j = self.keepers[k][0]
        if j not in self.open:
            return
        verdict = custodian.handle_packet(self.custodians, k, message.packet, message.values, 0, self.now_ns)
        if verdict == custodian.NOTHING:
            return
        to = None
        if verdict == custodian.UNICAST:
            to = ("worker", self.worker_at[j, int(message.packet.worker)])
        self._send("switch", self._rack_of_keeper(k), message, to)

    def _keeper_timer(self, k: int) -> None:
        custodian.handle_timeout(self.custodians, k, self.now_ns)
        while True:
            message = self._blank()
            if not custodian.poll_transmit(self.custodians, k, message.packet):
                return
            self._send("switch", self._rack_of_keeper(k), message)

    def kill_switch(self, s: int) -> None:
        """The aggregation program of a switch and its memory are gone; it still forwards."""
        for j in self.open:
            job = self.switch.jobs[s, j].copy()
            switch.release_job(self.switch, s, j)
            switch.admit_job(self.switch, s, j, 255, int(job.pool_base), int(job.pool_size))
        self.switch.config[s].dead = 1

    # --- time -----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """The earliest thing happens; False if nothing is left to happen."""
        timers: list[tuple[int, str, int]] = []
        for i, (j, _) in enumerate(self.workers):
            if j in self.open:
                timers.append((int(self.senders.state[i].timer_ns), "sender", i))
        for k, (j, _) in enumerate(self.keepers):
            if j in self.open:
                timers.append((int(self.custodians.state[k].timer_ns), "keeper", k))
        due = min(timers, default=(sender.NEVER_NS, "", 0))
        if not self.events and due[0] == sender.NEVER_NS:
            return False
        self.steps += 1
        if self.events and self.events[0].time_ns <= due[0]:
            event = heapq.heappop(self.events)
            self.now_ns = event.time_ns
            self._happen(event)
        else:
            self.now_ns = max(self.now_ns, due[0])
            if due[1] == "sender":
                sender.handle_timeout(self.senders, due[2], self.now_ns)
                self._pump(due[2])
            else:
                self._keeper_timer(due[2])
        if self.check_steps:
            self.violations += self.check_now()
        return True

    def _happen(self, event: Event) -> None:
        if event.what == "switch":
            self._at_switch(event.where, event.message, event.to)
        elif event.what == "worker":
            self._at_worker(event.where, event.message)
        elif event.what == "custodian":
            self._at_custodian(event.where, event.message)
        else:
            assert event.to is not None
            sender.release(self.senders, event.where, event.to[1])
            self._pump(event.where)

    def run(self, steps_max: int = 200_000) -> list[str]:
        """Run until every job has ended and the network is empty; gives all violations."""
        while not self.violations and self.steps < steps_max and self.step():
            pass
        ended = invariants.check_ended(self.senders)
        if self.open:
            ended.append(
                f"after {self.steps} steps, {self.now_ns} ns, jobs {sorted(self.open)} have not ended"
            )
        return [*self.violations, *ended, *self.check_now()]
