"""A virtual network at its worst: real senders, switches and custodians of one job that helps its stragglers.

All packets on their way lie in one bag, and any of them may be next: order means nothing. Each hop loses a quarter of
them and doubles some. Custodians lose their state, roles change, workers and switches die, at random times; news of
an epoch reaches everyone at another time. Everything follows from the seed.

`rules` leaves one out, to show that it is needed: "no query", "no answer" (a pull is not answered by a held result),
"overlap" (a custodian takes in what it has counted already).
"""

import random
from typing import Any

import numpy as np

from paceline.core import invariants, wire
from paceline.core.custodian import program as custodian
from paceline.core.sender import program as sender
from paceline.core.sender.congestion import AIMD, TOGETHER
from paceline.core.switch import program as switch
from paceline.core.switch.memory import POLICIES
from tests.properties.coordinator import Coordinator, MissingError, Part, Plan

STEP_NS = 1_000
LOSS, DUPLICATE = 0.25, 0.15
ROOM = 4_096
WIDTH = 2
STEPS_MAX = 60_000

Where = tuple[str, int]


class Wild:
    """One run."""

    def __init__(self, seed: int, policy: str, racks: int, help_mode: str = "both", rules: str = "") -> None:
        self.draw = draw = random.Random(seed)
        self.rules, self.policy, self.seed = rules, policy, seed
        self.count = draw.randint(2 if racks == 1 else 3, 6)
        homes = [w % racks for w in range(self.count)]
        self.batches, self.iterations = draw.randint(1, 6), draw.randint(1, 2)
        self.chunks, self.span = draw.randint(2, 6), draw.randint(2, 6)
        self.total = self.chunks * self.iterations
        self.boss = Coordinator(draw, homes, self.batches, self.iterations, help_mode)
        self.homes, self.racks = homes, racks
        numbers = np.random.default_rng(seed)
        shape = (self.count, self.batches, self.total, WIDTH)
        self.truth = numbers.integers(-(2**31), 2**31, shape, dtype=np.int64)
        self.want = self.truth.sum(axis=(0, 1)).astype(np.uint32).astype(np.int32)
        self.upper = racks if racks > 1 else -1
        levels = [1] * racks + [2] * (racks > 1)
        self.slots = draw.randint(1, 5)
        relay = draw.random() < 0.2
        self.switch = switch.new_switches(
            levels, self.slots, 1, WIDTH, POLICIES[policy], 60 * STEP_NS, seed, relay
        )
        for s in range(len(levels)):
            switch.admit_job(self.switch, s, 0, 255, 0, 0)
        self._hire()
        self.packets, self.values = wire.new_packets(ROOM), np.zeros((ROOM, WIDTH), dtype=np.int32)
        self.free = list(range(ROOM))
        self.bag: list[tuple[int, Where, Where | None]] = []
        self.results: list[dict[int, Any]] = [{} for _ in range(self.count)]
        self.known: list[Plan] = [self.boss.plan] * self.count
        self.iteration = [0] * self.count
        self.late = {w: draw.randint(0, 300) for w in self.boss.plan.stragglers}
        self.steps, self.now_ns = 0, 0
        self.verdict = ""
        self.noticed: dict[int, int] = {}
        self.tally = {"lost": 0, "doubled": 0, "epochs": 0, "deaths": 0, "forgets": 0, "switch deaths": 0}
        self.troubles = self._troubles()
        for w in range(self.count):
            self._begin(w, self.boss.plan)

    def _hire(self) -> None:
        self.senders = sender.new_senders(self.count, self.span)
        self.custodians = custodian.new_custodians(self.count, 2 * self.span, self.racks, WIDTH, owners=6)
        for w in range(self.count):
            state = self.senders.state[w]
            state.worker, state.rack, state.fan_in_upper = w, self.homes[w], self.racks
            state.count, state.span, state.slots, state.flush = WIDTH, self.span, self.slots, 1
            state.inquires = state.in_order = int(self.seed % 4 != 0)
            state.congestion = TOGETHER if state.inquires else AIMD
            state.increase = 1.0
            state.window_min, state.window_max, state.budget = 1.0, 4.0, self.draw.randint(1, self.span)
            state.rto_min_ns, state.rto_max_ns = 30 * STEP_NS, 400 * STEP_NS
            state.reorder_chunks, state.reorder_rtts, state.resends_max = 2, 1.0, 10**6
            if self.boss.silent:
                state.limit = self.span
            sender.start(self.senders, w, 3.0, 60 * STEP_NS)
            keeper = self.custodians.state[w]
            keeper.endpoint, keeper.ring, keeper.reminders, keeper.pulls = w, 2 * self.span, 1, 1
            keeper.fan_in_upper, keeper.count, keeper.slots = self.racks, WIDTH, self.slots
            keeper.patience_ns, keeper.patience_max_ns = 60 * STEP_NS, 600 * STEP_NS
            keeper.reorder_chunks = 2
            for rack in range(self.racks):
                self.custodians.fan_in[w, rack] = self.homes.count(rack)
        # Columns, as views: much faster to read than records.
        self.due = (
            self.senders.state.view(np.ndarray)["timer_ns"],
            self.custodians.state.view(np.ndarray)["timer_ns"],
        )
        self.oldest = self.senders.state.view(np.ndarray)["oldest"]
        self.limit = self.senders.state.view(np.ndarray)["limit"]

    def _troubles(self) -> list[tuple[int, str]]:
        draw = self.draw
        kinds = ["role", "role", "forget", "death", "death", "switch"]
        times = [(draw.randint(1, 900), draw.choice(kinds)) for _ in range(draw.randint(0, 4))]
        if draw.random() < 0.03:
            times += [(draw.randint(1, 900), "death") for _ in range(self.count)]
        return sorted(times, reverse=True)

    # --- what is true ---------------------------------------------------------------------------------------

    def _worker_at(self, rack: int, position: int) -> int:
        return [w for w in range(self.count) if self.homes[w] == rack][position]

    def _sum_of_bit(self, job: int, level: int, rack: int, position: int, chunk: int) -> Any:
        if level == 2:
            workers = [w for w in range(self.count) if self.homes[w] == position]
        else:
            workers = [self._worker_at(rack, position)]
        return self.truth[workers, :, chunk].sum(axis=(0, 1))

    def _sum_of_part(self, job: int, owner: int, share: int, chunk: int) -> Any:
        worker = self._worker_at(owner >> 6, owner & 63)
        inside = [m for m in range(self.batches) if int(self.boss.share_of([m])) & share]
        assert int(self.boss.share_of(inside)) == share, "half a micro-batch"
        return self.truth[worker, inside, chunk].sum(axis=0)

    def violations(self) -> list[str]:
        """What the checkers say of every aggregator, every custodian chunk and every sender."""
        truth = invariants.Truth(self._sum_of_bit, lambda job, chunk: self.want[chunk], self._sum_of_part)
        return [
            *invariants.check_aggregators(self.switch, truth),
            *invariants.check_custody(self.custodians, truth),
            *invariants.check_accounts(self.switch),
            *invariants.check_senders(self.senders),
        ]

    def _payload(self, w: int, chunk: int) -> Any:
        part: Part = self.known[w].parts[self.iteration[w]][w]
        total = self.truth[part.whole, :, chunk].sum(axis=(0, 1))
        if part.batches:
            total = total + self.truth[part.owner, part.batches, chunk].sum(axis=0)
        return total.astype(np.uint32).astype(np.int32)

    # --- the network ----------------------------------------------------------------------------------------

    def _copy(self, p: int) -> int:
        q = self.free.pop()
        self.packets[q] = self.packets[p]
        self.values[q] = self.values[p]
        return q

    def _send(self, p: int, where: Where, to: Where | None = None) -> None:
        luck = self.draw.random()
        if luck < LOSS:
            self.tally["lost"] += 1
            self.free.append(p)
            return
        self.bag.append((p, where, to))
        if luck > 1 - DUPLICATE and len(self.free) > ROOM // 2:
            self.tally["doubled"] += 1
            self.bag.append((self._copy(p), where, to))

    def _deliver(self) -> None:
        at = self.draw.randrange(len(self.bag))
        self.bag[at], self.bag[-1] = self.bag[-1], self.bag[at]
        p, (what, place), to = self.bag.pop()
        if what == "switch":
            self._at_switch(place, p, to)
        elif place in self.boss.dead or place in self.noticed:
            self.free.append(p)
        elif what == "worker":
            self._at_worker(place, p)
        else:
            self._at_custodian(place, p)

    def _at_switch(self, s: int, p: int, to: Where | None) -> None:
        packet = self.packets[p]
        came_as = int(packet.kind)
        verdict = switch.handle_packet(self.switch, s, packet, self.values, p, self.now_ns)
        if verdict in (switch.CONSUMED, switch.DROPPED):
            self.free.append(p)
        elif to is not None:
            self._send(p, to)
        elif verdict == switch.TO_CUSTODIAN:
            self._send(p, ("custodian", int(packet.custodian)))
        elif verdict == switch.UP:
            self._send(p, ("switch", self.upper))
        elif verdict == switch.DOWN_ONE:
            self._send(p, ("switch", int(packet.rack)))
        else:
            if came_as == wire.GRADIENT:
                self._send(self._copy(p), ("custodian", int(packet.custodian)))
            below = range(self.racks) if s == self.upper else range(self.count)
            for place in below:
                if s == self.upper or self.homes[place] == s:
                    self._send(self._copy(p), ("switch" if s == self.upper else "worker", place))
            self.free.append(p)

    def _at_worker(self, w: int, p: int) -> None:
        packet = self.packets[p]
        kind, chunk = int(packet.kind), int(packet.chunk)
        if kind == wire.RESULT:
            if sender.handle_result(self.senders, w, packet, self.now_ns) == sender.NEW:
                self._take_result(w, chunk, p)
        elif kind == wire.ACK:
            if sender.handle_ack(self.senders, w, packet, self.now_ns):
                self._pump(w)
        elif kind == wire.NACK:
            if sender.handle_nack(self.senders, w, packet, self.now_ns):
                self._pump(w)
        else:
            wanted = sender.handle_pull(self.senders, w, packet)
            if wanted == sender.POLL:
                self._pump(w)
            elif wanted == sender.ANSWER_IT and self.rules != "no answer":
                self._answer(w, p)
                return
        self.free.append(p)

    def _take_result(self, w: int, chunk: int, p: int) -> None:
        if not np.array_equal(self.values[p], self.want[chunk]):
            self.verdict = f"wrong: worker {w}, chunk {chunk}"
        if int(self.packets[p].custodian) == w:
            custodian.keep_result(self.custodians, w, self.packets[p], self.values, p, self.now_ns)
        self.results[w][chunk] = self.values[p].copy()
        if len(self.results[w]) == self.chunks * (self.iteration[w] + 1) < self.total:
            self.iteration[w] += 1
            self._set_part(w)
            sender.release(self.senders, w, self.chunks * (self.iteration[w] + 1))
        self._pump(w)

    def _answer(self, w: int, p: int) -> None:
        packet = self.packets[p]
        sender.answer_pull(self.senders, w, packet, WIDTH)
        self.values[p] = self.results[w][int(packet.chunk)]
        self._send(p, ("switch", self.homes[w]), ("custodian", int(packet.custodian)))

    def _at_custodian(self, k: int, p: int) -> None:
        packet = self.packets[p]
        if self.rules == "overlap" and packet.kind == wire.PARTIAL:
            self._take_overlap(k, p)
        if packet.kind == wire.RESULT:
            custodian.keep_result(self.custodians, k, packet, self.values, p, self.now_ns)
            verdict = custodian.NOTHING
        else:
            verdict = custodian.handle_packet(self.custodians, k, packet, self.values, p, self.now_ns)
        if verdict == custodian.NOTHING:
            self.free.append(p)
        else:
            to = ("worker", int(packet.worker)) if verdict == custodian.UNICAST else None
            self._send(p, ("switch", self.homes[k]), to)

    def _take_overlap(self, k: int, p: int) -> None:
        """The accept rule left out: what is counted already is added again, and the rest as it should be."""
        packet = self.packets[p]
        at = int(packet.chunk) % int(self.custodians.state[k].ring)
        entry = self.custodians.chunks[k, at]
        if entry.state != custodian.OPEN or entry.chunk != packet.chunk or packet.level != 1:
            return
        counted = self.custodians.masks[k, at, packet.rack]
        if packet.mask & counted and packet.epoch == self.custodians.state[k].epoch:
            total = self.custodians.values[k, at].astype(np.int64) + self.values[p]
            self.custodians.values[k, at] = total.astype(np.uint32).astype(np.int32)
            self.values[p] = 0
            packet.mask &= ~counted

    # --- the hosts ------------------------------------------------------------------------------------------

    def _pump(self, w: int) -> None:
        while len(self.free) > 64:
            p = self.free.pop()
            packet = self.packets[p]
            if not sender.poll_transmit(self.senders, w, packet, self.now_ns):
                self.free.append(p)
                return
            if packet.kind == wire.QUERY and self.rules == "no query":
                self.free.append(p)
                continue
            chunk, state = int(packet.chunk), self.senders.state[w]
            packet.priority = 1 + (chunk * 37 + w) % 200
            packet.custodian = custodian.custodian_for(chunk, self.count, state.leaders, state.epoch)
            self.values[p] = self._payload(w, chunk) if packet.kind == wire.GRADIENT else 0
            self._send(p, ("switch", self.homes[w]))

    def _set_part(self, w: int) -> None:
        part = self.known[w].parts[self.iteration[w]][w]
        mask = np.uint64(sum(self.boss.bit_of(v) for v in part.whole))
        owner = self.boss.place(part.owner) if part.batches else 0
        sender.set_share(self.senders, w, mask, owner, self.boss.share_of(part.batches))

    def _begin(self, w: int, plan: Plan) -> None:
        """News of an epoch reach a worker."""
        self.known[w] = plan
        self._set_part(w)
        leaders = np.uint64(sum(1 << v for v in plan.leaders))
        slow = int(plan.custody and w in plan.stragglers)
        fan_in = plan.fan_in[self.homes[w]]
        sender.take_role(self.senders, w, plan.epoch, int(plan.custody), slow, leaders, fan_in)
        if w not in self.late:
            sender.release(self.senders, w, self.chunks * (self.iteration[w] + 1))
        self._pump(w)

    def _timers(self) -> None:
        """The earliest timer of a random living host."""
        w = self.draw.randrange(self.count)
        if w in self.boss.dead or w in self.noticed:
            return
        if self.due[0][w] <= self.now_ns:
            sender.handle_timeout(self.senders, w, self.now_ns)
            self._pump(w)
        if self.due[1][w] <= self.now_ns:
            custodian.handle_timeout(self.custodians, w, self.now_ns)
            while len(self.free) > 64:
                p = self.free.pop()
                if not custodian.poll_transmit(self.custodians, w, self.packets[p]):
                    self.free.append(p)
                    break
                self._send(p, ("switch", self.homes[w]))

    # --- the coordinator ------------------------------------------------------------------------------------

    def _alive(self) -> list[int]:
        return [w for w in range(self.count) if w not in self.boss.dead and w not in self.noticed]

    def _new_epoch(self) -> None:
        self.tally["epochs"] += 1
        self.boss.decide()

    def _trouble(self, what: str) -> None:
        alive = self._alive()
        if what == "role":
            self._new_epoch()
        elif what == "forget" and alive:
            self.tally["forgets"] += 1
            self._new_epoch()
            custodian.forget(self.custodians, self.draw.choice(alive), self.boss.epoch)
        elif what == "death" and alive:
            self.tally["deaths"] += 1
            self.noticed[self.draw.choice(alive)] = self.steps + self.draw.randint(1, 150)
        elif what == "switch":
            self.tally["switch deaths"] += 1
            s = self.draw.randrange(self.switch.config.shape[0])
            switch.release_job(self.switch, s, 0)
            switch.admit_job(self.switch, s, 0, 255, 0, 0)
            self.switch.config[s].dead = 1

    def _coordinate(self) -> None:
        while self.troubles and self.troubles[-1][0] <= self.steps:
            self._trouble(self.troubles.pop()[1])
        for w in [w for w, when in self.noticed.items() if when <= self.steps]:
            del self.noticed[w]
            self.boss.dead.add(w)
            self._new_epoch()
        w = self.draw.randrange(self.count)
        if w in self.boss.dead or w in self.noticed:
            return
        if self.known[w].epoch < self.boss.epoch:
            if self.draw.random() < 0.5:
                custodian.begin_epoch(
                    self.custodians, w, max(self.boss.epoch, int(self.custodians.state[w].epoch))
                )
            self._begin(w, self.boss.plan)
        if self.late.get(w, self.steps) < self.steps:
            del self.late[w]
            sender.release(self.senders, w, self.chunks * (self.iteration[w] + 1))
            self._pump(w)
        if self.boss.silent:
            limit = int(self.oldest[self._alive()].min()) + self.span
            if limit > self.limit[w]:
                self.limit[w] = limit
                self._pump(w)

    # --- time -----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Something happens; False when the run has ended."""
        self.steps += 1
        self.now_ns += STEP_NS
        try:
            self._coordinate()
        except MissingError as missing:
            self.verdict = f"missing: {missing}"
        if self.verdict:
            return False
        if self.steps > STEPS_MAX:
            self.verdict = "livelock"
            return False
        if self.bag and self.draw.random() < 0.85:
            self._deliver()
        else:
            self._timers()
        if not self.bag:
            self._wait()
        return not self.verdict

    def _wait(self) -> None:
        """Nothing is on its way: the run has ended, or time goes on to the next timer."""
        alive = self._alive()
        if not self.noticed and all(len(self.results[w]) == self.total for w in alive):
            self.verdict = self.verdict or "ok"
        elif alive and not self.troubles and not self.noticed and not self.late:
            next_ns = min(int(self.due[0][alive].min()), int(self.due[1][alive].min()))
            if self.now_ns < next_ns < sender.NEVER_NS:
                self.now_ns = next_ns

    def run(self, check_every: int = 0) -> str:
        """`ok`, `missing: ...`, or what went wrong."""
        while self.step():
            if check_every and self.steps % check_every == 0:
                wrong = self.violations()
                if wrong:
                    return f"wrong: {wrong[0]}"
        return self.verdict
