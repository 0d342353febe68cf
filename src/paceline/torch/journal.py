"""What happened to this process's groups: one log line, one counter and one event for each change.

`paceline.torch.status()` shows it. Lines go to the logger `paceline.torch`: changes for the worse as
warnings, which Python prints by itself; the rest as information."""

import logging
import threading
import time
from collections import Counter, deque
from typing import Any

LOG = logging.getLogger("paceline.torch")
EVENTS_MAX = 256


class Journal:
    """The changes of one group on one rank."""

    def __init__(self, group: str, rank: int) -> None:
        self.group, self.rank = group, rank
        self.counters: Counter[str] = Counter()
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._lock = threading.Lock()

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

    def shown(self) -> dict[str, Any]:
        """Counters and the latest events."""
        with self._lock:
            return {"counters": dict(self.counters), "events": list(self._events)}
