"""Compiled code on disk, safe for several processes: where it is kept, and how it is saved.

Numba's cache looks at the file of the function it stores, not at what that function calls in other files; so
each group of sources that is compiled together has a folder named by their hash. And Numba numbers the files
of a function's signatures without looking whether another process does the same: two processes that start
cold together can end with one signature's name on another's code. Saving therefore takes a lock.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core import caching

_FunctionCache: Any = caching.FunctionCache


def folder_for(name: str, sources: Iterable[Path]) -> Path:
    """Where the code of exactly these sources is kept; `PACELINE_CACHE` moves it."""
    digest = hashlib.sha256()
    for path in sources:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    base = os.environ.get("PACELINE_CACHE") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "paceline" / f"{name}-{digest.hexdigest()[:16]}"


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (Path(folder) / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _LockedCache(_FunctionCache):  # type: ignore[misc]
    """Numba's cache of one function, saved by one process at a time."""

    def save_overload(self, signature: Any, data: Any) -> None:
        with _locked(self.cache_path):
            super().save_overload(signature, data)


def save_under_lock(dispatcher: Any) -> Any:
    """The same compiled function, whose cache other processes may write at the same time."""
    if hasattr(dispatcher, "py_func"):
        dispatcher._cache = _LockedCache(dispatcher.py_func)
    return dispatcher
