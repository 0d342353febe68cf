"""What a drill found in one world: sums, steps, and how long the job stood still; and the verdict."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class DrillOutcome:
    """One drill in one world."""

    drill: str
    world: str
    """`sim`, `namespaces` or `loopback`."""
    steps: int
    """Steps that all workers completed."""
    steps_wanted: int
    sums: int
    """Results that were compared, over all workers."""
    wrong: int
    """Those of them with other bits."""
    recovery_s: float
    """Live: the longest that the job stood still, from the first fault on. In the simulator: what the faults cost."""
    bound_s: float
    """The most that it may be."""
    path_after: str = ""
    """Live: the way that contributions take at the end."""
    skipped: str = ""
    """Why it could not be run here."""
    notes: list[str] = field(default_factory=list)
    """What else was not as it should be."""

    @property
    def passed(self) -> bool:
        """Bits, steps and recovery, and nothing else to say; what was skipped has not passed."""
        sound = self.sums_are_right and self.is_complete and self.recovers_in_time
        return sound and not self.skipped and not self.notes

    @property
    def sums_are_right(self) -> bool:
        return self.wrong == 0 and self.sums > 0

    @property
    def is_complete(self) -> bool:
        return self.steps == self.steps_wanted

    @property
    def recovers_in_time(self) -> bool:
        return self.recovery_s <= self.bound_s

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}

    def why(self) -> str:
        """In a few words."""
        if self.skipped:
            return f"skipped: {self.skipped}"
        problems = []
        if not self.sums_are_right:
            problems.append(f"{self.wrong} of {self.sums} sums wrong")
        if not self.is_complete:
            problems.append(f"{self.steps} of {self.steps_wanted} steps")
        if not self.recovers_in_time:
            problems.append(f"stood still for {self.recovery_s:.2f} s, allowed {self.bound_s:.2f} s")
        return "; ".join([*problems, *self.notes]) or "ok"
