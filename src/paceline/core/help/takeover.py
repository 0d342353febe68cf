"""Who computes which micro-batch next, and who stands in for the dead: takeover [ours, after SA-ATP's idea].

The ledgers say what may be claimed and whose result counts. This module decides *which* claim a worker gets:

- A worker takes its own micro-batches first, from the head.
- Done with them, it helps the owner whose free micro-batches would take the longest: the owner itself and those who
  help it now, by their measured paces.
- Nobody begins a micro-batch, its own or another's, that the others would end sooner together with all that is free:
  a worker is not stopped in the middle, so a slow one that starts late would make everybody wait.
- With nothing free, an idle worker races the holder of a micro-batch that it would end clearly earlier. The first
  to finish or to commit it counts; the other is fenced.

A worker that knows that a claim is its last commits it, and its gradients may leave while they are computed.

Whose ledgers are open is for the driver to say: everyone's, or only those of workers that straggle. So is what a worker
may take from (`owners`), where packets have room for the shares of one owner. Every grant and wait has its reason in
words, with the figures behind it.

**Recovery.** What a dead worker held or had computed is free again, and its own micro-batches are a ledger without an
owner. Where packets tell shares, a helper has shares of one owner; a dead worker that no helper has room for is
*adopted*: one worker computes all that is left of it and carries its bit. Where bits alone are counted, one worker that
has yet to send carries the bit, once all of the dead one's work has been taken.
"""

import heapq
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from paceline.core.help.ledger import Claim, Ledgers

RACE_GAIN = 1.25
"""A race is worth it if the holder needs so many times as long as the racer."""
OVERDUE = 0.5
"""A claim that takes longer than its worker's pace is expected to take so much of the delay again."""
NEWEST = 0.3
"""Weight of the newest micro-batch in a worker's pace."""


class Grant(NamedTuple):
    """A micro-batch to compute, under a claim number."""

    owner: int
    m: int
    number: int
    is_race: bool
    reason: str

    @property
    def claim(self) -> Claim:
        return self.owner, self.m, self.number


class Wait(NamedTuple):
    """Nothing for this worker now; the reason is empty where nothing is free."""

    reason: str


class Fenced(NamedTuple):
    """A claim that became worthless: somebody else's result counts."""

    worker: int
    number: int


class Paces:
    """How long a micro-batch takes each worker; kept from one iteration to the next."""

    def __init__(self, typical_ns: float | None = None) -> None:
        self._typical_ns = typical_ns
        self._ns: dict[int, float] = {}

    def note(self, worker: int, took_ns: float) -> None:
        old = self._ns.get(worker)
        self._ns[worker] = took_ns if old is None else (1 - NEWEST) * old + NEWEST * took_ns

    def guess(self, worker: int, pace_ns: float) -> None:
        """Until it has ended one: by other signs it takes so long."""
        self._ns.setdefault(worker, pace_ns)

    def forget(self, worker: int) -> None:
        self._ns.pop(worker, None)

    def is_known(self, worker: int) -> bool:
        return worker in self._ns or self._typical_ns is not None

    def of(self, worker: int) -> float:
        """Of a worker that has ended none yet: what is typical, or as the others."""
        if worker in self._ns:
            return self._ns[worker]
        if self._typical_ns is not None:
            return self._typical_ns
        return float(statistics.median(self._ns.values())) if self._ns else 1.0


