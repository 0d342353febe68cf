"""One all-reduce under way, as torch sees it: wait for it, ask for it, or hang a future on it."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import DistBackendError
from torch.futures import Future

_Work: Any = torch._C._distributed_c10d.Work


class PacelineWork(_Work):  # type: ignore[misc]
    """Completed once, by whichever thread has the result or the error."""

    def __init__(self, tensors: list[torch.Tensor], timeout_s: float) -> None:
        super().__init__()
        self._tensors = tensors
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._ended = False
        self._error: Exception | None = None
        self._event: threading.Event | None = None
        self._future: Any = None
        self._shown: Any = None
        self._after: Callable[[], None] | None = None

    # --- for the reducers ----------------------------------------------------------------------------------

    def before_end(self, action: Callable[[], None]) -> None:
        """Run this before a good end is told (a result that must be copied to where it belongs)."""
        self._after = action

    def end(self, error: Exception | None = None) -> None:
        """The result is in the tensors, or never will be."""
        if error is None and self._after is not None:
            self._after()
        with self._lock:
            if self._ended:
                return
            self._ended, self._error = True, error
            event, future = self._event, self._future
        if event is not None:
            event.set()
        if future is not None:
            future.set_result(None)

    # --- for torch -----------------------------------------------------------------------------------------

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until the end; raises what went wrong, or after the time-out."""
        seconds = timeout.total_seconds()
        limit_s = seconds if seconds > 0 else self._timeout_s
        with self._lock:
            if not self._ended and self._event is None:
                self._event = threading.Event()
        if self._event is not None and not self._event.wait(limit_s):
            raise DistBackendError(f"all_reduce did not end within {limit_s:g} s")
        if self._error is not None:
            raise _for_torch(self._error)
        return True

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
