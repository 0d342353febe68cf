"""Threads that do things in order: the reducers' stages, and the callbacks of futures.

A callback may itself reduce and wait for that, as communication hooks do. So callbacks have threads of their own. The
first thread runs those of reductions that ordinary threads have begun; the second those of reductions that callbacks on
the first have begun, and so on: whatever a callback waits for, another thread completes. On each thread callbacks run
one at a time, in the order in which their reductions ended, so that reductions begun in them have the same order on all
ranks."""

import logging
import queue
import threading
from collections.abc import Callable

LOG = logging.getLogger("paceline.torch")


class SerialThread:
    """Runs actions one after another on a thread of its own.

    Actions handle their own errors; one that does not is logged, and those behind it still run.
    """

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._pending = 0  # actions queued or under way
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


_here = threading.local()


def callback_depth() -> int:
    """0 on an ordinary thread, n on the n-th thread of callbacks."""
    return int(getattr(_here, "depth", 0))


class CallbackThreads:
    """The threads of one group, begun when they are needed."""

    def __init__(self) -> None:
        self._threads: list[SerialThread] = []
        self._lock = threading.Lock()
        self._closed = False

    def put(self, begun_at: int, action: Callable[[], None]) -> None:
        """Run the callbacks of a reduction that was begun at this depth."""
        with self._lock:
            if not self._closed:
                while len(self._threads) <= begun_at:
                    self._threads.append(self._begin(len(self._threads) + 1))
                self._threads[begun_at].put(action)
                return
        action()

    def _begin(self, number: int) -> SerialThread:
        thread = SerialThread(f"paceline-callbacks-{number}")
        thread.put(lambda: setattr(_here, "depth", number))
        return thread

    def close(self) -> None:
        """End the threads after what is queued; what comes later runs on the thread that puts it."""
        with self._lock:
            self._closed = True
        for thread in self._threads:
            thread.close()
