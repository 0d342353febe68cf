"""One iteration's ledgers, one for each rank's micro-batches, and who is given what: pure, the time is passed in.

The ledger of the core (`dataplane/ledger.py`) says what may be claimed and whose result counts. This module
decides *which* ledger a rank is sent to, from progress alone; no rank is named a straggler beforehand:

- A rank takes its own micro-batches first, from the head.
- Done with them, it helps the owner whose free micro-batches would take it the longest.
- Near the end a rank is given one only if it ends it before the others would end everything without it: a
  rank is not stopped in the middle, so a slow one that starts late would make everybody wait.
- With nothing free, an idle rank races the holder of a micro-batch that it would end clearly earlier.

Every help, race and wait has its reason in words, with the figures behind it.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from paceline.dataplane.help.ledger import (
    CLAIMED,
    COMPUTED,
    FREE,
    NOBODY,
    claim,
    claim_number,
    finish,
    freeze,
    leave,
    new_ledger,
    renew,
)

TAIL = 2
"""The end has begun when fewer than so many micro-batches a rank are free; no claim ahead is given then."""
RACE_GAIN = 1.5
"""A race is worth it if the holder needs so many times as long as the racer."""
NEWEST = 0.3
"""Weight of the newest micro-batch in a rank's pace."""
REASONS_MAX = 1000


class Grant(NamedTuple):
    """A micro-batch to compute, under a claim number."""

    owner: int
    m: int
    number: int
    reason: str


@dataclass
class _Held:
    rank: int
    m: int
    since_ns: int


class Paces:
    """How long a micro-batch takes each rank; kept from one iteration to the next."""

    def __init__(self) -> None:
        self._ns: dict[int, float] = {}

    def note(self, rank: int, took_ns: int) -> None:
        old = self._ns.get(rank)
        self._ns[rank] = took_ns if old is None else (1 - NEWEST) * old + NEWEST * took_ns

    def known(self, rank: int) -> bool:
        return rank in self._ns

    def of(self, rank: int) -> float:
        """Of a rank that has ended none yet: as the others."""
        if rank in self._ns:
            return self._ns[rank]
        return float(np.median(list(self._ns.values()))) if self._ns else 1.0


