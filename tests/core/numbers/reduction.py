"""What agents do with a tensor, without a network."""

from typing import Any

import numpy as np

from paceline.core.numbers import layout as tensors_layout
from paceline.core.numbers import payload as payloads
from paceline.core.numbers.layout import DTYPES, LAYOUT, OPS, PLACE


def new_layout(numbers: int, kind: int, op: int, elements: int, workers: int, wire: int = 32) -> Any:
    """The layout of a tensor."""
    layout = np.zeros(1, dtype=LAYOUT).view(np.recarray)[0]
    tensors_layout.lay_out(layout, numbers, kind, op, elements, workers, wire)
    return layout


def reduce_all(arrays: list[Any], dtype: str, op: str = "sum", elements: int = 96, wire: int = 32) -> Any:
    """What the agents do with a tensor, without a network: the result of the first worker."""
    kind, code = DTYPES[dtype], OPS[op]
    workers = len(arrays)
    arrays = [array.copy() for array in arrays]
    layout = new_layout(arrays[0].size, kind, code, elements, workers, wire)
    place = np.zeros(1, dtype=PLACE).view(np.recarray)[0]
    exponents = [np.full(layout.blocks + layout.patches, 9999, dtype=np.int32) for _ in arrays]
    payload = np.zeros(elements, dtype=np.int32)
    for local in range(layout.chunks):
        tensors_layout.find_place(layout, local, place)
        total = np.zeros(elements, dtype=np.int64)
        for array, own in zip(arrays, exponents, strict=True):
            payload[:] = 77
            payloads.write_chunk(layout, place, array.ctypes.data, kind, own, payload.ctypes.data)
            total += payload
        payload[:] = ((total + 2**31) % 2**32 - 2**31).astype(np.int32)
        for array, own in zip(arrays, exponents, strict=True):
            address = payload.ctypes.data
            status = payloads.read_chunk(layout, place, array.ctypes.data, kind, code, own, address)
            assert status == 0
    for array in arrays[1:]:
        assert array.tobytes() == arrays[0].tobytes()
    return arrays[0]


def to_bfloat16(values: Any) -> Any:
    """The bit patterns of float32 numbers, cut to bfloat16."""
    return (np.asarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bfloat16(bits: Any) -> Any:
    """The numbers of bit patterns."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
