"""A shard's thread: it runs the compiled loop, and between two runs does what other threads ask of it.

The shard's records belong to this thread alone. Who wants to change them calls `call` with a function; the loop
leaves the compiled code after the batch at hand, the function runs here, and the loop goes on.
"""

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from paceline.live.net.wait import close_waiter, wake
from paceline.live.switch.shard import run_shard
from paceline.live.switch.shard_state import Shard

CALL_TIMEOUT_S = 10.0
T = TypeVar("T")


class ShardThread:
    """One shard at work; `failed` is told if its loop ends by an error."""

    def __init__(self, number: int, shard: Shard, failed: Callable[[int, BaseException], None]) -> None:
        self.number, self.shard = number, shard
        self._failed = failed
        self._wanted: queue.SimpleQueue[tuple[Callable[[Shard], Any], Future[Any]]] = queue.SimpleQueue()
        self._stopping = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"paceline-shard-{number}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, wanted: Callable[[Shard], T]) -> "Future[T]":
        """Have the shard's thread run `wanted(shard)`."""
        future: Future[T] = Future()
        with self._lock:
            if self._stopping:
                raise RuntimeError("this shard has ended")
            self._wanted.put((wanted, future))
            self._interrupt()
        return future

    def call(self, wanted: Callable[[Shard], T]) -> T:
        """The same, and wait for its answer."""
        return self.ask(wanted).result(CALL_TIMEOUT_S)

    def stop(self) -> None:
        """End the loop after the batch at hand, and wait for its end."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            self._interrupt()
        if self._thread.ident is not None:
            self._thread.join(CALL_TIMEOUT_S)
        if not self._thread.is_alive():
            close_waiter(self.shard.waiter)

    def _interrupt(self) -> None:
        # The mark first: a loop that is not asleep looks at it after each batch.
        self.shard.cells[0].called = 1
        wake(self.shard.waiter)

    def _run(self) -> None:
        try:
            while not self._stopping:
                # Cleared before the queue is emptied: whoever comes later marks it again.
                self.shard.cells[0].called = 0
                self._answer()
                run_shard(self.shard)
            self._answer()
        except BaseException as error:
            self._failed(self.number, error)
            raise

    def _answer(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                wanted, future = self._wanted.get_nowait()
                try:
                    future.set_result(wanted(self.shard))
                except Exception as error:
                    future.set_exception(error)
