"""Compile a kernel with Numba, cached on disk in a folder keyed by the sources of this package.

Numba's own cache does not see a change in a callee of another file, so the folder's name carries a hash of
every module that they are made of. The first compilation after a change says so on stderr; every later start
loads the machine code in a moment. `NUMBA_DISABLE_JIT=1` runs the same functions interpreted.
"""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

from paceline.numba_cache import folder_for, save_under_lock
from paceline.numba_linking import njit

_config: Any = numba.config
F = TypeVar("F", bound=Callable[..., Any])

_HERE = Path(__file__).parent
_SOURCES = ("compiled.py", "contention.py", "kernels.py", "dispatch.py", "packing.py")
"""The modules with kernels, and the one that defines the records they take."""


def cache_folder() -> Path:
    """Where the machine code of exactly these sources is kept."""
    return folder_for("schedule", [_HERE / name for name in _SOURCES])


_FOLDER = cache_folder()


def compiled(function: F) -> F:
    """`numba.njit` with the cache folder above; the wrapped function keeps its type for the checker."""
    before = _config.CACHE_DIR
    _config.CACHE_DIR = str(_FOLDER)
    try:
        wrapped: Any = save_under_lock(njit(cache=True, error_model="numpy")(function))
    finally:
        _config.CACHE_DIR = before
    return wrapped  # type: ignore[no-any-return]


@functools.cache
def announce() -> None:
    """Say on stderr, once, that a compilation is about to happen, if it is; call before the first kernel."""
    if _config.DISABLE_JIT or any(_FOLDER.rglob("*.nbi")):
        return
    print(
        "paceline: compiling the scheduler's kernels (once, about half a minute) ...",
        file=sys.stderr,
        flush=True,
    )
