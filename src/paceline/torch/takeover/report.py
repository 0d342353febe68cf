"""What an iteration with takeover was: who computed what and why, and who was slow."""

import statistics
from dataclasses import dataclass
from typing import Any

STRAGGLER_TIMES = 1.3
"""A rank is called a straggler if a micro-batch takes it so many times as long as the others."""


@dataclass(frozen=True)
class Report:
    """One iteration: who computed what, and why."""

    step: int
    rank: int
    shares: list[list[int]]
    """`shares[owner][m]`: the rank whose gradient of the owner's micro-batch `m` counts."""
    reasons: list[dict[str, Any]]
    """Every help, race, wait and loss: `{rank, owner, micro_batch, reason}`."""
    gone: list[int]
    thrown_away: int
    """Gradients that came second."""
    paces_s: list[float]
    """Seconds a micro-batch takes each rank."""
    seconds: float

    @property
    def total(self) -> int:
        return sum(len(share) for share in self.shares)

    @property
    def taken_over(self) -> int:
        """How many were computed by another rank than their own."""
        return sum(rank != owner for owner, share in enumerate(self.shares) for rank in share)

    def straggler(self) -> tuple[int, str] | None:
        """The rank that is clearly slower than the others and was helped, and why it is taken for slow."""
        lost = [sum(by != owner for by in share) for owner, share in enumerate(self.shares)]
        if not any(lost) or len(self.paces_s) < 2:
            return None
        slow = max(range(len(lost)), key=lambda rank: self.paces_s[rank])
        others = statistics.median(pace for rank, pace in enumerate(self.paces_s) if rank != slow)
        if self.paces_s[slow] < STRAGGLER_TIMES * others or not lost[slow]:
            return None
        return slow, (
            f"a micro-batch takes it {self.paces_s[slow] * 1e3:.3g} ms, the others {others * 1e3:.3g} ms; "
            f"{lost[slow]} of its {len(self.shares[slow])} were taken over"
        )

    def computed_by(self, rank: int) -> list[tuple[int, int]]:
        """The (owner, micro-batch) pairs in a rank's gradient."""
        return [(o, m) for o, share in enumerate(self.shares) for m, by in enumerate(share) if by == rank]
