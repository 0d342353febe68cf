"""Compiled code on disk, safe for several processes: where it is kept, and how it is saved.

Numba's cache looks at the file of the function it stores, not at what that function calls in other files. So each
module has a folder whose name carries a hash of all that it imports of this package (`paceline.compile.sources`): a
change in any of it gives a new folder, stale machine code is never loaded, and a change elsewhere recompiles nothing.

And Numba numbers the files of a function's signatures without looking whether another process does the same: two
processes that start cold together can end with one signature's name on another's code. Saving therefore takes a lock.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba.core.config
from numba.core import caching, types

from paceline.compile.bundles import Bundle
from paceline.compile.sources import tree
from paceline.errors import UserError

# Numba's stubs do not know its settings.
config: Any = numba.core.config
_types: Any = types
_FunctionCache: Any = caching.FunctionCache


def folder_of(function: Callable[..., Any]) -> Path:
    """Where the machine code of the function's module is kept; `PACELINE_CACHE` moves it."""
    source = _source_of(function)
    base = os.environ.get("PACELINE_CACHE") or os.environ.get("XDG_CACHE_HOME") or _users_own()
    bounds = "-bounds" if config.BOUNDSCHECK else ""
    return Path(base) / "paceline" / f"{source.stem}{bounds}-{tree().key(source)[:16]}"


def _users_own() -> str:
    try:
        return str(Path.home() / ".cache")
    except RuntimeError:  # a user that the system does not know
        return "/nonexistent/.cache"


def is_on_disk(function: Callable[..., Any]) -> bool:
    """True where machine code of the function, made of the sources as they are, can be loaded."""
    pattern = f"**/{_source_of(function).stem}.{function.__qualname__}-*.nbi"
    return any(folder_of(function).glob(pattern))


def kept_on_disk(decorate: Callable[[Any], Any], function: Callable[..., Any]) -> Any:
    """`decorate(function)`, a dispatcher of Numba's, with a cache that several processes may write at the same time."""
    if config.DISABLE_JIT:
        return decorate(function)
    before = config.CACHE_DIR
    if not os.environ.get("NUMBA_CACHE_DIR"):
        # Numba reads this setting when it decorates.
        config.CACHE_DIR = str(folder_of(function))
    try:
        dispatcher = decorate(function)
        dispatcher._cache = _LockedCache(dispatcher.py_func)
    except RuntimeError:
        # The one that Numba raises here: it found no folder to write to.
        raise UserError(
            "compiled code can be kept neither there nor beside the program: export PACELINE_CACHE=/a/folder/of/yours",
            place=str(folder_of(function).parent),
        ) from None
    finally:
        config.CACHE_DIR = before
    return dispatcher


def _source_of(function: Callable[..., Any]) -> Path:
    code = getattr(function, "py_func", function).__code__
    return Path(code.co_filename).resolve()


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (Path(folder) / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _LockedCache(_FunctionCache):  # type: ignore[misc]
    """Numba's cache of one function, saved by one process at a time."""

    def save_overload(self, signature: Any, data: Any) -> None:
        source = _source_of(self._py_func)
        for module in _modules_of(data.signature.args):
            if tree().holds(module) and tree().file_of(module) not in tree().closure(source):
                raise TypeError(
                    f"{self._py_func.__qualname__} of {source.name} takes something of {module}, which it does not "
                    "import: its code on disk would not notice a change there"
                )
        with _locked(self.cache_path):
            super().save_overload(signature, data)


def _modules_of(arguments: Any) -> Iterator[str]:
    """Where the classes and functions come from that the types of arguments name."""
    for kind in arguments:
        if isinstance(kind, _types.BaseNamedTuple):
            yield kind.instance_class.__module__
        if isinstance(kind, Bundle):
            yield kind.instance_class.__module__
            yield from _modules_of(kind.kinds)
        if isinstance(kind, _types.BaseTuple):
            yield from _modules_of(kind.types)
        elif isinstance(kind, _types.Dispatcher):
            yield kind.dispatcher.py_func.__module__
