"""Eight bytes of a packet as one number, in network order or in the machine's own (little-endian), wherever they lie.

Compiled code moves them in one instruction; byte by byte, an index that might be negative costs a comparison for each.
**No bounds are looked at**: who calls has seen that the bytes are there.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from paceline.compile.decorators import compiled_form_of


def big_word(data: Any, start: int) -> np.uint64:
    """`data[start:start + 8]`, the first byte the highest."""
    return np.uint64(int.from_bytes(data[start : start + 8].tobytes(), "big"))


def little_word(data: Any, start: int) -> np.uint64:
    """`data[start:start + 8]`, the first byte the lowest."""
    return np.uint64(int.from_bytes(data[start : start + 8].tobytes(), "little"))


def put_big_word(data: Any, start: int, word: Any) -> None:
    """Write `data[start:start + 8]`, the first byte the highest."""
    data[start : start + 8] = np.frombuffer(int(word).to_bytes(8, "big"), dtype=np.uint8)


_WORD = ir.IntType(64)


def _place(context: Any, builder: Any, kind: Any, data: Any, start: Any) -> Any:
    """The address of a byte of an array, as that of a word."""
    array = context.make_array(kind)(context, builder, data)
    return builder.bitcast(builder.gep(array.data, [start]), _WORD.as_pointer())


@intrinsic
def _load(typing_context: Any, data: Any, start: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_place(context, builder, signature.args[0], args[0], args[1]), align=1)

    return types.uint64(data, types.int64), generate


@intrinsic
def _store(typing_context: Any, data: Any, start: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _place(context, builder, signature.args[0], args[0], args[1]), align=1)
        return context.get_dummy_value()

    return types.none(data, types.int64, types.uint64), generate


@intrinsic
def _turned_round(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return types.uint64(types.uint64), generate


@compiled_form_of(big_word)
def _big_word_compiled(data: Any, start: Any) -> Any:
    def load(data: Any, start: Any) -> Any:
        return _turned_round(_load(data, start))  # type: ignore[call-arg]

    return load


@compiled_form_of(little_word)
def _little_word_compiled(data: Any, start: Any) -> Any:
    def load(data: Any, start: Any) -> Any:
        return _load(data, start)  # type: ignore[call-arg]

    return load


@compiled_form_of(put_big_word)
def _put_big_word_compiled(data: Any, start: Any, word: Any) -> Any:
    def put(data: Any, start: Any, word: Any) -> None:
        _store(data, start, _turned_round(np.uint64(word)))  # type: ignore[call-arg]

    return put
