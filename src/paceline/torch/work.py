"""One all-reduce under way, as torch sees it: wait for it, ask for it, or hang a future on it."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import DistBackendError
from torch.futures import Future

from paceline.torch.callbacks import Callbacks, depth
from paceline.torch.untraced import untraced

_Work: Any = c10d.Work
_c10d: Any = c10d


class PacelineWork(_Work):  # type: ignore[misc]
    """Completed once, by whichever thread has the result or the error."""

    def __init__(self, tensors: list[torch.Tensor], timeout_s: float, callbacks: Callbacks) -> None:
        super().__init__()
        self._tensors = tensors
        self._timeout_s = timeout_s
        self._callbacks, self._begun_at = callbacks, depth()
        self._lock = threading.Lock()
        self._ended = False
        self._error: Exception | None = None
        self._event: threading.Event | None = None
        self._future: Any = None
        self._shown: Any = None
        self._before_end: Callable[[], None] | None = None
        self._listeners: list[Callable[[Exception | None], None]] = []
        self._registered = False

    # --- for the reducers ----------------------------------------------------------------------------------

    def before_end(self, action: Callable[[], None]) -> None:
        """Run this before a good end is told (a result that must be copied to where it belongs)."""
        self._before_end = action

    def when_ended(self, listener: Callable[[Exception | None], None]) -> None:
        """Call this with the error, if any, on the thread that ends this, or at once; it is quick, and never raises."""
        with self._lock:
            if not self._ended:
                self._listeners.append(listener)
                return
        listener(self._error)

    def end(self, error: Exception | None = None) -> None:
        """The result is in the tensors, or never will be."""
        if error is None and self._before_end is not None:
            try:
                self._before_end()
            except Exception as problem:
                error = problem
        with self._lock:
            if self._ended:
                return
            self._ended, self._error = True, error
            event, future, listeners = self._event, self._future, self._listeners
            self._listeners, self._before_end = [], None  # and what they hold
        for listener in listeners:
            listener(error)
        if event is not None:
            event.set()
        if future is not None:
            self._callbacks.put(self._begun_at, lambda: future.set_result(None))

    # --- for torch -----------------------------------------------------------------------------------------

    @untraced
    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until the end; raises what went wrong, or after the time-out."""
        seconds = timeout.total_seconds()
        limit_s = seconds if seconds > 0 else self._timeout_s
        with self._lock:
            if not self._ended and self._event is None:
                self._event = threading.Event()
        if self._event is not None and not self._event.wait(limit_s):
            raise DistBackendError(f"all_reduce did not end within {limit_s:g} s")
        if self._registered:
            self._registered = False
            torch.ops._c10d_functional.wait_tensor(self._tensors[0])
        if self._error is not None:
            raise _for_torch(self._error)
        return True

    def register(self) -> None:
        """Let `wait_tensor` of functional collectives find this; torch does so for the groups of its own.

        torch keeps only its half of a Work, so it gets one that keeps this alive. Whoever waits here instead takes it
        from torch's list, by the one way that there is.
        """
        self._registered = True
        _c10d._register_work(self._tensors[0], _c10d.PythonCallbackWork(self._wait_for_torch))

    def _wait_for_torch(self, timeout: timedelta) -> bool:
        self._registered = False
        return self.wait(timeout)

    @untraced
    def get_future(self) -> Any:
        """A future of the tensors.

        Its error must be one for C++ too, where DDP waits: `set_exception` of a future in Python leaves a value there
        that is taken for tensors. A callback that raises gives a real one.
        """
        with self._lock:
            if self._shown is not None:
                return self._shown
            future: Any = Future()
            self._future, self._shown = future, future.then(self._value)
            ended = self._ended
        if ended:
            future.set_result(None)
        return self._shown

    @untraced
    def _value(self, _ended: Any) -> list[torch.Tensor]:
        if self._error is not None:
            raise _for_torch(self._error)
        return self._tensors

    def is_completed(self) -> bool:
        return self._ended

    def is_success(self) -> bool:
        return self._ended and self._error is None

    def exception(self) -> Exception | None:
        return None if self._error is None else _for_torch(self._error)

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def synchronize(self) -> None:
        self.wait()


def _for_torch(error: Exception) -> Exception:
    """What a backend of torch raises."""
    return error if isinstance(error, DistBackendError) else DistBackendError(str(error))


def error_of(future: Any) -> Exception | None:
    """Why a future of torch has no value, if it has none."""
    try:
        future.value()
    except RuntimeError as error:
        return error
    return None