class Step:
    """One iteration: begin by every rank, claims and finishes in any order, then one freeze for all."""

    def __init__(self, ranks: int, lease_ns: int, paces: Paces) -> None:
        self.ranks = ranks
        self.lease_ns = lease_ns
        self.paces = paces
        self.ledgers: dict[int, Any] = {}
        self.gone: set[int] = set()
        self.frozen = False
        self.reasons: list[dict[str, Any]] = []
        self.thrown_away = 0
        self._held: dict[tuple[int, int], _Held] = {}
        self._waits: set[int] = set()

    def begin(self, rank: int, micro_batches: int) -> None:
        """The rank's micro-batches may be claimed from now on."""
        self.ledgers[rank] = new_ledger(rank, micro_batches, self.lease_ns)

    def everyone_began(self) -> bool:
        return len(self.ledgers) == self.ranks

    def claim(self, rank: int, now_ns: int, asking: set[int], ahead: bool = False) -> Grant | None:
        """The micro-batch that this rank computes next; None: nothing for it now.

        `asking` are the ranks that wait for a claim; `ahead`: the rank is still at work on another one.
        """
        free = {owner: self._free(owner, now_ns) for owner in self.ledgers}
        total = sum(free.values())
        in_tail = total < TAIL * (self.ranks - len(self.gone))
        if total == 0:
            return None if ahead else self._race(rank, now_ns)
        if in_tail and ahead:
            return None
        owner = rank if free.get(rank, 0) else self._neediest(rank, free)
        # Elsewhere, look twice: a rank that would end last must not take what the others end sooner.
        if in_tail and self.paces.known(rank) and self._is_too_slow(rank, total, now_ns, asking):
            return None
        reason = "" if owner == rank else self._why_help(rank, owner, free[owner])
        return self._grant(rank, owner, now_ns, reason)

    def _grant(self, rank: int, owner: int, now_ns: int, reason: str) -> Grant:
        ledger = self.ledgers[owner]
        m = int(claim(ledger, rank, now_ns))
        assert m >= 0, "there was something to claim"
        number = int(claim_number(ledger, m, rank))
        self._held[owner, number] = _Held(rank, m, now_ns)
        self._waits.discard(rank)
        if reason:
            self._note(rank, owner, m, reason)
        return Grant(owner, m, number, reason)

    def _note(self, rank: int, owner: int, m: int | None, reason: str) -> None:
        if len(self.reasons) < REASONS_MAX:
            self.reasons.append({"rank": rank, "owner": owner, "micro_batch": m, "reason": reason})

    def _free(self, owner: int, now_ns: int) -> int:
        """Free micro-batches, and those whose claims have run out."""
        batches = self.ledgers[owner].batches
        over = (batches.lease_ns <= now_ns) & (
            (batches.second == NOBODY) | (batches.second_lease_ns <= now_ns)
        )
        return int(np.count_nonzero((batches.state == FREE) | ((batches.state == CLAIMED) & over)))

    def _neediest(self, rank: int, free: dict[int, int]) -> int:
        """Whose free micro-batches would take its owner, and those who help it now, the longest."""
        at_work: dict[int, set[int]] = {}
        for (owner, number), held in self._held.items():
            if held.rank != owner and self._is_valid(owner, number):
                at_work.setdefault(owner, set()).add(held.rank)

        def left_ns(owner: int) -> float:
            helpers = sum(self.paces.of(owner) / self.paces.of(helper) for helper in at_work.get(owner, ()))
            itself = 0.0 if owner in self.gone else 1.0
            return free[owner] * self.paces.of(owner) / max(itself + helpers, 1e-9)

        return max((owner for owner in free if free[owner]), key=lambda owner: (left_ns(owner), -owner))

    def _why_help(self, rank: int, owner: int, free: int) -> str:
        if owner in self.gone:
            return f"rank {rank} takes over from rank {owner}, which is gone, with {free} micro-batches free"
        pace_s = self.paces.of(owner) / 1e9
        return (
            f"rank {rank} is done and helps rank {owner}, which has the most work left: {free} of its micro-batches "
            f"free at {pace_s:.3g} s each ({self.paces.of(rank) / 1e9:.3g} s on rank {rank})"
        )

    def _is_too_slow(self, rank: int, total: int, now_ns: int, asking: set[int]) -> bool:
        mine_ns = now_ns + self.paces.of(rank)
        theirs_ns = self._end_of_others(rank, total, now_ns, asking)
        if mine_ns <= theirs_ns:
            return False
        if rank not in self._waits:
            self._waits.add(rank)
            self._note(
                rank,
                rank,
                None,
                f"rank {rank} starts no other: it would take {self.paces.of(rank) / 1e9:.3g} s, and the others end all "
                f"{total} free ones in {(theirs_ns - now_ns) / 1e9:.3g} s",
            )
        return True

    def _end_of_others(self, rank: int, total: int, now_ns: int, asking: set[int]) -> float:
        """When the others would be done with everything, each micro-batch going to who ends it first."""
        busy_ns = {other: float(now_ns) for other in asking if other != rank and other not in self.gone}
        for (owner, number), held in self._held.items():
            if held.rank != rank and held.rank not in self.gone and self._is_valid(owner, number):
                left = self._left_ns(held, now_ns)
                busy_ns[held.rank] = busy_ns.get(held.rank, float(now_ns)) + left
        if not busy_ns:
            return float("inf")
        ends = np.array(list(busy_ns.values()))
        paces = np.array([self.paces.of(other) for other in busy_ns])
        for _ in range(total):
            ends[np.argmin(ends + paces)] += paces[np.argmin(ends + paces)]
        return float(ends.max())

    def _left_ns(self, held: _Held, now_ns: int) -> float:
        """Until a claim is finished; one that is overdue is expected to take half as long again."""
        elapsed = now_ns - held.since_ns
        return max(self.paces.of(held.rank) - elapsed, 0.5 * (elapsed - self.paces.of(held.rank)), 0.0)

    def _is_valid(self, owner: int, number: int) -> bool:
        held = self._held[owner, number]
        batch = self.ledgers[owner].batches[held.m]
        return bool(batch.state == CLAIMED and number in (batch.claim, batch.second_claim))

    def _race(self, rank: int, now_ns: int) -> Grant | None:
        """Nothing is free: a second claim where this rank would be done clearly before the holder."""
        best, longest_ns = NOBODY, RACE_GAIN * self.paces.of(rank)
        for owner, ledger in self.ledgers.items():
            number = self._oldest(ledger, rank)
            if number and self._left_ns(self._held[owner, number], now_ns) > longest_ns:
                best, longest_ns = owner, self._left_ns(self._held[owner, number], now_ns)
        if best == NOBODY or not self.paces.known(rank):
            return None
        holder = self._held[best, self._oldest(self.ledgers[best], rank)].rank
        reason = (
            f"rank {rank} races rank {holder}, which needs another {longest_ns / 1e9:.3g} s for a micro-batch of rank "
            f"{best}; rank {rank} takes {self.paces.of(rank) / 1e9:.3g} s"
        )
        return self._grant(rank, best, now_ns, reason)

    def _oldest(self, ledger: Any, rank: int) -> int:
        """The claim number that the ledger would give a second claim against; 0: none."""
        batches = ledger.batches
        open_ = (batches.state == CLAIMED) & (batches.worker != rank) & (batches.second == NOBODY)
        if not open_.any():
            return 0
        candidates = np.flatnonzero(open_)
        return int(batches[candidates[np.argmin(batches.claimed_ns[candidates])]].claim)

    def finish(
        self, rank: int, owner: int, m: int, number: int, took_ns: int
    ) -> tuple[bool, list[tuple[int, int]]]:
        """Whether the gradient counts, and the claims (rank, number) that this makes worthless."""
        held = self._held.get((owner, number))
        if held is None or (held.rank, held.m) != (rank, m):
            return False, []
        losers = [
            (loser.rank, other)
            for (of, other), loser in self._held.items()
            if of == owner and loser.m == m and other != number and self._is_valid(of, other)
        ]
        kept = bool(finish(self.ledgers[owner], m, number))
        del self._held[owner, number]
        if not kept:
            self.thrown_away += 1
            return False, []
        self.paces.note(rank, took_ns)
        return True, losers

    def renew(self, owner: int, m: int, number: int, now_ns: int) -> None:
        if (owner, number) in self._held and self._held[owner, number].m == m:
            renew(self.ledgers[owner], m, number, now_ns)

    def leave(self, rank: int) -> None:
        """A rank is gone: what it held or had computed is for the others."""
        if self.frozen or rank in self.gone:
            return
        self.gone.add(rank)
        freed = sum(int(leave(ledger, rank)) for ledger in self.ledgers.values())
        self._note(rank, rank, None, f"rank {rank} is gone; {freed} micro-batches came back from it")

    def freeze(self) -> bool:
        """Fix who contributes what, once every rank's micro-batches are computed; all ledgers at once."""
        if self.frozen:
            return True
        if not self.everyone_began():
            return False
        if any((ledger.batches.state != COMPUTED).any() for ledger in self.ledgers.values()):
            return False
        self.frozen = all(bool(freeze(ledger)) for ledger in self.ledgers.values())
        return self.frozen

    def shares(self) -> dict[int, list[int]]:
        """After the freeze: `shares[owner][m]` is the rank whose gradient of it counts."""
        assert self.frozen
        return {
            owner: [int(rank) for rank in ledger.batches.worker] for owner, ledger in self.ledgers.items()
        }


def warm_up() -> None:
    """Compile (or load) the ledger's functions before anybody waits for them."""
    step = Step(2, 1, Paces())
    step.begin(0, 1)
    step.begin(1, 1)
    grant = step.claim(0, 0, set())
    assert grant is not None
    step.renew(grant.owner, grant.m, grant.number, 0)
    step.finish(0, *grant[:3], 1)
    step.leave(1)
    step.claim(0, 0, set())
    step.finish(0, 1, 0, 1, 1)
    step.freeze()
