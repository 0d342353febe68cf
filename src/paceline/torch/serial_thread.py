"""A thread that does things in order: the reducers' stages, each with its queue."""

import logging
import queue
import threading
from collections.abc import Callable

LOG = logging.getLogger("paceline.torch")


class Line:
    """Runs actions one after another on a thread of its own.

    Actions handle their own errors; one that does not is logged, and those behind it still run.
    """

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._pending = 0
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, action: Callable[[], None]) -> None:
        """Do this after everything before it."""
        with self._lock:
            self._pending += 1
        self._queue.put(action)

    def run_if_idle(self, action: Callable[[], None]) -> bool:
        """Do this here and now if nothing is queued or under way; nothing else begins meanwhile."""
        with self._lock:
            if self._pending:
                return False
            self._pending += 1
        try:
            action()
        finally:
            self._one_done()
        return True

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is queued or under way."""
        with self._lock:
            return self._idle.wait_for(lambda: self._pending == 0, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread after what is queued."""
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (action := self._queue.get()) is not None:
            try:
                action()
            except Exception:
                LOG.exception("paceline: an action on thread %s failed", self._thread.name)
            finally:
                del action
                self._one_done()

    def _one_done(self) -> None:
        with self._lock:
            self._pending -= 1
            if self._pending == 0:
                self._idle.notify_all()
