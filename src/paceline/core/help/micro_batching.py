"""Whether iterations are cut into micro-batches: only where that pays.

What can be taken over must be cut. But gradients leave in the last micro-batch's backward pass, so a job that sends
much hides less of its exchange when it is cut. Cutting at all times costs nothing where the exchange fits behind that
one micro-batch; other jobs are cut only while somebody is helped, and only if the work that is taken from the straggler
is worth more than the communication time that cutting exposes. Both are estimated from what the job knows of itself:
its computation, the size of its gradients, the rate of its link, and how slow the straggler was seen to be. The network
that it shares with others is not in that; so where iterations with and without help have been seen, their times decide.
"""

from collections.abc import Collection
from dataclasses import dataclass

IDLE_COST_MAX = 0.01
"""Cutting when nobody straggles may cost so much of an iteration."""
GAIN_MIN = 0.03
"""Help that is expected to give less than this is not begun."""
TRIES = 2
"""After so many iterations that all took longer than expected, a way that may be quicker is tried."""
WHOLE_ITERATIONS = 8
"""After an exposed exchange, so many iterations are not cut; each time it happens, twice as many as before."""
SLOWNESS_MAX = 16.0
SLOWNESS_GUESS = 2.0


@dataclass(frozen=True)
class JobTimes:
    """What a job knows of itself, on links that are free."""

    workers: int
    micro_batches: int
    forward_ns: int
    backward_ns: int
    exchange_ns: float
    """To send all gradients once."""
    round_trip_ns: float
    """To the switch, to a custodian and back."""

    @property
    def compute_ns(self) -> int:
        return self.forward_ns + self.backward_ns

    def exposed_ns(self, parts: int) -> float:
        """The exposed communication time of an iteration in so many parts.

        Hidden are the last backward pass and half of the first forward pass: that one waits layer by layer, and what is
        needed first comes last.
        """
        hidden_ns = (float(self.backward_ns) + float(self.forward_ns) / 2) / parts
        return max(0.0, self.exchange_ns - hidden_ns)


class CutPolicy:
    """Whether one job's iterations are to be cut; told how slow stragglers are, and how long iterations took."""

    def __init__(self, times: JobTimes) -> None:
        self.times = times
        self.slowness: dict[int, float] = {}
        """How many times slower than the leaders a straggler was seen to be."""
        self.pays = True
        """Is the stragglers' work worth taking?"""
        self.stragglers: tuple[int, ...] = ()
        """The compute stragglers that `took_ns` is about."""
        self.took_ns: dict[bool, list[int]] = {True: [], False: []}
        """How long iterations took, cut and not, while they straggled and nobody else did."""
        self._whole_for, self._whole_until = WHOLE_ITERATIONS, 0

    def is_free(self) -> bool:
        """Does cutting cost next to nothing, even if nobody straggles?"""
        times = self.times
        uncut_ns = times.compute_ns + times.exposed_ns(1)
        return times.exposed_ns(times.micro_batches) - times.exposed_ns(1) <= IDLE_COST_MAX * uncut_ns

    def seems_free(self) -> bool:
        """While nobody computes slowly: do iterations that are cut take no longer than expected, or than others?"""
        cut_ns, uncut_ns = self.took_ns[True], self.took_ns[False]
        if not self.stragglers and cut_ns and uncut_ns:
            return min(cut_ns) <= (1.0 + IDLE_COST_MAX) * min(uncut_ns)
        expected_ns = self.times.compute_ns + self.times.exposed_ns(self.times.micro_batches)
        return len(cut_ns) < TRIES or min(cut_ns) <= (1.0 + GAIN_MIN) * expected_ns

    def wants_cut(self, iteration: int, held_up: bool) -> bool:
        """From what is known in this iteration; `held_up`: somebody's link is slow."""
        if self.stragglers:
            return self.pays
        return self.is_free() and not held_up and iteration >= self._whole_until and self.seems_free()

    def set_stragglers(self, slow: tuple[int, ...]) -> None:
        """Who computes slowly now; times of iterations are compared only while these are the same."""
        if slow != self.stragglers:
            self.stragglers, self.took_ns = slow, {True: [], False: []}
        for rank in self.slowness.keys() - set(slow):
            del self.slowness[rank]

    def slowness_of(self, rank: int) -> float:
        return self.slowness.get(rank, SLOWNESS_GUESS)

    def note_slowness(self, rank: int, done: int, median: int, whole: int) -> None:
        """A straggler has computed `done` of an iteration of `whole` by itself, and the leaders' median is `median`."""
        if 0 < done < median:
            seen = min(SLOWNESS_MAX, median / done)
            # Leaders that are done are no measure: the straggler is slower than it seems.
            known = self.slowness.get(rank, 1.0)
            self.slowness[rank] = seen if median < whole else max(known, seen)
        else:
            self.slowness.setdefault(rank, SLOWNESS_GUESS)

    def note_iteration(self, was_cut: bool, took_ns: int) -> None:
        self.took_ns[was_cut].append(took_ns)

    def judge_help(self) -> str:
        """Would an iteration with help be shorter than one without? `pays` says so; a reason if that is new."""
        worth, reason = self._is_worth_it(self.stragglers)
        if worth == self.pays:
            return ""
        self.pays = worth
        return reason

    def _is_worth_it(self, slow: Collection[int]) -> tuple[bool, str]:
        if not slow:
            return True, ""
        times = self.times
        worst = max(self.slowness.get(rank, 1.0) for rank in slow)
        rate = times.workers - len(slow) + sum(1.0 / self.slowness.get(rank, 1.0) for rank in slow)
        without_ns = worst * times.compute_ns + times.exposed_ns(1)
        unit_ns = times.compute_ns // times.micro_batches
        with_ns = times.workers * times.compute_ns / rate + unit_ns + times.exposed_ns(times.micro_batches)
        if len(self.took_ns[True]) > 1 and self.took_ns[False]:
            # The first one with help is on its way to it.
            with_ns, without_ns = min(self.took_ns[True][1:]), min(self.took_ns[False])
        worth = with_ns < (1.0 - GAIN_MIN) * without_ns
        return worth, (
            f"{'worth it' if worth else 'not worth it'}: an iteration would take {with_ns * 1e-6:.3g} ms with help, "
            f"{without_ns * 1e-6:.3g} ms without; the slowest takes {worst:.2g} times as long"
        )

    def longest_wait_ns(self) -> float:
        """Everyone waits for results of an iteration that was cut: longer than this is exposed communication."""
        return self.expected_wait_ns() + GAIN_MIN * self.times.compute_ns

    def expected_wait_ns(self) -> float:
        return self.times.exposed_ns(self.times.micro_batches) + self.times.round_trip_ns

    def note_exposed(self, iteration: int) -> int:
        """The wait before this iteration was too long: it and the next ones are not cut; gives the first that may be.

        Nobody has begun to compute it, so its exchange hides behind a whole backward pass again. What makes the
        exchange long, a slow link or other jobs, need not be known for that.
        """
        self._whole_until, self._whole_for = iteration + self._whole_for, 2 * self._whole_for
        return self._whole_until
