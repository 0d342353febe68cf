"""The reduction between ranks of one host, step by step: who copies, who adds, who waits.

A tensor is cut into *pieces* that fit the caches. Each rank copies its piece into shared memory, each adds
one slice of it over all ranks, each copies the sum out. The three overlap: in step t a rank puts piece t,
adds its slice of piece t - 1 and takes piece t - 2, so there is one barrier a piece. Two sets of buffers are
enough: a rank that is a barrier ahead writes what nobody reads any more. A *small* tensor needs one barrier in
all: every rank adds everything itself.

`reduce_*` gives the sum to every rank, or to one (`root`); `give_*` hands one rank's values to all. The
result goes to `target`, which may be the tensor itself. 16-bit values are float32 in shared memory and
rounded once, on the way out."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.compile.decorators import compiled, compiled_inner
from paceline.live.hostmem import barrier as sync
from paceline.live.hostmem import kernels
from paceline.live.hostmem.barrier import barrier, describe, differ
from paceline.live.hostmem.kernels import add_slices, copy, divide, narrow, widen

_OK = sync.OK
_DIFFERENT = sync.DIFFERENT
_INT32, _FLOAT32 = kernels.INT32, kernels.FLOAT32
_SLICE = 16
"""Slices begin at multiples of so many elements: two ranks never write one cache line."""

Array = npt.NDArray[Any]

STATE = np.dtype(
    [
        ("words_address", np.int64),  # address of the words that ranks share
        ("fds_address", np.int64),  # address of the records for `poll`
        ("times_address", np.int64),  # address of the records for clocks and time-outs
        ("timeout_ns", np.int64),  # how long a rank waits for the others
        ("rank", np.int64),  # this rank's number on the host
        ("ranks", np.int64),  # ranks on the host
        ("spins", np.int64),  # looks at a word before the rank sleeps
        ("turn", np.int64),  # the last barrier that it has reached
        ("set", np.int64),  # the buffers to use next, of two
        ("elements", np.int64),  # numbers of its tensor
        ("form", np.int64),  # dtype and operation; all ranks must agree on these and on `elements`
    ]
)
"""A rank's side of a channel: where things are, the last barrier it has reached, the buffers to use next, and the
description of its tensor (`elements`, `form`), which all ranks must have in common."""


class Channel(NamedTuple):
    """What compiled code needs of a channel."""

    words: npt.NDArray[np.int32]
    fds: npt.NDArray[np.int32]
    times: npt.NDArray[np.int64]
    state: npt.NDArray[Any]


@compiled
def cross(channel: Channel) -> int:
    """The next barrier."""
    s = channel.state[0]
    s.turn += 1
    return barrier(
        channel.words,
        s.words_address,
        channel.fds,
        s.fds_address,
        channel.times,
        s.times_address,
        s.rank,
        s.ranks,
        s.turn,
        s.spins,
        s.timeout_ns,
    )


@compiled
def meet(channel: Channel) -> int:
    """The first barrier of a reduction: a rank that passes it knows that all ranks have brought the same tensor."""
    s = channel.state[0]
    describe(channel.words, s.rank, s.turn + 1, s.elements, s.form)
    code = cross(channel)
    if code == _OK and differ(channel.words, s.ranks, s.turn):
        return _DIFFERENT
    return code


@compiled_inner
def _slice_begin(count: int, ranks: int, rank: int) -> int:
    """Where a rank's slice of `count` elements begins; that of rank `ranks` is the end."""
    each = (count + ranks - 1) // ranks
    each = (each + _SLICE - 1) // _SLICE * _SLICE
    return min(count, rank * each)


@compiled
def _add(
    channel: Channel, shared: Array, out: Array, piece: int, which: int, count: int, divisor: int, kind: int
) -> None:
    """This rank's slice of the piece in buffers `which`."""
    s = channel.state[0]
    begin = _slice_begin(count, s.ranks, s.rank)
    size = _slice_begin(count, s.ranks, s.rank + 1) - begin
    at = which * s.ranks * piece + begin
    to = which * piece + begin
    add_slices(shared, piece, s.ranks, at, out, to, size)
    if divisor > 1:
        divide(out, to, size, divisor, kind)


