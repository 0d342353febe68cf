"""One all-reduce under way, from both sides: `PacelineWork` as torch sees it, `Reduction` as the reducers do.

torch waits for it, asks for it, or hangs a future on it. A reducer gets a flat NumPy view, its format, and the work to
end.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch._C import _distributed_c10d as c10d
from torch._C._dynamo import eval_frame as _eval_frame
from torch.distributed import DistBackendError, ReduceOp
from torch.futures import Future

from paceline.torch.feedback import TensorMemory
from paceline.torch.serial_thread import CallbackThreads, callback_depth

_Work: Any = c10d.Work
_c10d: Any = c10d
_frames: Any = _eval_frame
_Function = TypeVar("_Function", bound=Callable[..., Any])
KINDS = {
    torch.float32: "float32",
    torch.int32: "int32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}
_SUM: Any = ReduceOp.SUM
_AVG: Any = ReduceOp.AVG
OPS = {int(_SUM): "sum", int(_AVG): "avg"}
DRAIN_S = 5.0
"""How long a group that is closed waits for reductions that are under way."""


def untraced(function: _Function) -> _Function:
    """Keep `torch.compile` out of a function that torch calls, and of all that this calls.

    Dynamo would trace a group's methods like any Python, and knows nothing of what is in them. Marked as torch marks
    what `torch.compiler.disable` wraps, they are called as they are, also from C++ while a compiled function runs.
    Unlike that wrapper, a mark costs nothing in a program that compiles nothing.
    """
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = "a collective of the backend paceline"
    marked._torchdynamo_disable_recursive = True
    if hasattr(_frames, "set_code_exec_strategy"):
        skip = _frames._FrameAction.SKIP
        _frames.set_code_exec_strategy(marked.__code__, _frames._FrameExecStrategy(skip, skip))
    return function


class PacelineWork(_Work):  # type: ignore[misc]
    """Completed once, by whichever thread has the result or the error."""

    def __init__(self, tensors: list[torch.Tensor], timeout_s: float, callbacks: CallbackThreads) -> None:
        super().__init__()
        self._tensors = tensors
        self._timeout_s = timeout_s
        self._callbacks, self._begun_at = callbacks, callback_depth()
        self._lock = threading.Lock()
        self._ending = False  # the listeners are being called
        self._ended = False
        self._error: Exception | None = None
        self._event: threading.Event | None = None  # there once somebody waits
        self._future: Any = None  # there once somebody has asked for one: this one is set here,
        self._shown: Any = None  # and this one, which follows it, is what torch gets
        self._before_end: Callable[[], None] | None = None
        self._wait_there: Callable[[float], None] | None = None
        self._listeners: list[Callable[[Exception | None], None]] = []
        self._registered = False  # in torch's list, for `wait_tensor`

    # --- for the reducers ----------------------------------------------------------------------------------

    def before_end(self, action: Callable[[], None]) -> None:
        """Run this before a good end (a result that must be copied to where it belongs)."""
        self._before_end = action

    def wait_by(self, wait: Callable[[float], None]) -> None:
        """A waiting caller may wait there, for so many seconds: quicker than being told by another thread."""
        self._wait_there = wait

    def when_ended(self, listener: Callable[[Exception | None], None]) -> None:
        """Call this with the error, if any, before anybody who waits goes on, or at once if that is over.

        It runs on the thread that ends this, is quick, and never raises.
        """
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
            if self._ending:
                return
            self._ending, self._error = True, error
            self._before_end = self._wait_there = None  # and what they hold
        while True:
            with self._lock:
                listeners, self._listeners = self._listeners, []
                self._ended = not listeners
                event, future = self._event, self._future
            if self._ended:
                break
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
        end_s = time.monotonic() + limit_s
        there = self._wait_there
        if there is not None:
            there(limit_s)
        with self._lock:
            if not self._ended and self._event is None:
                self._event = threading.Event()
        if self._event is not None and not self._event.wait(max(0.0, end_s - time.monotonic())):
            raise DistBackendError(f"all_reduce did not end within {limit_s:g} s")
        if self._registered:
            self._registered = False
            torch.ops._c10d_functional.wait_tensor(self._tensors[0])
        if self._error is not None:
            raise _for_torch(self._error)
        return True

    def register(self) -> None:
        """Let `wait_tensor` of functional collectives find this; torch does so for the groups of its own.

        torch keeps only its half of a Work, so it gets one that keeps this alive. A wait here takes it from
        torch's list instead, by the one way that there is.
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


@dataclass
class Reduction:
    """An all-reduce of one contiguous array, in place."""

    array: npt.NDArray[Any]
    """The tensor's memory, flat; 16-bit floats as bit patterns."""
    kind: str
    """Its format: one of `KINDS`."""
    op: str
    """`sum` or `avg`."""
    priority: int
    """In the switch, 0 to 255."""
    timeout_s: float
    work: PacelineWork
    memory: TensorMemory | None = None
    """Which tensor it is, where that matters to what follows."""

    def divisor(self, ranks: int) -> int:
        """What the sum over all ranks is divided by."""
        return ranks if self.op == "avg" else 1

    def tensor(self) -> torch.Tensor:
        """The array as a flat tensor over the same memory."""
        if self.array.dtype != np.uint16:
            return torch.from_numpy(self.array)
        half = torch.bfloat16 if self.kind == "bfloat16" else torch.float16
        return torch.from_numpy(self.array.view(np.int16)).view(half)


class Reducer(Protocol):
    """Does all-reduces in the order in which they are submitted, which is the same on all ranks."""

    def submit(self, reduction: Reduction) -> None:
        """Begin; returns at once."""

    def try_now(self, reduction: Reduction) -> bool:
        """Do it on the calling thread if nothing is under way and that is quicker; False: submit it."""

    def status(self) -> dict[str, Any]:
        """`path` and figures."""

    def close(self, drain_s: float = DRAIN_S) -> None:
        """Finish what is under way, or give it up after `drain_s`, and end all threads."""


def supported(tensors: list[torch.Tensor], op: Any) -> bool:
    """Whether this all-reduce is ours; the answer is the same on all ranks."""
    if len(tensors) != 1 or _op_code(op) not in OPS:
        return False
    tensor = tensors[0]
    return tensor.dtype in KINDS and tensor.layout == torch.strided


def op_name(op: Any) -> str:
    """ "sum" or "avg"."""
    return OPS[_op_code(op)]


def _op_code(op: Any) -> int:
    try:
        return int(op.op if hasattr(op, "op") else op)
    except (TypeError, ValueError):
        return -1


def dense_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where its memory can be worked on as it is, or a copy of its values."""
    if tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise ValueError(
            "all_reduce of a tensor in which several elements have one place in memory: clone it first"
        )
    return tensor.resolve_neg().contiguous()


def copy_back(tensor: torch.Tensor, dense: torch.Tensor) -> None:
    """Bring the result from a copy to where it belongs."""
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.copy_(dense)


def flat_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The tensor's memory as a flat array; 16-bit floats as bit patterns."""
    flat = tensor.detach().view(-1)
    if tensor.dtype in (torch.bfloat16, torch.float16):
        return flat.view(torch.int16).numpy().view(np.uint16)
    return flat.numpy()