class TakeoverPolicy:
    """Decides about the claims on one iteration's ledgers."""

    def __init__(self, ledgers: Ledgers, paces: Paces) -> None:
        self.ledgers, self.paces = ledgers, paces
        self._began_ns: dict[tuple[int, int], int] = {}
        """When work on a claim (owner, number) began; a claim ahead is not in it."""
        self._iteration = ledgers.iteration

    def claim(
        self,
        worker: int,
        now_ns: int,
        *,
        ready_ns: int | None = None,
        owners: Collection[int] | None = None,
        coming: Mapping[int, float] | None = None,
        may_race: bool = True,
    ) -> Grant | Wait:
        """The micro-batch that a worker computes next.

        `ready_ns`: when it will begin, if not now. `owners`: whose it may take (default: anybody's). `coming`: others
        that are sure to ask for some of these, and for how long each has work of its own before that, beside
        the claims that it holds.
        """
        self.ledgers.expire(now_ns)
        allowed = self.ledgers.open.keys() if owners is None else owners
        free = {owner: count for owner in allowed if (count := self.ledgers.free(owner))}
        end_ns = (now_ns if ready_ns is None else ready_ns) + self.paces.of(worker)
        if not free:
            return self._race(worker, now_ns, end_ns, allowed) if may_race else Wait("")
        if reason := self._why_wait(worker, now_ns, end_ns, sum(free.values()), coming or {}):
            return Wait(reason)
        owner = worker if worker in free else self.neediest(free)
        reason = "" if owner == worker else self._why_help(worker, owner, free[owner])
        return self._grant(worker, owner, now_ns, ready_ns, False, reason)

    def take(self, worker: int, owner: int, now_ns: int, ready_ns: int | None = None) -> Grant | Wait:
        """A free micro-batch of this owner, without a question whether it pays: somebody has to compute it."""
        self.ledgers.expire(now_ns)
        if not self.ledgers.free(owner):
            return Wait("")
        reason = "" if owner == worker else self._why_help(worker, owner, self.ledgers.free(owner))
        return self._grant(worker, owner, now_ns, ready_ns, False, reason)

    def start(self, claim: Claim, now_ns: int) -> None:
        """A worker begins with what it had claimed ahead."""
        self._began_ns[claim[0], claim[2]] = now_ns
        self.ledgers.start(claim, now_ns)

    def commit(self, claim: Claim) -> tuple[bool, list[Fenced]]:
        """It is its worker's last, and will be finished: nobody else's from now on. False: it is fenced itself."""
        others = self._rivals(claim)
        return (True, others) if self.ledgers.commit(claim) else (False, [])

    def finish(self, worker: int, claim: Claim, took_ns: float | None) -> tuple[bool, list[Fenced]]:
        """Whether the gradient counts, and the claims that this makes worthless; `took_ns`, if known, is a pace."""
        others = self._rivals(claim)
        self._began_ns.pop((claim[0], claim[2]), None)
        if not self.ledgers.finish(claim):
            return False, []
        if took_ns is not None:
            self.paces.note(worker, took_ns)
        return True, others

    def _why_wait(
        self, worker: int, now_ns: int, end_ns: float, total: int, coming: Mapping[int, float]
    ) -> str:
        """Why a worker that would be done at `end_ns` leaves all free ones to the others; empty: it does not."""
        if not self.paces.is_known(worker):
            return ""
        others_ns = self._end_of_others(worker, total, now_ns, end_ns, coming)
        if end_ns <= others_ns:
            return ""
        return (
            f"worker {worker} starts no other: it would be done in {_in_s(end_ns - now_ns)}, and the others end all "
            f"{total} free ones in {_in_s(others_ns - now_ns)}"
        )

    def _end_of_others(
        self, worker: int, total: int, now_ns: int, enough_ns: float, coming: Mapping[int, float]
    ) -> float:
        """When the others would be done with everything, each micro-batch going to whoever ends it first.

        Gives up where that is later than `enough_ns`.
        """
        ready_ns = {other: now_ns + busy_ns for other, busy_ns in coming.items() if other != worker}
        for owner in self.ledgers.open:
            for other, number in self.ledgers.claims_on(owner):
                if other in ready_ns:
                    ready_ns[other] += self._left_ns(owner, other, number, now_ns)
        ends = [(at_ns + self.paces.of(other), other) for other, at_ns in ready_ns.items()]
        if not ends:
            return float("inf")
        heapq.heapify(ends)
        last_ns = max(ready_ns.values())
        for _ in range(total):
            end_ns, other = ends[0]
            last_ns = max(last_ns, end_ns)
            if last_ns >= enough_ns:
                break
            heapq.heapreplace(ends, (end_ns + self.paces.of(other), other))
        return last_ns

    def _left_ns(self, owner: int, worker: int, number: int, now_ns: int) -> float:
        """Until a claim is finished."""
        pace_ns = self.paces.of(worker)
        began_ns = self._began_ns.get((owner, number))
        if began_ns is None:
            return pace_ns
        elapsed_ns = now_ns - began_ns
        return max(pace_ns - elapsed_ns, OVERDUE * (elapsed_ns - pace_ns), 0.0)

    def neediest(self, owners: Collection[int]) -> int:
        """Whose free micro-batches would take its owner, and those who help it now, the longest; -1: of nobody.

        A dead worker counts as if it worked: its part is no more urgent than a slow worker's, as all must be done.
        """

        def left_ns(owner: int) -> float:
            pace_ns = self.paces.of(owner)
            at_work = self.ledgers.holders(owner) - {owner}
            rate = 1.0 + sum(pace_ns / self.paces.of(helper) for helper in at_work)
            return self.ledgers.free(owner) * pace_ns / rate

        return max(owners, key=lambda owner: (left_ns(owner), -owner), default=-1)

    def _why_help(self, worker: int, owner: int, free: int) -> str:
        if not self.ledgers.is_alive(owner):
            return (
                f"worker {worker} stands in for worker {owner}, which is gone, with {free} micro-batches free"
            )
        return (
            f"worker {worker} is done and helps worker {owner}, which has the most work left: {free} of its "
            f"micro-batches are free at {_in_s(self.paces.of(owner))} each ({_in_s(self.paces.of(worker))} on worker "
            f"{worker})"
        )

    def _race(self, worker: int, now_ns: int, end_ns: float, owners: Collection[int]) -> Grant | Wait:
        """Nothing is free: a second claim where this worker would be done clearly before the holder."""
        best, longest_ns = None, RACE_GAIN * (end_ns - now_ns)
        if self.paces.is_known(worker):
            for owner in owners:
                candidate = self.ledgers.raceable(owner, worker)
                if candidate is None:
                    continue
                left_ns = self._left_ns(owner, *candidate, now_ns)
                if left_ns > longest_ns:
                    best, longest_ns = (owner, candidate[0]), left_ns
        if best is None:
            return Wait("")
        owner, holder = best
        reason = (
            f"worker {worker} races worker {holder}, which needs another {_in_s(longest_ns)} for a micro-batch of "
            f"worker {owner}; worker {worker} takes {_in_s(self.paces.of(worker))}"
        )
        return self._grant(worker, owner, now_ns, None, True, reason)

    def _grant(
        self, worker: int, owner: int, now_ns: int, ready_ns: int | None, is_race: bool, reason: str
    ) -> Grant:
        if self._iteration != self.ledgers.iteration:
            self._iteration, self._began_ns = self.ledgers.iteration, {}
        got = self.ledgers.take(owner, worker, now_ns)
        assert got is not None, "there was something to claim"
        if ready_ns is None:
            self._began_ns[owner, got[2]] = now_ns
        return Grant(*got, is_race, reason)

    def _rivals(self, claim: Claim) -> list[Fenced]:
        """The other claim on the same micro-batch, if there is one."""
        owner, m, number = claim
        return [
            Fenced(worker, other) for worker, other in self.ledgers.claims_on(owner, m) if other != number
        ]


