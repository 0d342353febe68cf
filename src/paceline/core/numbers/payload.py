"""Tensors to packets and back, in the pass that writes or reads the packet.

`layout` says which numbers a chunk carries, and in which form. Here a chunk's payload is written from a tensor
(`write_chunk`) and a result's payload is read into it (`read_chunk`); both are bit for bit the same on every worker.
`exponents` holds what the workers have agreed on: the exponent of each block and, behind them, the step of each patch.

**Integers** wrap modulo 2**32. **avg** divides the sum by n: floats before the one rounding, integers towards zero.
"""

from typing import Any

import numpy as np

from paceline.compile.decorators import compiled
from paceline.core.numbers.blocks import DISAGREED, read_block, read_exponents, write_block, write_exponents
from paceline.core.numbers.exact import read_exact, write_exact
from paceline.core.numbers.halves import read_halves, read_peaks, write_halves, write_peaks
from paceline.core.numbers.layout import AVG, DATA, EXPONENTS, HALVES, INT32, PEAKS, i32_at


@compiled
def write_chunk(layout: Any, place: Any, address: int, kind: int, exponents: Any, payload: int) -> None:
    """Write a chunk's payload, `place.count` integers at the address `payload`, from the tensor at `address`."""
    out = i32_at(payload, place.count)
    if place.kind == EXPONENTS:
        write_exponents(layout, place, address, kind, out)
    elif place.kind == PEAKS:
        write_peaks(layout, place, address, kind, exponents, out)
    elif place.kind != DATA:
        write_exact(address, kind, layout.signature, out)
    elif kind == INT32:
        values = i32_at(address + 4 * place.first, place.count)
        for i in range(place.count):
            out[i] = values[i]
    elif layout.mode == HALVES:
        write_halves(layout, place, address, kind, exponents, payload)
    else:
        exponent = exponents[place.first // (layout.block_chunks * layout.elements)]
        write_block(place, address, kind, exponent, layout.workers, out)


@compiled
def read_chunk(
    layout: Any, place: Any, address: int, kind: int, op: int, exponents: Any, payload: int
) -> int:
    """Read a result's payload into the tensor, or into `exponents`; 0, or `DISAGREED`."""
    values = i32_at(payload, place.count)
    divisor = layout.workers if op == AVG else 1
    if place.kind == EXPONENTS:
        return int(read_exponents(layout, place, values, exponents))
    if place.kind == PEAKS:
        return int(read_peaks(layout, place, values, exponents))
    if place.kind != DATA:
        if values[0] != layout.signature * layout.workers:
            return DISAGREED
        read_exact(values, address, kind, divisor, layout.numbers)
    elif kind == INT32:
        out = i32_at(address + 4 * place.first, place.count)
        if divisor == 1:
            for i in range(place.count):
                out[i] = values[i]
        else:
            for i in range(place.count):
                total = np.int64(values[i])
                out[i] = total // divisor if total >= 0 else -(-total // divisor)
    elif layout.mode == HALVES:
        read_halves(layout, place, payload, exponents, divisor, address, kind)
    else:
        exponent = exponents[place.first // (layout.block_chunks * layout.elements)]
        read_block(place, values, exponent, layout.workers, divisor, address, kind)
    return 0
