"""How the core is compiled: its decorators, and the options that all of them share.

Entry points are kept on disk, in folders that notice every change of what they are made of (`paceline.compile.cache`).

`NUMBA_DISABLE_JIT=1` leaves everything plain Python: slower, but an index out of range raises, a debugger
steps, and coverage counts.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from paceline.compile.bundles import register
from paceline.compile.cache import config, kept_on_disk
from paceline.compile.linking import compiled_form_of as _compiled_form_of
from paceline.compile.linking import entry, njit, part

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def interpreted() -> bool:
    """True where the core runs as plain Python."""
    return bool(config.DISABLE_JIT)


def bounds_checked() -> bool:
    """True where compiled code checks every index."""
    return bool(config.BOUNDSCHECK)


# No reference counting (`_nrt`): compiled code creates no array, and Numba refuses it if it tries.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


_entry = functools.partial(entry, forceinline=True, **_OPTIONS)
_loop = functools.partial(entry, lean=True, **_OPTIONS)


def bundle(kind: type[T]) -> type[T]:
    """Marks a named tuple of arrays that compiled code is to take by its address, not by its parts."""
    register(kind)
    return kind


def compiled(function: F) -> F:
    """An entry point: callable from Python and from compiled code, without the GIL, cached on disk."""
    return kept_on_disk(_entry, function)  # type: ignore[no-any-return]


def compiled_loop(function: F) -> F:
    """The entry point of a program that lasts: what is long in it is called, and it compiles in a third of the time."""
    return kept_on_disk(_loop, function)  # type: ignore[no-any-return]


def compiled_inner(function: F) -> F:
    """A piece of a hot path: becomes part of its caller. Few callers each, or compiling takes long."""
    return njit(inline="always", **_OPTIONS)(function)  # type: ignore[no-any-return]


def compiled_apart(function: F) -> F:
    """A piece that is rarely needed: compiled once, called by compiled code only, never from Python."""
    return part(function, **_OPTIONS)  # type: ignore[no-any-return]


def compiled_form_of(function: Callable[..., Any]) -> Callable[[F], F]:
    """Marks what compiled code uses instead of a plain Python function; `bits.popcount` is an example."""
    return _compiled_form_of(function, **_OPTIONS)  # type: ignore[no-any-return]
