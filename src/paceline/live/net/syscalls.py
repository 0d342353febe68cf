"""System calls for compiled code: they run without the GIL; and a loop's clock and wait, which are made of them.

The code that calls them can be cached. Pointers are plain integers: whoever makes an array notes its address
(`address_of`) next to it, and keeps the array alive. In interpreted mode the same names are ctypes functions, so that
every driver also runs in plain Python.

A loop sleeps in `wait` until its socket has something, its timer is due, or another thread calls `wake`; an idle
loop uses no processor.
"""

import ctypes
import os
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from paceline.compile.decorators import compiled, compiled_form_of, interpreted

_LIBC = ctypes.CDLL(None, use_errno=True)
_C_TYPES = {
    types.int32: ctypes.c_int32,
    types.uint32: ctypes.c_uint32,
    types.uint64: ctypes.c_uint64,
    types.intp: ctypes.c_ssize_t,
}


def _external(name: str, result: Any, *arguments: Any) -> Any:
    if not interpreted():
        return types.ExternalFunction(name, result(*arguments))
    function = getattr(_LIBC, name)
    function.restype = _C_TYPES[result]
    function.argtypes = [_C_TYPES[argument] for argument in arguments]
    return function


recvmmsg: Any = _external(
    "recvmmsg", types.int32, types.int32, types.intp, types.uint32, types.int32, types.intp
)
sendmmsg: Any = _external("sendmmsg", types.int32, types.int32, types.intp, types.uint32, types.int32)
ppoll: Any = _external("ppoll", types.int32, types.intp, types.uint64, types.intp, types.intp)
clock_gettime: Any = _external("clock_gettime", types.int32, types.int32, types.intp)
getsockopt: Any = _external(
    "getsockopt", types.int32, types.int32, types.int32, types.int32, types.intp, types.intp
)
read: Any = _external("read", types.intp, types.int32, types.intp, types.intp)
write: Any = _external("write", types.intp, types.int32, types.intp, types.intp)
memcpy: Any = _external("memcpy", types.intp, types.intp, types.intp, types.intp)


def last_error() -> int:
    """Why the last system call of this thread failed: `errno`."""
    return ctypes.get_errno()


@intrinsic
def _errno(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        name, number = "__errno_location", ir.IntType(32)
        location = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(number.as_pointer(), []), name
        )
        return builder.load(builder.call(location, []))

    return types.int32(), generate


@compiled_form_of(last_error)
def _last_error_compiled() -> Any:
    def error() -> Any:
        return _errno()  # type: ignore[call-arg]

    return error


def address_of(array: Any) -> int:
    """Where an array's first byte lies; good for as long as the array lives."""
    return int(array.ctypes.data)


READABLE = 1
WRITABLE = 2
WOKEN = 4

FOREVER_NS = -1
_POLLIN = 1
_POLLOUT = 4
_CLOCK_MONOTONIC = 1
_SECOND_NS = 1_000_000_000
_SOCKET = 0
_WAKE = 1

POLLFD = np.dtype([("fd", "i4"), ("events", "i2"), ("revents", "i2")], align=True)
CELLS = np.dtype(
    [
        ("polls", "i8"),  # address of `polls`
        ("timeout", "i8"),  # address of `timeout`
        ("clock", "i8"),  # address of `clock`
        ("event", "i8"),  # address of `event`
        ("fd", "i4"),  # the socket that is waited for
        ("wake_fd", "i4"),  # the eventfd that wakes the loop; -1: given back
    ],
    align=True,
)


class Waiter(NamedTuple):
    """What one loop waits for; `cells` has the addresses of the other arrays, and the file descriptors."""

    cells: Any
    polls: Any
    timeout: Any
    clock: Any
    event: Any


def new_waiter(fd: int) -> Waiter:
    """Waits for this socket and for `wake`; give it back with `close_waiter`."""
    polls = np.zeros(2, dtype=POLLFD).view(np.recarray)
    timeout, clock, event = (np.zeros(2, dtype=np.int64) for _ in range(3))
    cells = np.zeros(1, dtype=CELLS).view(np.recarray)
    wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    cells[0].polls, cells[0].timeout = address_of(polls), address_of(timeout)
    cells[0].clock, cells[0].event = address_of(clock), address_of(event)
    cells[0].fd, cells[0].wake_fd = fd, wake_fd
    polls[_SOCKET].fd, polls[_WAKE].fd = fd, wake_fd
    polls[_WAKE].events = _POLLIN
    return Waiter(cells, polls, timeout, clock, event)


def close_waiter(waiter: Waiter) -> None:
    """Give back the wake-up; the socket is its owner's."""
    if waiter.cells[0].wake_fd >= 0:
        os.close(int(waiter.cells[0].wake_fd))
        waiter.cells[0].wake_fd = -1


def wake(waiter: Waiter) -> None:
    """From any thread: end the loop's wait, or its next one."""
    os.eventfd_write(int(waiter.cells[0].wake_fd), 1)


@compiled
def now_ns(waiter: Waiter) -> int:
    """The monotonic clock, the same as `time.monotonic_ns()`."""
    clock_gettime(_CLOCK_MONOTONIC, waiter.cells[0].clock)
    return int(waiter.clock[0] * _SECOND_NS + waiter.clock[1])


@compiled
def wait(waiter: Waiter, timeout_ns: int, for_room: bool) -> int:
    """Sleep until something happens; `READABLE`, `WRITABLE` (asked for by `for_room`), `WOKEN`, or 0 for none.

    A negative time-out is none. A wake-up is taken: the next wait sleeps again.
    """
    polls = waiter.polls
    polls[_SOCKET].events = _POLLIN | _POLLOUT if for_room else _POLLIN
    polls[_SOCKET].revents = polls[_WAKE].revents = 0
    address = np.int64(0)
    if timeout_ns >= 0:
        waiter.timeout[0] = timeout_ns // _SECOND_NS
        waiter.timeout[1] = timeout_ns % _SECOND_NS
        address = waiter.cells[0].timeout
    ready = ppoll(waiter.cells[0].polls, 2, address, 0)
    if ready <= 0:
        return 0
    happened = 0
    if polls[_SOCKET].revents & _POLLOUT:
        happened |= WRITABLE
    if polls[_SOCKET].revents & ~_POLLOUT:
        happened |= READABLE
    if polls[_WAKE].revents:
        read(waiter.cells[0].wake_fd, waiter.cells[0].event, 8)
        happened |= WOKEN
    return happened
