"""Whether iterations are cut into micro-batches: only where that pays.

What can be taken over must be cut. But gradients leave in the last micro-batch's backward pass, so a job that sends
much hides less of its exchange when it is cut. Cutting at all times costs nothing where the exchange fits behind that
one micro-batch; other jobs are cut only while somebody is helped, and only if the work that is taken from the straggler
is worth more than what the exchange shows. Both are estimated from what the job knows of itself: its
computation, the size of its gradients, the rate of its link, and how slow the straggler was seen to be. The network
that it shares with others is not in that; so where iterations with and without help have been seen, their times decide.

And an exchange that shows is noticed while it does: everyone has computed, everyone waits, and longer than expected.
The iteration that they wait to begin is then not cut, nor are the next ones, so a slow link costs one iteration's
exchange and no more.
"""

from paceline.dataplane.straggler import BANDWIDTH_STRAGGLER, COMPUTE_STRAGGLER
from paceline.dataplane.wire import ENVELOPE_BYTES, HEADER_BYTES
from paceline.sim import world as w
from paceline.sim.build import NO_ITERATION, Setup
from paceline.sim.watching import Plan, Watching

REST_COST = 0.01
"""Cutting when nobody straggles may cost so much of an iteration."""
GAIN_MIN = 0.03
"""Help that is expected to give less than this is not begun."""
TRIES = 2
"""After so many iterations that all took longer than expected, a way that may be quicker is tried."""
WHOLE_ITERATIONS = 8
"""After an exchange that showed, so many iterations are not cut; each time it happens, twice as many as before."""
SLOWNESS_MAX = 16.0


