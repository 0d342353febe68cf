"""Atomic words and the few system calls that a barrier in shared memory needs, for compiled code.

Compiled, they are LLVM's atomic instructions and calls by name; interpreted, plain reads and writes, a lock
and ctypes: interpreted ranks are threads of one process."""

import ctypes
import platform
import threading
from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic as _numba_intrinsic

from paceline.compile.decorators import compiled_inner, interpreted

FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1)
"""The number of the futex call; -1 where it is not known."""

_intrinsic: Any = _numba_intrinsic
_item_pointer: Any = cgutils.get_item_pointer

# --- interpreted -------------------------------------------------------------------------------------------

_libc: Any = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_lock = threading.Lock()


def _load(words: Any, at: int) -> int:
    return int(words[at])


def _store(words: Any, at: int, value: int) -> None:
    words[at] = value


def _add(words: Any, at: int, value: int) -> int:
    with _lock:
        before = int(words[at])
        words[at] = before + int(value)
    return before


def _futex(address: int, what: int, value: int, timeout: int) -> int:
    return int(_libc.syscall(*(ctypes.c_long(int(x)) for x in (FUTEX, address, what, value, timeout, 0, 0))))


def _clock(which: int, times: int) -> int:
    return int(_libc.clock_gettime(ctypes.c_int(which), ctypes.c_void_p(int(times))))


def _poll(fds: int, count: int, timeout_ms: int) -> int:
    return int(_libc.poll(ctypes.c_void_p(int(fds)), ctypes.c_ulong(count), ctypes.c_int(timeout_ms)))


# --- compiled ----------------------------------------------------------------------------------------------


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return _item_pointer(context, builder, signature.args[0], array, [args[1]])


@_intrinsic
def _load_atomic(_typing: Any, words: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(context, builder, signature, args), "seq_cst", 4)

    return types.int32(words, types.intp), generate


@_intrinsic
def _store_atomic(_typing: Any, words: Any, at: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _pointer(context, builder, signature, args), "seq_cst", 4)
        return context.get_dummy_value()

    return types.void(words, types.intp, types.int32), generate


@_intrinsic
def _add_atomic(_typing: Any, words: Any, at: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(context, builder, signature, args), args[2], "seq_cst")

    return types.int32(words, types.intp, types.int32), generate


_long: Any = types.int64
_syscall: Any = types.ExternalFunction("syscall", _long(_long, _long, _long, _long, _long, _long, _long))


@compiled_inner
def _futex_call(address: int, what: int, value: int, timeout: int) -> Any:
    return _syscall(FUTEX, address, what, value, timeout, 0, 0)


# --- what the barrier uses ---------------------------------------------------------------------------------

load: Any = _load if interpreted() else _load_atomic
"""load(words, at): a word, as it is now."""
store: Any = _store if interpreted() else _store_atomic
"""store(words, at, value)."""
add: Any = _add if interpreted() else _add_atomic
"""add(words, at, value): what the word was before."""
futex: Any = _futex if interpreted() else _futex_call
"""futex(address, what, value, timeout address)."""
clock: Any = _clock
"""clock(which, timespec address)."""
poll: Any = _poll
"""poll(pollfds address, count, timeout in ms)."""
if not interpreted():
    clock = types.ExternalFunction("clock_gettime", types.int32(types.int32, _long))
    poll = types.ExternalFunction("poll", types.int32(_long, types.uint64, types.int32))
