"""How a tensor becomes chunks: where its numbers are, which of them a chunk carries, and in which order chunks go.

Four forms, chosen by what every worker knows (dtype, size, number of workers, bits of the wire):

- `INTEGERS`: int32 goes as it is.
- `EXACT`: a small float tensor goes in one chunk, each number spread over lanes so wide that sums lose nothing
  (`exact`): one round trip, and the result is the exact sum rounded once.
- `BLOCKS`: numbers go as integers under an exponent that a block shares (`tensors`). Workers first agree on the
  exponents: an *exponent chunk* ahead of its *section* (several blocks) carries, for each block, a counter for each
  possible exponent, of which each worker raises one; the highest counter that is not zero is the maximum.
- `HALVES`: two numbers in a lane, 16 bits each (`halves`). Within a block, *patches* of at most `PATCH` numbers have
  a step of their own: *peak chunks*, which need the exponents, carry a word for each patch, ahead of the section.

Order of the chunks of a tensor with sections S0, S1, ...: X0 X1 S0 X2 S1 X3 S2 ...: the exponents of a section travel
while the section before it does, so that agreeing costs a round trip at the beginning of a tensor only. With peaks
P0, P1, ... it is X0 X1 P0 X2 P1 S0 X3 P2 S1 ..., and two round trips.

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
HALVES = 3
MODE_NAMES = ("integers", "exact", "blocks", "halves")

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

PATCH = 128
"""At most so many numbers share a step in the 16-bit form."""
WIRES = (16, 32)
"""Bits of a number on the wire."""

EXPONENTS = 0
DATA = 1
WHOLE = 2
PEAKS = 3

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
        ("patches", "i8"),  # patches of all data chunks; 0 but for `HALVES`
        ("section_peaks", "i8"),  # peak chunks of a section that is not the last
        ("last_peaks", "i8"),  # peak chunks of the last section
        ("signature", "i4"),  # a hash of size, dtype and operation, which the workers compare
        ("mode", "i4"),  # one of `MODE_NAMES`
        ("elements", "i4"),  # lanes of a full chunk
        ("chunk_numbers", "i4"),  # numbers of a full data chunk
        ("chunk_patches", "i4"),  # patches of a data chunk
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
        ("first", "i8"),  # `EXPONENTS`: the section; `PEAKS`: the first patch; `DATA`: the first number
        ("count", "i4"),  # lanes that it carries
        ("numbers", "i4"),  # `EXPONENTS`: blocks; `PEAKS`: patches; else numbers of the tensor
        ("kind", "i4"),  # `EXPONENTS`, `PEAKS`, `DATA`, or the `WHOLE` tensor
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
def lay_out(layout: Any, size: int, dtype: int, op: int, elements: int, workers: int, wire: int) -> None:
    """Fill in the layout of a tensor of `size` numbers, in chunks of `elements` lanes; `wire` is one of `WIRES`.

    Tensors of one block have nothing to win by the 16-bit form, and stay as they are.
    """
    halves = wire == 16 and dtype != INT32 and size > BLOCK_ELEMENTS
    layout.numbers = size
    layout.elements = elements
    layout.workers = workers
    code = (size * 8 + dtype * 2 + op) * 40503 + (77_777 if halves else 0)
    layout.signature = (code & 0x7FFFFFFF) % 1_000_003
    layout.field_bits = field_bits(workers)
    per_lane = 32 // layout.field_bits
    layout.lanes = (FIELDS + per_lane - 1) // per_lane
    layout.chunk_numbers = 2 * elements if halves else elements
    layout.block_chunks = max(1, BLOCK_ELEMENTS // layout.chunk_numbers)
    layout.section_blocks = max(1, (elements - 1) // layout.lanes)
    layout.section_chunks = layout.section_blocks * layout.block_chunks
    layout.data_chunks = (size + layout.chunk_numbers - 1) // layout.chunk_numbers
    layout.blocks = (layout.data_chunks + layout.block_chunks - 1) // layout.block_chunks
    layout.sections = 0
    layout.patches = 0
    layout.section_peaks = 0
    layout.last_peaks = 0
    layout.chunk_patches = 0
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
    if halves:
        layout.mode = HALVES
        layout.chunk_patches = 2 * ((elements + PATCH - 1) // PATCH)
        layout.patches = layout.data_chunks * layout.chunk_patches
        last = layout.patches - (layout.sections - 1) * layout.section_chunks * layout.chunk_patches
        layout.section_peaks = (layout.section_chunks * layout.chunk_patches + elements - 1) // elements
        layout.last_peaks = (last + elements - 1) // elements
        layout.chunks += (layout.sections - 1) * layout.section_peaks + layout.last_peaks


@compiled
def find_place(layout: Any, local: int, place: Any) -> None:
    """What the tensor's chunk number `local` carries; `place.chunk` and `place.task` are the caller's."""
    if layout.mode == EXACT:
        place.kind = WHOLE
        place.first = 0
        place.numbers = layout.numbers
        place.count = 1 + EXACT_LANES * layout.numbers
        return
    data = np.int64(local)
    section = np.int64(-1)
    peaks = np.int64(-1)
    if layout.mode == BLOCKS:
        data, section = _of_sections(layout, local)
    elif layout.mode == HALVES:
        data, section, peaks = _of_halves(layout, local)
    if peaks >= 0:
        place.kind = PEAKS
        in_section = layout.section_chunks * layout.chunk_patches
        place.first = section * in_section + peaks * layout.elements
        end = min(layout.patches, (section + 1) * in_section)
        place.numbers = min(layout.elements, end - place.first)
        place.count = place.numbers
    elif section >= 0:
        place.kind = EXPONENTS
        place.first = section
        blocks = min(layout.section_blocks, layout.blocks - section * layout.section_blocks)
        place.numbers = blocks
        place.count = 1 + layout.lanes * blocks
    else:
        place.kind = DATA
        place.first = data * layout.chunk_numbers
        place.numbers = min(layout.chunk_numbers, layout.numbers - place.first)
        place.count = (place.numbers + 1) // 2 if layout.mode == HALVES else place.numbers


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


@compiled_inner
def _last_turn(layout: Any) -> int:
    """`HALVES`: the chunk from which on no exponents come: the last peaks, the last but one section, the last."""
    if layout.sections == 1:
        return 1
    period = 1 + layout.section_peaks + layout.section_chunks
    return int(2 + layout.section_peaks + (layout.sections - 2) * period)


@compiled_inner
def _of_halves(layout: Any, local: int) -> Any:
    """(data chunk, -1, -1), (-1, section whose exponents it carries, -1) or (-1, section, which of its peak chunks)."""
    peaks = layout.section_peaks
    period = 1 + peaks + layout.section_chunks
    last = _last_turn(layout)
    data = np.int64(-1)
    section = np.int64(-1)
    which = np.int64(-1)
    if local >= last + layout.last_peaks:
        data = np.int64(
            max(0, layout.sections - 2) * layout.section_chunks + local - last - layout.last_peaks
        )
    elif local >= last:
        section = np.int64(layout.sections - 1)
        which = np.int64(local - last)
    elif local < 2:
        section = np.int64(local)
    elif local < 2 + peaks:
        section = np.int64(0)
        which = np.int64(local - 2)
    else:
        turn = (local - 2 - peaks) // period
        at = (local - 2 - peaks) % period
        if at == 0:
            section = np.int64(turn + 2)
        elif at <= peaks:
            section = np.int64(turn + 1)
            which = np.int64(at - 1)
        else:
            data = np.int64(turn * layout.section_chunks + at - 1 - peaks)
    return data, section, which


@compiled
def sendable(layout: Any, agreed: int, peaked: int) -> int:
    """How many of its chunks may be sent: those ahead of the first that needs what is not known.

    Known are the exponents of the first `agreed` sections and, in the 16-bit form, the peaks of the first `peaked`.
    """
    if layout.mode == HALVES:
        return int(min(_peaks_at(layout, agreed), _numbers_at(layout, peaked)))
    if layout.mode != BLOCKS or agreed >= layout.sections:
        return int(layout.chunks)
    return int(min(agreed + 2, layout.sections) + agreed * layout.section_chunks)


@compiled_inner
def _peaks_at(layout: Any, section: int) -> int:
    """The first peak chunk of a section."""
    if section >= layout.sections:
        return int(layout.chunks)
    if section == layout.sections - 1:
        return int(_last_turn(layout))
    if section == 0:
        return 2
    period = 1 + layout.section_peaks + layout.section_chunks
    return int(3 + layout.section_peaks + (section - 1) * period)


@compiled_inner
def _numbers_at(layout: Any, section: int) -> int:
    """`HALVES`: the first data chunk of a section."""
    if section >= layout.sections:
        return int(layout.chunks)
    ahead = layout.sections - 2
    if section >= ahead:
        skipped = section - max(0, ahead)
        return int(_last_turn(layout) + layout.last_peaks + skipped * layout.section_chunks)
    period = 1 + layout.section_peaks + layout.section_chunks
    return int(3 + 2 * layout.section_peaks + section * period)


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
