"""System calls by name, for compiled code: they run without the GIL, and the code that calls them can be cached.

Pointers are plain integers: whoever makes an array notes its address (`address_of`) next to it, and keeps the
array alive. In interpreted mode the same names are ctypes functions, so that every driver also runs in plain Python.
"""

import ctypes
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from paceline.compile.decorators import compiled_form_of, interpreted

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
