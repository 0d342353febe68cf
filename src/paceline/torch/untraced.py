"""Functions that `torch.compile` leaves alone.

Dynamo would trace a group's methods like any Python, and knows nothing of what is in them. Marked as torch marks what
`torch.compiler.disable` wraps, they are called as they are, also from C++ while a compiled function runs. Unlike that
wrapper, a mark costs nothing in a program that compiles nothing."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame as _eval_frame

_frames: Any = _eval_frame
_Function = TypeVar("_Function", bound=Callable[..., Any])


def untraced(function: _Function) -> _Function:
    """Keep Dynamo out of a function and of all that it calls."""
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = "a collective of the backend paceline"
    marked._torchdynamo_disable_recursive = True
    if hasattr(_frames, "set_code_exec_strategy"):
        skip = _frames._FrameAction.SKIP
        _frames.set_code_exec_strategy(marked.__code__, _frames._FrameExecStrategy(skip, skip))
    return function