class Cutting(Watching):
    """A coordinator that decides when iterations are cut."""

    def __init__(self, setup: Setup, j: int, plan: Plan) -> None:
        super().__init__(setup, j, plan)
        network = setup.scenario.network
        packet_bits = 8 * (4 * network.elements + HEADER_BYTES + ENVELOPE_BYTES)
        packet_ns = packet_bits / network.rate * 1e9
        self.exchange_ns = self.chunks * packet_ns
        self.round_trip_ns = (4 if network.topology == "star" else 8) * (network.delay + packet_ns)
        """To the switch, to a custodian and back, on links that are free."""
        self.slowness: dict[int, float] = {}
        """How many times slower than the leaders a worker was seen to be."""
        self.pays = True
        """Is the stragglers' work worth taking?"""
        self.changed_at = 0
        self.judged_at = 0
        self.began_ns = 0
        self.helped: tuple[int, ...] = ()
        """The compute stragglers that `took_ns` is about."""
        self.took_ns: dict[bool, list[int]] = {True: [], False: []}
        """How long iterations took, cut and not, while they straggled and nobody else did."""
        self.blocked_ns = self.workers.blocked_ns.copy()
        """How long workers had waited for results, before the wait that they are in."""
        self.whole_for, self.whole_until = WHOLE_ITERATIONS, 0
        if self.job.takes_over and not self.is_free_to_cut():
            self.cut(False)

    def exposed_ns(self, parts: int) -> float:
        """What of an exchange shows, with so many micro-batches.

        Hidden are the last backward pass and half of the first forward pass: that one waits layer by layer, and what is
        needed first comes last.
        """
        hidden_ns = (float(self.record.backward_ns) + float(self.record.forward_ns) / 2) / parts
        return max(0.0, self.exchange_ns - hidden_ns)

    def is_free_to_cut(self) -> bool:
        """Does it cost next to nothing, even if nobody straggles?"""
        uncut_ns = self.compute_ns + self.exposed_ns(1)
        return self.exposed_ns(self.job.parts) - self.exposed_ns(1) <= REST_COST * uncut_ns

    def seems_free(self) -> bool:
        """While nobody computes slowly: do iterations that are cut take no longer than expected, or than others?"""
        cut_ns, uncut_ns = self.took_ns[True], self.took_ns[False]
        if not self.helped and cut_ns and uncut_ns:
            return min(cut_ns) <= (1.0 + REST_COST) * min(uncut_ns)
        expected_ns = self.compute_ns + self.exposed_ns(self.job.parts)
        return len(cut_ns) < TRIES or min(cut_ns) <= (1.0 + GAIN_MIN) * expected_ns

    def is_cut(self, rank: int) -> bool:
        """Is this worker's present iteration cut?"""
        return bool(self.workers[rank].cut == self.job.parts)

    def cut(self, wanted: bool) -> None:
        """From the next iteration that nobody has begun."""
        after = max((int(self.workers[rank].iteration) for rank in self.alive()), default=0)
        first = after + 1 if self.record.started else 0
        if wanted == bool(self.record.cut_until == NO_ITERATION):
            return
        if wanted:
            self.record.cut_from, self.record.cut_until = first, NO_ITERATION
        else:
            self.record.cut_until = first
        self.changed_at = first

    def tick(self, now_ns: int) -> None:
        super().tick(now_ns)
        moving = self.workers.phase != w.BLOCKED
        self.blocked_ns[moving] = self.workers.blocked_ns[moving]
        if self.job.takes_over:
            self.see_exchange(now_ns)

    def see_exchange(self, now_ns: int) -> None:
        """Everyone has computed an iteration that was cut, and waits: longer than expected?

        Nobody has begun to compute the next one then, so it need not be cut: its exchange hides behind a whole
        backward pass again. What makes the exchange long, a slow link or other jobs, need not be known for that.
        """
        alive = self.alive()
        waiting = self.workers[alive]
        last = self.iteration - 1
        if (
            self.record.helping
            or not self.record.cut_from <= last < self.record.cut_until
            or (waiting.iteration != self.iteration).any()
            or (waiting.phase != w.BLOCKED).any()
            or (waiting.layer != 0).any()
            or (waiting.cut == 1).all()
        ):
            return
        since_ns = int((self.blocked_ns[alive] - waiting.blocked_ns).max())
        expected_ns = self.exposed_ns(self.job.parts) + self.round_trip_ns
        long_ns = expected_ns + GAIN_MIN * self.compute_ns
        if now_ns - since_ns < long_ns:
            self.plan(since_ns + int(long_ns) + 1, self.see_exchange)
            return
        for rank in alive:
            self.workers[rank].cut = 1
        self.record.cut_until, self.changed_at = self.iteration, self.iteration
        self.whole_until, self.whole_for = self.iteration + self.whole_for, 2 * self.whole_for
        self.say(
            now_ns,
            "takeover",
            None,
            f"iterations {self.iteration} to {self.whole_until - 1} are not cut: everyone has waited for "
            f"{(now_ns - since_ns) * 1e-6:.3g} ms for the results of iteration {last}, and "
            f"{expected_ns * 1e-6:.3g} ms were expected",
        )

    def consider(self, now_ns: int) -> bool:
        """Cut the iterations to come, or do not; True if there is anything new in that."""
        if not self.job.takes_over:
            return False
        self.see_slowness()
        self.see_times(now_ns)
        before = self.pays, int(self.record.cut_until)
        self.pays = bool(self.dead) or self.is_worth_it(now_ns)
        slow = any(self.role(rank) == COMPUTE_STRAGGLER for rank in self.alive())
        held_up = any(self.role(rank) == BANDWIDTH_STRAGGLER for rank in self.alive())
        if min((int(self.workers[rank].iteration) for rank in self.alive()), default=0) >= self.changed_at:
            # One change at a time: all workers of an iteration do the same.
            at_rest = (
                self.is_free_to_cut()
                and not held_up
                and self.iteration >= self.whole_until
                and self.seems_free()
            )
            self.cut(bool(self.dead) or (self.pays if slow else at_rest))
        return (self.pays, int(self.record.cut_until)) != before

    def is_worth_it(self, now_ns: int) -> bool:
        """Would an iteration with help be shorter than one without? Says so if it is not."""
        slow = [rank for rank in self.alive() if self.role(rank) == COMPUTE_STRAGGLER]
        if not slow:
            return True
        worst = max(self.slowness.get(rank, 1.0) for rank in slow)
        rate = self.n - len(slow) + sum(1.0 / self.slowness.get(rank, 1.0) for rank in slow)
        without_ns = worst * self.compute_ns + self.exposed_ns(1)
        with_ns = self.n * self.compute_ns / rate + self.unit_ns + self.exposed_ns(self.job.parts)
        if len(self.took_ns[True]) > 1 and self.took_ns[False]:
            # The first one with help is on its way to it.
            with_ns, without_ns = min(self.took_ns[True][1:]), min(self.took_ns[False])
        worth = with_ns < (1.0 - GAIN_MIN) * without_ns
        if worth != self.pays:
            word = "worth it" if worth else "not worth it"
            self.say(
                now_ns,
                "takeover",
                None,
                f"{word}: an iteration would take {with_ns * 1e-6:.3g} ms with help, {without_ns * 1e-6:.3g} ms "
                f"without; the slowest takes {worst:.2g} times as long",
            )
        return worth

    def see_times(self, now_ns: int) -> None:
        """Keep how long the last iteration took, as long as the same workers straggle, or nobody does."""
        slow = tuple(rank for rank in self.alive() if self.role(rank) == COMPUTE_STRAGGLER)
        if slow != self.helped:
            self.helped, self.took_ns = slow, {True: [], False: []}
        if self.iteration > self.judged_at:
            was_cut = bool(self.record.cut_from <= self.judged_at < self.record.cut_until)
            took_ns = now_ns - max(self.began_ns, int(self.record.started_ns))
            if self.judged_at == 0:
                # It ended with its computation, and did not wait for an exchange before.
                took_ns += round(self.exposed_ns(self.job.parts if was_cut else 1))
            if self.iteration == self.judged_at + 1 and not (was_cut and self.judged_at == 0):
                self.took_ns[was_cut].append(took_ns)
            self.judged_at, self.began_ns = self.iteration, now_ns

    def see_slowness(self) -> None:
        """How far stragglers have come in an iteration, against the leaders' median."""
        for rank in self.alive():
            if self.role(rank) != COMPUTE_STRAGGLER:
                self.slowness.pop(rank, None)
                continue
            began = int(self.workers[rank].iteration) * self.chunks
            given = self.chunks * int(self.given_ns()[rank]) // self.compute_ns
            done = int(self.detection.workers[rank].computed) - began - given
            median = int(self.detection.median[1]) - began
            if 0 < done < median:
                seen = min(SLOWNESS_MAX, median / done)
                # Leaders that are done are no measure: the straggler is slower than it seems.
                known = self.slowness.get(rank, 1.0)
                self.slowness[rank] = seen if median < self.chunks else max(known, seen)
            else:
                self.slowness.setdefault(rank, 2.0)