def _in_s(time_ns: float) -> str:
    return f"{time_ns * 1e-9:.3g} s"


NOBODY = -1


def find_adoptable(ledgers: Ledgers, rank: int, dead: set[int], others: Callable[[int], bool]) -> int:
    """A dead worker with something to compute that no helper has room for; -1 if there is none.

    `others(owner)`: will somebody else come to compute some of it?
    """
    for owner in sorted(dead & ledgers.open.keys()):
        if ledgers.free(owner) and ledgers.takers(owner) <= {rank} and not others(owner):
            return owner
    return NOBODY


def find_orphan(
    ledgers: Ledgers,
    rank: int,
    dead: set[int],
    adopted: set[int],
    adopter: Callable[[int], int],
    coming: bool,
) -> int:
    """A dead worker whose part a straggler must compute, since nobody else will come to it; -1 if there is none.

    What it has begun to adopt it adopts as a whole, whoever may have come since. `coming`: somebody else may come.
    """
    for owner in sorted(adopted & dead & ledgers.open.keys()):
        if adopter(owner) == rank and ledgers.free(owner):
            return owner
    if coming:
        return NOBODY
    return find_adoptable(ledgers, rank, dead, lambda _: False)


def choose_carriers(
    carriers: Mapping[int, int], dead: Iterable[int], alive: Collection[int], ready: list[int]
) -> dict[int, int]:
    """Where bits alone are counted: who carries the bit of each dead worker, one of those that have yet to send."""
    chosen = dict(carriers)
    for gone in dead:
        if chosen.get(gone) not in alive and ready:
            chosen[gone] = ready[0]
    return chosen
