"""Arrays over memory that is known by its address: tensors of the caller, payloads inside packets.

Compiled code keeps no Python object of a tensor; whoever gives an address keeps the memory alive. In interpreted
mode the same names give NumPy arrays over the same memory.
"""

import ctypes
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj

from paceline.compile.decorators import interpreted

_arrays: Any = arrayobj


def _plain(kind: Any, dimensions: int) -> Any:
    """The view for plain Python."""
    dtype = np.dtype(kind)

    def view(address: int, numbers: int) -> Any:
        data = (ctypes.c_uint8 * (int(numbers) * dtype.itemsize)).from_address(int(address))
        array = np.frombuffer(data, dtype=dtype) if numbers > 0 else np.zeros(0, dtype=dtype)
        return array.reshape(1, -1) if dimensions == 2 else array

    return view


def _in_compiled_code(kind: Any, dimensions: int) -> Any:
    """The view for compiled code: an intrinsic, since compiled functions without reference counts return no array."""
    array_type = types.Array(kind, dimensions, "C")

    @intrinsic
    def view(typing_context: Any, address: Any, size: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = _arrays.make_array(array_type)(context, builder)
            data_type = context.get_data_type(kind)
            item = context.get_constant(types.intp, context.get_abi_sizeof(data_type))
            one = context.get_constant(types.intp, 1)
            row = builder.mul(item, args[1])
            _arrays.populate_array(
                array,
                data=builder.inttoptr(args[0], data_type.as_pointer()),
                shape=[one, args[1]] if dimensions == 2 else [args[1]],
                strides=[row, item] if dimensions == 2 else [item],
                itemsize=item,
                meminfo=None,
            )
            return array._getvalue()

        return array_type(types.int64, types.int64), generate

    return view


_maker = _plain if interpreted() else _in_compiled_code

f32_at: Any = _maker(np.float32 if interpreted() else types.float32, 1)
i32_at: Any = _maker(np.int32 if interpreted() else types.int32, 1)
u16_at: Any = _maker(np.uint16 if interpreted() else types.uint16, 1)
row_at: Any = _maker(np.int32 if interpreted() else types.int32, 2)
"""`view(address, numbers)`; `row_at` gives them as the only row of a two-dimensional array."""
