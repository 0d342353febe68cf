"""Where the callbacks of futures run: in order, and never on a thread that a reduction needs.

A callback may itself reduce and wait for that, as communication hooks do. So callbacks have threads of their own. The
first thread runs those of reductions that ordinary threads have begun; the second those of reductions that callbacks on
the first have begun, and so on: whatever a callback waits for, another thread completes. On each thread callbacks run
one at a time, in the order in which their reductions ended, so that reductions begun in them have the same order on all
ranks."""

import threading
from collections.abc import Callable

from paceline.torch.serial_thread import Line

_here = threading.local()


def depth() -> int:
    """0 on an ordinary thread, n on the n-th thread of callbacks."""
    return int(getattr(_here, "depth", 0))


class Callbacks:
    """The threads of one group, begun when they are needed."""

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._lock = threading.Lock()
        self._closed = False

    def put(self, begun_at: int, action: Callable[[], None]) -> None:
        """Run the callbacks of a reduction that was begun at this depth."""
        with self._lock:
            if not self._closed:
                while len(self._lines) <= begun_at:
                    self._lines.append(self._line(len(self._lines) + 1))
                self._lines[begun_at].put(action)
                return
        action()

    def _line(self, number: int) -> Line:
        line = Line(f"paceline-callbacks-{number}")
        line.put(lambda: setattr(_here, "depth", number))
        return line

    def close(self) -> None:
        """End the threads after what is queued; what comes later runs where it is told."""
        with self._lock:
            self._closed = True
        for line in self._lines:
            line.close()
