"""What happened to this process's groups: one log line, one counter and one event for each change.

`paceline.torch.status()` shows it, so this module cannot have that name. Lines go to the logger `paceline.torch`:
changes for the worse as warnings, which Python prints by itself; the rest as information."""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

LOG = logging.getLogger("paceline.torch")
EVENTS_MAX = 256
LATEST = 64
"""Reductions that are shown: what was under way when something stood still."""

ON_BEGIN: list[Callable[[int, str, str], None]] = []
"""Called with size, format and operation of every reduction that this process begins (`progress`)."""


@dataclass(slots=True)
class ReductionRecord:
    """One reduction, as `status()` shows it."""

    number: int
    elements: int
    dtype: str
    op: str
    timeout_s: float
    begun: float
    ended: float | None = None
    state: str = "under way"

    def end(self, error: Exception | None) -> None:
        """It has its result, or never will."""
        self.ended = time.time()
        self.state = "done" if error is None else "failed"


class Journal:
    """The changes of one group on one rank."""

    def __init__(self, group: str, rank: int) -> None:
        self.group, self.rank = group, rank
        self.counters: Counter[str] = Counter()
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._lock = threading.Lock()
        self._latest: deque[ReductionRecord] = deque(maxlen=LATEST)
        self.begun = 0

    def begin(self, elements: int, dtype: str, op: str, timeout_s: float) -> ReductionRecord:
        """A reduction begins; the ranks' numbers are the same as long as they make the same calls."""
        with self._lock:
            noted = ReductionRecord(self.begun, elements, dtype, op, timeout_s, time.time())
            self.begun += 1
            self._latest.append(noted)
        for listener in ON_BEGIN:
            listener(elements, dtype, op)
        return noted

    def change(self, event: str, reason: str, *, bad: bool = False, quiet: bool = False, **more: Any) -> None:
        """Something is different from now on: log it (unless `quiet`), count it, keep it."""
        with self._lock:
            self.counters[event] += 1
            self._events.append({"time": time.time(), "event": event, "reason": reason, **more})
        if not quiet:
            level = logging.WARNING if bad else logging.INFO
            LOG.log(level, "paceline: group %s, rank %d: %s: %s", self.group, self.rank, event, reason)

    def count(self, name: str, by: int = 1) -> None:
        """Count something that is no change."""
        with self._lock:
            self.counters[name] += by

    def latest(self) -> list[ReductionRecord]:
        """The latest reductions, in the order in which they were begun."""
        with self._lock:
            return list(self._latest)

    def shown(self) -> dict[str, Any]:
        """Counters, the latest reductions and the latest events."""
        with self._lock:
            return {
                "counters": dict(self.counters),
                "latest": [asdict(noted) for noted in self._latest],
                "events": list(self._events),
            }
