"""How the core is compiled: one decorator, one disk cache that notices every change.

A cache folder is named by a hash of all sources that are compiled together: the core alone, or the core and one of
its drivers. A change anywhere in them gives a new folder, and stale machine code is never loaded
(`paceline.numba_cache`); a change in one driver leaves the other's code as it was.

`NUMBA_DISABLE_JIT=1` leaves everything plain Python: slower, but an index out of range raises, a debugger
steps, and coverage counts.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba.core.config

from paceline.numba_cache import folder_for, save_under_lock
from paceline.numba_linking import compiled_form_of as _compiled_form_of
from paceline.numba_linking import entry, njit, part

F = TypeVar("F", bound=Callable[..., Any])

# Numba's stubs do not know its settings.
config: Any = numba.core.config

_CORE = "dataplane"
_PACKAGE = Path(__file__).resolve().parent.parent


def cache_folder(driver: str = _CORE) -> Path:
    """Where compiled code is kept: the core's, or that of the driver in this folder of the package."""
    sources = [
        path for folder in sorted({_CORE, driver}) for path in sorted((_PACKAGE / folder).rglob("*.py"))
    ]
    return folder_for(f"numba-{driver}{'-bounds' if bounds_checked() else ''}", sources)


def interpreted() -> bool:
    """True where the core runs as plain Python."""
    return bool(config.DISABLE_JIT)


def bounds_checked() -> bool:
    """True where compiled code checks every index."""
    return bool(config.BOUNDSCHECK)


_folder_at_import = functools.cache(cache_folder)


def _driver_of(source: Path) -> str:
    """The folder of the package that a source belongs to, however deep it lies; elsewhere, the folder it lies in."""
    is_ours = source.resolve().is_relative_to(_PACKAGE)
    return source.resolve().relative_to(_PACKAGE).parts[0] if is_ours else source.parent.name


# No reference counting (`_nrt`): compiled code creates no array, and Numba refuses it if it tries.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def _set_cache(function: Callable[..., Any]) -> None:
    if not os.environ.get("NUMBA_CACHE_DIR"):
        # Numba reads this setting when it decorates.
        config.CACHE_DIR = str(_folder_at_import(_driver_of(Path(function.__code__.co_filename))))


def compiled(function: F) -> F:
    """An entry point: callable from Python and from compiled code, without the GIL, cached on disk."""
    _set_cache(function)
    return save_under_lock(entry(function, forceinline=True, **_OPTIONS))  # type: ignore[no-any-return]


def compiled_loop(function: F) -> F:
    """The entry point of a program that lasts: what is long in it is called, and it compiles in a third of the time."""
    _set_cache(function)
    return save_under_lock(entry(function, lean=True, **_OPTIONS))  # type: ignore[no-any-return]


def compiled_inner(function: F) -> F:
    """A piece of a hot path: becomes part of its caller. Few callers each, or compiling takes long."""
    return njit(inline="always", **_OPTIONS)(function)  # type: ignore[no-any-return]


def compiled_apart(function: F) -> F:
    """A piece that is rarely needed: compiled once, called by compiled code only, never from Python."""
    return part(function, **_OPTIONS)  # type: ignore[no-any-return]


def compiled_form_of(function: Callable[..., Any]) -> Callable[[F], F]:
    """Marks what compiled code uses instead of a plain Python function; `bits.popcount` is an example."""
    return _compiled_form_of(function, **_OPTIONS)  # type: ignore[no-any-return]
