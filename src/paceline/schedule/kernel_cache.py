"""How the scheduler's kernels are compiled, and kept on disk (`paceline.compile.cache`).

The first compilation after a change says so on stderr, every later start loads the machine code in a moment.
`NUMBA_DISABLE_JIT=1` runs the kernels interpreted.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from paceline.compile.cache import config, is_on_disk, kept_on_disk
from paceline.compile.linking import njit

F = TypeVar("F", bound=Callable[..., Any])

_kernels: list[Callable[..., Any]] = []


def compiled(function: F) -> F:
    """`numba.njit`, kept on disk; the wrapped function keeps its type for the checker."""
    wrapped: Any = kept_on_disk(njit(cache=True, error_model="numpy"), function)
    _kernels.append(wrapped)
    return wrapped  # type: ignore[no-any-return]


@functools.cache
def announce() -> None:
    """Say on stderr, once, that a compilation is about to happen, if it is; call before the first kernel."""
    if config.DISABLE_JIT or any(is_on_disk(kernel) for kernel in _kernels):
        return
    print(
        "paceline: compiling the scheduler's kernels (once, about half a minute) ...",
        file=sys.stderr,
        flush=True,
    )
