"""How a tensor becomes chunks: where its numbers are, which of them a chunk carries, and in which order chunks go.

Three forms, chosen by what every worker knows (dtype, size, number of workers):

- `INTEGERS`: int32 goes as it is.
- `EXACT`: a small float tensor goes in one chunk, each number spread over lanes so wide that sums lose nothing
  (`exact`): one round trip, and the result is the exact sum rounded once.
- `BLOCKS`: numbers go as integers under an exponent that a block shares (`tensors`). Workers first agree on the
  exponents: an *exponent chunk* ahead of its *section* (several blocks) carries, for each block, a counter for each
  possible exponent, of which each worker raises one; the highest counter that is not zero is the maximum.

Order of the chunks of a tensor with sections S0, S1, ...: X0 X1 S0 X2 S1 X3 S2 ...: the exponents of a section travel
while the section before it does, so that agreeing costs a round trip at the beginning of a tensor only.

**In memory.** Compiled code keeps no Python object of a tensor, only its address; `f32_at`, `i32_at`, `u16_at` and
`row_at` give arrays over such memory, and whoever gives an address keeps the memory alive. In interpreted mode the same
names give NumPy arrays over the same memory.
"""

import ctypes
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj

from paceline.compile.decorators import compiled, compiled_inner, interpreted
from paceline.core.numbers.fixedpoint import EXPONENT_MAX, EXPONENT_MIN

INTEGERS = 0
EXACT = 1
BLOCKS = 2
MODE_NAMES = ("integers", "exact", "blocks")

FLOAT32 = 0
BFLOAT16 = 1
FLOAT16 = 2
INT32 = 3
DTYPES = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16, "int32": INT32}
ITEM_BYTES = {FLOAT32: 4, BFLOAT16: 2, FLOAT16: 2, INT32: 4}

SUM = 0
AVG = 1
OPS = {"sum": SUM, "avg": AVG}

EXACT_LANES = 13
"""Lanes of a number in the exact form: twelve of 24 bits, one for what is not finite."""
FIELDS = EXPONENT_MAX - EXPONENT_MIN + 3
"""Counters of a block: one for zero, one for each exponent, one for a NaN or an infinity."""
BLOCK_ELEMENTS = 16384
"""About how many numbers share an exponent."""
ELEMENTS_MIN = 96
"""A chunk must have room for the counters of one block, for up to 64 workers, and the signature."""

EXPONENTS = 0
DATA = 1
WHOLE = 2

LAYOUT = np.dtype(
    [
        ("numbers", "i8"),  # numbers in the tensor
        ("chunks", "i8"),  # its chunks, those with exponents among them
        ("data_chunks", "i8"),  # chunks that carry numbers
        ("blocks", "i8"),  # blocks that share an exponent
        ("sections", "i8"),  # sections whose exponents travel together; 0: none do
        ("section_chunks", "i8"),  # data chunks of a section
        ("block_chunks", "i8"),  # data chunks of a block
        ("section_blocks", "i8"),  # blocks of a section
        ("signature", "i4"),  # a hash of size, dtype and operation, which the workers compare
        ("mode", "i4"),  # one of `MODE_NAMES`
        ("elements", "i4"),  # lanes of a full chunk
        ("workers", "i4"),  # how many contribute
        ("lanes", "i4"),  # lanes of a block's counters in an exponent chunk
        ("field_bits", "i4"),  # bits of one counter
    ],
    align=True,
)
"""The layout of one tensor."""

PLACE = np.dtype(
    [
        ("chunk", "i8"),  # its number in the stream; -1: none
        ("task", "i8"),  # the tensor it belongs to
        ("first", "i8"),  # `EXPONENTS`: the section; `DATA`: the first number
        ("count", "i4"),  # lanes that it carries
        ("numbers", "i4"),  # `EXPONENTS`: blocks; else numbers of the tensor
        ("kind", "i4"),  # `EXPONENTS`, `DATA`, or the `WHOLE` tensor
    ],
    align=True,
)
"""What a chunk carries."""


@compiled
def field_bits(workers: int) -> int:
    """Bits of a counter that up to `workers` may raise by one."""
    bits = 1
    while (1 << bits) <= workers:
        bits += 1
    return bits


@compiled
def lay_out(layout: Any, size: int, dtype: int, op: int, elements: int, workers: int) -> None:
    """Fill in the layout of a tensor of `size` numbers, in chunks of `elements` lanes."""
    layout.numbers = size
    layout.elements = elements
    layout.workers = workers
    layout.signature = ((size * 8 + dtype * 2 + op) * 40503 & 0x7FFFFFFF) % 1_000_003
    layout.field_bits = field_bits(workers)
    per_lane = 32 // layout.field_bits
    layout.lanes = (FIELDS + per_lane - 1) // per_lane
    layout.block_chunks = max(1, BLOCK_ELEMENTS // elements)
    layout.section_blocks = max(1, (elements - 1) // layout.lanes)
    layout.section_chunks = layout.section_blocks * layout.block_chunks
    layout.data_chunks = (size + elements - 1) // elements
    layout.blocks = (layout.data_chunks + layout.block_chunks - 1) // layout.block_chunks
    layout.sections = 0
    if dtype == INT32:
        layout.mode = INTEGERS
        layout.chunks = layout.data_chunks
    elif 1 + EXACT_LANES * size <= elements:
        layout.mode = EXACT
        layout.chunks = 1
    else:
        layout.mode = BLOCKS
        layout.sections = (layout.blocks + layout.section_blocks - 1) // layout.section_blocks
        layout.chunks = layout.data_chunks + layout.sections


@compiled
def find_place(layout: Any, local: int, place: Any) -> None:
    """What the tensor's chunk number `local` carries; `place.chunk` and `place.task` are the caller's."""
    if layout.mode == EXACT:
        place.kind = WHOLE
        place.first = 0
        place.numbers = layout.numbers
        place.count = 1 + EXACT_LANES * layout.numbers
        return
    data = local
    if layout.mode == BLOCKS:
        data, section = _of_sections(layout, local)
        if section >= 0:
            place.kind = EXPONENTS
            place.first = section
            blocks = min(layout.section_blocks, layout.blocks - section * layout.section_blocks)
            place.numbers = blocks
            place.count = 1 + layout.lanes * blocks
            return
    place.kind = DATA
    place.first = data * layout.elements
    place.numbers = min(layout.elements, layout.numbers - place.first)
    place.count = place.numbers


@compiled_inner
def _of_sections(layout: Any, local: int) -> Any:
    """(data chunk, -1) or (-1, section whose exponents it carries)."""
    sections = layout.sections
    period = layout.section_chunks + 1
    data = np.int64(-1)
    section = np.int64(-1)
    if local >= sections + (sections - 1) * layout.section_chunks:
        data = np.int64(local - sections)
    elif local < 2:
        section = np.int64(local)
    elif (local - 2) % period == layout.section_chunks:
        section = np.int64((local - 2) // period + 2)
    else:
        data = np.int64((local - 2) // period * layout.section_chunks + (local - 2) % period)
    return data, section


@compiled
def sendable(layout: Any, agreed: int) -> int:
    """How many of its chunks may be sent when the exponents of the first `agreed` sections are known."""
    if layout.mode != BLOCKS or agreed >= layout.sections:
        return int(layout.chunks)
    return int(min(agreed + 2, layout.sections) + agreed * layout.section_chunks)


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