@compiled
def reduce_same(
    channel: Channel,
    values: Array,
    target: Array,
    shared: Array,
    out: Array,
    piece: int,
    divisor: int,
    kind: int,
    root: int,
) -> int:
    """float32 or int32: sum (divided by `divisor`) into `target` of `root`, or of all where it is -1."""
    s = channel.state[0]
    count = values.shape[0]
    pieces = (count + piece - 1) // piece
    for step in range(pieces + 2):
        if step < pieces:
            at = step * piece
            to = ((s.set + step) % 2 * s.ranks + s.rank) * piece
            copy(values, at, shared, to, min(piece, count - at))
        if 0 < step <= pieces:
            at = (step - 1) * piece
            _add(channel, shared, out, piece, (s.set + step - 1) % 2, min(piece, count - at), divisor, kind)
        if step >= 2 and (root < 0 or root == s.rank):
            at = (step - 2) * piece
            copy(out, (s.set + step - 2) % 2 * piece, target, at, min(piece, count - at))
        if step <= pieces:
            code = meet(channel) if step == 0 else cross(channel)
            if code != _OK:
                return code
    s.set = (s.set + pieces) % 2
    return _OK


@compiled
def reduce_16(
    channel: Channel,
    values: Array,
    target: Array,
    wide: Array,
    shared: Array,
    out: Array,
    piece: int,
    divisor: int,
    kind: int,
    root: int,
) -> int:
    """16-bit patterns: the sum into `target`, rounded, of all; or, unrounded, into `wide` of `root`."""
    s = channel.state[0]
    count = values.shape[0]
    pieces = (count + piece - 1) // piece
    for step in range(pieces + 2):
        if step < pieces:
            at = step * piece
            to = ((s.set + step) % 2 * s.ranks + s.rank) * piece
            widen(values, at, shared, to, min(piece, count - at), kind)
        if 0 < step <= pieces:
            at = (step - 1) * piece
            _add(
                channel, shared, out, piece, (s.set + step - 1) % 2, min(piece, count - at), divisor, _FLOAT32
            )
        if step >= 2:
            at = (step - 2) * piece
            source = (s.set + step - 2) % 2 * piece
            if root == s.rank:
                copy(out, source, wide, at, min(piece, count - at))
            elif root < 0:
                narrow(out, source, target, at, min(piece, count - at), kind)
        if step <= pieces:
            code = meet(channel) if step == 0 else cross(channel)
            if code != _OK:
                return code
    s.set = (s.set + pieces) % 2
    return _OK


@compiled
def reduce_small(
    channel: Channel, values: Array, target: Array, shared: Array, piece: int, divisor: int, kind: int
) -> int:
    """float32 or int32 of at most one piece, to all, with one barrier."""
    s = channel.state[0]
    count = values.shape[0]
    base = s.set % 2 * s.ranks * piece
    copy(values, 0, shared, base + s.rank * piece, count)
    code = meet(channel)
    if code != _OK:
        return code
    add_slices(shared, piece, s.ranks, base, target, 0, count)
    if divisor > 1:
        divide(target, 0, count, divisor, kind)
    s.set = (s.set + 1) % 2
    return _OK


@compiled
def give_same(
    channel: Channel, values: Array, target: Array, out: Array, piece: int, divisor: int, kind: int, root: int
) -> int:
    """float32 or int32: `values` of `root`, divided, into every rank's `target`."""
    s = channel.state[0]
    count = target.shape[0]
    for begin in range(0, count, piece):
        size = min(piece, count - begin)
        base = s.set % 2 * piece
        if s.rank == root:
            copy(values, begin, out, base, size)
            if divisor > 1:
                divide(out, base, size, divisor, kind)
        code = meet(channel) if begin == 0 else cross(channel)
        if code != _OK:
            return code
        copy(out, base, target, begin, size)
        s.set = (s.set + 1) % 2
    return _OK


@compiled
def give_16(
    channel: Channel, values: Array, target: Array, out: Array, piece: int, divisor: int, kind: int, root: int
) -> int:
    """float32 `values` of `root`, divided and rounded to 16 bits, into every rank's `target`."""
    s = channel.state[0]
    count = target.shape[0]
    for begin in range(0, count, piece):
        size = min(piece, count - begin)
        base = s.set % 2 * piece
        if s.rank == root:
            copy(values, begin, out, base, size)
            if divisor > 1:
                divide(out, base, size, divisor, _FLOAT32)
        code = meet(channel) if begin == 0 else cross(channel)
        if code != _OK:
            return code
        narrow(out, base, target, begin, size, kind)
        s.set = (s.set + 1) % 2
    return _OK
